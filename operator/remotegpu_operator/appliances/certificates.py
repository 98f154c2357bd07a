"""Creates keys and certificates, and decides when to change them. No I/O and no clock: callers pass `now`.

A certificate authority is rotated in overlapping steps, because verifiers get a new bundle later than servers could get
new certificates:
1. The new authority is added to the bundle. The old authority still signs, for the time `OVERLAP`.
2. The new authority signs, and every leaf is renewed. The old authority stays in the bundle.
3. The old authority is removed from the bundle, `OVERLAP` after its last leaf was replaced.
"""

import datetime
import ipaddress
from dataclasses import dataclass, replace
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFETIME: Final = datetime.timedelta(days=365)
LEAF_LIFETIME: Final = datetime.timedelta(days=90)
# Longer than a kubelet needs to update a file from a pod's annotation: about a minute and a half.
OVERLAP: Final = datetime.timedelta(minutes=10)
# Certificates are valid from earlier than now, because the clock of another machine may be slow.
_BACKDATED: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str

    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate.encode())


@dataclass(frozen=True, slots=True)
class Authority:
    """The state of a rotation: the authority that signs, the next one and the previous one."""

    signer: Pair
    generation: str
    # The start of the present step.
    since: datetime.datetime
    next: Pair | None = None
    next_generation: str = ""
    # The previous authority's certificate without its key: its leaves are still trusted, and it signs nothing more.
    previous: str = ""

    @property
    def bundle(self) -> str:
        """All certificates that verifiers trust, as PEM, the signer's first."""
        found = [self.signer.certificate, self.next.certificate if self.next else "", self.previous]
        return "".join(f"{text.strip()}\n" for text in found if text)


def new_authority(now: datetime.datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities have different names, so that no verifier builds a chain with the wrong authority.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"remotegpu CA {now:%Y-%m-%dT%H:%M:%SZ}")])
    certificate = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def new_leaf(signer: Pair, names: tuple[str, ...], now: datetime.datetime) -> Pair:
    """Issues a certificate for a server with these DNS names or IP addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = signer.parsed()
    signing = serialization.load_pem_private_key(signer.key.encode(), password=None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    # A leaf does not outlive its authority.
    lifetime = min(LEAF_LIFETIME, authority.not_valid_after_utc - now)
    certificate = (
        _builder(name, authority.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(_authority_key(authority), critical=False)
        .sign(signing, hashes.SHA256())  # type: ignore[arg-type]  # an RSA key works, too
    )
    return _pair(certificate, key)


def leaf_is_good(leaf: str, signer: Pair, names: tuple[str, ...], now: datetime.datetime) -> bool:
    """Whether the leaf is signed by `signer`, has exactly these names, and is not in the last third of its lifetime."""
    try:
        certificate = x509.load_pem_x509_certificate(leaf.encode())
        certificate.verify_directly_issued_by(signer.parsed())
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:
        return False
    return list(found) == [_name(each) for each in names] and not _worn(certificate, now)


def expiry(certificate: str) -> datetime.datetime | None:
    """Returns the time at which the certificate expires; None if the text is not a certificate."""
    try:
        return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    except ValueError:
        return None


def signed_by(leaf: str, authority: str) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(leaf.encode())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
    except Exception:
        return False
    return True


def advance(
    authority: Authority,
    now: datetime.datetime,
    *,
    generation: str,
    leaves: list[str],
    given: Pair | None = None,
) -> Authority:
    """Returns the authority after at most one step of a rotation that is due.

    A rotation begins when `generation` changes or when the signer is old. With `given`, an authority from another
    provider, a rotation begins when `given` changes. `leaves` are all issued certificates as PEM.
    """
    over = now - authority.since >= OVERLAP
    if authority.previous:
        if any(signed_by(leaf, authority.previous) for leaf in leaves):
            return replace(authority, since=now)
        return replace(authority, previous="", since=now) if over else authority
    if authority.next is not None:
        signing = Authority(authority.next, authority.next_generation, now, previous=authority.signer.certificate)
        return signing if over else authority
    if given is not None:
        change = given.certificate.strip() != authority.signer.certificate.strip()
    else:
        change = authority.generation != generation or _worn(authority.signer.parsed(), now)
    if not change:
        return authority
    return replace(authority, next=given or new_authority(now), next_generation=generation, since=now)


def _worn(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= start + (end - start) * 2 / 3


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _authority_key(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        found = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(found)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(encoding).decode(), private.decode())

"""Keys and certificates of a cluster, and the kubeconfig files that carry them."""

from __future__ import annotations

import datetime
import ipaddress
import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

LIFE = datetime.timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        """Writes `name.crt` and `name.key`, the key readable by its owner alone."""
        (folder / f"{name}.crt").write_bytes(self.certificate)
        key = folder / f"{name}.key"
        key.touch(mode=0o600)
        key.write_bytes(self.key)


class Authority:
    """A certificate authority that lives as long as the process: a cluster's certificates are all made at once."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, organization: str = "", subjects: tuple[str, ...] = ()) -> Pair:
        """Issues a certificate for a server with these names and addresses; it also serves as a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        builder = _builder(x509.Name(attributes), self._name, key.public_key())
        if subjects:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_subject(s) for s in subjects]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def service_account_keys(folder: Path) -> None:
    """`service-account.key` signs the tokens of service accounts, `service-account.pub` verifies them."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "service-account.key").write_bytes(_private_pem(key))
    (folder / "service-account.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def kubeconfig(server: str, authority: bytes, credentials: Pair | str, context: str = "remotegpu-e2e") -> str:
    """Returns the kubeconfig of the holder of a client certificate or a bearer token; JSON, which is YAML too."""
    user: dict[str, str] = (
        {"token": credentials}
        if isinstance(credentials, str)
        else {
            "client-certificate-data": b64encode(credentials.certificate).decode(),
            "client-key-data": b64encode(credentials.key).decode(),
        }
    )
    cluster = {"server": server, "certificate-authority-data": b64encode(authority).decode()}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    return json.dumps(content, indent=1) + "\n"


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFE)
    )


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

"""The command `remotegpu appliance init`: creates a CA, the appliance's certificate, tokens and a systemd unit.

The service has one folder. The CA's key and the administrator's token are in another one, which it never reads.
"""

import contextlib
import datetime
import ipaddress
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from remotegpu.api.addresses import EVERYWHERE
from remotegpu.appliance.secret_files import ADMIN_TOKEN, CA_KEY, administrators_folder
from remotegpu.cli import exits
from remotegpu.rpc.client import DEFAULT_PORT, Endpoint

_AUTHORITY_DAYS: Final = 3650
# After this time, run `init` again. The clients then need the new CA.
_SERVER_DAYS: Final = 825
# All addresses of both families.
_LISTEN: Final = f"[{EVERYWHERE}]:{DEFAULT_PORT}"
_ALWAYS: Final = ("localhost", "127.0.0.1")
# The command that starts the appliance, and the file for each option.
_SERVE: Final = ("-m", "remotegpu.cli", "appliance")
_OPTIONS: Final = {"cert": "server.pem", "key": "server.key", "tokens": "tokens"}
_UNIT: Final = "remotegpu-appliance.service"
# On SIGTERM the leases have --drain-seconds to end, then the appliance ends its workers. On SIGHUP the appliance's
# Python restarts, perhaps with another version, and sessions continue.
_UNIT_TEXT: Final = """\
[Unit]
Description=Shares of the GPUs of this machine (remotegpu)
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=60
# Cgroups of its own, for what each lease may take of this machine.
Delegate=yes
LimitNOFILE=1048576
LimitMEMLOCK=infinity
NoNewPrivileges=yes
ProtectSystem=full
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def init(folder: Path, hosts: Sequence[str], backend: str) -> str:
    """Creates the files in two new folders. Returns a text with the commands that use them. Raises CliError."""
    hosts = hosts or [socket.gethostname()]
    administrators = administrators_folder(folder)
    for each in (folder, administrators):
        _make_folder(each)
    now = datetime.datetime.now(datetime.UTC)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _authority(authority, now)
    admin, user = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    serve = [*_SERVE, f"--backend={backend}", f"--listen={_LISTEN}"]
    serve += [f"--{option}={folder.resolve() / name}" for option, name in _OPTIONS.items()]
    for name, content in (
        ("ca.pem", ca.public_bytes(serialization.Encoding.PEM)),
        (
            "server.pem",
            _server(server, ca, authority, [*hosts, *_ALWAYS], now).public_bytes(serialization.Encoding.PEM),
        ),
        ("server.key", _pem(server)),
        ("tokens", f"[admin]\nadmin:{admin}\n\n[user]\nuser:{user}\n".encode()),
        ("user.token", f"{user}\n".encode()),
        (_UNIT, _UNIT_TEXT.format(command=" ".join(map(_unit_word, [sys.executable, *serve]))).encode()),
    ):
        _write(folder / name, content, 0o644 if name.endswith((".pem", ".service")) else 0o600)
    for name, content in ((CA_KEY, _pem(authority)), (ADMIN_TOKEN, f"{admin}\n".encode())):
        _write(administrators / name, content, 0o600)
    pem, key, tokens, ca_pem, token, unit = (
        shlex.quote(str(folder / name))
        for name in ("server.pem", "server.key", "tokens", "ca.pem", "user.token", _UNIT)
    )
    return f"""{folder} has a certificate for {", ".join(hosts)}, and the tokens of an administrator and a user.

The appliance, on this machine:

    remotegpu appliance --backend {backend} --listen {shlex.quote(_LISTEN)} --cert {pem} --key {key} --tokens {tokens}

The same as a service of systemd, which starts it with the machine and after a failure:

    sudo cp {unit} /etc/systemd/system/ && sudo systemctl enable --now remotegpu-appliance

A program, where ca.pem and user.token were copied to:

    remotegpu run --appliance {Endpoint(hosts[0], DEFAULT_PORT)} --ca {ca_pem} --token-file {token} -- python train.py

{administrators} has {CA_KEY}, which makes certificates that your clients believe, and {ADMIN_TOKEN}. The appliance
needs neither: keep that folder somewhere else."""


def _unit_word(text: str) -> str:
    """Quotes a word for systemd: as for a shell, and also the two characters that are special only in systemd."""
    return shlex.quote(text).replace("%", "%%").replace("$", "$$")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise exits.CliError(exits.USAGE, f"{folder} is not empty: name a new folder, so that no key is lost")
        folder.chmod(0o700)
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"{folder} cannot be used: {error.strerror}; name another folder") from None


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    name = _name("remotegpu authority")
    builder = _builder(name, name, key, now, _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())


def _server(
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    authority: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    now: datetime.datetime,
) -> x509.Certificate:
    names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
    builder = _builder(_name("remotegpu appliance"), ca.subject, key, now, _SERVER_DAYS)
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return builder.add_extension(issuer, critical=False).sign(authority, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise exits.CliError(exits.USAGE, f"--host {host!r} is neither a name nor an address") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, serialization.NoEncryption())

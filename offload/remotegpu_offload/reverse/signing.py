"""The server's signing key: created at the first use, in a file that only its owner may read."""

import os
from pathlib import Path

from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.manifest import Envelope, Manifest


class Signer:
    """Signs with the Ed25519 key in a PEM file, which is created if it is missing. Raises ReverseError."""

    def __init__(self, file: Path) -> None:
        try:
            from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 (needed only by the server)
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
        except ImportError:
            raise ReverseError(
                "signing needs the package cryptography: install it with `pip install cryptography`"
            ) from None
        try:
            if not file.exists():
                made = Ed25519PrivateKey.generate().private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                file.parent.mkdir(parents=True, exist_ok=True)
                # O_EXCL: two servers that start at the same time must not create two keys.
                with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as created:
                    created.write(made)
            key = serialization.load_pem_private_key(file.read_bytes(), password=None)
        except FileExistsError:
            raise ReverseError(f"{file} was made by somebody else just now: start again") from None
        except (OSError, ValueError, TypeError) as error:
            raise ReverseError(f"the key {file} cannot be used: {error}; name another file by --key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ReverseError(f"{file} is no Ed25519 key: name another file by --key, which is made if it is missing")
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    def sign(self, manifest: Manifest) -> Envelope:
        content = manifest.to_bytes()
        return Envelope(content, self.public, self._key.sign(content))

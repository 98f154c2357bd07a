"""The signature and the manifest, without a network: against `cryptography`, and against what nobody of ours writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from remotegpu_offload.reverse import bootstrap, ed25519, manifest
from remotegpu_offload.reverse.collect import collect
from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.manifest import File, Manifest, Permissions, closure, key_text, opened, parse, parse_key
from remotegpu_offload.reverse.opening import satisfied
from remotegpu_offload.reverse.signing import Signer

ORDER = 2**252 + 27742317777372353535851937790883648493
DIGEST = "0" * 64


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.integers(0, 511), st.binary(min_size=1))
def test_signatures_are_those_of_cryptography(seed: bytes, message: bytes, bit: int, more: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert ed25519.verify(public, message, signature)
    changed = bytearray(signature)
    changed[bit // 8] ^= 1 << bit % 8
    assert not ed25519.verify(public, message, bytes(changed))
    assert not ed25519.verify(public, message + more, signature)
    assert not ed25519.verify(Ed25519PrivateKey.generate().public_key().public_bytes_raw(), message, signature)


def test_a_signature_has_one_form() -> None:
    """Adding the group's order to its second half gives another 64 bytes that a careless verifier would take."""
    key = Ed25519PrivateKey.from_private_bytes(b"\1" * 32)
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"m")
    other = signature[:32] + (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
    assert not ed25519.verify(public, b"m", other)


@given(st.binary(max_size=100), st.binary(max_size=100))
@settings(deadline=None)
def test_nothing_makes_the_verifier_raise(key: bytes, signature: bytes) -> None:
    assert not ed25519.verify(key, b"m", signature)
    assert not ed25519.verify((key + b"\xff" * 32)[:32], b"m", (signature + b"\xff" * 64)[:64])


def test_test_vector_of_the_rfc() -> None:
    """RFC 8032, 7.1, TEST 2."""
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert ed25519.verify(public, b"\x72", signature)


SMALL = Manifest(
    "app", "a.py", "3.11", 5, Permissions(("./in",), (), ("X",)), ("numpy>=2",),
    {"a.py": File(DIGEST, 1, ("b/__init__.py",)), "b/__init__.py": File(DIGEST, 2)},
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    signer = Signer(tmp_path / "keys" / "serve.pem")
    assert opened(signer.sign(SMALL).to_bytes()) == (SMALL, signer.public)
    # The key stays; and only its owner reads it.
    assert Signer(tmp_path / "keys" / "serve.pem").public == signer.public
    assert (tmp_path / "keys" / "serve.pem").stat().st_mode & 0o077 == 0
    assert parse_key(key_text(signer.public)) == signer.public
    (tmp_path / "keys" / "serve.pem").write_text("no key")
    with pytest.raises(ReverseError, match=r"serve\.pem"):
        Signer(tmp_path / "keys" / "serve.pem")


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(SMALL.to_bytes()), **fields}).encode()


def with_file(path: str, **fields: Any) -> bytes:
    files = json.loads(SMALL.to_bytes())["files"]
    return changed(files={**files, path: {"sha256": DIGEST, "size": 1, "imports": [], **fields}})


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"[]", "manifest"),
        (b"{", "JSON"),
        (b"[" * 100_000, "JSON"),
        (changed(format=2), "2"),
        (changed(name="../x"), "../x"),
        (changed(entry="c.py"), "c.py"),
        (changed(python="2.7"), "2.7"),
        (changed(issued=-1), "-1"),
        (changed(issued=True), "True"),
        (changed(requirements="numpy"), "requirements"),
        # A terminal would show these permissions as others.
        (changed(permissions={"read": ["\x1b[2K/etc"]}), repr("\x1b[2K/etc")),
        (changed(permissions=[]), "permissions"),
        *(
            (with_file(path), repr(path))
            for path in ("/etc/passwd", "../x", "a/../../x", "a//b", "./a", "C:x", "a\\b", "a/\0", "a /b", "x" * 1025)
        ),
        (with_file("a.py/b"), "a.py"),
        (with_file("c", sha256="../../x"), "../../x"),
        (with_file("c", sha256=None), "sha256 of c"),
        (with_file("c", size=-1), "-1"),
        (with_file("c", size=1 << 40), str(1 << 40)),
        (with_file("c", imports=["d"]), "'d'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(content: bytes, name: str) -> None:
    with pytest.raises(ReverseError, match=re.escape(name)):
        parse(content)


@given(st.binary(max_size=300))
def test_any_answer_is_a_manifest_or_a_sentence(content: bytes) -> None:
    with pytest.raises(ReverseError):
        opened(content)


def test_files_come_with_what_they_import() -> None:
    files = {"a": File(DIGEST, 1, ("b", "c")), "b": File(DIGEST, 1, ("a",)), "c": File(DIGEST, 1), "d": File(DIGEST, 1)}
    assert closure(files, ["a"]) == ["a", "b", "c"]
    assert closure(files, ["d", "c"]) == ["d", "c"]


def test_a_folder_without_a_program_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(ReverseError, match=r"\b__main__\.py, main\.py, app\.py\b.*--entry"):
        collect(tmp_path, "x")
    with pytest.raises(ReverseError, match=r"\brun\.py\b"):
        collect(tmp_path, "x", entry="run.py")
    with pytest.raises(ReverseError, match="X y"):
        collect(tmp_path, "X y")
    with pytest.raises(ReverseError, match="nowhere"):
        collect(tmp_path / "nowhere", "x")


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        ("pytest", True), ("pytest>=9", True), ("pytest>=9,<100", True), ("pytest<9", False), ("pytest~=9.0", True),
        ("pytest!=9999", True), ("pytest==9999", False), ("no-such-package", False), ("pytest>9999", False),
        ("pytest[extra]>=1 ; python_version > '3'", True), ("@@@", False),
    ],
)  # fmt: skip
def test_requirements(requirement: str, holds: bool) -> None:
    assert satisfied(requirement) is holds


def test_the_bootstrap_is_the_same_every_time() -> None:
    assert bootstrap.build() == bootstrap.build()
    assert manifest.__name__.replace(".", "/").removeprefix("remotegpu_offload/") + ".py" in bootstrap.FILES

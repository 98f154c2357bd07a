"""The bundle of `remotegpu doctor`: it has what a bug report needs, and no secret of what was read for it."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU

from remotegpu.api.quantities import Ask
from remotegpu.appliance.secret_files import administrators_folder
from remotegpu.cli.doctor.bundle import Redactor
from remotegpu.rpc.client import Access


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "secrets"
    command = [REMOTEGPU, "appliance", "init", str(folder), "--host", "127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def guarded(dist: Path, secrets: Path) -> Iterator[StandIn]:
    """With TLS and tokens."""
    options = [f"--{name}={secrets / file}" for name, file in
               (("cert", "server.pem"), ("key", "server.key"), ("tokens", "tokens"))]  # fmt: skip
    token = (administrators_folder(secrets) / "admin.token").read_text().strip()
    with StandIn(dist, *options, access=Access(token=token, ca=secrets / "ca.pem")) as it:
        yield it


def unpacked(file: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(file) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            found[entry.name.removeprefix("remotegpu-doctor/")] = content.read().decode()
    return found


def test_nothing_secret_is_in_it(guarded: StandIn, secrets: Path, tmp_path: Path) -> None:
    lease = guarded.lease(Ask(milli_per_gpu=250))
    try:
        file = tmp_path / "bundle.tar.gz"
        guarded.environment["REMOTEGPU_TOKEN_FILE"] = str(administrators_folder(secrets) / "admin.token")
        done = guarded.cli("doctor", "--ca", str(secrets / "ca.pem"), "--bundle", str(file))
        assert done.returncode == 0, done.stdout
        contents = unpacked(file)
        everything = "\n".join(contents.values())
        files = [secrets / "user.token", secrets / "server.key", *administrators_folder(secrets).iterdir()]
        assert len(files) == 4
        for file in files:
            for line in file.read_text().splitlines():
                assert line not in everything, file
        assert lease.granted.lease_secret not in everything
        # What it is for is there.
        (appliance,) = (json.loads(text) for name, text in contents.items() if name.startswith("appliances/"))
        assert appliance["gpus"][0]["name"] == "Stand-in GPU"
        assert json.loads(contents["checks.json"])["healthy"] is True
        assert json.loads(contents["machine.json"])["remotegpu"]
    finally:
        del guarded.environment["REMOTEGPU_TOKEN_FILE"]
        lease.close()


def test_a_token_that_an_appliance_repeats_is_taken_out(guarded: StandIn, secrets: Path, tmp_path: Path) -> None:
    """A client names itself as it likes, here by its own token."""
    token = (administrators_folder(secrets) / "admin.token").read_text().strip()
    with guarded.client.open_lease(Ask(milli_per_gpu=100), f"python train.py {token}", wait=False) as events:
        granted = next(events).granted
    file = tmp_path / "bundle.tar.gz"
    try:
        options = ("--ca", str(secrets / "ca.pem"), "--token-file", str(administrators_folder(secrets) / "admin.token"))
        assert token in guarded.cli("smi", *options).stdout
        guarded.cli("doctor", *options, "--bundle", str(file))
        everything = "\n".join(unpacked(file).values())
        assert "python train.py (removed)" in everything
        assert token not in everything
    finally:
        guarded.client.close_lease(granted.lease_id, granted.lease_secret)


def test_it_overwrites_nothing(guarded: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    done = guarded.cli("doctor", "-a", "", "--bundle", str(file))
    assert (done.returncode, done.stderr.count("\n"), file.read_text()) == (2, 1, "mine")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\nafter", "MHcCAQEE"),
        ('{"authorization": "Bearer abc.def", "x": "after"}', "abc.def"),
        ('{"token": "0123456789", "x": "after"}', "0123456789"),
        ("kubelet: eyJhbGciOiJSUzI1.eyJpc3MiOiJrdWJl.c2lnbmF0dXJl after", "eyJpc3MiOiJrdWJl"),
        ("lease 00112233445566778899aabbccddeeff after", "00112233445566778899aabbccddeeff"),
        ("known word: a-user-token-of-the-test, after", "a-user-token-of-the-test"),
        ("in a Secret: YS11c2VyLXRva2VuLW9mLXRoZS10ZXN0 after", "YS11c2VyLXRva2VuLW9mLXRoZS10ZXN0"),
    ],
)
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str, secret: str) -> None:
    redacted = Redactor(["[user]\nuser:a-user-token-of-the-test\n"])(text)
    assert secret not in redacted
    assert "after" in redacted
    assert "(removed)" in redacted


@pytest.mark.parametrize(
    "text", ["sha256:" + "0" * 64, "GPU-12345678-1234-1234-1234-123456789abc", "tokens are required"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor(["short a:b"])(text) == text

"""The parts of the sandbox that compute: the paths that stay, what an option says; and a sandbox that is not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from remotegpu.appliance.packets import packet_pair
from remotegpu_offload.acceptor import mounts, packets, readable
from remotegpu_offload.appliance.option import parse, parse_all


def test_outermost_folders() -> None:
    given = [Path(path) for path in ("/a/b/c", "/a/b", "/a/bc", "/", "/d", "/d")]
    assert sorted(readable.outermost(given)) == [Path("/a/b"), Path("/a/bc"), Path("/d")]


def test_folders_that_other_users_cannot_enter(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    (shut / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    shut.chmod(0o700)
    found = mounts.closed([shut / "deep" / "deeper", shut / "deep"])
    outer = mounts.closed([tmp_path / "open"])
    # pytest's own folder may be shut, then it is the outermost for both.
    assert found == (outer or {shut})


def test_options() -> None:
    python = Path(sys.executable)
    for text, backend in ((f"mine={python}", ""), (f"mine={python}:cuda", "cuda"), (f"mine={python}:cpu", "cpu")):
        found = parse(text)
        assert (found.name, found.python, found.backend) == ("mine", python, backend)
    # A virtual environment is called after its folder, any other Python after its program.
    named = parse(str(python)).name
    environment = (python.parent.parent / "pyvenv.cfg").exists()
    assert named == (python.parent.parent.name.lstrip(".") if environment else python.name)
    assert len(parse_all([f"a={python}", f"b={python}:rocm"])) == 2
    for text in ("", "=", "x=", f"/={python}", f"x={python}:", "x=/etc/passwd"):
        with pytest.raises(ValueError, match=rf"^{re.escape(repr(text))}: "):
            parse(text)


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_zygote_without_its_sandbox_is_of_no_use(tmp_path: Path, content: bytes | None) -> None:
    """It must fork no session that nothing shuts in."""
    library = tmp_path / "lib" / "libremotegpu_sandbox.so"
    if content is not None:
        library.parent.mkdir()
        library.write_bytes(content)
    ours, theirs = packet_pair()
    number = theirs.fileno()
    command = [sys.executable, "-m", "remotegpu_offload.acceptor.zygote", "--control-fd", str(number)]
    with ours:
        with theirs:
            environment = {**os.environ, "REMOTEGPU_DIST": str(tmp_path)}
            process = subprocess.Popen(command, pass_fds=(number,), env=environment)
        received = packets.receive(ours)
        assert received is not None and received[0]["op"] == "broken"
        reason = received[0]["reason"]
        assert reason.startswith("nothing can shut sessions in: ") and str(library) in reason
        assert ("make build" in reason) if content is None else ("glibc 2.17" in reason), reason
        assert process.wait(60) == 0

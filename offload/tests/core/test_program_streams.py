"""The standard streams of a whole program in an acceptor are the client's: pipes, files, a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios

import pytest
from offload_programs import PATIENCE, Project, same

# Each test runs programs several times, on machines that may be busy with other things.
pytestmark = pytest.mark.timeout(400)


STREAMS = """
import logging, os, subprocess, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
print("one")
sys.stdout.flush()
os.system("echo two")
subprocess.run([sys.executable, "-c", "print('three')"], check=True)
os.write(1, b"four\\n")
print("five", end="\\r", flush=True)
print("six")
for step in range(3):
    sys.stderr.write(f"\\rstep {step}")
logging.info("seven")
print(sys.stdout.isatty(), sys.stdin.isatty(), sys.stdout.encoding, sys.stdout.fileno(), sys.stderr.line_buffering)
sys.stdout.buffer.write(b"\\xff\\x00raw\\n")
print(subprocess.run(["cat"], input=b"through a child", capture_output=True).stdout)
print([line for line in sys.stdin])
print(repr(sys.stdin.read()))
"""


def test_streams_are_the_clients(project: Project) -> None:
    project.write("main.py", STREAMS.replace("raw", "raw").replace("\\xff", ""))
    for stdin in ("", "a\nb\nno end of line", "x" * 300_000 + "\n"):
        same(project.local("main.py", stdin=stdin), project.offloaded("main.py", stdin=stdin))


def test_both_streams_into_one_file_stay_in_order(project: Project) -> None:
    project.write(
        "main.py",
        "import sys\nfor n in range(300):\n    print(n, file=sys.stdout if n % 3 else sys.stderr, flush=True)\n",
    )
    done = subprocess.run(
        project.launch("main.py"),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.split() == [str(n).encode() for n in range(300)]


def test_a_reader_that_leaves_ends_the_program(project: Project) -> None:
    project.write("main.py", "import sys\nwhile True:\n    print('y' * 1000)\n")
    with project.start("main.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1000) == b"y" * 1000
        process.stdout.close()
        assert process.stderr is not None
        first, *_, last = process.stderr.read().splitlines()
        assert first == b"Traceback (most recent call last):"
        assert last == b"BrokenPipeError: [Errno 32] Broken pipe"
        assert process.wait(PATIENCE) in (1, 120)


def test_a_terminal_is_a_terminal_in_the_acceptor(project: Project) -> None:
    project.write(
        "main.py",
        "import os, sys\nprint(sys.stdout.isatty(), sys.stdin.isatty(), os.isatty(1), os.get_terminal_size().columns)\n"
        "os.system('test -t 1 && echo child too')\nprint(input('name? '))\n",
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 132, 0, 0))
    process = project.start("main.py", stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    told = b""
    while b"name? " not in told:
        told += os.read(ours, 4096)
    os.write(ours, b"Ada\n")
    while told.count(b"Ada") < 2:
        told += os.read(ours, 4096)
    assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert told.replace(b"\r\n", b"\n") == b"True True True 132\nchild too\nname? Ada\nAda\n"

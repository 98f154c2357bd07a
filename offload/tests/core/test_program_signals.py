"""Signals to a whole program in an acceptor: interrupts and all others do what they do to one that runs locally."""

from __future__ import annotations

import signal
import subprocess
import textwrap

import pytest
from offload_programs import PATIENCE, Project

# Programs start slowly, on machines that may be busy with other things.
pytestmark = pytest.mark.timeout(400)


def _started(project: Project, source: str) -> subprocess.Popen[bytes]:
    """The program, once it has said that it is ready."""
    project.write("main.py", textwrap.dedent(source))
    pipe = subprocess.PIPE
    process = project.start("main.py", stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def _ended(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes, int]:
    """Its standard input stays open until then: its end could arrive before a signal does."""
    stdin, process.stdin = process.stdin, None
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        if stdin is not None:
            stdin.close()
    return out, err, process.returncode


def test_an_interrupt_arrives_once(project: Project) -> None:
    process = _started(
        project,
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    process.send_signal(signal.SIGINT)
    assert _ended(process) == (b"interrupted\n", b"", 0)


@pytest.mark.parametrize("waiting", ["__import__('time').sleep(1000)", "name = input()"], ids=["sleep", "input"])
def test_an_interrupt_that_nobody_catches_ends_both_and_shows_only_the_program(project: Project, waiting: str) -> None:
    process = _started(project, f"print('ready', flush=True)\n{waiting}\n")
    process.send_signal(signal.SIGINT)
    _, err, code = _ended(process)
    assert code == -signal.SIGINT
    assert err.endswith(b"KeyboardInterrupt\n")
    assert b"main.py" in err and b"remotegpu" not in err


@pytest.mark.parametrize(
    "waiting",
    ["input()", "__import__('threading').Event().wait()", "open('fifo').read()"],
    ids=["input", "lock", "fifo"],
)
def test_an_interrupt_reaches_a_program_that_waits(project: Project, waiting: str) -> None:
    if "fifo" in waiting:
        waiting = "__import__('subprocess').run(['sleep', '1000'])"
    process = _started(
        project,
        f"""
        try:
            print("ready", flush=True)
            {waiting}
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    process.send_signal(signal.SIGINT)
    out, err, code = _ended(process)
    assert (out, code) == (b"interrupted\n", 0), err


def test_a_second_interrupt_abandons_a_program_that_does_not_listen(project: Project) -> None:
    process = _started(
        project,
        """
        import signal, time
        signal.signal(signal.SIGINT, lambda number, frame: print("heard", flush=True))
        print("ready", flush=True)
        while True:
            time.sleep(1)
        """,
    )
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"heard\n"
    process.send_signal(signal.SIGINT)
    _, err, code = _ended(process)
    assert code == -signal.SIGINT
    assert b"interrupted twice" in err


def test_a_handler_may_print_while_the_program_prints(project: Project) -> None:
    process = _started(
        project,
        """
        import signal
        heard = []
        def hear(number, frame):
            heard.append(number)
            print("heard", flush=True)
        signal.signal(signal.SIGUSR1, hear)
        print("ready", flush=True)
        count = 0
        while len(heard) < 20:
            print(count, flush=True)
            count += 1
        """,
    )
    assert process.stdout is not None
    lines = []
    for _ in range(20):
        # Each only when the one before was heard: signals of one number are not counted.
        process.send_signal(signal.SIGUSR1)
        while (line := process.stdout.readline()) != b"heard\n":
            lines.append(line)
    out, err, code = _ended(process)
    assert (err, code) == (b"", 0)
    assert [int(line) for line in lines + out.splitlines()] == list(range(len(lines) + len(out.splitlines())))


def test_an_interrupt_in_the_middle_of_output_repeats_nothing(project: Project) -> None:
    process = _started(
        project,
        """
        try:
            print("ready", flush=True)
            for number in range(1_000_000_000):
                print(number, flush=True)
        except KeyboardInterrupt:
            pass
        """,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(1000)]
    process.send_signal(signal.SIGINT)
    lines += process.stdout.readlines()
    out, err, code = _ended(process)
    assert (out, err, code) == (b"", b"", 0)
    # The last line may lack its end.
    assert [int(line) for line in lines[:-1]] == list(range(len(lines) - 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_the_program_as_locally(project: Project, number: int) -> None:
    process = _started(project, "import time\nprint('ready', flush=True)\ntime.sleep(1000)\n")
    process.send_signal(number)
    assert _ended(process)[2] == -number


def test_a_program_handles_its_signals(project: Project) -> None:
    process = _started(
        project,
        """
        import signal, sys, time
        def end(number, frame):
            print("saving")
            sys.exit(12)
        signal.signal(signal.SIGTERM, end)
        print("ready", flush=True)
        time.sleep(1000)
        """,
    )
    process.send_signal(signal.SIGTERM)
    assert _ended(process) == (b"saving\n", b"", 12)

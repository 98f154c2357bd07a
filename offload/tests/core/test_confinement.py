"""The parts of the sandbox that compute: the filter of system calls, the paths that stay, what an option says."""

from __future__ import annotations

import errno
import struct
import sys
from pathlib import Path

import pytest

from remotegpu_offload.acceptor import landlock, mounts, seccomp
from remotegpu_offload.appliance.option import parse, parse_all

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
PID = 4711


def answer(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would do: an interpreter of the instructions that a filter may have."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(tuple(arguments) + (0,) * 6)[:6])
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, operand)
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x35:
                at += if_true if accumulator >= operand else if_false
            case 0x45:
                at += if_true if accumulator & operand else if_false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.fixture(params=[(machine, alone) for machine in ARCHITECTURES for alone in (False, True)], ids=str)
def filtered(request: pytest.FixtureRequest) -> tuple[str, bool, bytes]:
    machine, alone = request.param
    return machine, alone, seccomp.assemble(seccomp.rules(PID, alone=alone), machine)


def ask(filtered: tuple[str, bool, bytes], name: str, *arguments: int) -> int:
    machine, _, program = filtered
    number = seccomp.NUMBERS[name][list(ARCHITECTURES).index(machine)]
    assert number is not None
    return answer(program, ARCHITECTURES[machine], number, arguments)


def test_what_has_no_condition_is_refused(filtered: tuple[str, bool, bytes]) -> None:
    for rule in seccomp.rules(PID, alone=filtered[1]):
        number = seccomp.NUMBERS[rule.call][list(ARCHITECTURES).index(filtered[0])]
        if rule.argument < 0 and number is not None:
            assert ask(filtered, rule.call) == ERRNO | rule.answer, rule.call


def test_what_programs_need_is_allowed(filtered: tuple[str, bool, bytes]) -> None:
    machine, _, program = filtered
    needed = {
        "x86_64": [0, 1, 3, 9, 10, 11, 12, 13, 16, 20, 44, 45, 46, 47, 202, 218, 231, 257, 262, 318],
        "aarch64": [63, 64, 57, 222, 226, 215, 214, 134, 29, 66, 206, 207, 211, 212, 98, 96, 94, 56, 79, 278],
    }
    for number in needed[machine]:
        assert answer(program, ARCHITECTURES[machine], number) == ALLOW, number


def test_another_architecture_is_killed(filtered: tuple[str, bool, bytes]) -> None:
    """The same numbers mean other calls there."""
    machine, _, program = filtered
    for architecture in (0x40000003, 0x40000028, *(set(ARCHITECTURES.values()) - {ARCHITECTURES[machine]})):
        assert answer(program, architecture, 0) == KILL
    if machine == "x86_64":
        assert answer(program, ARCHITECTURES[machine], 0x40000000 | 59) == ERRNO | errno.ENOSYS


def test_conditions_hold_for_what_they_say_only(filtered: tuple[str, bool, bytes]) -> None:
    alone = filtered[1]
    denied = ERRNO | errno.EPERM
    thread, process, new_user = 0x3D0F00, 17, 0x10000000 | 17
    assert ask(filtered, "clone", thread) == ALLOW
    assert ask(filtered, "clone", process) == (denied if alone else ALLOW)
    assert ask(filtered, "clone", new_user) == denied
    # The upper half of a register is not looked at by the kernel either.
    assert ask(filtered, "clone", 1 << 40 | new_user) == denied
    assert ask(filtered, "clone3") == ERRNO | errno.ENOSYS
    assert ask(filtered, "ioctl", 0, 0x5412) == denied
    assert ask(filtered, "ioctl", 0, 0x541B) == ALLOW
    for family in (1, 2, 10):
        assert ask(filtered, "socket", family) == (denied if alone else ALLOW)
    for family in (16, 17, 38, 40):
        assert ask(filtered, "socket", family) == (denied if alone else ERRNO | errno.EAFNOSUPPORT)
    for call in ("kill", "tgkill", "rt_tgsigqueueinfo", "prlimit64"):
        assert ask(filtered, call, PID) == ALLOW
        assert ask(filtered, call, 1) == (denied if alone else ALLOW)
    assert ask(filtered, "prlimit64", 0) == ALLOW
    assert ask(filtered, "kill", (1 << 64) - 1) == (denied if alone else ALLOW)
    # The ordinary policy, which ZeroMQ's threads give themselves, and none that takes the processor from others.
    assert ask(filtered, "sched_setscheduler", 0, 0) == ALLOW
    assert ask(filtered, "sched_setscheduler", 0, 1) == (denied if alone else ALLOW)
    assert ask(filtered, "fcntl", 3, 8) == (denied if alone else ALLOW)
    assert ask(filtered, "fcntl", 3, 1030) == ALLOW


def test_other_machines_have_no_filter() -> None:
    with pytest.raises(KeyError):
        seccomp.assemble([], "riscv64")


def test_outermost_folders() -> None:
    given = [Path(path) for path in ("/a/b/c", "/a/b", "/a/bc", "/", "/d", "/d")]
    assert sorted(mounts.outermost(given)) == [Path("/a/b"), Path("/a/bc"), Path("/d")]


def test_folders_that_a_stranger_may_not_pass(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    (shut / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "open").mkdir()
    shut.chmod(0o700)
    found = mounts.closed([shut / "deep" / "deeper", shut / "deep"])
    outer = mounts.closed([tmp_path / "open"])
    # pytest's own folder may be shut, then it is the outermost for both.
    assert found == (outer or {shut})


def test_all_but_the_hidden_files_are_covered(tmp_path: Path) -> None:
    for name in ("open/deep", "part/data"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("part/data/cert", "part/data/key", "open/deep/file"):
        (tmp_path / name).touch()
    (tmp_path / "part" / "link").symlink_to("data")
    found = sorted(landlock.beside(tmp_path, [tmp_path / "part" / "data" / "key"]))
    assert found == [tmp_path / "open", tmp_path / "part" / "data" / "cert"]


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
        with pytest.raises(ValueError, match=r"write \[NAME=\]PYTHON|back end"):
            parse(text)

"""Fills, copies and kernels take every unified address: the same programs natively and remotely."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, appliance, native


@functools.cache
def expected(part: str) -> list[str]:
    run = native("unified_addresses.py", part)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    "part", ["fills", "order", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("linear", "boxed"))]
)
def test_codes_and_bytes_are_those_of_a_native_run(remote: Appliance, part: str) -> None:
    run = remote.run("unified_addresses.py", part)
    assert run.returncode == 0, run.stderr
    different = [pair for pair in zip(expected(part), run.stdout.splitlines(), strict=True) if pair[0] != pair[1]]
    assert not different, (len(different), different[:20])


def test_native_fills_do_what_cuda_documents() -> None:
    """The oracle itself: page-locked memory is filled when the call returns, pageable memory is refused."""
    codes: dict[tuple[str, str], set[str]] = {}
    for line in expected("fills"):
        _, kind, *what, code, _ = line.split()
        codes.setdefault((kind, " ".join(what)), set()).add(code)
    assert all(codes[kind, "whole"] == {"0"} for kind in ("device", "pinned", "mapped", "registered"))
    assert {code for (kind, what), found in codes.items() if what == "beyond" for code in found} == {"1"}
    assert codes["pageable", "whole"] == {"1"}


@pytest.mark.parametrize("where", ["native", "remote"])
def test_numba_cuda_own_tests_of_page_locked_memory(remote: Appliance, where: str) -> None:
    run = remote.run("numba_own_tests.py") if where == "remote" else native("numba_own_tests.py")
    assert run.returncode == 0 and "Ran 4 tests" in run.stderr and "skipped" not in run.stderr, run.stderr


def test_a_launch_with_more_than_mirrors_may_have_is_refused_at_the_call(remote: Appliance) -> None:
    small = remote.run("too_much_pinned.py", "3", env={"REMOTEGPU_PINNED_MIRROR_MIB": "2"})
    assert small.stdout.splitlines() == [
        "small 0 True", "large 701 False", "large 701 False", "copied True", "small 0 True",
    ], small.stderr  # fmt: skip
    (line,) = (line for line in small.stderr.splitlines() if "page-locked" in line)
    assert "REMOTEGPU_PINNED_MIRROR_MIB=2" in line and "3145728 bytes" in line
    enough = remote.run("too_much_pinned.py", "3")
    assert enough.stdout == native("too_much_pinned.py", "3").stdout and "large 0 True" in enough.stdout
    assert "page-locked" not in enough.stderr


def test_a_pointer_beyond_the_budget_names_memory_and_setting(remote: Appliance) -> None:
    run = remote.run("device_pointers.py", "3", env={"REMOTEGPU_PINNED_MIRROR_MIB": "2"}, options=("--report",))
    assert run.stdout.splitlines() == ["0", "801"], run.stderr
    (line,) = (line for line in run.stderr.splitlines() if "3145728 bytes of page-locked memory" in line)
    assert "REMOTEGPU_PINNED_MIRROR_MIB=2" in line and "code 801" in line
    assert "1x REMOTEGPU_PINNED_MIRROR_MIB (error 801)" in run.stderr, run.stderr


def test_mirrors_may_have_half_of_what_the_share_has_free_and_say_what_they_cost(remote: Appliance) -> None:
    enough = remote.run("device_pointers.py", "96")
    assert enough.stdout.splitlines() == ["0", "0"], enough.stderr
    assert enough.stderr.count("compared before each command") == 1, enough.stderr
    most = remote.run("device_pointers.py", "400")
    assert most.stdout.splitlines() == ["0", "801"] and "half of what the share has free" in most.stderr, most.stderr


def test_a_mirror_that_the_share_has_no_room_for_is_out_of_memory() -> None:
    with appliance(memory_mib=128) as one:
        run = one.run("too_much_pinned.py", "48", share="0.25")
    assert "large 2 False" in run.stdout and "the share has no room" in run.stderr, (run.stdout, run.stderr)
    assert run.stdout.endswith("copied True\nsmall 0 True\n")


@pytest.mark.parametrize("appliances", [1, 2])
def test_memory_of_another_device_is_found_or_named(appliances: int) -> None:
    touched = "256" if appliances == 1 else "0"
    command = ["--", sys.executable, str(PROGRAMS / "pinned_elsewhere.py"), touched]
    options = ("--gpus", "2") if appliances == 1 else ()
    with appliance(*options) as one, appliance(profile="hostile") as other:
        where = ",".join(a.endpoint for a in (one, other)[:appliances])
        shares = [REMOTEGPU, "run", "--appliance", where, "-n", "2", "-p", "0.25", *command]
        run = subprocess.run(shares, capture_output=True, text=True, timeout=120)
    alone = subprocess.run(
        [REMOTEGPU, "run", "--native", "-n", "2", *command], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, alone.stdout), run.stderr
    assert "registered" in run.stderr and "cuMemHostGetDevicePointer" in run.stderr
    assert ("belongs to another GPU or appliance" in run.stderr) == (appliances == 2)


def test_registering_answers_as_natively(remote: Appliance) -> None:
    native_run, remote_run = native("register_memory.py"), remote.run("register_memory.py")
    assert (native_run.returncode, remote_run.returncode) == (0, 0), (native_run.stderr, remote_run.stderr)
    pairs = zip(native_run.stdout.splitlines(), remote_run.stdout.splitlines(), strict=True)
    assert not [pair for pair in pairs if pair[0] != pair[1]]
    assert "register flags 4 801" in native_run.stdout and "register around 712" in native_run.stdout


@pytest.mark.parametrize("how", ["unmapped", "protected", "read_only", "page", "remapped", "moved"])
def test_registered_memory_may_go_without_a_word(remote: Appliance, how: str) -> None:
    run = native("registered_and_gone.py", how)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
    for carrier in ("auto", "direct", "grpc"):
        run = remote.run("registered_and_gone.py", how, env={"REMOTEGPU_CARRIER": carrier})
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
        lost = [line for line in run.stderr.splitlines() if "cuMemHostUnregister" in line]
        assert len(lost) == (how not in ("read_only", "remapped")), run.stderr


@pytest.mark.parametrize("under_way", ["kernel", "copy", "back"])
@pytest.mark.parametrize("how", ["unmapped", "protected", "read_only", "remapped", "moved"])
def test_registered_memory_may_go_while_it_is_used(remote: Appliance, how: str, under_way: str) -> None:
    """A GPU has its pages; who reads what the kernel or the copy wrote gets no promise."""
    program = ("registered_and_gone.py", how, under_way)
    carriers = ("auto", "direct", "grpc") if how == "unmapped" else ("auto",)
    on_a_share = [remote.run(*program, env={"REMOTEGPU_CARRIER": carrier}) for carrier in carriers]
    for run in (native(*program), *on_a_share):
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("part", ["graph", "threads"])
def test_managed_memory_is_as_natively(remote: Appliance, part: str) -> None:
    run, alone = remote.run("managed.py", part), native("managed.py", part)
    assert (run.returncode, run.stdout) == (0, alone.stdout), run.stderr
    assert alone.returncode == 0, alone.stderr


def test_a_word_that_program_and_kernel_write_at_once_is_told_once(remote: Appliance) -> None:
    run = remote.run("managed.py", "both")
    assert (run.returncode, run.stdout) == (0, "[2.0, 2.0, 2.0]\n" * 2), run.stderr
    told = [text for text in run.stderr.splitlines() if "managed" in text]
    assert len(told) == 1 and "byte 12 of 1024 bytes" in told[0], run.stderr


def test_managed_memory_is_that_of_every_device_of_an_appliance() -> None:
    command = ["--", sys.executable, str(PROGRAMS / "managed.py"), "two_devices"]
    with appliance("--gpus", "2", profile="hostile") as one:
        share = [REMOTEGPU, "run", "--appliance", one.endpoint, "-n", "2", "-p", "0.25", *command]
        run = subprocess.run(share, capture_output=True, text=True, timeout=120)
    natively = [REMOTEGPU, "run", "--native", "-n", "2", *command]
    alone = subprocess.run(natively, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, alone.stdout), run.stderr
    assert "0 1 768.0 2.0" in alone.stdout


def test_managed_memory_beyond_its_budget_is_out_of_memory(remote: Appliance) -> None:
    small = remote.run("managed.py", "limit", "3", env={"REMOTEGPU_MANAGED_MIB": "3"})
    assert small.stdout.splitlines() == ["large 2", "free as before True", "small True"], small.stderr
    (line,) = (line for line in small.stderr.splitlines() if "managed" in line)
    assert "REMOTEGPU_MANAGED_MIB=3" in line and "3145728 bytes" in line
    enough = remote.run("managed.py", "limit", "3")
    assert enough.stdout == native("managed.py", "limit", "3").stdout and "managed" not in enough.stderr


def test_an_appliance_says_how_much_managed_memory_a_program_has() -> None:
    with appliance("--managed-memory", "3MiB") as one:
        small = one.run("managed.py", "limit", "3")
        own = one.run("managed.py", "limit", "3", env={"REMOTEGPU_MANAGED_MIB": "256"})
    assert small.stdout.splitlines()[0] == "large 2", small.stderr
    assert own.stdout == native("managed.py", "limit", "3").stdout


def test_managed_memory_beyond_the_share_is_out_of_memory() -> None:
    with appliance(memory_mib=128) as one:
        run = one.run("managed.py", "limit", "48", share="0.25")
    assert run.stdout.splitlines() == ["large 2", "free as before True", "small True"], run.stderr


@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
@pytest.mark.parametrize("tracked", ["0", "1"])
def test_what_children_write_does_not_depend_on_the_carrier(remote: Appliance, carrier: str, tracked: str) -> None:
    env = {"REMOTEGPU_CARRIER": carrier, "REMOTEGPU_TRACK_WRITES": tracked}
    run = remote.run("pinned_of_children.py", env=env)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr

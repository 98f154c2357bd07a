"""`remotegpu top` of appliances: the rows against what is known of them, and the live view with its keys."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, free_port
from support.top import drawn, said, seen, texts
from textual.pilot import Pilot
from textual.widgets import Input

from remotegpu.api.quantities import Ask
from remotegpu.cli.top.appliances import Appliances, ApplianceSnapshot, Reading
from remotegpu.cli.top.screen import Rows, TopApp
from remotegpu.cli.top.view import Cell, Row, Sort, Table, View, amount, bar, words
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access
from remotegpu.rpc.load import busy

MIB = 1 << 20
GIB = 1 << 30


def inventory(mode: str = "shared") -> pb.InventoryReply:
    """Two GPUs; of the first `train` has a quarter, and leases that one may not see have another one."""
    gpus = [
        pb.Gpu(index=0, uuid="GPU-a", name="One", shareable_bytes=GIB, leased_bytes=512 * MIB, healthy=True),
        pb.Gpu(index=1, uuid="GPU-b", name="Two", shareable_bytes=2 * GIB, healthy=False, health_message="Xid 79"),
    ]
    gpus[0].used_bytes = 10 * MIB
    lease = pb.Lease(
        lease_id="0123456789abcdef", client="train", gpus=[0], memory_bytes=256 * MIB, used_bytes=10 * MIB, sessions=2,
        age_seconds=61, places=[pb.Place(gpu="GPU-a", leased_bytes=256 * MIB, used_bytes=10 * MIB)],
    )  # fmt: skip
    return pb.InventoryReply(gpus=gpus, leases=[lease], compute_mode=mode)


def view(reading: Reading, now: float) -> View:
    return ApplianceSnapshot((reading,)).view(now)


def test_rows_are_what_the_appliance_says() -> None:
    shown = view(Reading("a:1", inventory(), 100.0), 100.0)
    gpus, leases = shown.tables
    assert texts(gpus) == [
        ["a:1", "0", "One", "█████░░░░░··········", "512.0 MiB", "1.0 GiB", "10.0 MiB", "-", "ready"],
        ["a:1", "1", "Two", "····················", "0 B", "2.0 GiB", "0 B", "-", "unhealthy: Xid 79"],
    ]
    assert texts(leases) == [["01234567", "train", "a:1", "0", "256.0 MiB", "10.0 MiB", "2", "-", "1m01s", "running"]]
    assert (shown.title, shown.notes) == ("a:1: GPUs free: 0.50 of 2, leases: 1, sessions: 2", ())
    assert gpus.rows[0].story[-2:] == (
        "  has        256.0 MiB: 01234567 train",
        "  others     256.0 MiB: leases that you may not see, or that are ending",
    )


def test_what_is_lost_is_shown_with_its_age() -> None:
    shown = view(Reading("a:1", inventory(), 100.0, problem="no appliance at a:1"), 190.0)
    assert shown.notes == ("a:1 is lost and shown as it was 1m30s ago; trying again: no appliance at a:1",)
    assert texts(shown.tables[1])[0][1] == "train"


def test_a_lease_that_moves_is_a_row_of_each_appliance() -> None:
    both = ApplianceSnapshot((Reading("a:1", inventory(), 100.0), Reading("b:1", inventory(), 100.0)))
    for table in both.view(100.0).tables:
        assert len({row.key for row in table.rows}) == len(table.rows) > 1


def test_busy_is_gpu_time_by_time() -> None:
    def at(nanoseconds: int, mode: str = "turns") -> pb.InventoryReply:
        reply = inventory(mode)
        reply.leases[0].places[0].gpu_nanoseconds = nanoseconds
        return reply

    key = ("0123456789abcdef", "GPU-a")
    assert busy(at(10**9), at(2 * 10**9), 4.0) == {key: 0.25}
    assert busy(at(10**9), at(0), 4.0) == {key: 0.0}
    assert busy(pb.InventoryReply(), at(10**9), 4.0) == {}
    assert busy(at(0, "shared"), at(10**9, "shared"), 4.0) == {}
    more = {key: 0.25, (key[0], "GPU-b"): 0.5, ("another", "GPU-a"): 0.125}
    gpus, leases = view(Reading("a:1", at(0), 100.0, busy=more), 100.0).tables
    assert [row[7] for row in texts(gpus)] == ["38 %", "50 %"]
    assert [row[7] for row in texts(leases)] == ["75 %"]


@pytest.mark.parametrize(
    ("whole", "shares", "others", "drawn"),
    [
        (100, [], 0, "··········"),
        (100, [25, 25, 25], 25, "██▒▒▒███░░"),
        (100, [100], 0, "██████████"),
        (100, [1, 1, 98], 0, "██████████"),
        (100, [0, 50], 0, "█████·····"),
        (0, [], 0, "··········"),
        (100, [50], -10, "█████·····"),
        (100, [60], 60, "██████░░░░"),
    ],
)
def test_a_bar_is_as_long_as_the_shares(whole: int, shares: list[int], others: int, drawn: str) -> None:
    assert bar(whole, shares, others, 10) == drawn


def test_rows_are_sorted_by_what_they_mean_and_filtered_by_what_they_say() -> None:
    rows = tuple(
        Row(name, (words(name), Cell(f"{size} B", size), amount(size)), (f"{name} tells {size % 7}",))
        for name, size in (("Beta", 1000), ("alpha", 20), ("gamma", 3))
    )
    table = Table("Things", ("NAME", "SIZE", "COUNT"), rows)
    assert [row.key for row in table.arranged(Sort(), "")] == ["Beta", "alpha", "gamma"]
    assert [row.key for row in table.arranged(Sort(0), "")] == ["alpha", "Beta", "gamma"]
    assert [row.key for row in table.arranged(Sort(1), "")] == ["gamma", "alpha", "Beta"]
    assert [row.key for row in table.arranged(Sort(1, descending=True), "")] == ["Beta", "alpha", "gamma"]
    assert [row.key for row in table.arranged(Sort(0), "TELLS 6")] == ["alpha", "Beta"]
    assert [row.key for row in table.arranged(Sort(0), "20 B")] == ["alpha"]


def test_once_is_the_same_as_text_and_as_json(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(milli_per_gpu=250))
    done = appliance.cli("top", "--once")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [appliance.endpoint, "0", "Stand-in", "GPU", "█████···············", "256.0", "MiB"] in [
        line[:7] for line in lines
    ]
    assert [lease.granted.lease_id[:8], "test", appliance.endpoint, "0", "256.0", "MiB"] in [line[:6] for line in lines]
    ((found,),) = json.loads(appliance.cli("top", "--json").stdout).values()
    assert [one["lease_id"] for one in found["leases"]] == [lease.granted.lease_id]
    lease.close()
    without_terminal = appliance.cli("top")
    assert without_terminal.returncode == 0 and "Leases: none" in without_terminal.stdout
    assert without_terminal.stderr == "remotegpu: this is no terminal, so it is shown once; --once says so too\n"


def test_an_appliance_that_never_answered_is_an_error(appliance: StandIn) -> None:
    done = appliance.cli("top", "--once", "-a", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
    assert "no appliance at" in done.stderr


def test_textual_is_imported_for_the_live_view_only(appliance: StandIn) -> None:
    code = (
        "import sys\nfrom remotegpu.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('textual' in sys.modules, file=sys.stderr)"
    )
    for arguments in (["run", "--help"], ["top", "--once", "-a", appliance.endpoint]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr.splitlines()[-1] == "False"


def test_without_textual_a_terminal_is_told_what_to_install(appliance: StandIn, tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ImportError('not here')\n")
    here, theirs = pty.openpty()
    done = subprocess.run(
        [REMOTEGPU, "top", "-a", appliance.endpoint],
        env={**appliance.environment, "PYTHONPATH": str(tmp_path)},
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(here)
    os.close(theirs)
    assert done.returncode == 70
    assert "pip install 'remotegpu[top]'" in done.stderr and "--once" in done.stderr


def test_it_runs_in_a_terminal_without_colours_and_ends_with_q(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(milli_per_gpu=250))
    here, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    running = subprocess.Popen(
        [REMOTEGPU, "top", "-a", appliance.endpoint],
        env={**appliance.environment, "TERM": "xterm-256color", "NO_COLOR": "1"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while lease.granted.lease_id[:8].encode() not in shown:
            shown += os.read(here, 1 << 16)
        os.write(here, b"q")
        # A terminal that no program has open any more: EIO.
        with contextlib.suppress(OSError):
            while os.read(here, 1 << 16):
                pass
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.wait()
        os.close(here)
        lease.close()
    # Grey is no colour.
    colours = {tuple(map(int, each)) for each in re.findall(rb"\x1b\[[0-9;]*[34]8;2;(\d+);(\d+);(\d+)", shown)}
    assert all(max(each) - min(each) <= 2 for each in colours)


def live(appliances: list[str], body: Callable[[TopApp, Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        source = Appliances(appliances, Access())
        app = TopApp(source, source.read())
        async with app.run_test(size=(160, 40)) as pilot:
            await body(app, pilot)

    asyncio.run(run())


def test_an_error_that_nobody_foresaw_ends_it() -> None:
    """And is the program's own, whose variables are not shown."""

    class Breaks:
        def read(self) -> ApplianceSnapshot:
            raise ZeroDivisionError

        def story(self, _key: str) -> tuple[str, ...]:
            return ()

    async def run() -> None:
        app = TopApp(Breaks(), ApplianceSnapshot((Reading("a:1", inventory(), 100.0),)))
        async with app.run_test() as pilot:
            await seen(pilot, lambda: app.failure, "the error")
        assert isinstance(app.failure, ZeroDivisionError)

    asyncio.run(run())


def test_a_lease_comes_and_goes_while_one_looks(appliance: StandIn) -> None:
    async def body(app: TopApp, pilot: Pilot[None]) -> None:
        assert drawn(app, "leases") == []
        lease = await asyncio.to_thread(appliance.lease, Ask(milli_per_gpu=250))
        await seen(pilot, lambda: drawn(app, "leases"), "the lease")
        (row,) = drawn(app, "leases")
        assert row[:5] == [lease.granted.lease_id[:8], "test", appliance.endpoint, "0", "256.0 MiB"]
        assert [gpu[3] for gpu in drawn(app, "gpus")] == ["█████···············", "····················"]
        session = await asyncio.to_thread(lease.session)
        await asyncio.to_thread(session.grant, 10 * MIB)
        await seen(pilot, lambda: drawn(app, "leases")[0][5:7] == ["10.0 MiB", "1"], "what it uses")
        assert said(app, "#title") == f"{appliance.endpoint}: GPUs free: 1.75 of 2, leases: 1, sessions: 1"
        await asyncio.to_thread(lease.close)
        await seen(pilot, lambda: not drawn(app, "leases"), "its end")
        # The share is free when the worker has ended.
        free = ["····················"] * 2
        await seen(pilot, lambda: [gpu[3] for gpu in drawn(app, "gpus")] == free, "the free share")

    live([appliance.endpoint], body)


def test_keys_sort_filter_and_tell(appliance: StandIn) -> None:
    sizes = [300, 100, 200]
    leases = [appliance.lease(Ask(milli_per_gpu=size)) for size in sizes]
    ids = [lease.granted.lease_id for lease in leases]

    async def body(app: TopApp, pilot: Pilot[None]) -> None:
        def order() -> list[int]:
            return [[each[:8] for each in ids].index(row[0]) for row in drawn(app, "leases")]

        assert order() == [0, 1, 2]
        await pilot.press("down", "down")
        # LEASE, CLIENT, APPLIANCE, GPUS, EACH
        await pilot.press(*"sssss")
        await seen(pilot, lambda: order() == [1, 2, 0], "the order of sizes")
        rows = app.query_one("#leases", Rows)
        assert (rows.border_title, rows.cursor_row) == ("Leases: 3, by EACH, ascending", 1)  # the cursor moved along
        await pilot.press("r")
        await seen(pilot, lambda: order() == [0, 2, 1], "the other way round")

        await pilot.press("enter")
        start = f"lease {ids[2]} on {appliance.endpoint}: running"
        await seen(pilot, lambda: said(app, "#story").startswith(start), "the story")
        await pilot.press("q")
        await seen(pilot, lambda: not said(app, "#story"), "the tables again")

        await pilot.press("slash", *ids[1][:8])
        await seen(pilot, lambda: order() == [1], "the one that has the text")
        assert rows.border_title == "Leases: 1, 2 hidden by the filter, by EACH, descending"
        assert [row[1] for row in drawn(app, "gpus")] == ["0"]  # the GPU that it is on
        await pilot.press("enter", "enter")
        await seen(pilot, lambda: said(app, "#story").startswith(f"lease {ids[1]}"), "its story")
        await pilot.press("escape")
        await seen(pilot, lambda: not said(app, "#story"), "the tables again")
        await pilot.press("escape")
        await seen(pilot, lambda: order() == [0, 2, 1], "all rows")
        assert not app.query_one(Input).display

    try:
        live([appliance.endpoint], body)
    finally:
        for lease in leases:
            lease.close()


def test_a_lost_appliance_is_shown_as_it_was_beside_the_other(dist: Path, appliance: StandIn) -> None:
    with StandIn(dist, "--gpus", "1") as leaves:
        lease = leaves.lease(Ask(milli_per_gpu=500))

        async def body(app: TopApp, pilot: Pilot[None]) -> None:
            assert not app.query_one("#notes").display
            leaves.process.kill()
            await seen(pilot, lambda: app.query_one("#notes").display, "it is lost")
            assert said(app, "#notes").startswith(f"{leaves.endpoint} is lost and shown as it was ")
            assert "no appliance at" in said(app, "#notes")
            assert [row[:3] for row in drawn(app, "leases")] == [[lease.granted.lease_id[:8], "test", leaves.endpoint]]
            other = await asyncio.to_thread(appliance.lease, Ask(milli_per_gpu=100))
            await seen(pilot, lambda: len(drawn(app, "leases")) == 2, "the other one's lease")
            await asyncio.to_thread(other.close)

        live([leaves.endpoint, appliance.endpoint], body)

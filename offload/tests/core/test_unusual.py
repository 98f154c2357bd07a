"""Members of classes that are no plain methods, asynchronous generators, errors of files, a script's own classes."""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from offload_modules import UserModule
from offload_programs import Project, same

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import ClassRule, FunctionRule
from remotegpu_offload.functions.errors import RemoteTraceback

SCRIPT = """
class Base:
    def __init__(self, size):
        self.size = size

    def area(self, scale=1):
        return self.size * self.size * scale


class Further(Base):
    def area(self, scale=1):
        return -super().area(scale)


print(Base(3).area(), Further(3).area(2), Further(2).size)
"""
USER = UserModule("user_unusual", ClassRule("user_unusual.Unusual"), FunctionRule("user_unusual.*"))


def test_cached_partial_and_dispatched_members(remote: Any, local: Any) -> None:
    for module in (remote, local):
        made = module.Unusual(3)
        assert (made.area, made.area, made.computed) == (9, 9, 1)
        assert (made.plus_ten(), made.plus_ten(scale=2)) == (13, 26)
        assert (made.kind(1), made.kind("1")) == ("int", "other")


def test_asynchronous_methods_are_awaited_and_run_in_the_acceptor(remote: Any) -> None:
    async def main() -> Any:
        made = remote.Unusual(3)
        results = await asyncio.gather(*(made.later(n) for n in range(3)))
        return results, [number async for number in made.each()]

    results, numbers = asyncio.run(main())
    assert [value for value, _ in results] == [3, 4, 5] and numbers == [0, 1, 2]
    assert all(pid != os.getpid() for _, pid in results)
    assert inspect.iscoroutinefunction(remote.Unusual.later)


def test_asynchronous_generators_are_read_sent_to_and_closed(session: Session, remote: Any, local: Any) -> None:
    async def main(ticks: Any) -> list[Any]:
        said = [value async for value in ticks(3)]
        values = ticks(2)
        said += [await values.asend(None), await values.asend("told"), await anext(values)]
        await values.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(values)
        return said

    before = session.peer.counters.round_trips
    assert asyncio.run(main(remote.ticks)) == [0, 1, 2, 0, "told", 1]
    assert session.peer.counters.round_trips > before
    assert asyncio.run(main(local.ticks)) == [0, 1, 2, 0, "told", 1]


def test_an_error_ends_an_asynchronous_generator(remote: Any) -> None:
    async def main() -> list[int]:
        values = remote.fails()
        first = await anext(values)
        with pytest.raises(LookupError) as caught:
            await anext(values)
        assert caught.value.args == ("ended",)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        return [first, *[value async for value in values]]

    assert asyncio.run(main()) == [1]


def test_errors_of_files_name_them(remote: Any) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        remote.opens("/nowhere/absent.txt")
    assert caught.value.filename == "/nowhere/absent.txt" and caught.value.errno


def test_a_script_with_classes_of_its_own_is_executed_once(tmp_path: Path) -> None:
    """They travel by value: what a script does beside defining them is done here alone."""
    project = Project(tmp_path)
    project.write("script.py", SCRIPT)
    project.write("remotegpu.yaml", "version: 1\noffload: [{class: __main__.Base}, {class: __main__.Further}]\n")
    remote = project.offloaded("script.py", split="rules")
    same(project.local("script.py"), remote)
    assert remote.stdout == "9 -18 2\n"

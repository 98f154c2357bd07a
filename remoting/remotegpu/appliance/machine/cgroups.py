"""A cgroup for each acceptor, and one for the workers of each lease, below the appliance's own, if it is writable.

Versions 1 and 2.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_CONTROLLERS: Final = ("memory", "pids")
# By controller, and by whether it is version 2: the file that takes the limit.
_LIMITS: Final = {
    ("memory", True): "memory.max",
    ("memory", False): "memory.limit_in_bytes",
    ("pids", True): "pids.max",
    ("pids", False): "pids.max",
}
_PREFIX: Final = "remotegpu-"
# For one lease: threads count, and the software GPU has one for each stream.
_PROCESSES: Final = 16384
# The kernel takes a moment to count the last process out.
_REMOVE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Parent:
    """Our own group in one hierarchy, and the controllers that work in groups below it."""

    folder: Path
    second: bool
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one session, one in each hierarchy."""

    folders: tuple[Path, ...]

    @property
    def members(self) -> list[str]:
        """The files into which a process writes itself."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> None:
        """Removes the groups, after the last process has ended."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in self.folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError as error:
                    if time.monotonic() > deadline:
                        _log.warning("%s stays: %s", folder, error.strerror)
                        break
                    time.sleep(0.01)


class Cgroups:
    """The cgroups that can be made; `controllers` are those of memory and pids that limit anything."""

    def __init__(self) -> None:
        self._parents = list(_usable(own_groups()))
        self.controllers = sorted({name for parent in self._parents for name in parent.controllers})

    def create(self, name: str, memory_bytes: int, processes: int) -> Group:
        """Makes a group for one session. Raises OSError."""
        values = {"memory": memory_bytes, "pids": processes}
        folders: list[Path] = []
        try:
            for parent in self._parents:
                folder = parent.folder / f"{_PREFIX}{os.getpid()}-{name}"
                folder.mkdir()
                folders.append(folder)
                for controller in parent.controllers:
                    limit = folder / _LIMITS[controller, parent.second]
                    limit.write_text(str(values[controller]), encoding="ascii")
        except OSError:
            Group(tuple(folders)).remove()
            raise
        return Group(tuple(folders))

    def find(self, name: str) -> Group:
        """Returns the group that this process made under a name."""
        folders = (parent.folder / f"{_PREFIX}{os.getpid()}-{name}" for parent in self._parents)
        return Group(tuple(folder for folder in folders if folder.is_dir()))


class LeaseGroups:
    """The groups of leases: all workers of a lease count together in its group."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._groups: dict[str, Group] = {}

    def join(self, lease_id: str, memory_bytes: int, pid: int) -> None:
        """Puts a process into its lease's group. Without cgroups nothing happens.

        The limit is a quarter above the budget: a session past the budget is told why it ends, and the kernel kills
        silently.
        """
        if not self._cgroups.controllers:
            return
        try:
            group = self._groups.get(lease_id)
            if group is None:
                group = self._groups[lease_id] = self._cgroups.create(lease_id[:16], memory_bytes * 5 // 4, _PROCESSES)
            for members in group.members:
                Path(members).write_text(str(pid), encoding="ascii")
        except OSError as error:
            # Its memory is still measured, and its threads are limited by its uid.
            _log.warning("worker %d has no cgroup: %s", pid, error.strerror or error)

    def adopt(self, lease_id: str) -> None:
        """Takes over the group that this process made for a lease before it executed itself."""
        if self._cgroups.controllers and lease_id not in self._groups:
            self._groups[lease_id] = self._cgroups.find(lease_id[:16])

    async def leave(self, lease_id: str) -> None:
        """Removes a lease's group, after its last process has ended."""
        if group := self._groups.pop(lease_id, None):
            await asyncio.to_thread(group.remove)


def own_groups() -> Iterable[Parent]:
    """Yields our own group in every hierarchy that has a controller of ours."""
    mounts = _mounts()
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        second = not controllers
        named = () if second else tuple(name for name in controllers.split(",") if name in _CONTROLLERS)
        mount = mounts.get("" if second else controllers)
        if mount is None or not (second or named):
            continue
        folder = mount / path.lstrip("/")
        if not folder.is_dir():
            folder = mount  # a container's own part of the hierarchy is mounted
        yield Parent(folder, second, _delegated(folder) if second else named)


def _mounts() -> dict[str, Path]:
    """Returns mount points by controllers, as in /proc/self/cgroup; version 2 has no name."""
    found: dict[str, Path] = {}
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found[""] = Path(before.split()[4])
        elif kind == "cgroup":
            names = [name for name in options.split(",") if name in _CONTROLLERS]
            for line_of_ours in _lines("/proc/self/cgroup"):
                controllers = line_of_ours.split(":", 2)[1]
                if names and set(names) <= set(controllers.split(",")):
                    found[controllers] = Path(before.split()[4])
    return found


def _delegated(folder: Path) -> tuple[str, ...]:
    """Version 2: returns the controllers that groups below ours have; requests them if needed."""
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        available = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
        wanted = [name for name in _CONTROLLERS if name in available]
        # EBUSY if our group has processes and is not the root: then it stays as it is.
        with contextlib.suppress(OSError):
            control.write_text(" ".join(f"+{name}" for name in wanted), encoding="ascii")
        enabled = control.read_text(encoding="ascii").split()
        return tuple(name for name in wanted if name in enabled)
    return ()


def _usable(parents: Iterable[Parent]) -> Iterable[Parent]:
    for parent in parents:
        probe = parent.folder / f"{_PREFIX}{os.getpid()}-probe"
        if not parent.controllers:
            continue
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError:
            continue
        _sweep(parent.folder)
        yield parent


def _sweep(folder: Path) -> None:
    """Removes groups of an appliance that was killed and could not remove them."""
    for group in folder.glob(f"{_PREFIX}*-*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            # A group with processes stays.
            with contextlib.suppress(OSError):
                group.rmdir()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

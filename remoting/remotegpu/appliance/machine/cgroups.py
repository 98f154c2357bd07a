"""Creates cgroups below the appliance's own, if that is writable: one for each acceptor, and one for each lease.

The cgroup of a lease has all its workers. Versions 1 and 2 are supported.
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
# The file of the limit, by controller and by whether the hierarchy is version 2.
_LIMITS: Final = {
    ("memory", True): "memory.max",
    ("memory", False): "memory.limit_in_bytes",
    ("pids", True): "pids.max",
    ("pids", False): "pids.max",
}
_PREFIX: Final = "remotegpu-"
# The limit of one lease. Threads count too, and the software GPU has a thread for each stream.
_PROCESSES: Final = 16384
# The time to retry a removal: the kernel removes the last process from a cgroup with a delay.
_REMOVE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Parent:
    """The appliance's own cgroup in one hierarchy, and the controllers that cgroups below it can use."""

    folder: Path
    second: bool
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """The cgroups of one name, one in each hierarchy."""

    folders: tuple[Path, ...]

    @property
    def members(self) -> list[str]:
        """The files into which a process writes its pid to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> None:
        """Removes the cgroups. The last process must have ended. Blocks up to a second."""
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
    """Creates cgroups. `controllers` are the available ones of "memory" and "pids"; empty without cgroups."""

    def __init__(self) -> None:
        self._parents = list(_usable(own_groups()))
        self.controllers = sorted({name for parent in self._parents for name in parent.controllers})

    def create(self, name: str, memory_bytes: int, processes: int) -> Group:
        """Creates the cgroups of one name with limits. Raises OSError."""
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
        """Returns the cgroups that this process created under a name."""
        folders = (parent.folder / f"{_PREFIX}{os.getpid()}-{name}" for parent in self._parents)
        return Group(tuple(folder for folder in folders if folder.is_dir()))


class LeaseGroups:
    """The cgroups of leases. All workers of a lease count together in its cgroup."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._groups: dict[str, Group] = {}

    def join(self, lease_id: str, memory_bytes: int, pid: int) -> None:
        """Puts a process into the cgroup of its lease. Does nothing without cgroups.

        The limit is a quarter above the budget, so that the appliance ends a session first, with an error message. The
        kernel would kill without one.
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
            # The appliance still measures the memory, and the uid limits the threads.
            _log.warning("worker %d has no cgroup: %s", pid, error.strerror or error)

    def adopt(self, lease_id: str) -> None:
        """Takes over the cgroup that this process created for a lease before a handover."""
        if self._cgroups.controllers and lease_id not in self._groups:
            self._groups[lease_id] = self._cgroups.find(lease_id[:16])

    async def leave(self, lease_id: str) -> None:
        """Removes the cgroup of a lease, after its last process has ended."""
        if group := self._groups.pop(lease_id, None):
            await asyncio.to_thread(group.remove)


def own_groups() -> Iterable[Parent]:
    """Yields the appliance's own cgroup in every hierarchy that has a controller we use."""
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
            folder = mount  # in a container, only its own part of the hierarchy is mounted
        yield Parent(folder, second, _delegated(folder) if second else named)


def _mounts() -> dict[str, Path]:
    """Returns mount points by the list of controllers in /proc/self/cgroup, which is empty for version 2."""
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
    """Enables controllers for cgroups below ours, in version 2. Returns the enabled ones."""
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        available = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
        wanted = [name for name in _CONTROLLERS if name in available]
        # EBUSY if our cgroup has processes and is not the root: then nothing changes.
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
    """Removes cgroups that a killed appliance left behind."""
    for group in folder.glob(f"{_PREFIX}*-*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            # A cgroup with processes stays.
            with contextlib.suppress(OSError):
                group.rmdir()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

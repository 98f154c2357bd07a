"""Memory and events that sessions of one lease share: their descriptors, holders and quota.

An exported slab is charged to the lease once, until the last session has released it. It can be imported as long as its
exporter has it. An export of size 0 is an event: a page with the numbers of the latest record and of the latest
completed record (the worker's `shared_events.rs`).
"""

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO

from remotegpu.appliance.handover import State, kept, taken
from remotegpu.appliance.shares.grants import Quota

# The limit for a lease: each export needs a descriptor of the appliance.
_MOST = 256
_COMPLETED_OFFSET = 8


@dataclass(slots=True)
class Export:
    device: int
    size: int
    file: FileIO
    exporter: str
    holders: set[str] = field(default_factory=set)


class Exports:
    """The exports of all sessions of a lease, by token."""

    def __init__(self, quotas: Sequence[Quota]) -> None:
        self._quotas = quotas
        self._live: dict[str, Export] = {}

    def __len__(self) -> int:
        return len(self._live)

    def handed(self) -> list[State]:
        return [
            {
                "token": token,
                "device": export.device,
                "size": export.size,
                "file": None if export.file.closed else kept(export.file.fileno()),
                "exporter": export.exporter,
                "holders": sorted(export.holders),
            }
            for token, export in self._live.items()
        ]

    def adopt(self, exports: list[State]) -> None:
        """Takes over the exports from a state that `handed` returned. The quotas already include them."""
        for each in exports:
            # A closed file means that the exporter has released the export, and only importers still have it.
            file = FileIO(os.open(os.devnull, os.O_RDONLY) if each["file"] is None else taken(each["file"]))
            if each["file"] is None:
                file.close()
            export = Export(each["device"], each["size"], file, each["exporter"], set(each["holders"]))
            self._live[each["token"]] = export

    def add(self, session: str, device: int, size: int, file: FileIO) -> str | None:
        """Adds an export and returns its token; None if the session has less memory, or there are too many exports."""
        token = secrets.token_hex(16)
        room = len(self._live) < _MOST and (
            size == 0 or self._quotas[device].move(session, _key(token), size, leaves=False)
        )
        if not room:
            file.close()
            return None
        self._live[token] = Export(device, size, file, session, {session})
        return token

    def hold(self, session: str, token: str) -> Export | None:
        """Adds a session to the holders of an export. Returns None if it is unknown or its exporter has released it."""
        export = self._live.get(token)
        if export is None or export.file.closed:
            return None
        export.holders.add(session)
        return export

    def release(self, session: str, token: str) -> bool:
        """Handles a session's report that it has unmapped an export or an import.

        Returns whether no other session has the memory. Then it stays charged to this session until the session has
        overwritten it and calls `freed`.
        """
        export = self._live.get(token)
        if export is None or session not in export.holders:
            return False
        if export.size and export.holders == {session}:
            export.file.close()
            self._quotas[export.device].leave(_key(token), export.size)
            return True
        self.freed(session, token)
        return False

    def freed(self, session: str, token: str) -> None:
        """Removes a session from the holders of an export."""
        export = self._live.get(token)
        if export is None or session not in export.holders:
            return
        export.holders.remove(session)
        if session == export.exporter or not export.holders:
            export.file.close()
        if not export.holders:
            self._quotas[export.device].forget(_key(token))
            del self._live[token]

    def forget(self, session: str) -> None:
        """Removes an ended session, and completes its events so that no session waits for them.

        The session has already overwritten memory that no other session has.
        """
        for token, export in list(self._live.items()):
            if export.size == 0 and export.exporter == session and not export.file.closed:
                with contextlib.suppress(OSError):
                    os.pwrite(export.file.fileno(), b"\xff" * 8, _COMPLETED_OFFSET)
            self.freed(session, token)


def _key(token: str) -> str:
    return f"export {token}"

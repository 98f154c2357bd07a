"""Memory and events that sessions of one lease share: descriptors, who has them, and the quota memory counts in.

An exported slab is charged to the lease once, from its export until the last session has let it go. It can be imported
as long as its exporter has it. What has no size is an event: a page with the numbers of the latest record and of the
latest that is complete (the worker's `shared_events.rs`).
"""

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO

from remotegpu.appliance.handover import State, kept, taken
from remotegpu.appliance.shares.grants import Quota

# Each keeps a descriptor of the appliance open.
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
    """What the sessions of a lease have exported, by token."""

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
        """Go on with what `handed` tells of. What of it counts in the quotas is there."""
        for each in exports:
            # What its exporter has let go of is nobody's to import; others have it still.
            file = FileIO(os.open(os.devnull, os.O_RDONLY) if each["file"] is None else taken(each["file"]))
            if each["file"] is None:
                file.close()
            export = Export(each["device"], each["size"], file, each["exporter"], set(each["holders"]))
            self._live[each["token"]] = export

    def add(self, session: str, device: int, size: int, file: FileIO) -> str | None:
        """A token for what a session exports. None if the session was not granted that much, or there are too many."""
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
        """Have a session import this; None if there is no such thing, or its exporter has let it go."""
        export = self._live.get(token)
        if export is None or export.file.closed:
            return None
        export.holders.add(session)
        return export

    def release(self, session: str, token: str) -> bool:
        """A session has unmapped what it exported or imported.

        Returns whether nobody else has the memory. Then it is the session's until that has overwritten it (`freed`).
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
        """A session has nothing any more of what it exported or imported."""
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
        """The session's process has ended, and had overwritten what nobody else has. Nobody waits for its records."""
        for token, export in list(self._live.items()):
            if export.size == 0 and export.exporter == session and not export.file.closed:
                with contextlib.suppress(OSError):
                    os.pwrite(export.file.fileno(), b"\xff" * 8, _COMPLETED_OFFSET)
            self.freed(session, token)


def _key(token: str) -> str:
    return f"export {token}"

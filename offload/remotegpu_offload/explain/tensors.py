"""Counts the data that a torch program would send in torch mode, and the lines that wait, with a local acceptor."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any, Final

from remotegpu_offload.client import session
from remotegpu_offload.config import Config
from remotegpu_offload.explain.local import local_acceptor
from remotegpu_offload.importing.hooks import when_imported
from remotegpu_offload.wire import Buffer, Message, Peer, Service

# The reason why a program waits, by the request to the acceptor.
_WANTS: Final = {
    "get": "reads values: .item(), .cpu(), bool(), print",
    "result": "needs a shape that depends on values: masks, nonzero, unique",
    "sync": "waits for the device",
    "synchronize": "waits for the device",
    "get_many": "saves tensors",
    "event_elapsed": "asks for a time",
    "memory": "asks for free memory",
    "rng_get": "asks for the random state",
    "rng_set": "sets the random state",
}
# Requests that are sent only once, at the start.
_ONCE: Final = frozenset(("hello", "properties"))


class Tensors:
    """Counts the program's torch requests. Call `arm` before the program imports torch, and `report` after its end."""

    def __init__(self, is_user: Callable[[str], bool]) -> None:
        self._is_user = is_user
        self._waits: Counter[tuple[str, int, str]] = Counter()
        self._session: session.Session | None = None

    def arm(self, config: Config) -> None:
        """Makes the device names of the torch rule refer to a counting device, once the program imports torch."""
        rule = config.torch
        assert rule is not None

        def imported(_torch: ModuleType) -> None:
            from remotegpu_offload.torch.script import names  # noqa: PLC0415 (torch is imported by now)

            names.arm(rule.devices, lambda: self.open(config))

        when_imported("torch", imported)

    def open(self, config: Config) -> session.Session:
        """Opens the session of the measured program, and listens on its connection."""
        opened = session.Session.open(config, connector=local_acceptor)
        session.use(opened)
        self._session = opened
        self._listen(opened.peer)
        return opened

    def report(self) -> dict[str, Any] | None:
        """Returns the counts, for JSON; None if the program never used the device."""
        opened = self._session
        if opened is None:
            return None
        from remotegpu_offload.torch import device  # noqa: PLC0415 (torch is imported by now)

        sent = device.current().stats()
        counters = opened.counters()
        waits = [
            {"file": file, "line": line, "wants": wants, "times": times}
            for (file, line, wants), times in self._waits.most_common()
        ]
        opened.close()
        return {
            "operations": sent["operations"],
            "round_trips": sum(self._waits.values()),
            "bytes_out": counters["bytes_out"],
            "bytes_in": counters["bytes_in"],
            "waits": waits,
        }

    def _listen(self, peer: Peer) -> None:
        request = peer.request

        def listening(
            service: Service,
            header: dict[str, Any] | None = None,
            buffers: Sequence[Buffer] = (),
            *,
            timeout: float | None = None,
        ) -> Message:
            if service is Service.TORCH:
                asked = str((header or {}).get("then") or (header or {}).get("op"))
                if asked not in _ONCE:
                    self._waits[(*self._line(), _WANTS.get(asked, asked))] += 1
            return request(service, header, buffers, timeout=timeout)

        peer.request = listening  # type: ignore[method-assign]

    def _line(self) -> tuple[str, int]:
        """Returns the line of the user's code that waits; ("", 0) in a backward pass, because torch's threads run
        it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if self._is_user(frame.f_code.co_filename):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return "", 0

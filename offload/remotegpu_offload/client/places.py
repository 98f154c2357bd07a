"""Where a session could run, and the wish for one place. Pure."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remotegpu_offload.config.model import Config


@dataclass(frozen=True, slots=True)
class Wish:
    """Which acceptor is wanted. Empty fields: any."""

    backends: tuple[str, ...] = ()  # best first
    environment: str = ""
    share: int | None = None  # the index in REMOTEGPU_SHARES; None: the first that fits
    versions: Mapping[str, str] = field(default_factory=dict)  # of this interpreter: "python", "torch", ...
    allow_skew: bool = False


# Opens the connection to an acceptor, and says what it is: `environment` as in control.proto, for people `place`, and
# perhaps `exit_code`, which tells after the connection's end how the acceptor ended: minus a signal, 0 in order.
Connector = Callable[[Wish], tuple[socket.socket, dict[str, Any]]]


def wish(config: Config, versions: Mapping[str, str]) -> Wish:
    """What the configuration asks for."""
    environment = "" if config.session.environment == "auto" else config.session.environment
    return Wish(tuple(config.session.backends), environment, None, versions, config.session.skew == "allow")


def moved(original: Wish, *, backend: str | None, environment: str | None) -> Wish:
    """Where a person wants the session: what is not said is free, but for the order of preference."""
    if backend is None and environment is None:
        return replace(original, environment="")
    return replace(
        original, backends=(backend,) if backend is not None else (), environment=environment or "", share=None
    )

"""The choice of an acceptor for a session, and moves to another one. Pure."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remotegpu_offload.config.model import Config


@dataclass(frozen=True, slots=True)
class Wish:
    """The wanted acceptor. Empty fields: any."""

    backends: tuple[str, ...] = ()  # best first
    environment: str = ""
    share: int | None = None  # the index in REMOTEGPU_SHARES; None: the first that fits
    versions: Mapping[str, str] = field(default_factory=dict)  # of this interpreter: "python", "torch", ...
    allow_skew: bool = False


# Opens the connection to an acceptor, and describes it: `environment` as in control.proto, `place` for people, and
# perhaps `exit_code`, which tells after the connection's end how the acceptor ended: minus a signal, 0 in order.
Connector = Callable[[Wish], tuple[socket.socket, dict[str, Any]]]


def wish(config: Config, versions: Mapping[str, str]) -> Wish:
    """Returns the wish of the configuration."""
    environment = "" if config.session.environment == "auto" else config.session.environment
    return Wish(tuple(config.session.backends), environment, None, versions, config.session.skew == "allow")


def moved(original: Wish, *, backend: str | None, environment: str | None) -> Wish:
    """Returns the wish for a move that a person asks for.

    With neither a back end nor an environment, back ends and share stay as they were wished for. Else what is not given
    may be any.
    """
    if backend is None and environment is None:
        return replace(original, environment="")
    return replace(
        original, backends=(backend,) if backend is not None else (), environment=environment or "", share=None
    )

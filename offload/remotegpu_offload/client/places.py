"""Chooses an acceptor for a session, at the start and for a move. Pure."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from remotegpu_offload.config.model import Config


@dataclass(frozen=True, slots=True)
class Wish:
    """The criteria for an acceptor. Empty fields match any acceptor."""

    backends: tuple[str, ...] = ()  # in order of preference
    environment: str = ""
    share: int | None = None  # index in REMOTEGPU_SHARES; None: the first that fits
    versions: Mapping[str, str] = field(default_factory=dict)  # of this interpreter: "python", "torch", ...
    allow_skew: bool = False


# Opens the connection to an acceptor and describes it. The description has `environment` as in control.proto, `place`
# as text for users, and perhaps `exit_code`. After the connection has ended, `exit_code` returns how the acceptor
# ended: 0 in order, or minus a signal.
Connector = Callable[[Wish], tuple[socket.socket, dict[str, Any]]]


def wish(config: Config, versions: Mapping[str, str]) -> Wish:
    """Returns the criteria that the configuration gives."""
    environment = "" if config.session.environment == "auto" else config.session.environment
    return Wish(tuple(config.session.backends), environment, None, versions, config.session.skew == "allow")


def moved(original: Wish, *, backend: str | None, environment: str | None) -> Wish:
    """Returns the criteria for a move that a user asks for.

    Without a back end and an environment, the original back ends and share still count. Otherwise a criterion that is
    not given matches any acceptor.
    """
    if backend is None and environment is None:
        return replace(original, environment="")
    return replace(
        original, backends=(backend,) if backend is not None else (), environment=environment or "", share=None
    )

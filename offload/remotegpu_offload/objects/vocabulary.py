"""Names in the pickles of a session for things that only the two ends together know.

They are pickled by reference. Each end's unpickler puts its own meaning in their place, so that calling one of these
functions outside of a session is an error.
"""

from typing import Any, NoReturn


def _nowhere() -> NoReturn:
    raise RuntimeError("this pickle was written for the other end of an offload session and is read there only")


def own(_ident: int) -> Any:
    """The receiver's object of this id, to which the sender holds a handle."""
    _nowhere()


def foreign(_ident: int, _kind: str, _info: Any) -> Any:
    """The sender's object of this id: the receiver makes a handle to it."""
    _nowhere()


def made(_ident: int, _function: Any, _arguments: Any) -> Any:
    """A function or class that travels by value; the client recognises it by its id when it comes back."""
    _nowhere()


def came(_ident: int) -> Any:
    """A function or class that the client has sent by value: the client's own."""
    _nowhere()


def kept(_ident: int, _value: Any) -> Any:
    """A value that stays at the acceptor, where the client has given it this id."""
    _nowhere()


def named(_module: str, _name: str) -> Any:
    """The object that the receiver finds by this name; at the sender a stub has replaced it."""
    _nowhere()

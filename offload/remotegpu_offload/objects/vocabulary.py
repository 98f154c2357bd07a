"""Names in a session's pickles for objects that only the two ends together can resolve.

Pickles refer to these functions by name, and each end's unpickler replaces them by its own. To call one outside of a
session is an error.
"""

from typing import Any, NoReturn


def _nowhere() -> NoReturn:
    raise RuntimeError("this pickle was written for the other end of an offload session and is read there only")


def own(_ident: int) -> Any:
    """Stands for the receiver's object with this id, to which the sender has a handle."""
    _nowhere()


def foreign(_ident: int, _kind: str, _info: Any) -> Any:
    """Stands for the sender's object with this id; the receiver makes a handle to it."""
    _nowhere()


def made(_ident: int, _function: Any, _arguments: Any) -> Any:
    """Makes a function or class that is sent by value. By its id, the client recognises it when it is sent back."""
    _nowhere()


def came(_ident: int) -> Any:
    """Stands for a function or class that the client has sent by value before."""
    _nowhere()


def kept(_ident: int, _value: Any) -> Any:
    """Stands for a value that stays in the acceptor, under this id of the client."""
    _nowhere()


def named(_module: str, _name: str) -> Any:
    """Stands for the object that the receiver finds by this name; the sender has replaced it by a stub."""
    _nowhere()

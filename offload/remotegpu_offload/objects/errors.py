"""Errors of values that are to cross. Every message ends with what to do."""

import pickle


class CrossingError(TypeError):
    """A value cannot be sent: the message has the path to the part at fault."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}, {message}" if path else message)
        self.path = path
        self.what = message


class RefusedError(pickle.UnpicklingError):
    """An acceptor's value is not taken: it is not a plain value, nor anything that this session has allowed."""


class UnknownObjectError(LookupError):
    """The other end named an object that it does not hold, or no longer."""

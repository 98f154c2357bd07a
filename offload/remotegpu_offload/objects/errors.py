"""Errors of values that are sent or received. Every message ends with a remedy."""

import pickle


class CrossingError(TypeError):
    """A value cannot be sent. The message contains the path to the part that causes the error."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}, {message}" if path else message)
        self.path = path
        self.what = message


class RefusedError(pickle.UnpicklingError):
    """A value from an acceptor is refused: it is neither a plain value nor one that this session allows."""


class UnknownObjectError(LookupError):
    """The other end named an object that this end does not hold, or has released."""

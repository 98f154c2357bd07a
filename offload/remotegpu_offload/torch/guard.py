"""A device guard that returns the device's type to torch's autograd engine, even while a Python error is set.

The engine asks between the nodes of a backward pass, and again after a node has failed. At that time Python's error is
still set, and any Python call turns it into a SystemError. This would abort the process, because torch asks in a
destructor. Therefore the guard stores the error, and `arm` raises it where the backward pass began.
"""

import functools
import operator
import threading
from collections import deque
from typing import Any, Final

import torch

# Errors of failed backward passes, until the thread that began the pass takes them. Bounded, as some are never taken.
_failed: Final[deque[BaseException]] = deque(maxlen=8)
_type: Final = torch._C._autograd.DeviceType.PrivateUse1
# Only C functions: Ctrl-C may raise an exception in any Python function of the main thread.
_quick: Final = functools.partial(operator.getitem, (_type,), 0)


def _careful(quick: Any = _quick, answer: Any = _type) -> Any:
    """Answers even while an error is set. Executes nothing before `quick` that would check for an error."""
    try:
        return quick()
    except SystemError as error:
        # This SystemError means that an error was set before; that error is the cause.
        if error.__cause__ is not None:
            _failed.append(error.__cause__)
    return answer


def _begin() -> Any:
    """Gives a thread's first answer, and chooses the function for its later ones."""
    _answers.answer = _quick if threading.current_thread() is threading.main_thread() else _careful
    return _type


class _Answers(threading.local):
    """The answering function of each thread.

    It is set as the thread's own attribute, because a further lookup would fail while an error is set.
    """

    answer = staticmethod(_begin)


_answers: Final = _Answers()


def guard() -> Any:
    """Returns the guard for `_setup_privateuseone_for_python_backend`."""
    _begin()
    answer = functools.partial(operator.methodcaller("answer"), _answers)
    return type("Guard", (torch._C._acc.DeviceGuard,), {"type_": answer})()


def arm() -> None:
    """Raises errors of backward passes where these began. Call it once in a process."""
    run = torch.autograd._engine_run_backward

    @functools.wraps(run)
    def run_backward(*arguments: Any, **keywords: Any) -> Any:
        try:
            return run(*arguments, **keywords)
        except SystemError:
            if not _failed:
                raise
            error = _failed.pop()
        raise error

    torch.autograd._engine_run_backward = run_backward

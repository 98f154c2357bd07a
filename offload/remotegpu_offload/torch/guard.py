"""What tells torch's engine the type of the device, also while an error goes through it.

The engine asks between the nodes of a backward pass, and once more when a node has failed: then Python's error is
still set, every call of Python turns it into a SystemError, and that ends the process, because torch asks in a
destructor. So the error is taken out of the way there, and put back where the backward pass was begun.
"""

import functools
import operator
import threading
from collections import deque
from typing import Any, Final

import torch

# Errors of backward passes that failed, until the thread that began them takes them; more than a few have no owner.
_failed: Final[deque[BaseException]] = deque(maxlen=8)
_type: Final = torch._C._autograd.DeviceType.PrivateUse1
# All in C: Ctrl-C may raise an exception in any Python function of the main thread.
_quick: Final = functools.partial(operator.getitem, (_type,), 0)


def _careful(quick: Any = _quick, answer: Any = _type) -> Any:
    """Works while an error is set. Until the call of `quick` it does nothing that would look for one."""
    try:
        return quick()
    except SystemError as error:
        # Python's own words for "there was an error already", which is its cause.
        if error.__cause__ is not None:
            _failed.append(error.__cause__)
    return answer


def _begin() -> Any:
    """The first answer in a thread of torch's or of the program's."""
    _answers.answer = _quick if threading.current_thread() is threading.main_thread() else _careful
    return _type


class _Answers(threading.local):
    """Of each thread. The attribute has to be the thread's own: looking further fails while an error is set."""

    answer = staticmethod(_begin)


_answers: Final = _Answers()


def guard() -> Any:
    """For `_setup_privateuseone_for_python_backend`."""
    _begin()
    answer = functools.partial(operator.methodcaller("answer"), _answers)
    return type("Guard", (torch._C._acc.DeviceGuard,), {"type_": answer})()


def arm() -> None:
    """Have the errors of backward passes raised where these began. Once in a process."""
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

"""Device guard that answers torch's engine with the type of the device, also while an error goes through the engine.

The engine asks between the nodes of a backward pass, and once more when a node has failed: then Python's error is still
set, every call of Python turns it into a SystemError, and that ends the process, because torch asks in a destructor. So
the guard takes the error out of the way, and `arm` raises it again where the backward pass began.
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
    """Answers even while an error is set. Until the call of `quick` it does nothing that would check for one."""
    try:
        return quick()
    except SystemError as error:
        # Python's own words for "there was an error already", which is its cause.
        if error.__cause__ is not None:
            _failed.append(error.__cause__)
    return answer


def _begin() -> Any:
    """Gives the first answer in a thread of torch's or of the program's."""
    _answers.answer = _quick if threading.current_thread() is threading.main_thread() else _careful
    return _type


class _Answers(threading.local):
    """Each thread's function that answers. The attribute has to be the thread's own: a further lookup fails while an
    error is set."""

    answer = staticmethod(_begin)


_answers: Final = _Answers()


def guard() -> Any:
    """Returns the guard for `_setup_privateuseone_for_python_backend`."""
    _begin()
    answer = functools.partial(operator.methodcaller("answer"), _answers)
    return type("Guard", (torch._C._acc.DeviceGuard,), {"type_": answer})()


def arm() -> None:
    """Raises the errors of backward passes where these began. Once in a process."""
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

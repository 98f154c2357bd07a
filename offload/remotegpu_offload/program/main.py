"""Runs a program as `__main__`, and ends it as the interpreter would."""

import atexit
import builtins
import contextlib
import signal
import sys
import threading
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import TracebackType
from typing import Any, Final

from remotegpu_offload.functions.errors import PASSED
from remotegpu_offload.objects.errors import CrossingError, RefusedError
from remotegpu_offload.wire.errors import OffloadError

_OURS: Final = __file__.rpartition("/program/")[0]


def new_main(
    code: types.CodeType, spec: ModuleSpec | None, file: str | None, package: str | None
) -> Callable[[], None]:
    """Installs a new `__main__` module. Returns a function that executes the code in it."""
    module = types.ModuleType("__main__")
    names: dict[str, Any] = {
        "__builtins__": builtins,
        "__cached__": None,
        "__loader__": None if spec is None else spec.loader,
        "__package__": package,
        "__spec__": spec,
    }
    if file is not None:
        names["__file__"] = file
    module.__dict__.update(names)
    sys.modules["__main__"] = module
    return lambda: exec(code, module.__dict__)  # noqa: S102 - executes the user's program


def run_to_end(
    program: Callable[[], None], explain: Callable[[BaseException], None], finalize: Callable[[], None]
) -> tuple[str, int]:
    """Runs a program, waits for its threads and runs its exit functions. Returns how the process would have ended.

    The result is ("exit", code) or ("signal", number). `explain` may add notes to an uncaught error. `finalize` drops
    the program's modules.
    """
    ending = outcome(program, explain)
    # The same order as in the interpreter: threads, then exit functions. Neither changes the exit code.
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        ending = ("signal", int(signal.SIGINT))
    except BaseException as error:
        _show(error)
    # atexit prints errors of its functions itself.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(KeyboardInterrupt):
        finalize()
    if not _flushed() and ending[0] == "exit":
        ending = ("exit", 120)
    return ending


def outcome(
    program: Callable[[], None], explain: Callable[[BaseException], None] = lambda _error: None
) -> tuple[str, int]:
    """Runs the program. Shows an uncaught error as the interpreter does. Returns ("exit", code) or ("signal",
    number)."""
    try:
        program()
    except SystemExit as error:
        return "exit", exit_code(error.code)
    except KeyboardInterrupt as error:
        _show(error)
        return "signal", int(signal.SIGINT)
    except BaseException as error:
        explain(error)
        _show(error)
        return "exit", 1
    return "exit", 0


def exit_code(value: object) -> int:
    """Returns the exit code of `sys.exit(value)`. Prints the value if the interpreter would."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    if sys.stderr is not None:
        sys.stderr.write(f"{value}\n")
        sys.stderr.flush()
    return 1


def trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the outermost frames of this package."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith((_OURS, "<frozen runpy>")):
        traceback = traceback.tb_next
    return traceback


def _show(error: BaseException) -> None:
    # The program's earlier output must appear before the traceback.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    error.__traceback__ = trimmed(error.__traceback__)
    if isinstance(error, (KeyboardInterrupt, EOFError)):
        _cut(error.__traceback__)
    elif isinstance(error, (OffloadError, CrossingError, RefusedError)) or hasattr(error, PASSED):
        # The error comes from the acceptor's side of the program, or has a sentence for users: omit this package's
        # frames.
        thin(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    with contextlib.suppress(Exception):
        sys.stderr.flush()


def _cut(traceback: TracebackType | None) -> None:
    """Drops the frames of this package's streams and files, which a local program would not have in its traceback."""
    while traceback is not None:
        if traceback.tb_next is not None and traceback.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
            traceback.tb_next = None
        traceback = traceback.tb_next


def thin(error: BaseException) -> None:
    """Drops the frames of this package from the error and its causes."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.__traceback__ = traceback = trimmed(found.__traceback__)
        while traceback is not None:
            following = traceback.tb_next
            while following is not None and following.tb_frame.f_code.co_filename.startswith(_OURS):
                following = following.tb_next
            traceback.tb_next = following
            traceback = following
        found = found.__cause__ or found.__context__


def _flushed() -> bool:
    good = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError) as error:
            good = False
            with contextlib.suppress(Exception):
                sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
                sys.stderr.flush()
    return good

"""Runs the user's command transparently: signals, stops and the exit code pass through."""

import os
import resource
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from remotegpu.cli import exits

_FORWARDED: Final = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
}
_ENDING: Final = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# `si_code` of a signal that the kernel sent, as a terminal's Ctrl-C: the whole process group got it already.
_FROM_KERNEL: Final = 0x80


def block_signals() -> set[signal.Signals]:
    """Blocks signals before any thread exists, so that all inherit it; `run_child` takes the signals one by one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    return {signal.Signals(number) for number in previous}


class StoppedError(Exception):
    """A signal asked us to end before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stop_if_interrupted() -> None:
    """Raises StoppedError if a signal is pending: signals are blocked, and the command does not run yet."""
    info = signal.sigtimedwait(_ENDING, 0)
    if info is not None:
        raise StoppedError(info.si_signo)


def find_command(name: str, search_path: str | None) -> str:
    path = shutil.which(name, path=search_path)
    if path is None:
        raise exits.CliError(exits.NOT_FOUND, f"the command {name!r} was not found; is it installed and on PATH?")
    return path


def run_child(command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> int:
    """Runs the command; returns its exit code, or minus the signal that ended it. `mask` is of `block_signals`."""
    path = find_command(command[0], environment.get("PATH"))
    try:
        # Python ignores SIGPIPE for itself; the command must not.
        pid = os.posix_spawn(
            path, list(command), environment, setsigmask=mask, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
        )
    except OSError as error:
        raise exits.CliError(
            exits.NOT_EXECUTABLE, f"the command {command[0]!r} cannot be run: {error.strerror}"
        ) from None
    while True:
        info = signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != _FROM_KERNEL:
                os.kill(pid, info.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            # Stop as well, so that the shell takes the terminal back; the continue signal for us also continues the
            # command.
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
        elif ended:
            return os.waitstatus_to_exitcode(status)


def end_like(run: Callable[[], int]) -> int:
    """Returns the exit code of `run`; if that stands for a signal, this process dies of the same signal instead."""
    try:
        result = run()
    except StoppedError as stopped:
        result = -stopped.number
    if result >= 0:
        return result
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -result not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-result, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-result])
    os.kill(os.getpid(), -result)
    return 128 - result

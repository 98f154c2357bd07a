"""Runs the user's command transparently: passes on signals, stops and the exit code."""

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
# `si_code` of a signal from the kernel, such as Ctrl-C in a terminal, which the whole process group gets.
_FROM_KERNEL: Final = 0x80


def block_signals() -> set[signal.Signals]:
    """Blocks the signals that `run_child` takes. To be called before any thread starts. Returns the old mask."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    return {signal.Signals(number) for number in previous}


class StoppedError(Exception):
    """Raised if a signal asks this process to end before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stop_if_interrupted() -> None:
    """Raises StoppedError if a signal to end is pending. For the time before the command runs."""
    info = signal.sigtimedwait(_ENDING, 0)
    if info is not None:
        raise StoppedError(info.si_signo)


def find_command(name: str, search_path: str | None) -> str:
    path = shutil.which(name, path=search_path)
    if path is None:
        raise exits.CliError(exits.NOT_FOUND, f"the command {name!r} was not found; is it installed and on PATH?")
    return path


def run_child(command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> int:
    """Runs the command. Returns its exit code, or the negative signal number. `mask` is that of `block_signals`."""
    path = find_command(command[0], environment.get("PATH"))
    try:
        # Python ignores SIGPIPE, and the command must not inherit that.
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
            # Stops this process too, so that the shell gets the terminal back. After SIGCONT for this process the
            # command continues too.
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
        elif ended:
            return os.waitstatus_to_exitcode(status)


def end_like(run: Callable[[], int]) -> int:
    """Returns the exit code of `run`. If `run` returns a negative signal number, this process ends by that signal."""
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

"""Runs a command with `--watch`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def watching(*command: str, env: Mapping[str, str]) -> Iterator[list[str]]:
    """Yields a list that gets the lines of a command. At the end SIGINT must end the command with code 0."""
    shown: list[str] = []
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        reader = threading.Thread(target=shown.extend, args=(running.stdout,))
        reader.start()
        try:
            yield shown
            running.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        finally:
            running.kill()
            reader.join()

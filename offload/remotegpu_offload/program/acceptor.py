"""Program mode in the acceptor: runs the client's program in this process, and connects its standard streams."""

import gc
import importlib.util
import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from remotegpu_offload.code.finder import Finder, PagedLoader, explain
from remotegpu_offload.code.link import RELAY_ENV
from remotegpu_offload.code.naming import MAIN_ALIAS
from remotegpu_offload.files.layer import Layer
from remotegpu_offload.program.main import new_main, run_to_end
from remotegpu_offload.program.streams import Streams
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.interrupts import nudge
from remotegpu_offload.wire.request import Request

if TYPE_CHECKING:
    from remotegpu_offload.acceptor.session import AcceptorSession

INHERITED: Final = "inherited.json"
# Signals that the client forwards. A change of its terminal's size is a separate message.
PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


_GRACE_SECONDS: Final = 5.0
_leave = os._exit


def _end_child(how: str, number: int) -> None:
    if how == "signal":
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _leave(number)


class ProgramError(Exception):
    """The program cannot be run; the message says why."""


class Program:
    """Runs the session's program; a session runs at most one."""

    def __init__(self, finder: Finder, files: Layer, streams: Streams) -> None:
        self._finder = finder
        self._files = files
        self._streams = streams
        self._request: Request | None = None
        # Signals that arrived before the program began; None afterwards.
        self._early: list[int] | None = []
        self._beginning = threading.Lock()

    def answer(self, request: Request) -> Message | None:
        match request.header.get("op"):
            case "run":
                if self._request is not None:
                    raise ProgramError("this session has run its program already: open another session")
                self._request = request
                return Message(self._run(request.header))
            case "signal":
                self._signal(int(request.header["number"]))
            case "resize":
                self._streams.resize(request.header.get("size"))
        return None

    def _run(self, header: dict[str, Any]) -> dict[str, Any]:
        os._exit = self._exit_at_once
        for each in PASSED_ON:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        sys.argv[:] = header["argv"]
        sys.path.insert(0, header["folder"])
        kind, value = header["kind"], header.get("value", "")
        main, notes = partial(self._main, kind, value), partial(explain, finder=self._finder)
        how, number = run_to_end(main, notes, self._finalize)
        self._files.remote.sync()
        self._streams.finish()
        if not self._streams.is_own_process():
            # A child that the program forked, and that has reached the end of the program.
            _end_child(how, number)
        return {how: number}

    def _main(self, kind: str, value: str) -> None:
        with self._beginning:
            early, self._early = self._early, None
        for number in early or ():
            self._signal(number)
        self._load(kind, value)()

    def _finalize(self) -> None:
        """Drops the program's modules as the interpreter does at its end: files are flushed, and `__del__` runs."""
        # Flushed first, because the garbage collector may close a file before its buffer.
        self._files.flush()
        main = sys.modules.get("__main__")
        for name in list(sys.modules):
            spec = getattr(sys.modules[name], "__spec__", None)
            if sys.modules[name] is main or isinstance(getattr(spec, "loader", None), PagedLoader):
                del sys.modules[name]
        del main
        gc.collect()

    def _load(self, kind: str, value: str) -> Callable[[], None]:
        """Finds and compiles the program. Errors here are shown like errors of the program."""
        if kind == "command":
            return new_main(compile(value, "<string>", "exec"), None, None, None)
        if kind == "module":
            # As in `python -m`, all finders are asked, including the client's.
            try:
                _, spec, code = runpy._get_module_details(value, runpy._Error)  # type: ignore[attr-defined]
            except runpy._Error as error:  # type: ignore[attr-defined]
                sys.exit(f"{sys.executable}: {error}")
            sys.argv[0] = spec.origin
            return new_main(code, spec, spec.origin, spec.parent)
        page = self._finder.main()
        code = self._finder.code_of(page)
        # Processes that multiprocessing starts find the program by this name.
        spec = importlib.util.find_spec(MAIN_ALIAS)
        run = new_main(code, spec, page.origin, None)
        sys.modules[MAIN_ALIAS] = sys.modules["__main__"]
        return run

    def _signal(self, number: int) -> None:
        """Delivers a signal to the program. Called on the receiving thread.

        If the signal would end the process without a message, the client first gets the answer.
        """
        if number not in PASSED_ON:
            return
        with self._beginning:
            if self._early is not None:
                self._early.append(number)
                return
        if signal.getsignal(number) == signal.SIG_DFL and self._request is not None:
            # The receiving thread must not wait until the answer is sent, so a new thread does.
            threading.Thread(target=self._end_by, args=(self._request, number), daemon=True).start()
            return
        # Ctrl-C signals all foreground processes of a terminal.
        if number == signal.SIGINT and os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), number)
        else:
            os.kill(os.getpid(), number)
        nudge()

    def _end_by(self, request: Request, number: int) -> None:
        request.reply({"signal": number})
        os.kill(os.getpid(), number)

    def client_is_gone(self, folder: str) -> None:
        """Sends the program SIGHUP, as for a closed terminal, and SIGKILL some seconds later.

        Does nothing if no program runs.
        """
        if self._request is None or self._request.answered:
            return
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit_at_once(self, status: int) -> Any:
        """Replaces the program's `os._exit`.

        Answers the client only in the session's own process, not in a forked child.
        """
        if self._request is not None and self._streams.is_own_process():
            self._request.reply({"exit": status & 0xFF})
        _leave(status)


def attach(session: "AcceptorSession") -> None:
    """Redirects the standard streams, and starts to serve programs."""
    finder = session.loaded[Service.CODE]
    assert isinstance(finder, Finder)
    streams = Streams(finder.link, session.hello.get("stdio", {}))
    streams.install()
    files = session.loaded[Service.FILES]
    assert isinstance(files, Layer)
    program = Program(finder, files, streams)
    session.loaded[Service.PROGRAM] = program
    session.loaded[Service.STDIO] = streams
    session.peer.serve(Service.PROGRAM, program.answer)
    session.peer.on_lost.append(lambda _reason: program.client_is_gone(str(session.folder)))
    session.peer.serve(Service.STDIO, lambda request: _stream_news(streams, request), inline=True)
    _prepare_children(session, finder)


def _stream_news(streams: Streams, request: Request) -> None:
    if request.header.get("op") == "closed":
        streams.broken[int(request.header["fd"])] = int(request.header["errno"])


def _prepare_children(session: "AcceptorSession", finder: Finder) -> None:
    """Prepares each Python process that the program starts, so that it finds code and files as its parent does."""
    shared = {key: session.hello.get(key) for key in ("code", "files", "cwd")}
    (Path(session.folder) / INHERITED).write_text(json.dumps(shared), encoding="utf-8")
    os.environ[RELAY_ENV] = finder.link.relay
    start = str(Path(__file__).resolve().parents[1] / "sitecustomize")
    before = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([start, *before]))

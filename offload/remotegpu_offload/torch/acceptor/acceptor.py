"""The torch device in an acceptor: one thread owns the device and executes batches in the order of their numbers."""

import functools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from remotegpu_offload.torch import values
from remotegpu_offload.torch.acceptor import requests
from remotegpu_offload.torch.acceptor.executor import Executor, FailedError, Failure, memory
from remotegpu_offload.torch.codec import BATCH
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import DEFERRED, Deferred, Request

# Most batches that wait in this queue. Further ones wait in the socket, and finally the program waits.
WAITING: Final = 256

_DEVICES: Final = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "mps": "mps"}
_KEYS: Final = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}
_COMPOSITE: Final = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")

Answer = Callable[[Executor, dict[str, Any], Sequence[Any]], Message]
"""A step after all batches before it: with the request's header and its own buffers."""


class Session(Protocol):
    """The interface of an acceptor's session that the torch device uses."""

    peer: Peer
    environment: Any
    loaded: dict[Service, Any]


def operations(backend: str) -> list[str]:
    """Returns the operations for which this torch has a kernel on a back end."""
    keys = (_KEYS[_DEVICES[backend]], *_COMPOSITE)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [name for name in torch._C._dispatch_get_all_op_names() if any(has(name, key) for key in keys)]


def _sync(executor: Executor, _header: dict[str, Any], _own: Sequence[Any]) -> Message:
    if executor.device.type != "cpu":
        torch.accelerator.synchronize(executor.device)
    executor.check()
    return Message({})


def _result(executor: Executor, header: dict[str, Any], _own: Sequence[Any]) -> Message:
    results = executor.take(header["ticket"])
    executor.check()
    return Message({"results": results})


def _get(executor: Executor, header: dict[str, Any], _own: Sequence[Any]) -> Message:
    found = executor.bytes_at(header["address"], header["bytes"])
    executor.check()
    return Message({}, [memory(found.cpu())])


def _stats(executor: Executor, _header: dict[str, Any], _own: Sequence[Any]) -> Message:
    return Message({"storages": len(executor.storages), "executed": executor.executed})


ANSWERS: dict[str, Answer] = {"sync": _sync, "result": _result, "get": _get, "stats": _stats, **requests.ANSWERS}
"""Answers by the word in the request."""


@dataclass(slots=True)
class _Work:
    number: int
    batch: memoryview
    buffers: Sequence[Any]
    request: Request


class Device:
    """The device's thread, and the state that only this thread uses."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.executor = Executor(torch.device(_DEVICES[backend]))
        self.executor.generator = functools.partial(requests.generator, self.executor)
        self._work: queue.Queue[_Work | Callable[[], None] | None] = queue.Queue(WAITING)
        self._early: dict[int, _Work] = {}
        self._next = 0
        self._broken: str | None = None
        self._thread: threading.Thread | None = None

    def handle(self, request: Request) -> Message | Deferred | None:
        """Handles a request of the client, on the receiving thread: does not wait for the device, and keeps the
        order."""
        match request.header.get("op"):
            case "run":
                self._start()
                body = memoryview(request.buffers[0])
                number = BATCH.unpack_from(body)[0]
                self._work.put(_Work(number, body[BATCH.size :], request.buffers[1:], request))
                return DEFERRED
            case "begin":
                # The first batch has this number: the session's earlier acceptor executed those before it.
                self._start()
                self._work.put(functools.partial(setattr, self, "_next", int(request.header["number"])))
                return Message({})
            case "hello":
                return Message(
                    {"torch": torch.__version__, "backend": self.backend, "operations": operations(self.backend)}
                )
        request.fail(f"the torch device knows no {request.header.get('op')!r}: install the same version on both ends")
        return None

    def settle(self) -> None:
        """Waits until all received batches are executed. Call it before a function uses their results."""
        if not self._work.unfinished_tasks:
            return
        done = threading.Event()
        self._start()
        self._work.put(done.set)
        done.wait()

    def close(self) -> None:
        """Ends the thread after it has finished all its work."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="remotegpu torch device", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if isinstance(work, _Work):
                self._due(work)
            else:
                work()
            self._work.task_done()

    def _due(self, work: _Work) -> None:
        if work.number < self._next:
            # The client sends a batch again if it does not know whether the batch has arrived.
            self._answer(work)
            return
        self._early[work.number] = work
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._do(due)

    def _do(self, work: _Work) -> None:
        header = work.request.header
        own = int(header.get("own", 0))
        buffers = list(work.buffers)
        try:
            if self._broken is None:
                self.executor.run(work.batch, buffers[: len(buffers) - own])
        except Exception as error:
            self._broken = (
                f"the stream of operations is broken: {type(error).__name__}: {error}; start the program again"
            )
        self._answer(work)

    def _answer(self, work: _Work) -> None:
        header = work.request.header
        own = int(header.get("own", 0))
        buffers = list(work.buffers)
        then = header.get("then")
        if then is None:
            return
        if self._broken is not None:
            work.request.fail(self._broken)
            return
        try:
            answer = ANSWERS[then](self.executor, header, buffers[len(buffers) - own :])
            work.request.reply(answer.header, answer.buffers)
        except FailedError as error:
            self._fault(work.request, error.failure)
        except Exception as error:
            self._fault(work.request, Failure(type(error).__name__.removeprefix("_"), str(error)))

    def _fault(self, request: Request, failure: Failure) -> None:
        if request.id:
            request.reply({"fault": failure.to_json()})
        else:
            self.executor.note(failure)


def attach(session: Session) -> None:
    """Serves the torch device in a session. The first batch initialises the device."""
    # The zygote imported torch before this session's variables were set.
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(max(1, int(threads)))
    device = Device(session.environment.backend)
    session.peer.serve(Service.TORCH, device.handle, inline=True)
    session.loaded[Service.TORCH] = device
    values.use(device)

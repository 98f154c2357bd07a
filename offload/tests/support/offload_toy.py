"""An acceptor with one small feature: numbers under names, which can be saved and loaded. `--fd N` as the real one."""

import importlib
import importlib.machinery
import os
import socket
import sys
import time
import types
from typing import Any

from remotegpu_offload.acceptor import session as acceptor
from remotegpu_offload.wire import Message, Request, Service

ITSELF = "offload_toy"


def attach(session: Any) -> None:
    numbers: dict[str, int] = {}
    expected = [0]

    def answer(request: Request) -> Message:
        header = request.header
        match header["op"]:
            case "add":
                numbers[header["key"]] = numbers.get(header["key"], 0) + header["n"]
                return Message({"total": numbers[header["key"]], "pid": os.getpid()})
            case "numbered":
                # As the torch device's batches: in the order of numbers taken by several threads.
                deadline = time.monotonic() + 60
                while header["number"] != expected[0]:
                    assert time.monotonic() < deadline, f"{header['number']} came, {expected[0]} was expected"
                    time.sleep(0.001)
                expected[0] += 1
                return Message({})
            case "call back":
                return Message(session.peer.request(Service.APP, {}).header)
            case "save":
                return Message({"numbers": numbers, "expected": expected[0]})
            case "load":
                if os.environ.get("TOY_FULL"):
                    raise MemoryError("there is no room for numbers")
                numbers.update(header["numbers"])
                expected[0] = header["expected"]
                return Message({})
            case "greeting":
                return Message(session.hello)
            case "end":
                session.end("the appliance is shutting down")
                return Message({})
        raise ValueError(header["op"])

    session.peer.serve(Service.APP, answer)


if __name__ == "__main__":
    feature = types.ModuleType(ITSELF)
    feature.attach = attach  # type: ignore[attr-defined]
    feature.__spec__ = importlib.machinery.ModuleSpec(ITSELF, None)
    sys.modules[ITSELF] = feature
    acceptor.FEATURES = ((ITSELF, ""),)  # type: ignore[misc, assignment]
    acceptor.main(socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1])), "toy")

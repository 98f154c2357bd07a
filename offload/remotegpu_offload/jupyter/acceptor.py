"""The acceptor's end of notebooks: a kernel on request, and its messages."""

import importlib.util
from typing import TYPE_CHECKING, Any

from remotegpu_offload.wire import Message, Request, Service

if TYPE_CHECKING:
    from remotegpu_offload.acceptor.session import AcceptorSession


class Notebook:
    def __init__(self, session: "AcceptorSession") -> None:
        self._session = session
        self._relay: Any = None

    def answer(self, request: Request) -> Message | None:
        """Messages come in order on the receiving thread, and so must not be answered: they are notices."""
        match request.header.get("op"):
            case "message":
                if self._relay is not None:
                    self._relay.arrived(request)
                return None
            case "kernel":
                return self._run(request)
            case other:
                request.fail(f"{other!r} is nothing that a notebook can do: run the same version on both ends")
                return None

    def _run(self, request: Request) -> Message | None:
        if importlib.util.find_spec("ipykernel") is None:
            request.fail(
                f"environment {self._session.environment.name} has no ipykernel: install it there (`python -m pip "
                "install ipykernel`), or name another environment"
            )
            return None
        from remotegpu_offload.jupyter import kernel  # noqa: PLC0415 (half a second)

        def attach(relay: Any) -> None:
            self._relay = relay
            self._session.peer.notify(Service.APP, {"op": "ready"})

        header = request.header
        try:
            kernel.run(self._session.peer, self._session.folder, str(header["key"]), str(header["scheme"]), attach)
        finally:
            self._relay = None
        return Message({})


def attach(session: "AcceptorSession") -> None:
    """Serve Service.APP."""
    notebook = Notebook(session)
    session.peer.serve(Service.APP, notebook.answer)
    session.loaded[Service.APP] = notebook

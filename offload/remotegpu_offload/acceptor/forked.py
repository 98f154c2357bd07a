"""Turns a fork of the zygote into the process that serves one client."""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from remotegpu_offload.acceptor import asking, driver, keeper, packets, sandbox
from remotegpu_offload.acceptor.environment import Environment, NoBackendError, describe
from remotegpu_offload.acceptor.packets import Packet
from remotegpu_offload.acceptor.sandbox import ALONE, NAMESPACES, Isolation, Place
from remotegpu_offload.acceptor.session import AcceptorSession
from remotegpu_offload.acceptor.syscalls import set_parent_death_signal
from remotegpu_offload.wire.peer import Peer

_STATS_SECONDS: Final = 1.0
# The only variables that a session inherits from the zygote.
_KEPT: Final = (
    *("LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_CACHE_DISABLE", "REMOTEGPU_LOG"),
    *("CUPY_COMPILE_WITH_PTX", "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "USE_PYTORCH_KERNEL_CACHE"),
    *("NCCL_P2P_LEVEL", "NCCL_RUNTIME_CONNECT", "NCCL_SET_THREAD_NAME"),
)


def become_session(packet: Packet, descriptors: Sequence[int], telling: int) -> None:
    """Turns a fork of the zygote into a session.

    Args:
        packet: `id`, the fields of a Place, `visible` devices, and either `environment`, or `probe` to describe it.
        descriptors: the control and the data socket. With a `share`, a third socket, on which the session asks for
            connections to its worker.
        telling: a pipe. Receives the session's decimal process id as the zygote sees it, or the reason of a failure.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control, data, *ways = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    sandbox.close_all_but((*descriptors, telling))
    place = Place.from_packet(packet)
    os.setsid()
    try:
        level = sandbox.divide(place)
        # The next process is the first one of the new PID namespace.
        child = os.fork() if level == NAMESPACES else 0
    except OSError as error:
        os.write(telling, f"the sandbox cannot be made: {error}".encode())
        return
    if child:
        os.write(telling, str(child).encode())
        return
    if level == ALONE:
        os.write(telling, str(os.getpid()).encode())
    os.close(telling)
    try:
        isolation = sandbox.shut(place, level, nodes=packet["nodes"])
    except OSError as error:
        packets.send(control, {"op": "failed", "reason": f"the sandbox cannot be made: {error}"})
        return
    if level == ALONE:
        set_parent_death_signal(signal.SIGKILL)
        lines = keeper.Log(_capture_output(), control)
        threading.Thread(target=lines.pass_on, name="remotegpu-log", daemon=True).start()
        _run(packet, isolation, control, data, ways)
    else:
        _run_kept(packet, isolation, control, data, ways)


def _run_kept(
    packet: Packet, isolation: Isolation, control: socket.socket, data: socket.socket, ways: Sequence[socket.socket]
) -> None:
    ours, theirs = packets.pair()
    reading = _capture_output()
    child = os.fork()
    if child == 0:
        control.close()
        ours.close()
        os.close(reading)
        _run(packet, isolation, theirs, data, ways)
        return
    for other in (theirs, data, *ways):
        other.close()
    for standard in (1, 2):
        os.dup2(0, standard)
    code = keeper.keep(child, control, ours, reading)
    raise SystemExit(code if code >= 0 else 128 - code)


def _run(
    packet: Packet, isolation: Isolation, link: socket.socket, data: socket.socket, ways: Sequence[socket.socket]
) -> None:
    """Serves one client. The process at the other end of `link` can end the session."""
    _set_variables(packet, isolation.folder)
    for one in ways:
        asking.use(packet["share"], one, isolation.folder, children=isolation.level == NAMESPACES)
    os.chdir(isolation.folder)
    _reseed()
    if packet.get("probe"):
        packets.send(link, {"op": "described", **_described(packet), "isolation": _described_isolation(isolation)})
        return
    _limit_memory(packet["memory_fractions"])
    packets.send(link, {"op": "ready"})
    connection = _accept(link, data)
    if connection is None:
        return
    data.close()
    environment = Environment.from_dict(packet["environment"])
    peer = Peer(connection, name="the client", accepting=True)
    session = AcceptorSession(peer, environment, isolation.folder)
    threading.Thread(target=_watch, args=(link, session), name="remotegpu-end", daemon=True).start()
    session.run()
    _send_stats(link, session)


def _limit_memory(fractions: Sequence[float]) -> None:
    """Limits how much memory torch may allocate on each visible device.

    CUDA's driver has no such limit for a process.
    """
    if fractions:
        import torch  # noqa: PLC0415

        for device, fraction in enumerate(fractions):
            torch.cuda.set_per_process_memory_fraction(min(1.0, fraction), device)


def _capture_output() -> int:
    """Redirects standard output and error into a pipe, and returns the reading end.

    The pipe receives output that bypasses the session's own capture.
    """
    reading, writing = os.pipe()
    for standard in (1, 2):
        os.dup2(writing, standard)
    os.close(writing)
    return reading


def _accept(link: socket.socket, data: socket.socket) -> socket.socket | None:
    """Returns the client's connection, which the gateway passes; None if the session ends first. Blocks."""
    if link in select.select([link, data], [], [])[0]:
        return None
    # The content of the packet is ignored; only its descriptor counts.
    _, descriptors, _, _ = socket.recv_fds(data, 4096, 1)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _watch(link: socket.socket, session: AcceptorSession) -> None:
    while True:
        if select.select([link], [], [], _STATS_SECONDS)[0]:
            received = packets.receive(link)
            if received is not None:
                session.end(str(received[0].get("reason", "")))
            # Ends the process at once, even while the client's code runs.
            os._exit(0)
        _send_stats(link, session)


def _send_stats(link: socket.socket, session: AcceptorSession) -> None:
    counters = session.peer.counters
    with contextlib.suppress(OSError):
        packets.send(
            link,
            {
                "op": "stats",
                "commands": counters.served.total(),
                "bytes_in": counters.bytes_in,
                "bytes_out": counters.bytes_out,
            },
        )


def _set_variables(packet: Packet, folder: Path) -> None:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # The session's user id has no entry in /etc/passwd.
    named = {"USER": "remotegpu", "LOGNAME": "remotegpu", "HOME": str(folder), "TMPDIR": str(folder)}
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    variables: Mapping[str, str] = packet["visible"]
    os.environ.clear()
    os.environ.update({**kept, "PATH": path, **named, **variables})


def _reseed() -> None:
    """Seeds numpy's generator again, because all forks inherit the same state.

    Python's `random` module seeds itself.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _described(packet: Packet) -> dict[str, Any]:
    """Describes the environment, or gives the reason why sessions cannot use it."""
    try:
        _read_own_files()
        environment = describe(packet["name"], packet["backend"])
        if environment.backend != "cpu" or "torch" in sys.modules:
            _compute(environment.backend, kernels=packet["kernels"])
    except NoBackendError as error:
        return {"reason": str(error)}
    except Exception as error:
        return {"reason": f"its self-test fails: {type(error).__name__}: {error}"}
    return {"environment": environment.to_dict()}


def _read_own_files() -> None:
    """Checks that a session may read its own installation.

    Raises PermissionError if the session may not read a folder on its search path.
    """
    for entry in map(Path, sys.path):
        try:
            if entry.is_dir():
                next(entry.iterdir(), None)
        except PermissionError:
            raise PermissionError(
                f"a session's user may not read {entry}: install the environment where everybody can read it"
            ) from None


def _compute(backend: str, *, kernels: bool) -> None:
    """Computes and checks one small result. With `kernels`, the device runs kernels that torch brings."""
    if "torch" not in sys.modules:
        driver.compute()
        return
    import torch  # noqa: PLC0415

    device = {"rocm": "cuda"}.get(backend, backend)
    if not kernels:
        numbers, expected = torch.arange(1000).to(device).cpu(), 499500
    else:
        numbers, expected = torch.arange(1000, device=device) * 3 + 7, 3 * 499500 + 7000
    found = numbers.sum().item()
    if found != expected:
        raise ArithmeticError(f"{device} computed {found} in place of {expected}")


def _described_isolation(isolation: Isolation) -> dict[str, Any]:
    return {"level": isolation.level, "lacks": list(isolation.lacks)}

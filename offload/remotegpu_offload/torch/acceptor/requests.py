"""Requests about the acceptor's device (properties, memory, random numbers, events), in order with operations."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from remotegpu_offload.torch.acceptor.executor import Executor, Failure, Storage, memory
from remotegpu_offload.wire.frames import Buffer, Message

_PROPERTIES: Final = (
    "name",
    "major",
    "minor",
    "total_memory",
    "multi_processor_count",
    "warp_size",
    "max_threads_per_multi_processor",
    "max_threads_per_block",
    "regs_per_multiprocessor",
    "shared_memory_per_block",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "L2_cache_size",
    "is_integrated",
    "is_multi_gpu_board",
    "gcnArchName",
)


class Extras:
    """A session's state besides storages: generators and events by the client's ids."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.module: Any = getattr(torch, device.type)
        self.generators: dict[int, Any] = {0: _default_generator(device)}
        self.events: dict[int, Any] = {}
        self.peak = 0


def _default_generator(device: Any) -> Any:
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = getattr(torch, device.type)
    module.init()
    return module.default_generators[device.index or 0]


def extras(executor: Executor) -> Extras:
    """Returns the extras of the executor's session."""
    found = getattr(executor, "extras", None)
    if found is None:
        found = executor.extras = Extras(executor.device)  # type: ignore[attr-defined] # the executor need not know what it holds for us
    return found


def generator(executor: Executor, number: int) -> Any:
    """Returns the generator with this id; 0 is the device's own. A new generator has torch's default seed."""
    held = extras(executor)
    found = held.generators.get(number)
    if found is None:
        found = held.generators[number] = torch.Generator(device=executor.device)
    return found


def _properties(executor: Executor, _header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    device = executor.device
    if device.type == "cpu":
        told: dict[str, Any] = {
            "name": f"CPU of the acceptor, {_processor()}",
            "total_memory": _host_memory()[1],
            "multi_processor_count": len(os.sched_getaffinity(0)),
            "warp_size": 1,
            "bf16": True,
        }
    else:
        module = getattr(torch, device.type)
        real = module.get_device_properties(device)
        told = {name: getattr(real, name) for name in _PROPERTIES if hasattr(real, name)}
        told["bf16"] = bool(module.is_bf16_supported())
        told["uuid"] = str(getattr(real, "uuid", ""))
        told["cudnn"] = torch.backends.cudnn.version() if device.type == "cuda" else None
    return Message({**told, "backend": device.type})


def _memory(executor: Executor, _header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    """Reports memory. For a CPU: the bytes of storages, and the maximum at earlier requests. For a GPU: torch's
    counts."""
    device = executor.device
    if device.type == "cpu":
        held = extras(executor)
        size = sum(
            {
                id(one.storage): one.storage.nbytes() for one in executor.storages.values() if type(one) is Storage
            }.values()
        )
        held.peak = max(held.peak, size)
        free, total = _host_memory()
        return Message(
            {
                "allocated": size,
                "reserved": size,
                "peak_allocated": held.peak,
                "peak_reserved": held.peak,
                "free": free,
                "total": total,
            }
        )
    module = getattr(torch, device.type)
    free, total = module.mem_get_info(device)
    return Message(
        {
            "allocated": module.memory_allocated(device),
            "reserved": module.memory_reserved(device),
            "peak_allocated": module.max_memory_allocated(device),
            "peak_reserved": module.max_memory_reserved(device),
            "free": free,
            "total": total,
        }
    )


def _reset_peak(executor: Executor, _header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    if executor.device.type == "cpu":
        extras(executor).peak = 0
    else:
        getattr(torch, executor.device.type).reset_peak_memory_stats(executor.device)
    return Message({})


def _empty_cache(executor: Executor, _header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    if executor.device.type != "cpu":
        getattr(torch, executor.device.type).empty_cache()
    return Message({})


def _event_record(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    event: Any = time.perf_counter_ns()
    if executor.device.type != "cpu":
        event = getattr(torch, executor.device.type).Event(enable_timing=True)
        event.record()
    extras(executor).events[int(header["event"])] = event
    return Message({})


def _event_elapsed(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    events = extras(executor).events
    start, end = (events.get(int(header[key])) for key in ("start", "end"))
    if start is None or end is None:
        raise RuntimeError("an event was recorded on another acceptor, before the session moved: record both again")
    if executor.device.type == "cpu":
        return Message({"milliseconds": (end - start) / 1e6})
    end.synchronize()
    return Message({"milliseconds": start.elapsed_time(end)})


def _seed(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    generator(executor, int(header["generator"])).manual_seed(int(header["seed"]))
    return Message({})


def _initial_seed(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    return Message({"seed": generator(executor, int(header.get("generator", 0))).initial_seed()})


def _rng_get(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    state = generator(executor, int(header["generator"])).get_state()
    return Message({"backend": executor.device.type}, (state.numpy().tobytes(),))


def _rng_set(executor: Executor, header: dict[str, Any], buffers: Sequence[Buffer]) -> Message:
    state = torch.frombuffer(bytearray(buffers[0]), dtype=torch.uint8)
    generator(executor, int(header["generator"])).set_state(state)
    return Message({})


def _host_memory() -> tuple[int, int]:
    """Returns free and total memory in bytes, those of the cgroup if it has a limit."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return free, pages
    return min(free, max(limit - used, 0)), min(limit, pages)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _get_many(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    pieces = [executor.bytes_at(int(address), int(count)).cpu() for address, count in header["pieces"]]
    executor.check()
    return Message({}, [memory(piece) for piece in pieces])


def _threads(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    """Sets the number of threads that execute an operation, if the device is a CPU."""
    if executor.device.type == "cpu":
        torch.set_num_threads(max(1, int(header["count"])))
    return Message({})


def _index(executor: Executor, _header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    """Lists the state to save: storages with their slots and sizes, failures by slot, generators with their states."""
    slots: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    failed: list[list[Any]] = []
    for slot, held in executor.storages.items():
        if isinstance(held, Failure):
            failed.append([slot, held.type, held.text])
        else:
            slots.setdefault(id(held), []).append(slot)
            sizes[id(held)] = held.storage.nbytes()
    generators = extras(executor).generators
    return Message(
        {
            "backend": executor.device.type,
            "threads": torch.get_num_threads(),
            "storages": [[numbers, sizes[key]] for key, numbers in slots.items()],
            "failed": failed,
            "generators": [[number, one.initial_seed()] for number, one in generators.items()],
        },
        [one.get_state().numpy().tobytes() for one in generators.values()],
    )


def _fail(executor: Executor, header: dict[str, Any], _buffers: Sequence[Buffer]) -> Message:
    """Adds the failures of another acceptor's operations."""
    for slot, kind, text in header["failed"]:
        executor.storages[int(slot)] = Failure(str(kind), str(text))
    return Message({})


Answer = Callable[[Executor, dict[str, Any], Sequence[Buffer]], Message]


def _after_ends(answer: Answer) -> Answer:
    """Wraps an answer: first drops generators and events that ended at the client and that the message names."""

    def run(executor: Executor, header: dict[str, Any], buffers: Sequence[Buffer]) -> Message:
        for kind, number in header.get("ended", ()):
            held = extras(executor)
            (held.events if kind == "events" else held.generators).pop(int(number), None)
        return answer(executor, header, buffers)

    return run


_ANSWERS: Final[dict[str, Answer]] = {
    "empty_cache": _empty_cache,
    "event_elapsed": _event_elapsed,
    "event_record": _event_record,
    "fail": _fail,
    "get_many": _get_many,
    "index": _index,
    "initial_seed": _initial_seed,
    "memory": _memory,
    "properties": _properties,
    "reset_peak": _reset_peak,
    "rng_get": _rng_get,
    "rng_set": _rng_set,
    "seed": _seed,
    "threads": _threads,
}
ANSWERS: Final = {name: _after_ends(answer) for name, answer in _ANSWERS.items()}
"""Answers by the word that a message names in `then`."""

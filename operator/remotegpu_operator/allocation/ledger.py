"""The ledger: the allocations of all claims, and sums over them by GPU and namespace."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from remotegpu.api.claims import Allocation
from remotegpu.api.pools import GpuStatus
from remotegpu_operator.allocation.decisions import Request


@dataclass(frozen=True, slots=True)
class Entry:
    request: Request
    allocations: tuple[Allocation, ...]

    @property
    def milli(self) -> int:
        return sum(allocation.milli for allocation in self.allocations)

    def memory_on(self, appliance: str, gpu: str) -> int:
        return sum(each.memory for each in self.allocations if (each.appliance, each.gpu) == (appliance, gpu))


class Ledger:
    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._milli: Counter[str] = Counter()
        self._on: dict[tuple[str, str], dict[str, Entry]] = {}
        # By namespace: the number of allocations with memory on each GPU.
        self._gpus: dict[str, Counter[tuple[str, str]]] = {}

    def copy(self) -> "Ledger":
        made = Ledger()
        made._entries = dict(self._entries)
        made._bytes = self._bytes.copy()
        made._milli = self._milli.copy()
        made._on = {key: dict(on) for key, on in self._on.items()}
        made._gpus = {namespace: gpus.copy() for namespace, gpus in self._gpus.items()}
        return made

    def put(self, request: Request, allocations: Iterable[Allocation]) -> None:
        entry = Entry(request, tuple(allocations))
        self.take(request.uid)
        self._entries[request.uid] = entry
        self._add(entry, 1)

    def take(self, uid: str) -> Entry | None:
        """Removes a claim's entry and returns it; None if there is none."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._add(entry, -1)
        return entry

    def get(self, uid: str) -> Entry | None:
        return self._entries.get(uid)

    def memory(self, appliance: str, gpu: str) -> int:
        """Returns the bytes of the GPU that are allocated to claims."""
        return self._bytes[appliance, gpu]

    def memory_of_others(self, uid: str, appliance: str, gpu: str) -> int:
        """Returns the bytes of the GPU that are allocated to claims other than `uid`."""
        own = self._entries.get(uid)
        return self.memory(appliance, gpu) - (own.memory_on(appliance, gpu) if own else 0)

    def on(self, appliance: str, gpu: str) -> list[Entry]:
        """Returns the entries with memory of the GPU."""
        return [each for each in self._on.get((appliance, gpu), {}).values() if each.memory_on(appliance, gpu)]

    def all_on(self, appliance: str, gpu: str) -> list[Entry]:
        """Returns the entries with an allocation on the GPU, also those without memory."""
        return list(self._on.get((appliance, gpu), {}).values())

    def guaranteed_to_others(self, uid: str, appliance: str, gpu: GpuStatus) -> int:
        """Returns the thousandths of the GPU's time that are guaranteed to claims other than `uid`."""
        others = (each for each in self.on(appliance, gpu.uuid) if each.request.uid != uid)
        return sum(
            each.request.ask.compute.guaranteed(each.memory_on(appliance, gpu.uuid), gpu.shareable) for each in others
        )

    def gpus_of(self, namespace: str) -> list[tuple[str, str]]:
        """Returns the GPUs on which claims of the namespace have memory, as (appliance, GPU)."""
        return list(self._gpus.get(namespace, ()))

    def has_some(self, namespace: str, gpu: tuple[str, str]) -> bool:
        """Whether claims of the namespace have memory of the GPU, given as (appliance, GPU)."""
        return gpu in self._gpus.get(namespace, ())

    def milli(self, namespace: str) -> int:
        """Returns the sum of the namespace's allocations, in thousandths of a GPU."""
        return self._milli[namespace]

    def _add(self, entry: Entry, sign: int) -> None:
        self._milli[entry.request.namespace] += sign * entry.milli
        for allocation in entry.allocations:
            key = (allocation.appliance, allocation.gpu)
            self._bytes[key] += sign * allocation.memory
            if not self._bytes[key]:
                del self._bytes[key]
            if allocation.memory:
                self._count(self._gpus.setdefault(entry.request.namespace, Counter()), key, sign)
            on = self._on.setdefault(key, {})
            if sign > 0:
                on[entry.request.uid] = entry
            else:
                on.pop(entry.request.uid, None)
            if not on:
                del self._on[key]

    @staticmethod
    def _count(gpus: Counter[tuple[str, str]], key: tuple[str, str], sign: int) -> None:
        gpus[key] += sign
        if not gpus[key]:
            del gpus[key]

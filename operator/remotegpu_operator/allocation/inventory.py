"""The GPUs of a pool, and the search for the GPUs that could serve a request."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from remotegpu.api.claims import Reason
from remotegpu.api.pods import LEAST_MEMORY
from remotegpu.api.pools import NO_ROOM_FOR_SESSIONS, AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu.api.quantities import MILLI_PER_GPU, Ask, format_bytes
from remotegpu_operator.allocation.decisions import Request

_Shape = tuple[str, Ask, bool, str, frozenset[str]]

# The largest ratio of memory sizes for which a fraction has a meaning. GPUs of one model differ by some percent with
# and without error correction.
_SAME_MEMORY: Final = 1.1


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU of a pool.

    `closed` is the reason why the GPU takes no new claims; `broken` the reason why a claim that is suspended on the GPU
    cannot continue. Both are empty if there is no such reason.
    """

    appliance: str
    node: str
    gpu: GpuStatus
    closed: str
    broken: str
    # True if the GPU's appliance has an environment for offload.
    offload: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """The GPUs that could serve a request if they were empty. If there are none, `reason` and `message` say why."""

    # Indices of the GPUs, and the same as bits of `mask`.
    slots: tuple[int, ...] = ()
    # The same GPUs as (bytes that the request takes, kind of GPU) or as (bytes, index).
    kinds: tuple[tuple[int, int], ...] = ()
    singles: tuple[tuple[int, int], ...] = ()
    mask: int = 0
    open: int = 0  # the number of GPUs in service
    closed: str = ""  # why the other GPUs are not in service
    charge: int = 0  # the least that a quota is charged, in thousandths of a GPU
    reason: Reason = Reason.WAITING_FOR_CAPACITY
    message: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    pool: str
    appliances: tuple[ApplianceStatus, ...]
    slots: tuple[Slot, ...]
    divides_time: bool = False
    namespaces: frozenset[str] = frozenset()  # may use the pool; empty: all namespaces
    # GPUs of one kind serve the same requests. The GPUs of each kind, as bits; and the kind of each GPU.
    kinds: tuple[int, ...] = field(default=(), compare=False, repr=False)
    kind_of: tuple[int, ...] = field(default=(), compare=False, repr=False)
    # Caches. An inventory never changes, and most claims have one of a few shapes.
    _known: dict[tuple[str, Ask, bool, str, frozenset[str]], Candidates] = field(
        default_factory=dict, compare=False, repr=False
    )
    _at: dict[tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        pool: str,
        appliances: Iterable[ApplianceStatus],
        *,
        divides_time: bool = False,
        namespaces: Iterable[str] = (),
    ) -> "Inventory":
        ordered = tuple(sorted(appliances, key=lambda appliance: appliance.name))
        slots = (
            Slot(
                appliance.name,
                appliance.node,
                gpu,
                _closed(appliance, gpu),
                _broken(appliance, gpu),
                bool(appliance.environments),
            )
            for appliance in ordered
            for gpu in sorted(appliance.gpus, key=lambda gpu: gpu.uuid)
        )
        standing = tuple(slots)
        numbers: dict[tuple[str, int, bool], int] = {}
        kind_of = tuple(
            numbers.setdefault((slot.gpu.model.casefold(), slot.gpu.shareable, slot.offload), len(numbers))
            for slot in standing
        )
        members: list[list[int]] = [[] for _ in numbers]
        for index, kind in enumerate(kind_of):
            members[kind].append(index)
        kinds = tuple(bits(len(standing), indices) for indices in members)
        made = cls(pool, ordered, standing, divides_time, frozenset(namespaces), kinds, kind_of)
        made._at.update({(slot.appliance, slot.gpu.uuid): index for index, slot in enumerate(standing)})
        return made

    def mask_of(self, indices: Iterable[int]) -> int:
        return bits(len(self.slots), indices)

    def candidates(self, request: Request) -> Candidates:
        shape = (request.model.casefold(), request.ask, request.offload, request.appliance, request.refused_by)
        if (known := self._known.get(shape)) is None:
            promised = request.ask.compute.is_given and not self.divides_time
            known = self._known[shape] = self._without_time() if promised else self._candidates(request)
        return known

    def _without_time(self) -> Candidates:
        said = (
            f"a part of a GPU's time was asked for, and pool {self.pool} does not divide that: set compute.mode: Turns "
            "of the GPUPool, or name a pool that has it"
        )
        return Candidates(reason=Reason.NO_MATCHING_GPU, message=said)

    def _candidates(self, request: Request) -> Candidates:
        ask, model = request.ask, request.model.casefold()
        if all(slot.closed for slot in self.slots):
            return Candidates(reason=Reason.POOL_NOT_READY, message=self._not_ready())
        serving = [i for i, slot in enumerate(self.slots) if slot.offload or not request.offload]
        if not serving:
            return Candidates(reason=Reason.NO_ENVIRONMENT, message=self._no_environment())
        if request.appliance:
            serving = [i for i in serving if self.slots[i].appliance == request.appliance]
            if not serving:
                return Candidates(reason=Reason.NO_MATCHING_GPU, message=self.no_appliance(request.appliance))
        matching = [i for i in serving if model in self.slots[i].gpu.model.casefold()]
        mixed = "" if ask.memory_bytes else mixed_memory(self.slots[i].gpu for i in matching)
        if mixed:
            said = f"a fraction of a GPU says nothing in pool {self.pool}: {mixed}; ask for memory, or for a model"
            return Candidates(reason=Reason.MIXED_MEMORY, message=said)
        fitting = [i for i in matching if LEAST_MEMORY <= self.bytes_of(ask, i) <= self.slots[i].gpu.shareable]
        willing = [i for i in fitting if self.slots[i].appliance not in request.refused_by]
        refusing = [f"{name} refused it" for i in fitting if (name := self.slots[i].appliance) in request.refused_by]
        if len(fitting) < ask.count:
            reason, said = self._too_few(request, [self.slots[i].gpu for i in matching])
        elif len(willing) < ask.count:
            said = f"pool {self.pool} has too few other GPUs for it: {some(dict.fromkeys(refusing))} twice"
            said += ", and its log says why; there it is tried again some minutes later"
            reason = Reason.WAITING_FOR_CAPACITY
        else:
            return self._of(ask, willing, refusing, singly=bool(request.appliance or refusing))
        return Candidates(reason=reason, message=said)

    def _of(self, ask: Ask, fitting: list[int], refusing: list[str], *, singly: bool) -> Candidates:
        """Returns the GPUs in `fitting` as candidates. Not `singly`: they are all GPUs of their kinds."""
        kinds: tuple[tuple[int, int], ...] = ()
        if not singly:
            kinds = tuple((self.bytes_of(ask, i), kind) for kind, i in {self.kind_of[i]: i for i in fitting}.items())
        return Candidates(
            slots=tuple(fitting),
            kinds=kinds,
            singles=tuple((self.bytes_of(ask, i), i) for i in fitting) if singly else (),
            mask=self.mask_of(fitting),
            open=sum(not self.slots[i].closed for i in fitting),
            closed=some(dict.fromkeys([*filter(None, (self.slots[i].closed for i in fitting)), *refusing]), 2),
            charge=ask.count * min(charge(ask, self.slots[i].gpu) for i in fitting),
        )

    def _too_few(self, request: Request, matching: list[GpuStatus]) -> tuple[Reason, str]:
        """Returns the reason and a message why the GPUs of the request's model could not serve it even if empty."""
        ask, pool, of_model = request.ask, self.pool, f" of model {request.model}" if request.model else ""
        if not matching:
            models = ", ".join(sorted({slot.gpu.model for slot in self.slots}))
            return Reason.NO_MATCHING_GPU, f"pool {pool} has no GPU{of_model}: it has {models}"
        if ask.count > len(matching):
            return Reason.TOO_LARGE, f"{ask.count} GPUs{of_model} were asked for, pool {pool} has {len(matching)}"
        shareable = sorted({gpu.shareable for gpu in matching}, reverse=True)
        sizes = some(format_bytes(size) for size in shareable)
        if ask.bytes_of(shareable[0]) < LEAST_MEMORY:
            said = (
                f"{ask} is less than the least share, {format_bytes(LEAST_MEMORY)}: GPUs of pool {pool} share {sizes}"
            )
            return Reason.NO_MATCHING_GPU, said
        return Reason.TOO_LARGE, f"{ask} is more than pool {pool} ever has: its GPUs{of_model} share {sizes}"

    def no_appliance(self, name: str) -> str:
        names = some(appliance.name for appliance in self.appliances)
        return f"pool {self.pool} has no appliance {name}: name another one in spec.appliance, or none; it has {names}"

    def _no_environment(self) -> str:
        return (
            f"pool {self.pool} has no environment for offload: name a Python of its appliances' image in spec.offload "
            "of the GPUPool, or name a pool that has one"
        )

    def slots_at(self, places: Iterable[tuple[str, str]]) -> list[int]:
        """Returns the indices of GPUs that are given as (appliance, GPU). Skips GPUs that the pool does not have."""
        return [self._at[place] for place in places if place in self._at]

    def bytes_of(self, ask: Ask, slot: int) -> int:
        return ask.bytes_of(self.slots[slot].gpu.shareable)

    def _not_ready(self) -> str:
        if not self.appliances:
            return f"pool {self.pool} has no appliance yet; `kubectl describe gpupool {self.pool}` says why"
        closed = [_closed(appliance, gpu) for appliance in self.appliances for gpu in appliance.gpus or (None,)]
        return f"no GPU of pool {self.pool} takes claims now: {some(dict.fromkeys(closed))}"


def bits(count: int, indices: Iterable[int]) -> int:
    """Returns a number with the bits at `indices` set. All indices are below `count`.

    It builds the bytes first, because setting bits one by one would copy the number each time.
    """
    octets = bytearray(count // 8 + 1)
    for index in indices:
        octets[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(octets, "little")


def charge(ask: Ask, gpu: GpuStatus) -> int:
    """Returns the thousandths of this GPU that a quota is charged. A request for memory is rounded up."""
    return -(-ask.memory_bytes * MILLI_PER_GPU // gpu.shareable) if ask.memory_bytes else ask.milli_per_gpu


def mixed_memory(gpus: Iterable[GpuStatus]) -> str:
    """Returns a message if the GPUs' memory differs too much for fractions to have a meaning; empty otherwise."""
    sizes = sorted({gpu.memory for gpu in gpus})
    if not sizes or sizes[-1] <= sizes[0] * _SAME_MEMORY:
        return ""
    return f"its GPUs have {' and '.join(format_bytes(size) for size in (sizes[0], sizes[-1]))} of memory"


def some(texts: Iterable[str], most: int = 3) -> str:
    """Joins the first `most` texts with commas, and adds the number of the rest."""
    listed = list(texts)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


def _closed(appliance: ApplianceStatus, gpu: GpuStatus | None) -> str:
    if appliance.phase is AppliancePhase.DRAINING:
        return f"{appliance.name} is {appliance.phase}"
    if appliance.reason == NO_ROOM_FOR_SESSIONS:
        return f"{appliance.name} has no room for sessions"
    return _broken(appliance, gpu)


def _broken(appliance: ApplianceStatus, gpu: GpuStatus | None) -> str:
    if appliance.phase not in (AppliancePhase.READY, AppliancePhase.DRAINING):
        return f"{appliance.name} is {appliance.phase}"
    if gpu is None:
        return f"{appliance.name} has no GPU"
    return "" if gpu.healthy else f"{gpu.uuid} is not healthy ({gpu.message or 'its appliance does not say why'})"

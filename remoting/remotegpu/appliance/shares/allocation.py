"""Chooses the GPUs of a lease: best fit, first come first served. Pure state, no I/O; sums never exceed a GPU.

A small request does not overtake an older large one for a limited time (`remotegpu.api.reservations`); otherwise a
stream of small requests would starve the large one. Times are seconds of one clock of the caller's choice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from remotegpu.api import reservations
from remotegpu.api.quantities import MILLI_PER_GPU, TIME_AS_MEMORY, Ask, Compute, format_bytes, format_milli

# The driver's granularity of mapped memory: a smaller share could not have a single allocation.
MIN_SHARE_BYTES = 2 << 20
# Stands for all owners. No owner has this name.
_EVERYBODY = "*"


class ImpossibleError(Exception):
    """Raised for a request that these GPUs can never satisfy."""


class NoRoomError(Exception):
    """Raised if a given placement or size does not fit beside the other leases."""


@dataclass(slots=True)
class Capacity:
    """One GPU as the allocator sees it."""

    shareable: int
    leased: int = 0
    unhealthy: str = ""
    guaranteed: int = 0  # thousandths of the GPU's time

    @property
    def free(self) -> int:
        return 0 if self.unhealthy else self.shareable - self.leased

    @property
    def free_milli(self) -> int:
        """Thousandths of the GPU's time that are not guaranteed to a lease."""
        return MILLI_PER_GPU - self.guaranteed


@dataclass(frozen=True, slots=True)
class LeasedGpus:
    """The GPUs of a lease, its bytes on each GPU, and its part of their time."""

    gpus: tuple[int, ...]
    sizes: tuple[int, ...]
    compute: Compute = TIME_AS_MEMORY


@dataclass(frozen=True, slots=True)
class _Waiting:
    # LeasedGpus: a placed request that waits to get back its whole share of its own GPUs.
    ask: Ask | LeasedGpus
    since: float


class GpuLeases:
    """The GPUs, the leases on them, and the queue of waiting requests.

    With `divides_time`, the sum of the guaranteed parts of a GPU's time is limited to the whole time.
    """

    def __init__(self, shareable: Iterable[int], *, divides_time: bool = False) -> None:
        self.divides_time = divides_time
        self.gpus = [Capacity(size) for size in shareable]
        self._placed: dict[str, LeasedGpus] = {}
        self._waiting: dict[str, _Waiting] = {}
        # The owners of placed and waiting requests; empty if unknown.
        self._owners: dict[str, str] = {}

    def has(self, key: str) -> bool:
        """Whether a request is placed or waits under this key."""
        return key in self._placed or key in self._waiting

    def submit(self, key: str, ask: Ask, now: float, owner: str = "") -> None:
        """Adds a request to the end of the queue. `settle` places it. Raises ImpossibleError."""
        self._check(ask)
        self._waiting[key] = _Waiting(ask, now)
        self._owners[key] = owner

    def settle(self, now: float) -> list[tuple[str, LeasedGpus]]:
        """Places requests in the order of the queue, and respects reservations. Returns the placed ones."""
        placed = []
        kept_from: set[str | None] = set()
        for key, waiting in list(self._waiting.items()):
            owner, waited = self._owners.get(key), now - waiting.since
            ask, placement = waiting.ask, None
            if not reservations.heeds(waited) or kept_from.isdisjoint((owner, _EVERYBODY)):
                placement = self._best_fit(ask) if isinstance(ask, Ask) else self._whole_again(key, ask)
            if placement is None:
                # A request that an older one blocks reserves free memory too, so that later requests wait.
                kept_from |= self._keeps_from(key, now)
                continue
            del self._waiting[key]
            self._release(key)
            self._take(key, placement)
            placed.append((key, placement))
        return placed

    def next_change(self, now: float) -> float | None:
        """Returns the next time when `settle` may decide differently only because time passed; None if never."""
        changes = (reservations.next_change(each.since, now) for each in self._waiting.values())
        return min((each for each in changes if each is not None), default=None)

    def _keeps_from(self, key: str, now: float) -> set[str | None]:
        """Returns the owners against which a waiting request reserves free memory."""
        waiting, owner = self._waiting[key], self._owners.get(key)
        waited = now - waiting.since
        holds = isinstance(waiting.ask, Ask) and bool(owner) and owner in map(self._owners.get, self._placed)
        own = {owner} if reservations.reserves_within_tenant(waited) else set()
        return own | ({_EVERYBODY} if reservations.reserves(waited, holds=holds) else set())

    def place(self, key: str, placement: LeasedGpus, owner: str = "") -> None:
        """Takes exactly this placement, which the operator or a handover gives. Raises NoRoomError.

        An unhealthy GPU is no error here, since the decision was made before.
        """
        if key in self._placed:
            raise NoRoomError("what it had before is still being freed")
        for gpu, size in zip(placement.gpus, placement.sizes, strict=True):
            left = self.gpus[gpu].shareable - self.gpus[gpu].leased
            if not MIN_SHARE_BYTES <= size <= left:
                raise NoRoomError(f"{size} bytes of gpu {gpu} were given to it, {left} are left")
            if not self._has_time(gpu, size, placement.compute):
                raise NoRoomError(f"its time is not free: {self._free_on(gpu)}")
        self._take(key, placement)
        self._owners[key] = owner

    def withdraw(self, key: str) -> None:
        """Removes a waiting or placed request. An unknown key is no error, since both ends may withdraw a request."""
        self._waiting.pop(key, None)
        self._owners.pop(key, None)
        self._release(key)

    def shrink(self, key: str, sizes: tuple[int, ...]) -> None:
        """Reduces a placed request to `sizes` bytes of its GPUs. Removes it from the queue."""
        self._waiting.pop(key, None)
        placed = self._placed[key]
        self._release(key)
        self._take(key, replace(placed, sizes=sizes))

    def resize(self, key: str, sizes: tuple[int, ...], now: float) -> LeasedGpus:
        """Changes a placed request to `sizes` bytes of its GPUs, if they are free and not reserved.

        Raises NoRoomError, and then changes nothing.
        """
        placed = self._placed[key]
        whom = {self._owners.get(key), _EVERYBODY}
        reserving = sum(not whom.isdisjoint(self._keeps_from(other, now)) for other in self._waiting)
        for gpu, size, has in zip(placed.gpus, sizes, placed.sizes, strict=True):
            if size < MIN_SHARE_BYTES:
                raise NoRoomError(f"a share has at least {format_bytes(MIN_SHARE_BYTES)}")
            if size > has and reserving:
                raise NoRoomError(f"what is free is for the {reserving} requests that wait")
            if size - has > self.gpus[gpu].free:
                raise NoRoomError(f"{format_bytes(size - has)} more are not free: {self._free_on(gpu)}")
            if not self._has_time(gpu, size, placed.compute, has):
                raise NoRoomError(f"as much of its time is not free: {self._free_on(gpu)}")
        whole = replace(placed, sizes=sizes)
        self._release(key)
        self._take(key, whole)
        return whole

    def submit_again(self, key: str, placement: LeasedGpus, now: float) -> None:
        """Adds a placed request to the end of the queue, to get `placement` on the GPUs that it already has."""
        self._waiting[key] = _Waiting(placement, now)

    def ahead(self, key: str) -> int:
        """Returns the number of requests before this one in the queue."""
        return list(self._waiting).index(key)

    def reason(self, key: str) -> str:
        """Returns the reason why a request waits, as a text for people."""
        ask, ahead = self._waiting[key].ask, self.ahead(key)
        gpus, wanted = tuple(range(len(self.gpus))), str(ask)
        if isinstance(ask, LeasedGpus):
            gpus, wanted = ask.gpus, f"its share of {format_bytes(max(ask.sizes))}"
        free = ", ".join(map(self._free_on, gpus))
        queue = "" if ahead == 0 else f"; {ahead} {'request' if ahead == 1 else 'requests'} ahead"
        return f"{wanted} is not free: {free}{queue}"

    def _whole_again(self, key: str, whole: LeasedGpus) -> LeasedGpus | None:
        has = self._placed[key].sizes
        fits = all(
            size - held <= self.gpus[gpu].free and self._has_time(gpu, size, whole.compute, held)
            for gpu, size, held in zip(whole.gpus, whole.sizes, has, strict=True)
        )
        return whole if fits else None

    def guaranteed(self, gpu: int, size: int, compute: Compute) -> int:
        """Returns the guaranteed thousandths of a GPU's time for a share; 0 if time is not divided."""
        return compute.guaranteed(size, self.gpus[gpu].shareable) if self.divides_time and size else 0

    def _has_time(self, gpu: int, size: int, compute: Compute, held: int = 0) -> bool:
        """Whether the GPU has enough free time for a share to grow from `held` to `size` bytes."""
        more = self.guaranteed(gpu, size, compute) - self.guaranteed(gpu, held, compute)
        return more <= self.gpus[gpu].free_milli

    def _release(self, key: str) -> None:
        placement = self._placed.pop(key, None)
        if placement is not None:
            for gpu, size in zip(placement.gpus, placement.sizes, strict=True):
                self.gpus[gpu].leased -= size
                self.gpus[gpu].guaranteed -= self.guaranteed(gpu, size, placement.compute)

    def _take(self, key: str, placement: LeasedGpus) -> None:
        self._placed[key] = placement
        for gpu, size in zip(placement.gpus, placement.sizes, strict=True):
            self.gpus[gpu].leased += size
            self.gpus[gpu].guaranteed += self.guaranteed(gpu, size, placement.compute)

    def _free_on(self, index: int) -> str:
        gpu = self.gpus[index]
        if gpu.unhealthy:
            return f"gpu {index} is unhealthy ({gpu.unhealthy})"
        part = gpu.free / gpu.shareable if gpu.shareable else 0.0
        time = f" and {format_milli(gpu.free_milli)} of its time" if self.divides_time else ""
        return f"{part:.2f} ({format_bytes(gpu.free)}){time} free on gpu {index}"

    def _check(self, ask: Ask) -> None:
        """Raises ImpossibleError for a request that would not fit even if all GPUs were free."""
        if ask.compute.is_given and not self.divides_time:
            raise ImpossibleError(
                "a part of a GPU's time was asked for, and this appliance does not divide that (--compute-mode turns)"
            )
        if all(gpu.unhealthy for gpu in self.gpus):
            told = "; ".join(f"gpu {index}: {gpu.unhealthy}" for index, gpu in enumerate(self.gpus)) or "it has none"
            raise ImpossibleError(f"no GPU of this appliance is healthy: {told}")
        if ask.count > len(self.gpus):
            have = "1 GPU" if len(self.gpus) == 1 else f"{len(self.gpus)} GPUs"
            raise ImpossibleError(f"{ask.count} GPUs were asked for, this appliance has {have}")
        if sum(MIN_SHARE_BYTES <= ask.bytes_of(gpu.shareable) <= gpu.shareable for gpu in self.gpus) < ask.count:
            sizes = ", ".join(format_bytes(gpu.shareable) for gpu in self.gpus)
            least = format_bytes(MIN_SHARE_BYTES)
            raise ImpossibleError(f"{ask} was asked for, the GPUs here share {sizes}, in parts of at least {least}")

    def _best_fit(self, ask: Ask) -> LeasedGpus | None:
        fitting = []
        for index, gpu in enumerate(self.gpus):
            size = ask.bytes_of(gpu.shareable)
            if MIN_SHARE_BYTES <= size <= gpu.free and self._has_time(index, size, ask.compute):
                fitting.append((gpu.free - size, index, size))
        if len(fitting) < ask.count:
            return None
        chosen = sorted(sorted(fitting)[: ask.count], key=lambda fit: fit[1])
        return LeasedGpus(tuple(fit[1] for fit in chosen), tuple(fit[2] for fit in chosen), ask.compute)

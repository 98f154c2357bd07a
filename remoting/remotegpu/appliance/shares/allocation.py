"""Chooses the GPUs of a lease: best fit, first come first served. Pure state, no I/O; sums never exceed a GPU.

A small request does not overtake a large one that came before it, because otherwise a stream of small ones would keep
the large one waiting forever; but only for a time (`remotegpu.api.reservations`). Times are seconds of any one clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from remotegpu.api import reservations
from remotegpu.api.quantities import MILLI_PER_GPU, TIME_AS_MEMORY, Ask, Compute, format_bytes, format_milli

# A share smaller than the driver's granularity of mapped memory could not hold a single allocation.
MIN_SHARE_BYTES = 2 << 20
# No owner has this name.
_EVERYBODY = "*"


class ImpossibleError(Exception):
    """These GPUs can never serve the request, however long it waits."""


class NoRoomError(Exception):
    """A placement decided elsewhere does not fit next to the present ones."""


@dataclass(slots=True)
class Capacity:
    """One GPU as the allocator sees it."""

    shareable: int
    leased: int = 0
    unhealthy: str = ""
    guaranteed: int = 0  # thousandths of its time

    @property
    def free(self) -> int:
        return 0 if self.unhealthy else self.shareable - self.leased

    @property
    def free_milli(self) -> int:
        """Thousandths of its time that are not guaranteed."""
        return MILLI_PER_GPU - self.guaranteed


@dataclass(frozen=True, slots=True)
class LeasedGpus:
    """The GPUs of a lease, the bytes it has on each of them, and its part of their time."""

    gpus: tuple[int, ...]
    sizes: tuple[int, ...]
    compute: Compute = TIME_AS_MEMORY


@dataclass(frozen=True, slots=True)
class _Waiting:
    # A placed request that gave a part back and wants it again waits for its own GPUs.
    ask: Ask | LeasedGpus
    since: float


class GpuLeases:
    """GPUs, the leases on them, and the requests that wait.

    `divides_time`: the guaranteed parts of a GPU's time add up to at most all of it.
    """

    def __init__(self, shareable: Iterable[int], *, divides_time: bool = False) -> None:
        self.divides_time = divides_time
        self.gpus = [Capacity(size) for size in shareable]
        self._placed: dict[str, LeasedGpus] = {}
        self._waiting: dict[str, _Waiting] = {}
        # Owners of placed and waiting requests, if they are named.
        self._owners: dict[str, str] = {}

    def has(self, key: str) -> bool:
        """Whether a request is placed or waits under this key."""
        return key in self._placed or key in self._waiting

    def submit(self, key: str, ask: Ask, now: float, owner: str = "") -> None:
        """Puts a request at the end of the queue; `settle` answers it. `owner`: its owner, if known."""
        self._check(ask)
        self._waiting[key] = _Waiting(ask, now)
        self._owners[key] = owner

    def settle(self, now: float) -> list[tuple[str, LeasedGpus]]:
        """Places requests in the order of the queue; none overtakes one that reserves free memory."""
        placed = []
        kept_from: set[str | None] = set()
        for key, waiting in list(self._waiting.items()):
            owner, waited = self._owners.get(key), now - waiting.since
            ask, placement = waiting.ask, None
            if not reservations.heeds(waited) or kept_from.isdisjoint((owner, _EVERYBODY)):
                placement = self._best_fit(ask) if isinstance(ask, Ask) else self._whole_again(key, ask)
            if placement is None:
                # Also a request that its own tenant keeps from free memory: later ones wait behind it.
                kept_from |= self._keeps_from(key, now)
                continue
            del self._waiting[key]
            self._release(key)
            self._take(key, placement)
            placed.append((key, placement))
        return placed

    def next_change(self, now: float) -> float | None:
        """Returns when `settle` may decide differently though nothing has happened; None if never."""
        changes = (reservations.next_change(each.since, now) for each in self._waiting.values())
        return min((each for each in changes if each is not None), default=None)

    def _keeps_from(self, key: str, now: float) -> set[str | None]:
        """Returns the owners that a waiting request keeps from free memory."""
        waiting, owner = self._waiting[key], self._owners.get(key)
        waited = now - waiting.since
        holds = isinstance(waiting.ask, Ask) and bool(owner) and owner in map(self._owners.get, self._placed)
        own = {owner} if reservations.reserves_within_tenant(waited) else set()
        return own | ({_EVERYBODY} if reservations.reserves(waited, holds=holds) else set())

    def place(self, key: str, placement: LeasedGpus, owner: str = "") -> None:
        """Takes exactly this placement, as the allocator of several appliances has decided.

        An unhealthy GPU keeps its placements: nothing new is decided here.
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
        """Forgets a waiting request or releases a placed one; both ends may give up, so unknown keys are no error."""
        self._waiting.pop(key, None)
        self._owners.pop(key, None)
        self._release(key)

    def shrink(self, key: str, sizes: tuple[int, ...]) -> None:
        """Reduces a placed request to these bytes of its GPUs; it does not wait for more."""
        self._waiting.pop(key, None)
        placed = self._placed[key]
        self._release(key)
        self._take(key, replace(placed, sizes=sizes))

    def resize(self, key: str, sizes: tuple[int, ...], now: float) -> LeasedGpus:
        """Gives a placed request so many bytes of its GPUs, if they are free and not reserved by waiting requests.

        Raises NoRoomError; then nothing has changed.
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
        """Puts a placed request at the end of the queue, for this much of the GPUs that it has a part of."""
        self._waiting[key] = _Waiting(placement, now)

    def ahead(self, key: str) -> int:
        """Returns how many requests stand before this one."""
        return list(self._waiting).index(key)

    def reason(self, key: str) -> str:
        """Returns why this request waits, for people."""
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
        """Returns the thousandths of a GPU's time for a share of it; none if time is not divided."""
        return compute.guaranteed(size, self.gpus[gpu].shareable) if self.divides_time and size else 0

    def _has_time(self, gpu: int, size: int, compute: Compute, held: int = 0) -> bool:
        """Whether a share that has `held` bytes may have the time of `size`."""
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
        """Refuses a request that would not fit even if nothing were leased and all GPUs were healthy."""
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

"""The outcome for a claim: its share, or the sentence that says why it has none."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from remotegpu.api.claims import Allocation, ClaimSpec, GPUClaim, Mode, Placement, Reason
from remotegpu.api.pools import Amount, AppliancePhase, ApplianceStatus, EnvironmentStatus, GpuStatus
from remotegpu.api.quantities import Ask, Compute
from remotegpu_operator.allocation import Allocator, Placed, Request, Waiting, request_of

MIB = 1 << 20
GIB = 1 << 30


def gpu(number: int, gib: int = 8, model: str = "NVIDIA A100") -> GpuStatus:
    return GpuStatus(f"GPU-{number}", model, gib * GIB, gib * GIB)


def appliance(name: str, *gpus: GpuStatus, phase: AppliancePhase = AppliancePhase.READY) -> ApplianceStatus:
    return ApplianceStatus(name, f"node of {name}", phase, gpus=gpus)


def request(name: str, ask: Ask, **more: object) -> Request:
    made = Request(uid=f"uid of {name}", namespace="team", name=name, pool="default", ask=ask, created="2026")
    return replace(made, **more)  # type: ignore[arg-type]


def allocator(*appliances: ApplianceStatus) -> Allocator:
    made = Allocator()
    made.set_pool("default", appliances)
    return made


def settled(of: Allocator, *requests: Request) -> dict[str, Placed | Waiting]:
    for each in requests:
        of.submit(each)
    return {decision.request.name: decision for decision in of.settle()}


def waits(of: Allocator, asked: Request) -> tuple[Reason, str]:
    decision = settled(of, asked)[asked.name]
    assert isinstance(decision, Waiting)
    return decision.reason, decision.message


@pytest.mark.parametrize(("shares", "milli"), [(4, 250), (3, 333), (1, 1000), (1000, 1), (7, 142)])
@pytest.mark.parametrize("shareable", [8 * GIB, 2 * GIB + 1999, 7_999_999_999])
def test_as_many_shares_fit_as_the_fractions_say(shares: int, milli: int, shareable: int) -> None:
    pool = allocator(appliance("a", GpuStatus("GPU-0", "A100", shareable + GIB, shareable)))
    decisions = settled(pool, *(request(f"{i:04}", Ask(milli_per_gpu=milli)) for i in range(shares)))
    assert all(isinstance(decision, Placed) for decision in decisions.values())
    capacity = pool.capacity("default")
    used = shares * (shareable * milli // 1000)
    (left,) = capacity.appliances[0].gpus
    assert (left.allocated_milli, left.allocated_memory) == (shares * milli, used)
    assert capacity.allocated == Amount(shares * milli, used // MIB * MIB)
    assert capacity.free == Amount(1000 - shares * milli, (shareable - used) // MIB * MIB)
    assert isinstance(settled(pool, request("rest", Ask(milli_per_gpu=1001 - shares * milli)))["rest"], Waiting)


def test_an_allocation_says_where_and_exactly_how_much() -> None:
    pool = allocator(appliance("a", gpu(0), gpu(1)), appliance("b", gpu(2)))
    spec = ClaimSpec(ask=Ask(2, 333), placement=Placement.SPREAD, priority=3)
    claim = GPUClaim("team", "train", "uid", created="2026-11-21T16:00:00Z", spec=spec)
    asked = request_of(claim)
    assert asked == Request(
        "uid", "team", "train", "default", Ask(2, 333), "", Placement.SPREAD, 3, "2026-11-21T16:00:00Z"
    )
    bytes_each = 8 * GIB * 333 // 1000
    shares = (
        Allocation("a", "node of a", "GPU-0", "NVIDIA A100", bytes_each, 333),
        Allocation("b", "node of b", "GPU-2", "NVIDIA A100", bytes_each, 333),
    )
    assert settled(pool, asked) == {"train": Placed(asked, shares)}
    assert pool.held("uid") == shares
    assert pool.message("uid") == ""
    pool.release("uid")
    assert pool.held("uid") is None and pool.settle() == []


def test_memory_is_charged_as_the_thousandths_that_hold_it() -> None:
    pool = allocator(appliance("a", gpu(0, gib=1)))
    decision = settled(pool, request("by memory", Ask(1, 0, GIB // 2 + 1)))["by memory"]
    assert isinstance(decision, Placed)
    assert decision.allocations == (Allocation("a", "node of a", "GPU-0", "NVIDIA A100", GIB // 2 + 1, 501),)


def test_a_waiting_claim_gets_one_reason_and_is_served_when_it_fits() -> None:
    pool = allocator(appliance("a", gpu(0)))
    first, second, third = (request(name, Ask(milli_per_gpu=600)) for name in "abc")
    assert {name: type(d) for name, d in settled(pool, first, second, third).items()} == {
        "a": Placed,
        "b": Waiting,
        "c": Waiting,
    }
    assert settled(pool, second, third) == {}
    pool.release(first.uid)
    assert [d.request.name for d in pool.settle() if isinstance(d, Placed)] == ["b"]
    assert pool.waiting() == [third]


def test_a_small_claim_does_not_overtake_a_large_one_but_may_use_what_that_cannot() -> None:
    pool = allocator(appliance("a", gpu(0), gpu(1, model="Tesla T4")))
    decisions = settled(
        pool,
        request("first", Ask(milli_per_gpu=500), model="A100"),
        request("large", Ask(milli_per_gpu=1000), model="A100", created="2027"),
        request("small", Ask(milli_per_gpu=100), model="A100", created="2028"),
        request("other", Ask(milli_per_gpu=100), model="t4", created="2029"),
    )
    assert {name for name, decision in decisions.items() if isinstance(decision, Placed)} == {"first", "other"}
    small = decisions["small"]
    assert isinstance(small, Waiting)
    assert small.message == "0.1 of a GPU is free in pool default, but kept for 1 claim ahead"


def test_a_higher_priority_is_served_first_also_when_it_changes() -> None:
    pool = allocator(appliance("a", gpu(0)))
    holder, old, new = request("holder", Ask()), request("old", Ask()), request("new", Ask(), created="2027")
    settled(pool, holder, old, new)
    pool.submit(replace(new, priority=1))
    pool.release(holder.uid)
    assert [d.request.name for d in pool.settle() if isinstance(d, Placed)] == ["new"]


def test_what_cannot_be_served_now_by_any_order_holds_up_nobody() -> None:
    """Two GPUs are wanted and one of two is out of service, perhaps for days."""
    pool = allocator(appliance("a", gpu(0)), appliance("b", gpu(1), phase=AppliancePhase.LOST))
    decisions = settled(pool, request("both", Ask(count=2)), request("one", Ask(), created="2027"))
    assert isinstance(decisions["one"], Placed)
    both = decisions["both"]
    assert isinstance(both, Waiting)
    assert both.message == (
        "1 of each of 2 GPUs is not free in pool default: of its 2 GPUs 0 have as much free; b is Lost"
    )


def test_running_claims_are_believed_even_where_they_do_not_fit() -> None:
    pool = allocator(appliance("a", gpu(0)))
    share = Allocation("a", "node of a", "GPU-0", "NVIDIA A100", 6 * GIB, 750)
    for name in ("one", "two"):
        pool.hold(request(name, Ask(milli_per_gpu=750)), (share,))
    assert pool.capacity("default").free == Amount(0, 0)
    pool.release("uid of one")
    assert pool.capacity("default").free == Amount(250, 2 * GIB)


def test_a_quota_counts_what_all_claims_of_the_namespace_have() -> None:
    pool = allocator(appliance("a", gpu(0), gpu(1)))
    pool.set_quotas("team", {"gpu": 1000, "large": 9000})
    decisions = settled(
        pool,
        request("first", Ask(milli_per_gpu=750)),
        request("second", Ask(milli_per_gpu=500), created="2027"),
        request("elsewhere", Ask(milli_per_gpu=1000), namespace="other", created="2028"),
    )
    assert isinstance(decisions["first"], Placed) and isinstance(decisions["elsewhere"], Placed)
    assert decisions["second"] == Waiting(
        request("second", Ask(milli_per_gpu=500), created="2027"),
        Reason.QUOTA_EXCEEDED,
        "0.5 of a GPU is more than ResourceQuota gpu leaves: it allows namespace team 1, and the claims there have"
        " 0.75",
    )
    pool.set_quotas("team", {"gpu": 2000})
    (told,) = pool.settle()
    assert isinstance(told, Waiting) and told.reason == Reason.WAITING_FOR_CAPACITY
    pool.release("uid of elsewhere")
    assert isinstance(pool.settle()[0], Placed)


def test_what_one_pool_gives_counts_in_the_others() -> None:
    pool = allocator(appliance("a", gpu(0)))
    pool.set_pool("second", [appliance("b", gpu(1))])
    pool.set_quotas("team", {"gpu": 1000})
    settled(pool, request("holder", Ask(), namespace="other"))
    first = settled(pool, request("first", Ask()))["first"]
    assert isinstance(first, Waiting)
    assert first.reason == Reason.WAITING_FOR_CAPACITY
    decisions = settled(pool, request("elsewhere", Ask(milli_per_gpu=500), pool="second"))
    assert isinstance(decisions["elsewhere"], Placed)
    assert isinstance(decisions["first"], Waiting)
    assert decisions["first"].reason == Reason.QUOTA_EXCEEDED


MIXED = (appliance("a", gpu(0, 40)), appliance("b", gpu(1, 16, "Tesla T4"), gpu(2, 16, "Tesla T4")))


@pytest.mark.parametrize(
    ("appliances", "asked", "reason", "message"),
    [
        (
            (),
            request("c", Ask()),
            Reason.POOL_NOT_READY,
            "pool default has no appliance yet; `kubectl describe gpupool default` says why",
        ),
        (
            (
                appliance("a", phase=AppliancePhase.STARTING),
                appliance("b", replace(gpu(0), healthy=False, message="Xid 79")),
            ),
            request("c", Ask()),
            Reason.POOL_NOT_READY,
            "no GPU of pool default takes claims now: a is Starting, GPU-0 is not healthy (Xid 79)",
        ),
        (
            MIXED,
            request("c", Ask(1, 0, GIB), model="H100"),
            Reason.NO_MATCHING_GPU,
            "pool default has no GPU of model H100: it has NVIDIA A100, Tesla T4",
        ),
        (
            MIXED,
            request("c", Ask(milli_per_gpu=250)),
            Reason.MIXED_MEMORY,
            "a fraction of a GPU says nothing in pool default: its GPUs have 16.0 GiB and 40.0 GiB of memory; ask for"
            " memory, or for a model",
        ),
        (
            MIXED,
            request("c", Ask(3), model="t4"),
            Reason.TOO_LARGE,
            "3 GPUs of model t4 were asked for, pool default has 2",
        ),
        (
            MIXED,
            request("c", Ask(1, 0, 41 * GIB)),
            Reason.TOO_LARGE,
            "41.0 GiB of a GPU is more than pool default ever has: its GPUs share 40.0 GiB, 16.0 GiB",
        ),
        (
            (appliance("a", GpuStatus("GPU-0", "A100", GIB, GIB)),),
            request("c", Ask(milli_per_gpu=1)),
            Reason.NO_MATCHING_GPU,
            "0.001 of a GPU is less than the least share, 2.0 MiB: GPUs of pool default share 1.0 GiB",
        ),
        (
            MIXED,
            request("c", Ask(), pool="training"),
            Reason.NO_SUCH_POOL,
            "there is no GPUPool training: create it, or name another one; there are: default",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_empty_pool_could_serve(
    appliances: tuple[ApplianceStatus, ...], asked: Request, reason: Reason, message: str
) -> None:
    assert waits(allocator(*appliances), asked) == (reason, message)


@pytest.mark.parametrize(
    ("gpus", "held", "asked", "message"),
    [
        (1, 900, Ask(milli_per_gpu=250), "0.25 of a GPU is not free in pool default: its GPU has 0.1 (819.2 MiB) free"),
        (1, 1000, Ask(milli_per_gpu=250), "0.25 of a GPU is not free in pool default: its GPU has nothing free"),
        (
            2,
            900,
            Ask(milli_per_gpu=250),
            "0.25 of a GPU is not free in pool default: of its 2 GPUs the emptiest has 0.1 (819.2 MiB) free",
        ),
        (
            2,
            1000,
            Ask(milli_per_gpu=250),
            "0.25 of a GPU is not free in pool default: of its 2 GPUs none has anything free",
        ),
        (2, 900, Ask(1, 0, GIB), "1.0 GiB of a GPU is not free in pool default: of its 2 GPUs the emptiest has .*"),
        (
            2,
            600,
            Ask(2, 500),
            "0.5 of each of 2 GPUs is not free in pool default: of its 2 GPUs 0 have as much free",
        ),
    ],
)
def test_what_is_not_free(gpus: int, held: int, asked: Ask, message: str) -> None:
    pool = allocator(appliance("a", *(gpu(number) for number in range(gpus))))
    settled(pool, *(request(f"holder {i}", Ask(milli_per_gpu=held)) for i in range(gpus)))
    reason, said = waits(pool, request("c", asked, created="2027"))
    assert reason == Reason.WAITING_FOR_CAPACITY
    assert said == message or (message.endswith(".*") and said.startswith(message[:-2]))
    later = request("later", asked, created="2028")
    assert waits(pool, later) == (reason, f"{said}; 1 claim ahead")
    assert pool.message(later.uid) == f"{said}; 1 claim ahead"


def test_only_an_appliance_with_an_environment_serves_offload() -> None:
    plain = appliance("a", gpu(0))
    serving = replace(appliance("b", gpu(1)), environments=(EnvironmentStatus("sklearn", "cpu", "3.11.2"),))
    asked = request_of(GPUClaim("team", "fit", "uid", spec=ClaimSpec(mode=Mode.OFFLOAD, ask=Ask(1, 250))))
    assert asked.offload

    pool = allocator(plain)
    assert waits(pool, asked) == (
        Reason.NO_ENVIRONMENT,
        "pool default has no environment for offload: name a Python of its appliances' image in spec.offload of the "
        "GPUPool, or name a pool that has one",
    )
    pool.set_pool("default", (plain, serving))
    (placed,) = pool.settle()
    assert isinstance(placed, Placed)
    assert [each.appliance for each in placed.allocations] == ["b"]
    # There are two GPUs, and this claim cannot use one of them: it will never get more than one.
    assert waits(pool, replace(asked, uid="two", name="two", ask=Ask(2, 100)))[0] is Reason.TOO_LARGE
    assert isinstance(settled(pool, request("cuda", Ask(2, 100)))["cuda"], Placed)


def test_a_claim_moves_to_as_much_of_the_same_model_on_one_other_appliance() -> None:
    small = appliance("small", gpu(3, gib=4), gpu(4, gib=4))
    pool = allocator(
        appliance("a", gpu(0), gpu(1)), appliance("b", gpu(2)), small, appliance("t4", gpu(5, model="Tesla T4"))
    )
    asked = request("train", Ask(1, 0, 6 * GIB))
    assert isinstance(settled(pool, asked)["train"], Placed)
    (here,) = pool.held(asked.uid) or ()
    assert here.appliance == "a"
    there = replace(here, appliance="b", node="node of b", gpu="GPU-2")
    assert pool.elsewhere(asked.uid, "a", "") == pool.elsewhere(asked.uid, "a", "b") == (there,)
    assert pool.elsewhere(asked.uid, "a", "small") == "NoRoom: small has not 6.0 GiB of NVIDIA A100 free"
    assert "pool default has no appliance c" in str(pool.elsewhere(asked.uid, "a", "c"))
    # The target of the move is taken, and its namespace is not charged for it.
    pool.hold(asked, (here, replace(there, milli=0)))
    assert pool.capacity("default").allocated.memory == 12 * GIB
    assert isinstance(settled(pool, request("other", Ask(1, 0, 3 * GIB), model="A100"))["other"], Placed)
    pool.set_quotas("team", {"quota": 1750})
    assert isinstance(settled(pool, request("more", Ask(1, 0, GIB)))["more"], Placed)


def test_two_gpus_of_a_claim_move_together_or_not() -> None:
    pool = allocator(appliance("a", gpu(0), gpu(1)), appliance("b", gpu(2), gpu(3)))
    asked = request("pair", Ask(2, 600))
    assert isinstance(settled(pool, asked)["pair"], Placed)
    moved = pool.elsewhere(asked.uid, "a", "")
    assert [each.gpu for each in moved if isinstance(each, Allocation)] == ["GPU-2", "GPU-3"]
    assert isinstance(settled(pool, request("one", Ask(1, 500)))["one"], Placed)
    assert str(pool.elsewhere(asked.uid, "a", "")).startswith("NoRoom: no other appliance of pool default")


def test_a_claim_is_resized_when_it_asks_for_it_and_not_when_its_gpu_shares_a_little_less() -> None:
    pool = allocator(appliance("a", gpu(0)))
    asked = request("train", Ask(milli_per_gpu=250))
    assert isinstance(settled(pool, asked)["train"], Placed)
    (has,) = pool.held(asked.uid) or ()
    pool.set_pool("default", [appliance("a", replace(gpu(0), shareable=8 * GIB - 100 * MIB))])
    assert pool.resized(asked) == (has,)
    grown = pool.resized(replace(asked, ask=Ask(milli_per_gpu=500)))
    assert grown == (replace(has, memory=(8 * GIB - 100 * MIB) // 2, milli=500),)
    assert "NoRoom" not in str(pool.resized(replace(asked, ask=Ask(1, 0, GIB))))
    # Other waiting claims come first, except when memory is given back.
    assert isinstance(settled(pool, request("waits", Ask(milli_per_gpu=900)))["waits"], Waiting)
    assert "for claims that wait" in str(pool.resized(replace(asked, ask=Ask(milli_per_gpu=500))))
    assert isinstance(pool.resized(replace(asked, ask=Ask(1, 0, GIB))), tuple)
    pool.set_quotas("team", {"quota": 300})
    assert "ResourceQuota quota" in str(pool.resized(replace(asked, ask=Ask(milli_per_gpu=400))))


def test_claims_have_together_at_most_all_of_a_gpus_time() -> None:
    pool = Allocator()
    pool.set_pool("default", [appliance("a", gpu(0))], divides_time=True)
    first = request("first", Ask(1, 100, compute=Compute(800)))
    assert isinstance(settled(pool, first)["first"], Placed)
    reason, said = waits(pool, request("second", Ask(1, 500)))
    assert (reason, "0.2 of the time of a GPU" in said) == (Reason.WAITING_FOR_CAPACITY, True), said
    assert isinstance(settled(pool, request("third", Ask(1, 500, compute=Compute(200))))["third"], Waiting), (
        "in its turn"
    )
    pool.release("uid of second")
    assert {name for name, each in settled(pool).items() if isinstance(each, Placed)} == {"third"}
    larger = replace(first, ask=Ask(1, 200, compute=Compute(800)))
    assert not isinstance(pool.resized(larger), str), "its guarantee is the same"
    pool.release("uid of third")
    assert isinstance(settled(pool, request("as memory", Ask(1, 150)))["as memory"], Placed)
    grown = pool.resized(request("as memory", Ask(1, 300)))
    assert isinstance(grown, str) and "time" in grown


def test_a_pool_that_divides_no_time_promises_none() -> None:
    reason, said = waits(allocator(appliance("a", gpu(0))), request("timely", Ask(1, 100, compute=Compute(100))))
    assert (reason, "compute.mode: Turns" in said) == (Reason.NO_MATCHING_GPU, True)


def test_one_namespace_does_not_stop_a_pool() -> None:
    """It holds a little of each GPU and waits for both: others overtake at first, and after its reservation."""
    start = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
    pool = allocator(appliance("a", gpu(0), gpu(1)))

    def at(seconds: int, *requests: Request) -> list[str]:
        pool.set_time(start.timestamp() + seconds)
        created = (start + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for each in requests:
            pool.submit(replace(each, created=created))
        return [each.request.name for each in pool.settle() if isinstance(each, Placed)]

    assert at(0, request("little", Ask(2, 1), namespace="red")) == ["little"]
    assert at(1, request("all", Ask(2, 1000), namespace="red")) == []
    assert at(2, request("first", Ask(1, 100), namespace="blue"), request("own", Ask(1, 100), namespace="red")) == [
        "first"
    ]
    assert start.timestamp() + 2 < pool.next_change <= start.timestamp() + 601
    assert at(601, request("second", Ask(1, 100), namespace="blue")) == []
    assert pool.message("uid of second").endswith("but kept for 1 claim ahead")
    grown = request("first", Ask(1, 200), namespace="blue")
    assert "NoRoom" in str(pool.resized(grown))
    assert at(2400) == []
    assert at(2401) == ["own", "second"]
    assert not isinstance(pool.resized(grown), str)


def test_prioritised_claims_hold_up_nobody_for_longer() -> None:
    """A stream of large claims of a higher priority, each of which makes a new reservation."""
    pool = allocator(appliance("a", gpu(0)))
    pool.hold(request("held", Ask(1, 500), namespace="green"), [Allocation("a", "", "GPU-0", "", 4 * GIB, 500)])
    start = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
    pool.set_time(start.timestamp())
    pool.submit(request("small", Ask(1, 100), created=start.strftime("%Y-%m-%dT%H:%M:%SZ")))
    for minute in range(0, 41, 5):
        now = start + datetime.timedelta(minutes=minute)
        pool.set_time(now.timestamp())
        created = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        pool.submit(request(f"large at {minute}", Ask(1, 1000), namespace=f"n{minute}", priority=9, created=created))
        placed = [each.request.name for each in pool.settle() if isinstance(each, Placed)]
        assert placed == (["small"] if minute == 40 else [])


def test_a_pool_serves_the_namespaces_that_it_names() -> None:
    """Claims of other namespaces keep the shares that they have, and reserve nothing."""
    made = Allocator()
    made.set_pool("default", [appliance("a", gpu(0))])
    made.hold(replace(request("old", Ask(milli_per_gpu=500)), namespace="outside"), [])
    made.set_pool("default", [appliance("a", gpu(0))], namespaces=("team-a", "team-b"))
    outsider = replace(request("new", Ask()), namespace="outside")
    said = "pool default is for other namespaces than outside: name another pool"
    assert waits(made, outsider) == (Reason.NAMESPACE_NOT_ALLOWED, said)
    member = replace(request("theirs", Ask()), namespace="team-b")
    made.submit(member)
    assert [each.request for each in made.settle() if isinstance(each, Placed)] == [member]
    made.set_pool("default", [appliance("a", gpu(0)), appliance("b", gpu(1))])
    assert [each.request for each in made.settle() if isinstance(each, Placed)] == [outsider]


def test_an_appliance_that_refused_a_claim_does_not_get_it() -> None:
    pool = allocator(appliance("a", gpu(0), gpu(1)), appliance("b", gpu(2)))
    asked = request("c", Ask(1, 1000), refused_by=frozenset({"a"}))
    placed = settled(pool, asked)["c"]
    assert isinstance(placed, Placed)
    assert [each.appliance for each in placed.allocations] == ["b"]
    assert waits(pool, replace(asked, uid="next", name="next")) == (
        Reason.WAITING_FOR_CAPACITY,
        "1 of a GPU is not free in pool default: its GPU has nothing free; a refused it",
    )
    assert waits(pool, request("two", Ask(2, 100), refused_by=frozenset({"a"}))) == (
        Reason.WAITING_FOR_CAPACITY,
        "pool default has too few other GPUs for it: a refused it twice, and its log says why; there it is tried again "
        "some minutes later",
    )
    assert isinstance(settled(pool, request("two", Ask(2, 100)))["two"], Placed), "it is tried again"


def test_a_claim_that_was_refused_holds_up_none_that_asks_for_the_same() -> None:
    pool = allocator(appliance("a", gpu(0)))
    decisions = settled(pool, request("c1", Ask(1, 500), refused_by=frozenset({"a"})), request("c2", Ask(1, 500)))
    assert isinstance(decisions["c1"], Waiting)
    assert isinstance(decisions["c2"], Placed)

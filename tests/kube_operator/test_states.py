"""Tests of the statuses of appliances and pools, and of the choice of the next appliance to replace."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.pools import Amount, AppliancePhase, ApplianceStatus, GPUPool, GpuStatus, PoolPhase
from remotegpu_operator.allocation import Capacity
from remotegpu_operator.builders.replacement import next_to_drain
from remotegpu_operator.builders.states import Seen, appliance_status, incarnation, outdated, pod_address, pool_status

GPU = GpuStatus("GPU-1", "Model", 8, 8)
NOW = "2026-01-01T00:00:00Z"
READY, STARTING, DRAINING, LOST = (
    AppliancePhase.READY,
    AppliancePhase.STARTING,
    AppliancePhase.DRAINING,
    AppliancePhase.LOST,
)


def pod(ip: str = "10.0.0.1", deleted: bool = False, state: Any = None, restarts: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"uid": "u", "labels": {}, **({"deletionTimestamp": NOW} if deleted else {})},
        "spec": {"containers": [{"image": "image:1"}]},
        "status": {
            "podIP": ip,
            "containerStatuses": [{"state": state or {"running": {}}, "restartCount": restarts}],
        },
    }


def seen(pod: Any, **more: Any) -> ApplianceStatus:
    known = {"answers": True, "known": True, "gpus": (GPU,), **more}
    return appliance_status(Seen("a", "node-a", pod, **known))


def test_an_appliance_that_answers() -> None:
    assert seen(pod()) == ApplianceStatus(
        name="a",
        node="node-a",
        phase=READY,
        reason="Ready",
        message="the appliance answers",
        address="10.0.0.1:7070",
        server_name="a.appliance.remotegpu.io",
        image="image:1",
        gpus=(GPU,),
    )
    assert seen(pod("fd00::1")).address == "[fd00::1]:7070"


def test_an_appliance_that_stops_drains_while_it_answers() -> None:
    assert seen(pod(deleted=True)).phase is DRAINING
    assert seen(pod(deleted=True), answers=False).phase is LOST
    assert seen(pod(), draining="NewTemplate").phase is DRAINING


def test_an_appliance_that_opens_no_session_says_why_and_stays() -> None:
    status = seen(pod(), full="3 of 100 descriptors are free\x1b[2J")
    assert (status.phase, status.reason) == (READY, "NoRoomForSessions")
    assert status.message == "it takes no new claims: 3 of 100 descriptors are free?[2J"
    assert seen(pod(), full="x" * 5000).message.endswith("x" * 500), "no longer than a status may have"
    assert seen(pod(), full="3 of 100", answers=False).phase is LOST
    assert seen(pod(), full="3 of 100", draining="NewTemplate").phase is DRAINING


def test_an_appliance_that_no_longer_answers_is_lost() -> None:
    for gone in (None, pod(ip=""), pod(state={"terminated": {"reason": "OOMKilled"}})):
        assert seen(gone).phase is LOST
        assert seen(gone, known=False, answers=False).phase is STARTING
    assert seen(pod(), answers=False).phase is LOST
    assert seen(pod(state={"terminated": {"reason": "OOMKilled"}})).reason == "OOMKilled"
    pulling = pod(ip="", state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    status = seen(pulling, known=False, answers=False, gpus=())
    assert (status.phase, status.reason, status.message) == (STARTING, "ImagePullBackOff", "no such image")


def test_a_restarted_appliance_is_another_incarnation() -> None:
    assert incarnation(pod()) != incarnation(pod(restarts=1))
    assert pod_address(pod(state={"waiting": {"reason": "CrashLoopBackOff"}})) == ""


def test_a_pod_of_an_older_template() -> None:
    def stateful_set(observed: int, revision: str) -> dict[str, Any]:
        return {"metadata": {"generation": 2}, "status": {"observedGeneration": observed, "updateRevision": revision}}

    made = pod()
    made["metadata"]["labels"] = {"controller-revision-hash": "one"}
    assert outdated(stateful_set(2, "two"), made)
    assert not outdated(stateful_set(2, "one"), made)
    assert not outdated(stateful_set(1, "two"), made), "the controller has not looked at the new template yet"
    assert not outdated(stateful_set(2, "two"), None)


def test_the_phase_of_a_pool() -> None:
    def status(*phases: AppliancePhase, mixed: str = "", problem: str = "") -> Any:
        appliances = tuple(ApplianceStatus(f"a{number}", "n", phase) for number, phase in enumerate(phases))
        amount = Amount(1000, 8)
        capacity = Capacity(amount, Amount(), amount, mixed, appliances)
        return pool_status(GPUPool("p", "u", generation=4), capacity, problem, NOW)

    assert status(READY, READY).phase is PoolPhase.READY
    assert status(READY, LOST).phase is PoolPhase.DEGRADED
    assert status(STARTING, STARTING).phase is PoolPhase.PENDING
    assert status(STARTING, LOST).phase is PoolPhase.NOT_READY
    assert (status().phase, status().reason) == (PoolPhase.NOT_READY, "NoNodes")
    conditions = {each.type: each.status for each in status(READY, mixed="8 and 16 GiB").conditions}
    assert conditions == {
        "Ready": "True",
        "MixedMemory": "True",
        "CertificatesRenewed": "True",
        "LandlockRequired": "True",
        "MemoryLimited": "True",
    }
    failed = {each.type: each for each in status(READY, problem="the Secret is gone").conditions}
    assert (failed["CertificatesRenewed"].status, failed["CertificatesRenewed"].reason) == ("False", "RenewalFailed")
    assert status(READY).observed_generation == 4
    assert all(each.message for each in status(LOST).conditions)


def test_a_pool_whose_nodes_do_not_say_what_they_have_says_so() -> None:
    def condition(limits: dict[str, int | None], **spec: Any) -> Any:
        pool = GPUPool.from_object({"metadata": {"name": "p", "uid": "u", "generation": 4}, "spec": spec})
        after = pool_status(pool, Capacity(Amount(), Amount(), Amount(), "", ()), "", NOW, limits)
        return next(each for each in after.conditions if each.type == "MemoryLimited")

    assert condition({"a": 1 << 30}).status == "True"
    unknown = condition({"a": 1 << 30, "c": None, "b": None})
    assert (unknown.status, unknown.reason) == ("False", "AllocatableUnknown")
    assert all(word in unknown.message for word in ("on b, c have", "spec.resources.limits.memory")), unknown.message
    assert condition({"a": None}, resources={"limits": {"memory": "4Gi"}}).status == "True"


def test_a_pool_that_does_without_landlock_says_so() -> None:
    def condition(spec: dict[str, str], before: dict[str, Any]) -> tuple[str, str, str]:
        metadata = {"name": "p", "uid": "u", "generation": 4}
        pool = GPUPool.from_object({"metadata": metadata, "spec": spec, "status": before})
        after = pool_status(pool, Capacity(Amount(), Amount(), Amount(), "", ()), "", NOW)
        found = next(each for each in after.conditions if each.type == "LandlockRequired")
        assert "landlock: Require" in found.message or found.status == "True"
        return str(after.landlock), found.status, found.reason

    assert condition({}, {}) == ("Require", "True", "Required")
    upgraded = condition({}, {"observedGeneration": 4})
    assert upgraded == ("Warn", "False", "OlderPool")
    assert condition({}, {"observedGeneration": 4, "landlock": "Warn"}) == upgraded, "it stays so"
    assert condition({"landlock": "Warn"}, {}) == ("Warn", "False", "Allowed")
    assert condition({"landlock": "Require"}, {"observedGeneration": 4, "landlock": "Warn"}) == (
        "Require",
        "True",
        "Required",
    )


names = st.sampled_from("abcd")


@given(
    st.dictionaries(names, st.sampled_from(AppliancePhase), min_size=1),
    st.sets(names),
    st.dictionaries(names, st.integers(0, 3)),
    st.sets(names),
)
def test_one_appliance_is_replaced_at_a_time(
    phases: dict[str, AppliancePhase], outdated: set[str], used: dict[str, int], draining: set[str]
) -> None:
    outdated &= phases.keys()
    chosen = next_to_drain(phases, outdated, used, draining)
    assert (chosen is not None) <= bool(outdated)
    if chosen is None:
        return
    assert chosen in outdated
    serving = {name for name in outdated if phases[name] in {READY, DRAINING}}
    if outdated - serving:
        assert chosen not in serving, "what serves nobody goes first"
    else:
        assert all(phases[name] is READY for name in phases.keys() - outdated), "the one before is not ready yet"
        assert used.get(chosen, 0) == 0 or all(used.get(name, 0) for name in outdated), "what is free goes first"


def test_a_rollout_ends() -> None:
    phases = dict.fromkeys("abc", READY)
    left = {"a", "b", "c"}
    order = []
    while left:
        chosen = next_to_drain(phases, left, {"a": 2, "b": 1}, set())
        assert chosen is not None
        order.append(chosen)
        left -= {chosen}
        phases[chosen] = STARTING
        assert next_to_drain(phases, left, {"a": 2}, set()) is None
        phases[chosen] = READY
    assert order == ["c", "b", "a"]

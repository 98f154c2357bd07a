"""The typed objects and the schemas say the same: field by field, and through a real API server."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as members
from typing import Any

import pytest
from support.crds import FILES, Served, fields, schema, version

from remotegpu.api import claims, pools
from remotegpu.api.claims import (
    Allocation,
    ClaimSpec,
    ClaimStatus,
    Endpoint,
    GPUClaim,
    Mode,
    Move,
    Phase,
    Placement,
    PodReference,
)
from remotegpu.api.conditions import Condition, with_condition
from remotegpu.api.durations import format_duration, parse_duration
from remotegpu.api.kubernetes import GROUP, VERSION
from remotegpu.api.modes import Backend, ComputeMode, Landlock, WorkerWrites
from remotegpu.api.pools import (
    Amount,
    AppliancePhase,
    ApplianceStatus,
    EnvironmentSpec,
    EnvironmentStatus,
    GPUPool,
    GpuStatus,
    IdleAction,
    IdleSpec,
    LimitsSpec,
    OffloadBackend,
    PoolPhase,
    PoolSpec,
    PoolStatus,
    Price,
    SoftwareSpec,
    UpdateSpec,
)
from remotegpu.api.quantities import Ask, Compute
from remotegpu.api.schedules import FAILED, PackFailure, PackMove, PackPhase, PackSpec, PackStatus, PackStays, Schedule

GIB = 1 << 30
NOW = "2026-11-21T16:00:00Z"
READY = Condition("Ready", "True", "Allocated", "its appliance can be reached", NOW, 1)

CLAIM_SPECS = (
    ClaimSpec(
        pool="training",
        mode=Mode.OFFLOAD,
        model="A100",
        ask=Ask(2, 250, compute=Compute(300, 500)),
        placement=Placement.SPREAD,
        start_deadline=5400,
        priority=-7,
        suspend=True,
        suspendable=True,
        movable=True,
        appliance="appliance",
        pod=PodReference("train", "8a3f2d1c-53c5-4b8e-9a52-0d6c43a6a1f7"),
    ),
    ClaimSpec(ask=Ask(1, 0, 5 * GIB), priority_class="urgent"),
)
CLAIM_STATUS = ClaimStatus(
    phase=Phase.ALLOCATED,
    reason=claims.Reason.ALLOCATED,
    message="it has its share",
    conditions=(READY,),
    allocations=(Allocation("appliance", "node-1", "GPU-1", "NVIDIA A100", 2 * GIB, 250),),
    resize=(Allocation("appliance", "node-1", "GPU-1", "NVIDIA A100", 4 * GIB, 500),),
    move=Move("appliance", (Allocation("another", "node-2", "GPU-2", "NVIDIA A100", 2 * GIB, 250),)),
    endpoints=(Endpoint("appliance", "10.244.1.5:7070", "appliance.appliance.remotegpu.io"),),
    consumers=(PodReference("train", "8a3f2d1c-53c5-4b8e-9a52-0d6c43a6a1f7"),),
    observed_generation=1,
    share_since=NOW,
)
POOL_SPECS = (
    PoolSpec(
        backend=Backend.CUDA,
        node_selector={"gpu": "yes"},
        tolerations=({"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoExecute", "tolerationSeconds": 5},),
        runtime_class_name="nvidia",
        priority_class_name="gpus",
        temporary_storage=GIB,
        managed_memory=GIB,
        move_bandwidth=GIB,
        image="appliance:1",
        image_pull_policy="Never",
        gpus_per_node=4,
        limits=LimitsSpec(
            sessions_per_gpu=32,
            sessions_per_claim=8,
            sessions_per_namespace=6,
            host_memory_per_claim=GIB,
            host_memory_per_namespace=2 * GIB,
        ),
        offload=(
            EnvironmentSpec("rocm", "/opt/environments/torch/bin/python", OffloadBackend.ROCM, exclusive=True),
            EnvironmentSpec("cuda", "/opt/environments/cuda/bin/python", OffloadBackend.CUDA, cuda_direct=True),
            EnvironmentSpec("sklearn", "/opt/environments/sklearn/bin/python"),
        ),
        compute_mode=ComputeMode.TURNS,
        public_code="common",
        namespaces=frozenset({"team-a", "team-b"}),
        local_sockets=False,
        landlock=Landlock.WARN,
        worker_writes=WorkerWrites.DEVICES,
        cordoned=frozenset({"node-a", "node-b"}),
        prices=(Price("A100", "2.40"), Price("T4", "0.35")),
        idle=IdleSpec(3600, IdleAction.RELEASE, 1200),
        schedules=(
            Schedule(
                "night",
                datetime.time(20),
                datetime.time(6, 30),
                ("Mon", "Fri"),
                "Europe/Berlin",
                5,
                ("desks",),
                (("app", "desk"),),
            ),
        ),
        pack=PackSpec(21600, Schedule("pack", datetime.time(22), datetime.time(5), ("Sat",), "Europe/Berlin"), 6, 3600),
        suspend_for_priority=True,
        start_deadline=600,
        connection_grace=0,
        update=UpdateSpec(drain_deadline=60),
        resources={"requests": {"cpu": "500m"}, "limits": {"memory": "4Gi"}},
    ),
    PoolSpec(software=SoftwareSpec(gpus=4, memory=1500 << 20, threads=2)),
)
POOL_STATUS = PoolStatus(
    phase=PoolPhase.READY,
    reason="AllReady",
    message="its appliance is ready",
    conditions=(READY,),
    total=Amount(1000, 8 * GIB),
    allocated=Amount(250, 2 * GIB),
    free=Amount(750, 6 * GIB),
    appliances=(
        ApplianceStatus(
            name="appliance",
            node="node-1",
            phase=AppliancePhase.DRAINING,
            reason="NewTemplate",
            message="1 program is on it",
            address="10.244.1.5:7070",
            server_name="appliance.appliance.remotegpu.io",
            image="appliance:1",
            gpus=(GpuStatus("GPU-1", "NVIDIA A100", 9 * GIB, 8 * GIB, False, "Xid 79", 250, 2 * GIB),),
            environments=(EnvironmentStatus("torch", "rocm", "3.12.4", "torch 2.15.0"),),
            driver=13000,
        ),
    ),
    observed_generation=1,
    landlock=Landlock.REQUIRE,
    pack=PackStatus(
        "now-1",
        PackPhase.MOVING,
        True,
        NOW,
        "1 of 2 claims has moved",
        3,
        2,
        (PackMove("team/a", "appliance", "another", FAILED, "OtherDriver: CUDA 13000 is not 12080"),),
        (PackStays("spec.movable is not true", 1, ("team/b",)),),
        (NOW,),
        (PackFailure("uid-a", NOW),),
    ),
)
SPECS: dict[str, tuple[ClaimSpec | PoolSpec, ...]] = {"GPUClaim": CLAIM_SPECS, "GPUPool": POOL_SPECS}
STATUS: dict[str, ClaimStatus | PoolStatus] = {"GPUClaim": CLAIM_STATUS, "GPUPool": POOL_STATUS}
READERS: dict[str, type[GPUClaim | GPUPool]] = {"GPUClaim": GPUClaim, "GPUPool": GPUPool}


def written(content: Any, path: str) -> Iterator[str]:
    """The paths of all members of what we write; those of a list's elements are its own."""
    if isinstance(content, Mapping):
        for name, below in content.items():
            yield f"{path}.{name}"
            yield from written(below, f"{path}.{name}")
    elif isinstance(content, (list, tuple)):
        for element in content:
            yield from written(element, path)


@pytest.mark.parametrize("kind", FILES)
def test_objects_and_schema_have_the_same_fields(kind: str) -> None:
    ours = {path for spec in SPECS[kind] for path in written(spec.to_object(), "spec")}
    ours |= set(written(STATUS[kind].to_object(), "status"))
    # What a person names freely below a field is no field.
    free = [path for path, field in fields(schema(kind)) if "additionalProperties" in field]
    ours = {path for path in ours if not any(path.startswith(f"{above}.") for above in free)}
    assert ours == {path for path, _ in fields(schema(kind))} - {"spec", "status"}


def test_the_examples_above_give_every_field_another_value_than_its_default() -> None:
    """Else the round trip below would prove nothing of it."""
    every: set[tuple[type, str]] = set()
    given: set[tuple[type, str]] = set()

    def visit(instance: Any) -> None:
        for member in members(instance):
            value = getattr(instance, member.name)
            default = member.default if member.default_factory is MISSING else member.default_factory()
            every.add((type(instance), member.name))
            if value != default:
                given.add((type(instance), member.name))
            for part in value if isinstance(value, tuple) else (value,):
                if is_dataclass(part):
                    visit(part)

    for value in (*CLAIM_SPECS, CLAIM_STATUS, *POOL_SPECS, POOL_STATUS):
        visit(value)
    assert given == every


@pytest.mark.parametrize("kind", FILES)
def test_what_is_written_is_read_back_from_the_api_server(served: Served, kind: str) -> None:
    for spec in SPECS[kind]:
        stored = served.create(kind, spec.to_object())
        assert READERS[kind].from_object(stored).spec == spec
        # The defaults of the objects are those of the schema: nothing was added to what we wrote.
        assert stored["spec"] == spec.to_object()
        stored = served.patch(stored, {"status": STATUS[kind].to_object()})
        assert stored["status"] == STATUS[kind].to_object()
        read = READERS[kind].from_object(stored)
        assert (read.spec, read.status, read.name) == (spec, STATUS[kind], stored["metadata"]["name"])
        assert (read.uid, read.generation) == (stored["metadata"]["uid"], stored["metadata"]["generation"])
        assert read.resource_version == stored["metadata"]["resourceVersion"]


def test_what_is_left_out_reads_as_the_schema_says(served: Served) -> None:
    """And so the operator may read objects that were stored before a field had its default."""
    claim = served.create("GPUClaim", {"fraction": "0.5"})
    pool = served.create("GPUPool", {})
    assert GPUClaim.from_object(claim).spec == ClaimSpec(ask=Ask(1, 500))
    assert GPUPool.from_object(pool).spec == PoolSpec()
    bare = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {}}
    assert GPUClaim.from_object(bare) == GPUClaim("b", "a", "c")
    assert GPUPool.from_object(bare) == GPUPool("a", "c")


def test_enumerations_and_names_are_those_of_the_schema() -> None:
    def allowed(kind: str, path: str) -> list[str]:
        found: list[str] = dict(fields(schema(kind)))[path]["enum"]
        return found

    for kind, path, enumeration in (
        ("GPUClaim", "status.phase", claims.Phase),
        ("GPUClaim", "status.reason", claims.Reason),
        ("GPUClaim", "spec.placement", claims.Placement),
        ("GPUClaim", "spec.mode", claims.Mode),
        ("GPUPool", "status.phase", pools.PoolPhase),
        ("GPUPool", "spec.backend", Backend),
        ("GPUPool", "spec.offload.backend", pools.OffloadBackend),
        ("GPUPool", "status.appliances.phase", pools.AppliancePhase),
    ):
        assert allowed(kind, path) == [str(member) for member in enumeration], path
    for kind, file in FILES.items():
        assert version(kind)["name"] == VERSION and f"group: {GROUP}\n" in file.read_text()


def test_a_claim_of_a_pod_is_named_after_it() -> None:
    uid = "8a3f2d1c-53c5-4b8e-9a52-0d6c43a6a1f7"
    assert claims.pod_claim_name("train", uid) == f"train-{uid}"
    longest = claims.pod_claim_name("a" * 199 + "." + "b" * 53, uid)
    assert longest == "a" * 199 + f"-{uid}" and len(longest) <= 253
    assert GPUClaim("ns", "train", uid).lease_id == "8a3f2d1c53c54b8e9a520d6c43a6a1f7"


def test_gpus_are_named_with_their_number() -> None:
    def share(model: str) -> Allocation:
        return Allocation("a", "n", "g", model, 1, 1)

    assert claims.gpus_text(()) == "-"
    assert claims.gpus_text((share("T4"), share("A100"), share("T4"))) == "2 x T4, 1 x A100"


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    later = "2026-11-21T17:00:00Z"
    same = Condition("Ready", "True", "Other", "said otherwise", later, 2)
    assert with_condition((READY,), same) == (Condition("Ready", "True", "Other", "said otherwise", NOW, 2),)
    changed = Condition("Ready", "False", "ApplianceLost", "gone", later, 2)
    allocated = Condition("Allocated", "True", "Allocated", "", NOW, 1)
    assert with_condition((READY, allocated), changed) == (allocated, changed)
    assert with_condition((), READY) == (READY,)


@pytest.mark.parametrize(
    ("text", "seconds", "shortest"),
    [("90s", 90, "1m30s"), ("10m", 600, "10m"), ("1h30m", 5400, "1h30m"), ("0s", 0, "0s"), ("2h5s", 7205, "2h5s")],
)
def test_durations(text: str, seconds: int, shortest: str) -> None:
    assert (parse_duration(text), format_duration(seconds)) == (seconds, shortest)
    assert parse_duration(shortest) == seconds


@pytest.mark.parametrize("text", ["", "5", "5x", "-5s", "1s1m", "1.5h", " 5s"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_duration(text)

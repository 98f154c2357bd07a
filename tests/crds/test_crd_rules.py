"""The objects that the API server accepts and refuses, with the error that a person reads."""

from __future__ import annotations

from typing import Any

import pytest
from support.crds import ACCEPTED, Served, refusal

from remotegpu.api.claims import ClaimSpec
from remotegpu.api.quantities import Ask, Compute

GIB = 1 << 30
EITHER = 'give either fraction (a part of a GPU, as "0.25") or memory (of each GPU, as 4Gi), one of the two'
FRACTION = (
    '{} is no share: a fraction is 0.001 to 1 of one GPU in steps of 0.001, in quotes as "0.25",'
    " or a whole number of GPUs up to 64, as 2"
)
MEMORY = "{} is no share: memory is 2Mi to 64Ti of each GPU, as 512Mi, 4Gi or 4G"
TIME = "{} is no time: write hours, minutes and seconds, as 90s, 10m or 1h30m"
WHOLE = (
    "a fraction above 1 is itself a number of whole GPUs: leave count out, or write the part of each GPU as fraction"
    " and their number as count"
)
FIXED = (
    "of a claim the pool, the GPUs and who may use it cannot be changed, only how much of them it has, when and where:"
    " delete it and make a new one"
)
NUMBER = "a claim keeps the number of its GPUs, and a fraction above 1 is such a number: delete it and make a new one"
PRIORITY = "give either priorityClassName or priority, one of the two"
POOL_NAME = (
    "a pool's name is part of the names of Services: use at most 40 lower-case letters, digits and dashes, beginning"
    " with a letter"
)


@pytest.mark.parametrize(
    ("spec", "ask"),
    [
        ({"fraction": "0.25"}, Ask(milli_per_gpu=250)),
        ({"fraction": ".5"}, Ask(milli_per_gpu=500)),
        ({"fraction": "0.001"}, Ask(milli_per_gpu=1)),
        ({"fraction": "0.090"}, Ask(milli_per_gpu=90)),
        ({"fraction": "0.999", "count": 64}, Ask(count=64, milli_per_gpu=999)),
        ({"fraction": 1, "count": 2}, Ask(count=2)),
        ({"fraction": "1.000"}, Ask()),
        ({"fraction": 2}, Ask(count=2)),
        ({"fraction": "64"}, Ask(count=64)),
        ({"fraction": "0.25", "compute": "0.5"}, Ask(milli_per_gpu=250, compute=Compute(500))),
        ({"fraction": "0.25", "compute": ".1", "computeLimit": 1}, Ask(milli_per_gpu=250, compute=Compute(100))),
        ({"memory": "4Gi", "computeLimit": "0.5"}, Ask(1, 0, 4 * GIB, Compute(0, 500))),
        ({"memory": "4Gi"}, Ask(milli_per_gpu=0, memory_bytes=4 * GIB)),
        ({"memory": 2 << 20, "count": 3}, Ask(count=3, milli_per_gpu=0, memory_bytes=2 << 20)),
        ({"memory": "2Mi"}, Ask(milli_per_gpu=0, memory_bytes=2 << 20)),
        ({"memory": "1.5Gi"}, Ask(milli_per_gpu=0, memory_bytes=3 << 29)),
        ({"memory": "64Ti"}, Ask(milli_per_gpu=0, memory_bytes=64 << 40)),
        ({"memory": "4e9"}, Ask(milli_per_gpu=0, memory_bytes=4_000_000_000)),
        ({"memory": "2100k"}, Ask(milli_per_gpu=0, memory_bytes=2_100_000)),
    ],
    ids=str,
)
def test_a_share_is_accepted_and_read_as_what_it_says(served: Served, spec: dict[str, Any], ask: Ask) -> None:
    assert ClaimSpec.from_object(served.create("GPUClaim", spec)["spec"]).ask == ask


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, EITHER),
        ({"count": 2}, EITHER),
        ({"fraction": "0.5", "memory": "4Gi"}, EITHER),
        *(
            ({"fraction": value}, FRACTION.format(value))
            for value in (
                0,
                -1,
                65,
                "0",
                "0.000",
                "-0.25",
                "1.5",
                "0.0001",
                "0.2500",
                "64.5",
                "65",
                "abc",
                "25%",
                "250m",
            )
        ),
        *(
            ({"memory": value}, MEMORY.format(value))
            for value in (0, -1, "-4Gi", "1Mi", "65Ti", "9E", "1500m", "4GiB", "4 Gi", "lots")
        ),
        *(
            ({"fraction": "0.5", field: value}, f"{value} is no part of the time of a GPU")
            for field in ("compute", "computeLimit")
            for value in (0, 2, "0.0001", "1.5", "half")
        ),
        ({"fraction": "0.5", "compute": "0.5", "computeLimit": "0.25"}, "computeLimit is at least compute"),
        ({"fraction": 2, "count": 3}, WHOLE),
        ({"fraction": "10", "count": 2}, WHOLE),
        ({"fraction": "0.5", "startDeadline": "5x"}, TIME.format('"5x"')),
        ({"fraction": "0.5", "startDeadline": "0s"}, TIME.format('"0s"')),
        ({"fraction": "0.5", "count": 0}, "spec.count in body should be greater than or equal to 1"),
        ({"fraction": "0.5", "count": 65}, "spec.count in body should be less than or equal to 64"),
        ({"fraction": "0.5", "placement": "pack"}, 'Unsupported value: "pack": supported values: "Pack", "Spread"'),
        ({"fraction": 0.5}, "spec.fraction in body must be of type integer,string"),
        ({"fraction": "0.5", "pool": "p" * 41}, "may not be more than 40"),
        ({"fraction": "0.5", "priority": 1 << 31}, "spec.priority"),
        ({"fraction": "0.5", "priority": 1, "priorityClassName": "urgent"}, PRIORITY),
        ({"fraction": "0.5", "mode": "cuda"}, 'Unsupported value: "cuda": supported values: "driver", "offload"'),
        ({"fraction": "0.5", "pod": {"name": "train"}}, "spec.pod.uid: Required value"),
    ],
    ids=str,
)
def test_invalid_shares_are_refused_with_a_valid_example(served: Served, spec: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(served.create, "GPUClaim", spec)


def test_a_claim_keeps_which_gpus_it_asked_for(served: Served) -> None:
    """The allocation depends on it; the size of the share can change."""
    pod = {"name": "train", "uid": "8a3f2d1c-53c5-4b8e-9a52-0d6c43a6a1f7"}
    by_fraction = served.create("GPUClaim", {"fraction": "0.25", "model": "A100", "pod": pod, "compute": "0.25"})
    by_memory = served.create("GPUClaim", {"memory": "4Gi"})
    for claim, changes in (
        (
            by_fraction,
            (
                *({"pool": "other"}, {"model": "H100"}, {"model": None}, {"count": 2}, {"mode": "offload"}),
                *({"placement": "Spread"}, {"pod": None}, {"pod": {"uid": "x"}}),
                *({"compute": "0.5"}, {"compute": None}, {"computeLimit": "0.5"}),
            ),
        ),
        (by_memory, ({"model": "H100"}, {"pod": pod}, {"compute": "0.5"})),
    ):
        for change in changes:
            assert FIXED in refusal(served.patch, claim, {"spec": change}), change
        assert refusal(served.patch, claim, {"spec": {"priority": 7, "startDeadline": "1h30m"}}) == ACCEPTED
        assert refusal(served.patch, claim, {"spec": {"priority": 0, "priorityClassName": "urgent"}}) == ACCEPTED
        assert refusal(served.patch, claim, {"spec": {"startDeadline": None, "priorityClassName": None}}) == ACCEPTED
        assert refusal(served.patch, claim, {"metadata": {"labels": {"team": "vision"}}}) == ACCEPTED
    sizes: list[tuple[Any, dict[str, Any], str]] = [
        (by_fraction, {"fraction": "0.5"}, ACCEPTED),
        (by_fraction, {"fraction": "2"}, NUMBER),
        (by_fraction, {"fraction": "1.5"}, "is no share"),
        (by_fraction, {"fraction": None, "memory": "4Gi"}, ACCEPTED),
        (by_memory, {"memory": "8Gi"}, ACCEPTED),
        (by_memory, {"memory": None, "fraction": 3}, NUMBER),
        (by_memory, {"memory": None, "fraction": 1}, ACCEPTED),
        (served.create("GPUClaim", {"fraction": "3"}), {"fraction": "1"}, NUMBER),
    ]
    for claim, change, said in sizes:
        answer = refusal(served.patch, claim, {"spec": change})
        assert (answer == ACCEPTED) if said == ACCEPTED else (said in answer), change


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"backend": "cuda", "gpusPerNode": 4, "runtimeClassName": "nvidia"},
        {"software": {"gpus": 64, "memory": "16Mi", "threads": 8}, "limits": {"sessionsPerGPU": 32}},
        {"managedMemory": "512Mi"},
        {"tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "yes", "effect": "NoExecute"}]},
        {"resources": {"requests": {"cpu": "500m", "memory": 1 << 30}, "limits": {"nvidia.com/gpu": 1}}},
        {"connectionGrace": "0s"},
        {"connectionGrace": "1h"},
        {"cordoned": ["node-a", "node-b"]},
        {"prices": [{"model": "A100", "gpuHour": "2"}, {"model": "T4", "gpuHour": "0.350000"}]},
        {"idle": {"after": "90s", "action": "Release", "grace": "1h30m"}},
        {"idle": {"after": "1h"}},
        {"pack": {"every": "6h", "movesPerHour": 240, "leaveAlone": "0s"}},
        {"pack": {"from": "22:00", "to": "05:00", "days": ["Sat"], "timeZone": "Europe/Berlin"}},
        {"pack": {}},
        {"startDeadline": "1h", "update": {"drainDeadline": "0s"}},
        {"offload": [{"name": "torch", "python": "/opt/torch/bin/python", "backend": "rocm"}]},
        {"offload": [{"name": "torch", "python": "/a", "backend": "rocm", "exclusive": True}]},
        {"offload": [{"name": "torch", "python": "/a", "backend": "cuda", "cudaDirect": True, "exclusive": False}]},
        {"offload": [{"name": "a", "python": "/a"}, {"name": "b", "python": "/a", "backend": "cpu"}]},
    ],
    ids=str,
)
def test_a_pool_is_accepted(served: Served, spec: dict[str, Any]) -> None:
    assert refusal(served.create, "GPUPool", spec) == ACCEPTED


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"backend": "rocm"}, 'Unsupported value: "rocm": supported values: "software", "cuda"'),
        (
            {"backend": "cuda", "software": {"gpus": 2}},
            "software describes GPUs that are made of CPU: leave it out, or set backend to software",
        ),
        ({"gpusPerNode": 2}, "gpusPerNode counts real GPUs: set backend to cuda, or use software.gpus"),
        ({"backend": "cuda", "gpusPerNode": 65}, "spec.gpusPerNode in body should be less than or equal to 64"),
        ({"software": {"gpus": 0}}, "spec.software.gpus in body should be greater than or equal to 1"),
        *(
            ({"software": {"memory": value}}, f"{value} is no memory of a GPU: write 16Mi to 1Ti, as 8Gi")
            for value in ("15Mi", "2Ti", "8GiB", -1)
        ),
        *(({"managedMemory": value}, f"{value} is no size of managed memory") for value in ("1Ki", "2Ti", "8GiB")),
        ({"limits": {"sessionsPerClaim": 0}}, "should be greater than or equal to 1"),
        ({"startDeadline": "0s"}, TIME.format("0s")),
        *(({"connectionGrace": value}, f"{value} is no time up to an hour") for value in ("1h1s", "60", "-1s")),
        ({"startDeadline": "5 minutes"}, TIME.format("5 minutes")),
        ({"update": {"drainDeadline": "1d"}}, TIME.format("1d")),
        ({"cordoned": ["node-a", "node-a"]}, "Duplicate value"),
        ({"prices": [{"model": "A100"}]}, "spec.prices[0].gpuHour: Required value"),
        ({"prices": [{"model": "A100", "gpuHour": "2,40"}]}, "spec.prices[0].gpuHour in body should match"),
        ({"prices": [{"model": "T4", "gpuHour": "1"}, {"model": "T4", "gpuHour": "2"}]}, "Duplicate value"),
        ({"pack": {"from": "22:00"}}, "give both from and to, or every alone"),
        ({"pack": {"every": "1h", "days": ["Sat"]}}, "days and timeZone belong to hours"),
        ({"pack": {"every": "0s"}}, TIME.format("0s")),
        ({"pack": {"leaveAlone": "1d"}}, TIME.format("1d")),
        ({"pack": {"movesPerHour": 0}}, "should be greater than or equal to 1"),
        ({"pack": {"movesPerHour": 241}}, "should be less than or equal to 240"),
        ({"pack": {"from": "24:00", "to": "05:00"}}, "spec.pack.from in body should match"),
        ({"idle": {"grace": "1h"}}, "spec.idle.after: Required value"),
        *(({"idle": {"after": "1h"} | {key: "0s"}}, TIME.format("0s")) for key in ("after", "grace")),
        ({"idle": {"after": "1h", "action": "Suspend"}}, 'Unsupported value: "Suspend"'),
        ({"resources": {"limits": {"cpu": "two"}}}, "spec.resources.limits.cpu in body should match"),
        ({"tolerations": [{"operator": "In"}]}, 'Unsupported value: "In": supported values: "Exists", "Equal"'),
        ({"imagePullPolicy": "Sometimes"}, "spec.imagePullPolicy: Unsupported value"),
        ({"offload": [{"name": "torch"}]}, "spec.offload[0].python: Required value"),
        ({"offload": [{"name": "torch", "python": "python"}]}, "spec.offload[0].python in body should match"),
        ({"offload": [{"name": "a", "python": "/a:cuda"}]}, "spec.offload[0].python in body should match"),
        ({"offload": [{"name": "a=b", "python": "/a"}]}, "spec.offload[0].name in body should match"),
        ({"offload": [{"name": "a", "python": "/a", "backend": "tpu"}]}, 'Unsupported value: "tpu"'),
        ({"offload": [{"name": "a", "python": "/a"}, {"name": "a", "python": "/b"}]}, "Duplicate value"),
        *(
            ({"offload": [{"name": "a", "python": "/a", **more, "exclusive": True}]}, "set backend to rocm or xpu")
            for more in ({}, {"backend": "cuda"}, {"backend": "cpu"})
        ),
        *(
            ({"offload": [{"name": "a", "python": "/a", **more, "cudaDirect": True}]}, "set backend to cuda")
            for more in ({}, {"backend": "rocm"}, {"backend": "cpu"})
        ),
    ],
    ids=str,
)
def test_invalid_pools_are_refused_with_a_valid_example(served: Served, spec: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(served.create, "GPUPool", spec)


def test_a_pool_keeps_its_backend(served: Served) -> None:
    pool = served.create("GPUPool", {})
    assert "the backend of a pool cannot be changed: make another pool" in refusal(
        served.patch, pool, {"spec": {"backend": "cuda"}}
    )
    assert refusal(served.patch, pool, {"spec": {"software": {"gpus": 2}, "image": "other:1"}}) == ACCEPTED


@pytest.mark.parametrize("name", ["1st", "a.b", "p" * 41])
def test_a_pool_has_a_name_that_services_can_have(served: Served, name: str) -> None:
    assert POOL_NAME in refusal(served.create, "GPUPool", {}, name)

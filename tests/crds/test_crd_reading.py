"""How the objects read: `kubectl get` and `kubectl explain`, before and after the operator has written."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.crds import FILES, Served, fields, schema

from remotegpu.api.claims import Allocation, ClaimStatus, Phase, Reason
from remotegpu.api.pools import (
    Amount,
    AppliancePhase,
    ApplianceStatus,
    EnvironmentStatus,
    GpuStatus,
    PoolPhase,
    PoolStatus,
)

GIB = 1 << 30
MODEL = "NVIDIA A100"


def rows(table: str) -> list[dict[str, str]]:
    """The table of one kind; columns are where their headers are, so that an empty cell is seen as one."""
    head, *lines = table.rstrip("\n").splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    return [{head[a:b].strip(): line[a:b].strip() for a, b in spans} for line in lines]


def table(served: Served, plural: str) -> dict[str, dict[str, str]]:
    """By name, without what changes from second to second."""
    shown = rows(served.server.kubectl("get", plural, "-o", "wide", "--namespace=default").stdout)
    return {row.pop("NAME"): {column: text for column, text in row.items() if column != "AGE"} for row in shown}


def test_no_column_is_ever_empty(served: Served) -> None:
    claims = [served.create("GPUClaim", spec) for spec in ({"fraction": "0.25"}, {"fraction": 2}, {"memory": "4Gi"})]
    pools = [served.create("GPUPool", {}), served.create("GPUPool", {"backend": "cuda"})]

    def check() -> None:
        for plural, objects in (("gpuclaims", claims), ("gpupools", pools)):
            shown = table(served, plural)
            for each in objects:
                row = shown[each["metadata"]["name"]]
                assert row and all(row.values()), row

    check()
    for each in claims:
        # A status that was begun and never finished.
        served.patch(each, {"status": {"phase": "Pending", "reason": "WaitingForCapacity", "message": "wait"}})
    for each in pools:
        served.patch(each, {"status": {"conditions": []}})
    check()


def test_an_allocated_claim_shows_its_share(served: Served) -> None:
    claim = served.create("GPUClaim", {"fraction": "0.333", "count": 2, "priority": 7})
    share = [Allocation("appliance", "node-1", f"GPU-{i}", MODEL, 8 * GIB * 333 // 1000, 333) for i in range(2)]
    status = ClaimStatus(Phase.ALLOCATED, Reason.ALLOCATED, "it has its share", allocations=tuple(share))
    served.patch(claim, {"status": status.to_object()})
    assert table(served, "gpuclaims")[claim["metadata"]["name"]] == {
        "PHASE": "Allocated",
        "REASON": "Allocated",
        "POOL": "default",
        "SHARE": "0.333",
        "GPUS": f"2 x {MODEL}",
        "MEMORY": "2727Mi",
        "MILLI": "666",
        "MODE": "driver",
        "COUNT": "2",
        "PLACEMENT": "Pack",
        "PRIORITY": "7",
        "MESSAGE": "it has its share",
    }


def test_a_pool_shows_what_is_free(served: Served) -> None:
    pool = served.create("GPUPool", {})
    gpus = (GpuStatus("GPU-1", MODEL, 8 * GIB, 8 * GIB), GpuStatus("GPU-2", "Tesla T4", 8 * GIB, 8 * GIB))
    environments = (EnvironmentStatus("torch", "cuda", "3.12.4"), EnvironmentStatus("sklearn", "cpu", "3.11.2"))
    status = PoolStatus(
        PoolPhase.DEGRADED,
        "AppliancesStarting",
        "1 of 2 appliances is ready",
        total=Amount(2000, 16 * GIB),
        allocated=Amount(250, 2 * GIB),
        free=Amount(1750, 14 * GIB),
        appliances=(
            ApplianceStatus("a", "node-1", AppliancePhase.READY, gpus=gpus, environments=environments),
            ApplianceStatus("b", "node-2"),
        ),
    )
    served.patch(pool, {"status": status.to_object()})
    assert table(served, "gpupools")[pool["metadata"]["name"]] == {
        "PHASE": "Degraded",
        "REASON": "AppliancesStarting",
        "APPLIANCES": "1/2",
        "GPUS": "2",
        "TOTAL": "2000",
        "ALLOCATED": "250",
        "FREE": "1750",
        "BACKEND": "software",
        "MODELS": f"{MODEL}, Tesla T4",
        "ENVIRONMENTS": "sklearn (cpu), torch (cuda)",
        "MEMORY": "16Gi",
        "FREE-MEMORY": "14Gi",
        "MESSAGE": "1 of 2 appliances is ready",
    }


@pytest.mark.parametrize("kind", FILES)
def test_every_field_is_described_with_unit_default_and_example(kind: str) -> None:
    problems = []
    for path, field in fields(schema(kind)):
        text = field.get("description", "")
        leaf = field.get("type") not in {"object", "array"} or "additionalProperties" in field
        default = field.get("default")
        said = re.search(r"Default: (.*?)\.(?: Example|$)", text)
        wants = {
            "a sentence": text.endswith("."),
            "an example": "Example: " in text or not leaf or path.endswith(("total", "allocated", "free")),
            "its default": not leaf or default is None or (said is not None and said[1] == str(default)),
            "what holds without it": not path.startswith("spec.")
            or not leaf
            or said is not None
            or path.rsplit(".", 1)[0] in _WITHOUT_DEFAULT,
            "its unit": "Unit: " in text or not _is_amount(path, field),
        }
        problems += [f"{path} lacks {what}: {text}" for what, given in wants.items() if not given]
    assert not problems, "\n".join(problems)


# Most of what is in these is required.
_WITHOUT_DEFAULT = {"spec.pod", "spec.tolerations", "spec.offload", "spec.schedules", "spec.prices", "spec.cordoned"}


def _is_amount(path: str, field: dict[str, Any]) -> bool:
    """Numbers and quantities; not what has no unit."""
    if path.rsplit(".", 1)[-1] in {"priority", "maxPriority", "observedGeneration"}:
        return False
    return field.get("type") == "integer" or "x-kubernetes-int-or-string" in field or "Deadline" in path


@pytest.mark.parametrize("kind", FILES)
def test_kubectl_explains_every_field(served: Served, kind: str) -> None:
    """In the very words of the schema, so that no reader has to look for them elsewhere."""

    def explain(path: str) -> str:
        return flat(served.server.kubectl("explain", f"{kind.lower()}.{path}".rstrip(".")).stdout)

    # One call for each object shows all its fields.
    shown: dict[str, str] = {}
    for path, field in fields(schema(kind)):
        above = path.rpartition(".")[0]
        if above not in shown:
            shown[above] = explain(above)
        assert flat(field["description"]) in shown[above], path


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_names_are_free(served: Served) -> None:
    """A short name that a built-in kind has would never be ours."""
    lines = served.server.kubectl("api-resources", "--no-headers", "-o", "wide").stdout.splitlines()
    ours = [line for line in lines if "remotegpu.io/v1alpha1" in line]
    taken = {word for line in lines if line not in ours for word in re.split(r"[\s,]+", line.split("v1")[0])}
    assert not taken & {"gpool", "gclaim", "gpupools", "gpuclaims", "gpupool", "gpuclaim"}
    for name in ("gpool", "gclaim"):
        served.server.kubectl("get", name)
    assert len(served.server.kubectl("api-resources", "--categories=remotegpu", "-o", "name").stdout.split()) == 2

"""A pod on the node of its appliance shares page-locked memory with it; bytes of any other pod's copies travel."""

from __future__ import annotations

import json

import pytest
from support.installation import Installation
from support.kubectl import Object
from support.manifests import pod, program
from support.namespace import Namespace

from remotegpu.api.kubernetes import APPLIANCE_LABEL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MIB = 1 << 20
COUNTED = "/dev/shm/counted"


def copies(name: str, node: str) -> Object:
    """Compares copies with NumPy, and prints what the client counted."""
    words = " ".join(program("shared_copies.py"))
    made = pod(name, ["sh", "-c", f"REMOTEGPU_STATS={COUNTED} {words} && cat {COUNTED}"], fraction="0.1")
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return made


def test_bytes_travel_only_from_node_to_node(namespace: Namespace, installation: Installation) -> None:
    nodes = {
        made["metadata"]["labels"][APPLIANCE_LABEL]: made["spec"]["nodeName"] for made in installation.appliances()
    }
    seen = set()
    for number, node in enumerate(sorted(nodes.values())):
        name = f"copies-{number}"
        namespace.create(copies(name, node))
        claim = namespace.wait_for_claim(name, "Allocated")
        ((place, *more),) = [claim["status"]["endpoints"]]
        assert not more
        beside = nodes[place["appliance"]] == node
        namespace.wait_for_phase(name, "Succeeded", seconds=60)
        counted = json.loads(namespace.logs(name).partition("ok")[2])
        assert (counted["bytes_sent"] < 2 * MIB) == beside, (place, node)
        assert (counted["bytes_received"] < 2 * MIB) == beside, (place, node)
        seen.add(beside)
    assert seen == {True, False}, "the allocator gave both the same appliance"

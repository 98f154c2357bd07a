"""A pod beside its appliance shares page-locked memory with it, as a `restricted` pod.

Both nodes of the test cluster have one file system, so a pod on either node is beside each appliance here.
"""

from __future__ import annotations

import json

import pytest
from support.kubectl import Object
from support.manifests import pod, program
from support.namespace import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MIB = 1 << 20
COUNTED = "/dev/shm/counted"


def copies(name: str, carrier: str) -> Object:
    """Compares copies with NumPy, and prints what the client counted."""
    words = " ".join(program("shared_copies.py"))
    settings = f"REMOTEGPU_CARRIER={carrier} REMOTEGPU_STATS={COUNTED}"
    return pod(name, ["sh", "-c", f"{settings} {words} && cat {COUNTED}"], fraction="0.1")


def test_bytes_of_copies_do_not_travel(namespace: Namespace) -> None:
    counted = {
        carrier: json.loads(namespace.run(copies(carrier, carrier)).partition("ok")[2])
        for carrier in ("auto", "direct")
    }
    assert counted["auto"]["bytes_sent"] < 2 * MIB > counted["auto"]["bytes_received"]
    assert counted["direct"]["bytes_sent"] > 32 * MIB < counted["direct"]["bytes_received"]

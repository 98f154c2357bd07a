"""The cluster's own network, on which the tests of our NetworkPolicies rely. No part of remotegpu takes part."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.kubectl import Kubectl, Object
from support.manifests import listening, pod
from support.namespace import Namespace, temporary
from support.system import until

pytestmark = pytest.mark.e2e

PORT = 8000
SLEEP = ["sleep", "3600"]
# Tries all addresses at once, so that dropped packets cost one timeout; prints those that answer.
CONNECT = """
import concurrent.futures, json, socket, sys
def answers(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True
with concurrent.futures.ThreadPoolExecutor() as pool:
    addresses = sys.argv[1:]
    print(json.dumps([a for a, yes in zip(addresses, pool.map(answers, addresses)) if yes]))
"""
DENY: Object = {"podSelector": {}, "policyTypes": ["Ingress"]}
FRIENDS: Object = {
    "podSelector": {},
    "policyTypes": ["Ingress"],
    "ingress": [{"from": [{"podSelector": {"matchLabels": {"friend": "yes"}}}], "ports": [{"port": PORT}]}],
}


@pytest.fixture
def place(kubectl: Kubectl) -> Iterator[Namespace]:
    with temporary(kubectl) as it:
        yield it


def on(node: str, name: str, command: list[str], **labels: str) -> Object:
    it = pod(name, command, labels={"app": name, **labels})
    it["spec"]["nodeName"] = node
    return it


def reached(place: Namespace, client: str, addresses: list[str]) -> set[str]:
    command = ("python3", "-c", CONNECT, *addresses)
    return set(json.loads(place.kubectl("exec", "-n", place.name, client, "--", *command)))


def policy(place: Namespace, name: str, spec: Object) -> None:
    place.apply(
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}
    )


def test_policies_are_enforced_on_pods_and_services_within_and_across_nodes(place: Namespace, nodes: list[str]) -> None:
    addresses: list[str] = []
    for number, node in enumerate(nodes):
        place.create(on(node, f"server-{number}", listening(PORT)))
        place("expose", "pod", f"server-{number}", f"--port={PORT}")
    place.create(on(nodes[0], "friend", SLEEP, friend="yes"), on(nodes[0], "stranger", SLEEP))
    for name in ("friend", "stranger", *(f"server-{number}" for number in range(len(nodes)))):
        place.wait_for_phase(name, "Running")
    for number in range(len(nodes)):
        server, service = place.get("pod", f"server-{number}"), place.get("service", f"server-{number}")
        assert server
        assert service
        addresses += [f"{server['status']['podIP']}:{PORT}", f"{service['spec']['clusterIP']}:{PORT}"]
    every = set(addresses)

    def wait_for(expected: dict[str, set[str]], what: str) -> None:
        until(lambda: {name: reached(place, name, addresses) for name in expected} == expected, 30, what)

    wait_for({"friend": every, "stranger": every}, "without a policy everybody reaches every server")
    policy(place, "default-deny", DENY)
    wait_for({"friend": set(), "stranger": set()}, "with default-deny nobody reaches any")
    policy(place, "friends", FRIENDS)
    wait_for({"friend": every, "stranger": set()}, "the allowed pod reaches every server, and it alone")
    place.delete("networkpolicy", "default-deny")
    place.delete("networkpolicy", "friends")
    wait_for({"friend": every, "stranger": every}, "without the policies everybody reaches every server again")

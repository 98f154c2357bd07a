"""An API server takes the addresses of a cluster of both families, and gives Services some of each."""

from __future__ import annotations

import ipaddress
import json

import pytest
from cluster.addresses import FAMILIES
from support.apiserver import api_server


@pytest.mark.parametrize("name", ["dual", "dual-ipv6-first"])
def test_a_service_gets_an_address_of_each_family(name: str) -> None:
    networks = FAMILIES[name]
    with api_server(networks=networks) as it:
        metadata = {"name": "both", "namespace": "default"}
        spec = {"ipFamilyPolicy": "PreferDualStack", "selector": {"app": "x"}, "ports": [{"port": 80}]}
        it.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
        made = json.loads(it.kubectl("get", "service", "both", "--namespace=default", "--output=json").stdout)
    given = [ipaddress.ip_address(address) for address in made["spec"]["clusterIPs"]]
    assert [address.version for address in given] == [network.version for network in networks]
    for address, network in zip(given, networks, strict=True):
        assert address in ipaddress.ip_network(network.services)

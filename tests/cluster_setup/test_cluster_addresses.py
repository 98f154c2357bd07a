"""The addresses of the tests' cluster, of one family or of both."""

from __future__ import annotations

import ipaddress
import itertools
from pathlib import Path

import pytest
from cluster.addresses import FAMILIES, IPV4, IPV6, Network, chosen
from cluster.control_plane import ControlPlane
from cluster.node import Node
from cryptography import x509

BOTH = pytest.mark.parametrize("name", FAMILIES)


def option(command: list[str], name: str) -> list[str]:
    (value,) = (word.removeprefix(f"--{name}=") for word in command if word.startswith(f"--{name}="))
    return value.split(",")


def versions(values: list[str]) -> list[int]:
    return [ipaddress.ip_interface(value).version for value in values]


def test_without_a_choice_the_addresses_are_those_of_the_readme() -> None:
    assert (IPV4.host, IPV4.node(1), IPV4.node(2)) == ("10.100.0.1", "10.100.0.11", "10.100.0.12")
    assert (IPV4.node_pods(1), IPV4.node_pods(2), IPV4.api) == ("10.244.1.0/24", "10.244.2.0/24", "10.96.0.1")


@pytest.mark.parametrize("network", [IPV4, IPV6], ids=["ipv4", "ipv6"])
def test_nothing_of_a_family_overlaps(network: Network) -> None:
    ranges = [network.hosts, network.services, *(network.node_pods(number) for number in (1, 2))]
    for one, other in itertools.combinations(map(ipaddress.ip_network, ranges), 2):
        assert not one.overlaps(other)
    hosts = ipaddress.ip_network(network.hosts)
    assert {ipaddress.ip_address(each) in hosts for each in (network.host, network.node(1), network.node(2))} == {True}
    # What a controller manager and an API server take: at most 2^20 addresses of Services.
    assert ipaddress.ip_network(network.services).num_addresses <= 1 << 20


@BOTH
def test_each_program_gets_both_families_in_the_order_of_the_choice(name: str, tmp_path: Path) -> None:
    networks = chosen(name)
    wanted = [network.version for network in networks]
    plane = ControlPlane(tmp_path, address=networks[0].host, networks=networks)
    manager = plane.controller_manager()
    for found in (
        option(plane.apiserver(), "service-cluster-ip-range"),
        option(manager, "service-cluster-ip-range"),
        option(manager, "cluster-cidr"),
        Node("node-a", 1, tmp_path, networks).addresses,
    ):
        assert versions(found) == wanted
    # The Service of the API server is of the first family, and so must its endpoint be.
    assert versions(option(plane.apiserver(), "advertise-address")) == wanted[:1]
    assert ("[" in plane.url) == (wanted[0] == 6)


@BOTH
def test_the_api_servers_certificate_has_its_addresses_of_each_family(name: str, tmp_path: Path) -> None:
    networks = chosen(name)
    plane = ControlPlane(tmp_path, address=networks[0].host, networks=networks)
    nodes = {"node-a": Node("node-a", 1, tmp_path, networks).addresses}
    plane.make_certificates(nodes)

    def addresses(file: str) -> set[str]:
        it = x509.load_pem_x509_certificate((plane.certificates / file).read_bytes())
        subjects = it.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return {str(address) for address in subjects.get_values_for_type(x509.IPAddress)}

    assert {plane.address, *(network.api for network in networks)} <= addresses("apiserver.crt")
    assert addresses("node-a.crt") == set(nodes["node-a"])


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RuntimeError, match="REMOTEGPU_E2E_FAMILY=ipv6 is none of ipv4, dual, dual-ipv6-first"):
        chosen("ipv6")

"""Packets of the control sockets: the appliance's end, generated from registry/packets.yaml, against the table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from remotegpu_codegen.packets import Packet, Table, load
from remotegpu_codegen.registry import RegistryError

from remotegpu.appliance._generated import gateway_events, gateway_orders, worker_orders, worker_requests

CONTENT: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "remoting" / "registry" / "packets.yaml").read_text()
)
TABLE = load(CONTENT)
READ = {"Request": worker_requests, "GatewayEvent": gateway_events}
WRITTEN = {"Order": worker_orders, "GatewayOrder": gateway_orders}
VALUES = {"u16": 7, "u32": 8, "u64": 1 << 40, "bool": True, "str": "text", "token": "ab" * 16}
ZEROS = {int: 0, bool: False, str: "", tuple: ()}


def value(table: Table, kind: str) -> Any:
    outer, _, inner = kind.rpartition(" ")
    struct = table.structs.get(inner)
    one = VALUES[inner] if struct is None else {name: value(table, each) for name, each in struct.fields.items()}
    return [one] if outer == "list" else one


def packets(sockets: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(sockets[socket.name], packet, id=f"{socket.name}-{packet.name}")
        for socket in TABLE.sockets
        if socket.name in sockets
        for packet in socket.packets
    ]


@pytest.mark.parametrize(("module", "packet"), packets(READ))
def test_a_packet_is_read_with_all_its_fields(module: Any, packet: Packet) -> None:
    given = {name: value(TABLE, kind) for name, kind in packet.fields.items()}
    found = module.read({"op": packet.op, **given, "unknown": 1})
    assert type(found).__name__ == packet.name
    for name, expected in given.items():
        seen = getattr(found, name)
        if isinstance(expected, list):
            (seen,), (expected,) = seen, expected
        if isinstance(expected, dict):
            seen = {field: getattr(seen, field) for field in expected}
        assert seen == expected


@pytest.mark.parametrize("nonsense", [None, -1, 1 << 63, 1.5, [], {}, [None], "\ud800", [{"gpu": "x"}]], ids=repr)
@pytest.mark.parametrize(("module", "packet"), packets(READ))
def test_a_value_of_another_type_is_the_zero_value(module: Any, packet: Packet, nonsense: Any) -> None:
    missing = module.read({"op": packet.op})
    assert all(getattr(missing, name) == ZEROS[type(getattr(missing, name))] for name in packet.fields)
    found = module.read({"op": packet.op, **dict.fromkeys(packet.fields, nonsense)})
    for name in packet.fields:
        assert type(getattr(found, name)) is type(getattr(missing, name))


@pytest.mark.parametrize("op", [None, 1, "", "nothing", ["ready"], {}])
def test_another_packet_is_none(op: Any) -> None:
    assert worker_requests.read({"op": op}) is None
    assert gateway_events.read({}) is None


@pytest.mark.parametrize(("module", "packet"), packets(WRITTEN))
def test_a_packet_is_written_with_the_fields_of_the_table(module: Any, packet: Packet) -> None:
    named = [each for each in inspect.getmembers(module, inspect.isfunction) if each[1].__module__ == module.__name__]
    given = {name: value(TABLE, kind) for name, kind in packet.fields.items()}
    (write,) = [each for name, each in named if name.replace("_", "") == packet.name.lower()]
    assert write(**given) == {"op": packet.op, **given}
    assert list(write(**given)) == ["op", *packet.fields]
    optional = set(packet.optional)
    assert write(**{name: each for name, each in given.items() if name not in optional}).keys() == {"op", *given}


def test_each_op_is_one_packet_of_its_socket() -> None:
    for socket in TABLE.sockets:
        ops = [packet.op for packet in socket.packets]
        assert sorted(ops) == sorted(set(ops))


@pytest.mark.parametrize("fault", [{"fields": {"id": "u128"}}, {"fields": {"id": "u64"}, "optional": ["name"]}])
def test_a_table_that_contradicts_itself_is_refused(fault: dict[str, Any]) -> None:
    socket = {"from": "a", "to": "b", "case": "lowercase", "packets": {"Ready": {"doc": "It is.", **fault}}}
    with pytest.raises(RegistryError, match=r"packets\.yaml"):
        load({"structs": {}, "sockets": {"Request": socket}})

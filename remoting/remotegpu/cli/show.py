"""The commands `ls`, `smi` and `version`: print the inventories of appliances as tables or JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from remotegpu import __version__
from remotegpu.api.quantities import MILLI_PER_GPU, format_bytes, format_milli
from remotegpu.cli.output import add_row, age, console, json_text, new_table, present, print_json
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint


def ls(appliances: Sequence[str], access: Access, *, as_json: bool, watch: bool = False) -> None:
    present(lambda: _listing(inventories(appliances, access), as_json=as_json), watch=watch)


def _listing(found: Sequence[tuple[str, pb.InventoryReply]], *, as_json: bool) -> str:
    if as_json:
        document = {"appliances": [describe(endpoint, inventory) for endpoint, inventory in found]}
        return json_text(document)
    out = console()
    with out.capture() as captured:
        table = new_table("APPLIANCE", "GPU", "NAME", "MEMORY", "FREE", "FREE PART", "LEASES", "STATE")
        for endpoint, inventory in found:
            for gpu in inventory.gpus:
                free = gpu.shareable_bytes - gpu.leased_bytes
                part = f"{free / gpu.shareable_bytes:.2f}" if gpu.shareable_bytes else "-"
                leases = sum(gpu.index in lease.gpus for lease in inventory.leases)
                add_row(table,
                    endpoint, str(gpu.index), gpu.name, format_bytes(gpu.shareable_bytes), format_bytes(free), part,
                    str(leases), gpu_state(inventory, gpu),
                )  # fmt: skip
        out.print(table)
        print_environments(out, found)
    return captured.get()


def smi(appliances: Sequence[str], access: Access, *, as_json: bool) -> None:
    found = inventories(appliances, access)
    if as_json:
        print_json({"appliances": [describe(endpoint, inventory) for endpoint, inventory in found]})
        return
    out = console()
    for endpoint, inventory in found:
        driver = f"CUDA {inventory.driver_version // 1000}.{inventory.driver_version % 1000 // 10}"
        out.print(f"{endpoint}  {inventory.versions.program}  {inventory.backend}  {driver}", highlight=False)
        gpus = new_table("GPU", "NAME", "UUID", "USED", "LEASED", "SHAREABLE", "TOTAL", "STATE")
        for gpu in inventory.gpus:
            sizes = (gpu.used_bytes, gpu.leased_bytes, gpu.shareable_bytes, gpu.total_bytes)
            add_row(gpus, str(gpu.index), gpu.name, gpu.uuid, *map(format_bytes, sizes), gpu_state(inventory, gpu))
        out.print(gpus)
        divided = ("TIME",) if inventory.compute_mode == "turns" else ()
        leases = new_table("LEASE", "GPUS", "EACH", "USED", "PROCESSES", "AGE", *divided, "STATE", "CLIENT")
        for lease in inventory.leases:
            time = (gpu_time(lease),) if divided else ()
            add_row(leases,
                lease.lease_id[:8], ",".join(map(str, lease.gpus)), format_bytes(lease.memory_bytes),
                format_bytes(lease.used_bytes), str(lease.sessions), age(lease.age_seconds), *time,
                lease_state(lease), lease.client,
            )  # fmt: skip
        out.print(leases if inventory.leases else "no leases")
        print_environments(out, [(endpoint, inventory)])


def version(*, as_json: bool) -> None:
    if as_json:
        print_json({"version": __version__, "wire": WIRE_VERSION})
    else:
        print(f"remotegpu {__version__} (wire {WIRE_VERSION})")  # noqa: T201


def inventories(appliances: Sequence[str], access: Access) -> list[tuple[str, pb.InventoryReply]]:
    found = []
    for text in appliances:
        client = ApplianceClient(parse_endpoint(text), access)
        try:
            found.append((str(client.endpoint), client.inventory()))
        finally:
            client.close()
    return found


def describe(endpoint: str, inventory: pb.InventoryReply) -> dict[str, Any]:
    """Returns the inventory as a JSON object, with the names of control.proto."""
    return {
        "endpoint": endpoint,
        "program": inventory.versions.program,
        "backend": inventory.backend,
        "driver_version": inventory.driver_version,
        "draining": inventory.draining,
        "opens_no_session": inventory.opens_no_session,
        "compute_mode": inventory.compute_mode,
        "gpus": [_fields(gpu) for gpu in inventory.gpus],
        "leases": [_fields(lease) for lease in inventory.leases],
        "environments": [_fields(environment) for environment in inventory.environments],
    }


def print_environments(out: Console, found: Sequence[tuple[str, pb.InventoryReply]]) -> bool:
    """Prints the environments for offload. Returns whether there are any."""
    table = new_table("APPLIANCE", "ENVIRONMENT", "BACKEND", "PYTHON", "PACKAGES", "DEVICES")
    for endpoint, inventory in found:
        for one in inventory.environments:
            packages = " ".join(f"{name} {version}" for name, version in sorted(one.packages.items()))
            add_row(table, endpoint, one.name, one.backend, one.python, packages, ", ".join(one.devices) or "-")
    if table.row_count:
        out.print(table)
    return bool(table.row_count)


def _fields(message: pb.Gpu | pb.Lease | pb.Place | pb.Environment) -> dict[str, Any]:
    values = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    if isinstance(message, pb.Lease):
        values |= {"gpus": list(message.gpus), "places": [_fields(place) for place in message.places]}
    if isinstance(message, pb.Environment):
        values |= {"packages": dict(message.packages), "devices": list(message.devices)}
    return values


def gpu_state(inventory: pb.InventoryReply, gpu: pb.Gpu) -> str:
    if not gpu.healthy:
        return f"unhealthy: {gpu.health_message}"
    return "draining" if inventory.draining else "ready"


def lease_state(lease: pb.Lease) -> str:
    return f"suspended {lease.suspended}" if lease.suspended else "running"


def gpu_time(lease: pb.Lease) -> str:
    """Returns a text with the GPU time that a lease used, and its guarantee and limit on each GPU."""
    seconds = sum(place.gpu_nanoseconds for place in lease.places) / 1e9
    least = min((place.compute_milli for place in lease.places), default=0)
    limit = f" to {format_milli(lease.compute_limit_milli)}" if lease.compute_limit_milli < MILLI_PER_GPU else ""
    return f"{seconds:.1f}s, {format_milli(least)}{limit}"

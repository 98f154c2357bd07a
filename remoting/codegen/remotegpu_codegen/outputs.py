"""The list of generated files, and their texts."""

from pathlib import Path

import yaml

from remotegpu_codegen import (
    client,
    numbers,
    packets,
    parameters,
    proc_table,
    protocol,
    registry,
    report,
    sources,
    trace,
    wire,
    worker,
)


def outputs(root: Path) -> dict[str, str]:
    """Returns the texts of all generated files by their path below `root`, the repository.

    Raises RegistryError if the registry contradicts itself or the lock of numbers.
    """
    remoting = root / "remoting"
    folder = remoting / "registry"
    table = registry.load(folder)
    lock_file = folder / "numbers.lock"
    lock = numbers.parse(lock_file.read_text() if lock_file.exists() else "")
    spoken = wire.versions(yaml.safe_load((folder / "wire.yaml").read_text()))
    wire_lock_file = folder / "wire.lock"
    old = wire.parse(wire_lock_file.read_text() if wire_lock_file.exists() else "")
    travels = wire.shapes((remoting / "protocol/src/message.rs").read_text(), table)
    wire_lock = wire.extend(old, travels, spoken.newest)
    calls = yaml.safe_load((folder / "calls.yaml").read_text())
    control = packets.load(yaml.safe_load((folder / "packets.yaml").read_text()))
    client_by_hand, softgpu_by_hand = (sources.exported_by_hand(remoting / crate) for crate in ("client", "softgpu"))
    generated = {
        **{f"remotegpu/appliance/_generated/{name}.py": text for name, text in packets.python(control).items()},
        "worker/src/packets/generated.rs": packets.rust(control),
        "registry/numbers.lock": numbers.render(numbers.extend(lock, table.driver)),
        "registry/wire.lock": wire.render(wire_lock),
        "registry/REPORT.md": report.render(table, client_by_hand, softgpu_by_hand, calls),
        "driverapi/src/proc_table_generated.rs": proc_table.rust(table),
        "protocol/src/functions_generated.rs": protocol.rust(table),
        "protocol/src/versions_generated.rs": wire.rust(wire_lock, spoken),
        "remotegpu/rpc/_generated/versions.py": wire.python(spoken),
        "client/src/generated.rs": client.rust(table),
        "client/src/nvml_generated.rs": client.nvml_rust(table),
        "client/exports_generated": client.exports(table),
        "worker/src/generated.rs": worker.rust(table),
        "worker/src/driver/functions_generated.rs": worker.functions(table),
    }
    return {
        **{f"remoting/{name}": text for name, text in generated.items()},
        "tools/recorder/src/functions_generated.rs": trace.rust(table, parameters.load(folder)),
    }

"""Generates values.schema.json and VALUES.md from the chart's values.schema.yaml, into the chart or FOLDER.

python tools/generate_values_schema.py [FOLDER]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "remotegpu"


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a CRD's schema as a JSON schema that refuses unknown keys: misspelt ones would be dropped silently."""
    kept = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if "properties" in kept:
        kept["properties"] = {name: json_schema(each) for name, each in kept["properties"].items()}
        kept["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = json_schema(kept[key])
    return kept


def values_schema() -> str:
    schema = source()
    versions = yaml.safe_load((ROOT / "crds" / "gpupools.yaml").read_text())["spec"]["versions"]
    spec = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["definitions"]["GPUPoolSpec"] = json_schema(spec)
    return json.dumps(schema, indent=1) + "\n"


def source() -> dict[str, Any]:
    schema: dict[str, Any] = yaml.safe_load((CHART / "values.schema.yaml").read_text())
    return schema


def values_table() -> str:
    lines = [
        "# Values",
        "",
        "Generated from values.schema.yaml; do not edit.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    ]
    schema = source()
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, default, meaning in rows(schema, defaults, schema["definitions"]):
        lines.append(f"| `{path}` | `{json.dumps(default)}` | {meaning} |")
    return "\n".join(lines) + "\n"


def rows(
    schema: dict[str, Any], defaults: dict[str, Any], definitions: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, str]]:
    for name, each in schema["properties"].items():
        if "properties" in each:
            yield from rows(each, defaults[name], definitions, f"{prefix}{name}.")
        elif name in defaults:
            named = definitions.get(each.get("$ref", "").rpartition("/")[2], {})
            yield prefix + name, defaults[name], each.get("description") or named["description"]


def main(folder: Path) -> None:
    (folder / "values.schema.json").write_text(values_schema())
    (folder / "VALUES.md").write_text(values_table())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHART)

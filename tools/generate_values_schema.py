"""Write the chart's values.schema.json: `python tools/generate_values_schema.py [FILE]`."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "remotegpu"


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A CRD's schema as JSON schema that refuses unknown keys: without it, a misspelt one would be dropped silently."""
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


def content() -> str:
    schema = yaml.safe_load((CHART / "values.schema.yaml").read_text())
    versions = yaml.safe_load((ROOT / "crds" / "gpupools.yaml").read_text())["spec"]["versions"]
    spec = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["definitions"]["GPUPoolSpec"] = json_schema(spec)
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else CHART / "values.schema.json").write_text(content())

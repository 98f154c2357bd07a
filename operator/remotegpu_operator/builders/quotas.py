"""What a namespace's ResourceQuota leaves for claims."""

from typing import Any, Final

from remotegpu.api.kubernetes import MILLI
from remotegpu.api.quantities import parse_quantity

REQUESTS: Final = f"requests.{MILLI}"


def hard_milli(quota: dict[str, Any]) -> int | None:
    """None: it says nothing about shares, or only about pods of one class, which a claim made by hand is not."""
    spec = quota["spec"]
    hard = spec.get("hard") or {}
    if REQUESTS not in hard or spec.get("scopes") or spec.get("scopeSelector"):
        return None
    return int(parse_quantity(hard[REQUESTS]))

"""Reads the limits for shares in a namespace's ResourceQuota."""

from typing import Any, Final

from remotegpu.api.kubernetes import MILLI
from remotegpu.api.quantities import parse_quantity

REQUESTS: Final = f"requests.{MILLI}"


def hard_milli(quota: dict[str, Any]) -> int | None:
    """Returns the quota's limit for the shares of claims, in thousandths of a GPU; None if it has no such limit.

    A quota with scopes applies only to certain pods, so it does not limit claims.
    """
    spec = quota["spec"]
    hard = spec.get("hard") or {}
    if REQUESTS not in hard or spec.get("scopes") or spec.get("scopeSelector"):
        return None
    return int(parse_quantity(hard[REQUESTS]))

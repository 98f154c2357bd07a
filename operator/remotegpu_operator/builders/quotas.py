"""A namespace's ResourceQuota for shares."""

from typing import Any, Final

from remotegpu.api.kubernetes import MILLI
from remotegpu.api.quantities import parse_quantity

REQUESTS: Final = f"requests.{MILLI}"


def hard_milli(quota: dict[str, Any]) -> int | None:
    """Returns the quota's limit of thousandths; None if it has none that a claim made by hand counts against.

    A quota with scopes is for pods of one class, and such a claim is no pod.
    """
    spec = quota["spec"]
    hard = spec.get("hard") or {}
    if REQUESTS not in hard or spec.get("scopes") or spec.get("scopeSelector"):
        return None
    return int(parse_quantity(hard[REQUESTS]))

"""The data that the page shows, and their changes. Pure."""

from dataclasses import dataclass
from typing import Any

from remotegpu.api import snapshot

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """The pools and claims that a reader may list."""

    namespaces: frozenset[str] | None  # namespaces with readable claims; None: all
    pools: bool

    def shows(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


@dataclass(frozen=True, slots=True)
class Snapshot:
    pools: list[snapshot.Pool]
    claims: dict[str, snapshot.Claim]  # by "namespace/name"

    def seen_by(self, scope: Scope) -> "Snapshot":
        """Returns the snapshot without objects that the reader may not list. Sums and queue positions do not change."""
        if scope.namespaces is None and scope.pools:
            return self
        claims = {key: claim for key, claim in self.claims.items() if scope.shows(claim["namespace"])}
        return Snapshot(self.pools if scope.pools else [], claims)

    def since(self, before: "Snapshot") -> Json:
        """Returns the changes for a page that shows `before`; empty if there are none."""
        if self is before:
            return {}
        claims = {key: claim for key, claim in self.claims.items() if before.claims.get(key) != claim}
        gone = sorted(before.claims.keys() - self.claims.keys())
        changes: Json = {"pools": self.pools} if self.pools != before.pools else {}
        return changes | ({"claims": claims} if claims else {}) | ({"gone": gone} if gone else {})

    def to_object(self) -> snapshot.State:
        return {"pools": self.pools, "claims": self.claims}

"""Matches claims with pods: by the pod for which a claim was created, or by the claim's name in a pod's annotation."""

from collections import defaultdict
from collections.abc import Callable

from remotegpu.api.claims import GPUClaim, PodReference, pod_claim_name
from remotegpu.api.kubernetes import CLAIM_ANNOTATION
from remotegpu_operator.builders import pods
from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.cluster.store import Store


class Index:
    """An index of claims by uid and name, and of the pods that use them. Claims and pods match within a namespace."""

    def __init__(self, watched: Store, over: Callable[[Object], bool]) -> None:
        """`watched` is the store of pods. `over` returns whether a pod no longer needs its share."""
        self._pods = watched
        self._over = over
        self.claims: dict[str, GPUClaim] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._naming: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._named_by: dict[str, tuple[str, str]] = {}  # by the pod's uid

    def put(self, claim: GPUClaim) -> GPUClaim | None:
        """Stores the present state of a claim. Returns the previous state, or None."""
        before = self.claims.get(claim.uid)
        self.claims[claim.uid] = claim
        self._by_name[claim.namespace, claim.name] = claim.uid
        return before

    def drop(self, uid: str) -> GPUClaim | None:
        claim = self.claims.pop(uid, None)
        if claim is not None and self._by_name.get((claim.namespace, claim.name)) == uid:
            del self._by_name[claim.namespace, claim.name]
        return claim

    def note_pod(self, pod: Object, *, there: bool) -> list[GPUClaim]:
        """Updates the index for a pod that was created, changed or deleted. `there` is false for a deleted pod.

        Returns the claims that may be affected: the one that the pod names, the one that it named before, and its own
        claim if the pod names none.
        """
        metadata = pod["metadata"]
        uid, name = metadata["uid"], pods.annotations(pod).get(CLAIM_ANNOTATION)
        now = (metadata["namespace"], name) if name is not None else None
        before = self._named_by.pop(uid, None)
        if before is not None:
            self._naming[before].discard(uid)
            if not self._naming[before]:
                del self._naming[before]
        if there and now is not None:
            self._named_by[uid] = now
            self._naming[now].add(uid)
        named = [self.named(*key) for key in dict.fromkeys(filter(None, (before, now)))]
        own = self.own_claim(pod) if now is None else None
        return [claim for claim in (*named, own) if claim is not None]

    def named(self, namespace: str, name: str) -> GPUClaim | None:
        uid = self._by_name.get((namespace, name))
        return self.claims[uid] if uid is not None else None

    def own_claim(self, pod: Object) -> GPUClaim | None:
        """Returns the claim that was created for this pod, or None."""
        metadata = pod["metadata"]
        claim = self.named(metadata["namespace"], pod_claim_name(metadata["name"], metadata["uid"]))
        own = claim is not None and claim.spec.pod is not None and claim.spec.pod.uid == metadata["uid"]
        return claim if own else None

    def own_pod(self, claim: GPUClaim) -> Object | None:
        """Returns the pod for which the claim was created; None if the pod is not in the cache."""
        pod = self._pods.get(claim.spec.pod.uid) if claim.spec.pod else None
        return pod if pod is not None and pod["metadata"]["namespace"] == claim.namespace else None

    def own_pod_runs(self, claim: GPUClaim) -> bool:
        pod = self.own_pod(claim)
        return pod is not None and self._runs(pod)

    def runs(self, claim: GPUClaim) -> bool:
        """Whether a pod of the claim has started and has not ended."""
        return any(map(self._runs, self.users(claim)))

    def _runs(self, pod: Object) -> bool:
        return pods.started(pod) and not self._over(pod)

    def users(self, claim: GPUClaim) -> list[Object]:
        """Returns the pods that use or want to use the claim, including ended pods, in no particular order."""
        if claim.spec.pod is not None:
            own = self.own_pod(claim)
            return [own] if own is not None else []
        naming = self._naming.get((claim.namespace, claim.name), set())
        return [pod for pod in map(self._pods.get, sorted(naming)) if pod is not None]

    def consumers(self, claim: GPUClaim) -> list[PodReference]:
        """Returns references to the pods that may use the claim now."""
        live = (pod["metadata"] for pod in self.users(claim) if not self._over(pod))
        return [PodReference(metadata["name"], metadata["uid"]) for metadata in live]

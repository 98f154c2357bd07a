"""Creates the claims of pods, and removes the scheduling gate of a pod that may start.

A pod may start when its claim is allocated and no kubelet would reject the pod.
The operator's gate is the last one to be removed: a pod that waits for another gate, such as Kueue's, has no share.
"""

from collections.abc import Callable
from typing import Literal

from remotegpu.api.claims import GPUClaim, Phase, PodReference, Reason
from remotegpu.api.pods import PodError
from remotegpu_operator.builders import leaving, pods
from remotegpu_operator.claims.index import Index
from remotegpu_operator.claims.landing import Landing
from remotegpu_operator.claims.stores import Stores
from remotegpu_operator.cluster.events import Events
from remotegpu_operator.cluster.kube import PODS, Api, ApiError, Object

# A key of the work queue: an object's kind and uid.
Key = tuple[Literal["claim", "pod"], str]


class Gates:
    def __init__(
        self,
        api: Api,
        events: Events,
        index: Index,
        stores: Stores,
        landing: Landing,
        confirmed: Callable[[GPUClaim], bool],
        look: Callable[[Key], None],
    ) -> None:
        """`confirmed` is whether the appliances serve a claim that its status places there."""
        self._api = api
        self._events = events
        self._index = index
        self._stores = stores
        self._look = look
        self._landing = landing
        self._confirmed = confirmed
        # The uids of pods that have a share and wait, because a node would reject them.
        self._held_back: set[str] = set()

    def landing_changed(self) -> None:
        for uid in self._held_back:
            self._look(("pod", uid))

    def why_held_back(self, pod: Object) -> str:
        waits_for_us = pods.gated(pod) and not pods.gates_of_others(pod) and not leaving.being_deleted(pod)
        return self._landing.why_held_back(pod) if waits_for_us else ""

    def forget(self, uid: str) -> None:
        self._held_back.discard(uid)

    async def work(self, pod: Object, bundle: str) -> None:
        """Takes the next step for a pod: creates its claim, reports why it waits, or removes its gate.

        `bundle` has the certificates that clients trust; empty while there are none.
        """
        claim = await self._claim_of(pod)
        if claim is None:
            return
        if claim.status.phase is Phase.ALLOCATED:
            mine = PodReference(pod["metadata"]["name"], pod["metadata"]["uid"]) in claim.status.consumers
            text = pods.session(claim, claim.status.endpoints, bundle)
            if mine and (self._holds_back(pod, claim) or (pods.gated(pod) and not self._confirmed(claim))):
                return
            if mine and bundle and (pods.gated(pod) or pods.session_of(pod) != text):
                await self._attach(pod, text)
        elif pods.gated(pod) and claim.status.reason is not Reason.NOT_SEEN:
            self._events.about(PODS, pod, claim.status.reason, claim.status.message, warning=True)

    async def _attach(self, pod: Object, session: str) -> None:
        """Sets the session annotation of the pod and removes our scheduling gate.

        Raises ApiError. If the API server refuses the change, also writes an Event about the pod.
        """
        metadata, body = pod["metadata"], pods.attachment(pod, session)
        try:
            self._stores.pods.store(await self._api.patch(PODS, metadata["namespace"], metadata["name"], body))
        except ApiError as error:
            if error.status in {403, 422}:
                said = (
                    f"it has its share, and the API server refuses to lift its gate: {error}; a webhook that changes "
                    "pods when they are updated must leave out the updates of RemoteGPU's operator"
                )
                self._events.about(PODS, pod, "GateRefused", said, warning=True)
            raise

    def _holds_back(self, pod: Object, claim: GPUClaim) -> bool:
        """Whether the pod's gate must stay for now. If the reason is new, also queues the claim to store it."""
        uid, why = pod["metadata"]["uid"], self.why_held_back(pod)
        (self._held_back.add if why else self._held_back.discard)(uid)
        if bool(why) != (claim.status.reason is Reason.NO_DEVICE_PLUGIN):
            self._look(("claim", claim.uid))
        return bool(why)

    def ended(self, pod: Object) -> None:
        """Handles an ended pod. Writes an Event if a kubelet rejected a pod that the claim's status still lists."""
        self.forget(pod["metadata"]["uid"])
        claim = self._index.own_claim(pod) or self._index.named(*pods.named_claim(pod))
        sentence = pods.turned_away(pod)
        if sentence and claim is not None and any(one.uid == pod["metadata"]["uid"] for one in claim.status.consumers):
            self._events.about(PODS, pod, "TurnedAway", sentence, warning=True)

    async def _claim_of(self, pod: Object) -> GPUClaim | None:
        """Returns the claim that the pod names, or the pod's own claim.

        Returns None if there is none yet; a missing own claim of a gated pod is created.
        """
        metadata = pod["metadata"]
        if (own := self._index.own_claim(pod)) is not None:
            return own
        try:
            ask = pods.ask_of(pod)
        except PodError as error:
            if pods.gated(pod):
                self._events.about(PODS, pod, "InvalidShare", str(error), warning=True)
            return None
        if pods.gated(pod) and (others := pods.gates_of_others(pod)):
            said = (
                f"scheduling gate {', '.join(others)} is another's: the pod has no share before it is gone; "
                "ask whoever put it there, as by `kubectl get workloads` for Kueue"
            )
            self._events.about(PODS, pod, "WaitingForOtherGate", said)
            return None
        if ask.share is not None:
            return await self._make_claim(pods.claim_for(pod, ask, ask.share), pod) if pods.gated(pod) else None
        claim = self._index.named(metadata["namespace"], ask.claim)
        refused = pods.refusal_of_claim(pod, ask, claim)
        if refused is not None:
            self._events.about(PODS, pod, *refused, warning=True)
            return None
        return claim

    async def _make_claim(self, body: Object, pod: Object) -> GPUClaim | None:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        try:
            made = await self._api.create(self._stores.claims.resource, namespace, body)
        except ApiError as error:
            if error.status == 422:
                self._events.about(PODS, pod, "InvalidShare", str(error), warning=True)
                return None
            if error.status == 403:
                # Usually a quota on the number of claims. The pod waits, and the operator tries again.
                self._events.about(PODS, pod, "ClaimRefused", str(error), warning=True)
            if error.reason != "AlreadyExists":
                raise
            # The operator created the claim earlier, but the watch has not reported it yet.
            made = await self._api.get(self._stores.claims.resource, namespace, name)
        self._stores.claims.store(made)
        return None  # the change of the claim queues the pod again

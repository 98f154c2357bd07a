"""The reconciler of claims: it asks the allocator for decisions on claims, and writes the claims' statuses.

All state is on the API server: the claims' statuses have the allocated shares, so another process can continue after
this one. A decision of the allocator is valid at once, but the pod's gate is removed only after the decision is stored
in the claim's status.
"""

import asyncio
import contextlib
import datetime
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from remotegpu.api.claims import ClaimStatus, GPUClaim, Phase, Reason, pod_claim_name
from remotegpu.api.conditions import timestamp
from remotegpu.api.modes import ComputeMode
from remotegpu.api.objects import UNREADABLE
from remotegpu.api.pools import ApplianceStatus, GPUPool
from remotegpu_operator import audit, metrics
from remotegpu_operator.allocation import Allocator, Capacity, Placed, Waiting, request_of
from remotegpu_operator.builders import claims as statuses
from remotegpu_operator.builders import pods
from remotegpu_operator.builders.quotas import hard_milli
from remotegpu_operator.claims.gates import Gates, Key
from remotegpu_operator.claims.idle import Idle
from remotegpu_operator.claims.index import Index
from remotegpu_operator.claims.landing import Landing
from remotegpu_operator.claims.leaving import Leaving
from remotegpu_operator.claims.moves import Carry, Moves
from remotegpu_operator.claims.packing import Packing
from remotegpu_operator.claims.resizes import Resizes
from remotegpu_operator.claims.served import Served
from remotegpu_operator.claims.stores import GPUCLAIMS, GPUPOOLS, Stores
from remotegpu_operator.claims.suspensions import Suspensions
from remotegpu_operator.cluster.events import Events
from remotegpu_operator.cluster.kube import PODS, Api, ApiError, Object, Unanswered
from remotegpu_operator.cluster.leadership import NotLeaderError
from remotegpu_operator.cluster.workqueue import WorkQueue
from remotegpu_operator.usage.journal import Accounting, Journal
from remotegpu_operator.usage.usage import Usage

_log = logging.getLogger(__name__)

# The number of concurrent tasks. More tasks would only lengthen the API server's queue.
_TASKS: Final = 24
# A pause before decisions, so that claims that arrive together are served by priority and age, not by event order.
_GATHER_SECONDS: Final = 0.01
_RETRY_SECONDS: Final = 1.0
# The interval for checking a pod from which somebody removed our label: the pod may still run.
_ASK_AGAIN_SECONDS: Final = 30.0
_RECORD_SECONDS: Final = 5.0


class Claims:
    def __init__(
        self,
        api: Api,
        events: Events,
        stores: Stores,
        namespace: str,
        on_capacity: Callable[[], None],
        carry: Carry,
        accounting: Accounting,
    ) -> None:
        """`namespace` is the namespace of the installation, with the device plugins. `carry` is as in `moves.Moves`.

        `on_capacity` is called after each round of decisions, when the amounts of pools may have changed.
        """
        self._api = api
        self._events = events
        self._on_capacity = on_capacity
        self._allocator = Allocator()
        self._queue: WorkQueue[Key] = WorkQueue(self._work, _TASKS)
        self._settle = asyncio.Event()
        self._decisions: dict[str, Placed | Waiting] = {}
        self._pools: dict[str, GPUPool] = {}
        self._appliances: dict[str, dict[str, ApplianceStatus]] = {}
        self._all_appliances: dict[str, ApplianceStatus] = {}
        self._bundle = ""
        self._stores = stores
        self._priorities: dict[str, int] = {}
        self._landing = Landing(api, namespace, stores.nodes, self._landing_changed)
        self._leaving = Leaving(
            api, stores.nodes, stores.pods, lambda uid, seconds: self._queue.add_later(("pod", uid), seconds)
        )
        self._index = Index(stores.pods, self._leaving.over)
        self.suspensions = Suspensions(
            self._index.claims,
            self._pools,
            self._priorities,
            self._allocator,
            lambda uid: self._queue.add(("claim", uid)),
        )
        self._moves = Moves(self._allocator, self._priorities, carry, lambda uid: self._queue.add(("claim", uid)))
        self.packing = Packing(
            self._index.claims, self._pools, self._allocator, self._moves, on_capacity, self._tell_of_pool
        )
        self.resizes = Resizes(self._allocator, self._priorities, lambda uid: self._queue.add(("claim", uid)))
        self.served = Served(self._index.claims, self._look_again_in, self._retry_in)
        # By uid: the reason and message for each claim that the operator is deleting.
        self._ending: dict[str, tuple[str, str]] = {}
        self._user_label = accounting.user_label
        self.usage = Usage(Journal(api, namespace, accounting.retention), self._user_of)
        self._idle = Idle(self._index.claims, self._pools, self.usage.unused, self._warn_idle, self._release_idle)
        metrics.OLDEST_WAITING.set_function(self._longest_wait)
        self._gates = Gates(api, events, self._index, stores, self._landing, self.served.confirmed, self._queue.add)

    async def run(self, pools_known: asyncio.Event) -> None:
        """Waits until the device plugins are listed and the pools known, then reconciles claims until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._landing.plugins.run())
            await self._landing.plugins.synced.wait()
            await pools_known.wait()
            group.create_task(self.usage.run())
            # The usage record is loaded before the first decision. If it takes too long, decisions begin without it.
            recording = group.create_task(self.usage.begin(self._index.claims))
            await asyncio.wait([recording], timeout=_RECORD_SECONDS)
            stores = self._stores
            held = (stores.claims, stores.pods, stores.quotas, stores.classes, stores.nodes, self._landing.plugins)
            sizes = map(len, held)
            _log.info("claims %d, pods with a share %d, quotas %d, classes %d, nodes %d, plugins %d", *sizes)
            group.create_task(self._queue.run())
            group.create_task(self._decide())
            group.create_task(self.suspensions.follow_schedules(self._window_changed))
            group.create_task(self._idle.follow())
            group.create_task(self.packing.follow())

    # Calls from the pools' reconciler.

    def set_bundle(self, bundle: str) -> None:
        if bundle != self._bundle:
            self._bundle = bundle
            for pod in self._stores.pods:
                self._queue.add(("pod", pod["metadata"]["uid"]))

    def set_pool(self, pool: GPUPool, appliances: Iterable[ApplianceStatus]) -> None:
        old = self._appliances.get(pool.name, {})
        new = {appliance.name: appliance for appliance in appliances}
        before = self._pools.get(pool.name)
        if before is None or pool.spec != before.spec:
            self._settle.set()
        self._pools[pool.name] = pool
        if new != old or before is None or pool.spec != before.spec:
            self._appliances[pool.name] = new
            divides_time = pool.spec.compute_mode is ComputeMode.TURNS
            namespaces = pool.spec.namespaces
            self._allocator.set_pool(pool.name, new.values(), divides_time=divides_time, namespaces=namespaces)
            self._appliances_changed(old, new)

    def remove_pool(self, name: str) -> None:
        self._pools.pop(name, None)
        self._allocator.remove_pool(name)
        self._appliances_changed(self._appliances.pop(name, {}), {})

    def capacity(self, pool: str) -> Capacity:
        return self._allocator.capacity(pool)

    def used_by(self, appliance: str) -> int:
        """Returns the number of claims that have a share on the appliance and a pod that may use the share."""
        return sum(
            any(each.appliance == appliance for each in claim.status.held)
            for claim in self._index.claims.values()
            if claim.status.consumers
        ) + sum(
            any(each.appliance == appliance for each in decision.allocations)
            for decision in self._decisions.values()
            if isinstance(decision, Placed)
        )

    def _longest_wait(self) -> float:
        """Returns the longest wait for a share, in seconds. Another thread calls it, so it copies the dict first."""
        claims = list(self._index.claims.values())
        waiting = [each.created for each in claims if each.status.phase is Phase.PENDING]
        if not waiting:
            return 0.0
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(min(waiting))
        return max(0.0, age.total_seconds())

    def _appliances_changed(self, old: Mapping[str, ApplianceStatus], new: Mapping[str, ApplianceStatus]) -> None:
        self._all_appliances = {name: one for pool in self._appliances.values() for name, one in pool.items()}
        changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        for claim in self._index.claims.values():
            if any(each.appliance in changed for each in claim.status.held):
                self._queue.add(("claim", claim.uid))
        self._settle.set()

    # Calls from the handlers, for each object that the API server reports.

    def claim_seen(self, new: Object) -> None:
        try:
            claim = GPUClaim.from_object(new)
            request_of(claim)
        except UNREADABLE as error:
            # The claim may have another version of the schema. Other claims must still be served.
            _log.error("claim %s/%s: %r", new["metadata"]["namespace"], new["metadata"]["name"], error)
            return
        before = self._index.put(claim)
        if before is not None:
            metrics.CLAIMS.labels(before.status.phase).dec()
        metrics.CLAIMS.labels(claim.status.phase).inc()
        self._tell_allocator(claim, before)
        self.usage.observe(claim)
        self._queue.add(("claim", claim.uid))
        self._look_at_users(claim)

    def claim_gone(self, uid: str) -> None:
        if (claim := self._index.drop(uid)) is None:
            return
        metrics.CLAIMS.labels(claim.status.phase).dec()
        self._decisions.pop(claim.uid, None)
        self._moves.forget(claim.uid)
        self.resizes.forget(claim.uid)
        self.served.forget(claim)
        self._allocator.release(claim.uid)
        audit.released(claim, self._user_of, *self._ending.pop(claim.uid, ("Deleted", "somebody deleted the claim")))
        self.usage.gone(claim.uid)
        self._look_at_users(claim)

    def _look_at_users(self, claim: GPUClaim) -> None:
        for pod in self._index.users(claim):
            self._queue.add(("pod", pod["metadata"]["uid"]))
        self._settle.set()

    def _tell_allocator(self, claim: GPUClaim, before: GPUClaim | None) -> None:
        if claim.status.phase is Phase.SUSPENDED and isinstance(self._decisions.get(claim.uid), Placed):
            return  # the claim has its share again, but the API server does not have the new status yet
        if claim.status.phase in statuses.HOLDING:
            request = request_of(claim, self._priorities)
            why = self.suspensions.why(claim) if claim.status.phase is Phase.SUSPENDED else None
            stays = why is not None and why.lasts
            if self._allocator.held(claim.uid) != claim.status.held or stays:
                self._allocator.hold(request, claim.status.held)
            if request.again and not stays and claim.status.move is None:
                self._allocator.submit(request)
        elif claim.status.phase is Phase.EXPIRED and not self._index.own_pod_runs(claim):
            self._allocator.release(claim.uid)
        elif not isinstance(self._decisions.get(claim.uid), Placed):
            if before is not None and before.status.phase in statuses.HOLDING:
                self.served.displaced(before)
                self._allocator.release(claim.uid)
            self._allocator.submit(request_of(claim, self._priorities, self.served.avoided(claim)))

    def _window_changed(self, claim: GPUClaim) -> None:
        """Handles a schedule's window that begins or ends and so suspends or resumes the claim."""
        self._tell_allocator(claim, claim)
        self._queue.add(("claim", claim.uid))
        self._settle.set()

    def pod_changed(self, pod: Object, *, there: bool) -> None:
        """Handles a pod with a share that was created, changed or deleted. `there` is false for a deleted pod."""
        self._queue.add(("pod", pod["metadata"]["uid"]))
        for claim in self._index.note_pod(pod, there=there):
            if claim.status.phase is Phase.EXPIRED:
                self._tell_allocator(claim, None)
                self._settle.set()
            self._queue.add(("claim", claim.uid))

    def _landing_changed(self) -> None:
        self._gates.landing_changed()

    def _look_again_in(self, uid: str, seconds: float) -> None:
        """Queues a claim and its pods for reconciliation after some seconds."""
        self._queue.add_later(("claim", uid), seconds)
        if (claim := self._index.claims.get(uid)) is not None:
            for pod in self._index.users(claim):
                self._queue.add_later(("pod", pod["metadata"]["uid"]), seconds)

    def _retry_in(self, uid: str, seconds: float) -> None:
        """Tells the allocator of a claim anew after some seconds, as if a schedule's window had changed."""

        def retry() -> None:
            if (claim := self._index.claims.get(uid)) is not None:
                self._window_changed(claim)

        asyncio.get_running_loop().call_later(seconds + 0.1, retry)

    def node_changed(self, name: str) -> None:
        self._landing.changed()
        self._leaving.node_changed(name)

    def quotas_changed(self, namespace: str) -> None:
        limits = {
            each["metadata"]["name"]: milli
            for each in self._stores.quotas
            if each["metadata"]["namespace"] == namespace and (milli := hard_milli(each)) is not None
        }
        self._allocator.set_quotas(namespace, limits)
        self._settle.set()

    def class_changed(self, name: str, priority: int | None) -> None:
        """Handles a PriorityClass that is created, or deleted (None). The value of a class cannot change."""
        self._priorities.pop(name, None)
        if priority is not None:
            self._priorities[name] = priority
        for claim in self._index.claims.values():
            if claim.spec.priority_class == name:
                self._tell_allocator(claim, claim)
                self._settle.set()

    # Decisions and writes.

    async def _decide(self) -> None:
        while True:
            left = self._allocator.next_change - time.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left == math.inf else max(0, left)):
                    await self._settle.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._settle.clear()
            self._allocator.set_time(time.time())
            for decision in self._allocator.settle():
                self._decisions[decision.request.uid] = decision
                self._queue.add(("claim", decision.request.uid))
            self.suspensions.choose_victims()
            self._on_capacity()

    async def _work(self, key: Key) -> None:
        kind, uid = key
        try:
            await (self._work_claim(uid) if kind == "claim" else self._work_pod(uid))
        except NotLeaderError:
            raise
        except Unanswered as error:
            # The call may have been executed, so the next write needs the present state of the API server.
            _log.warning("%s %s: the API server does not answer (%r)", kind, uid, error)
            self._queue.add_later(key, _RETRY_SECONDS)
        except ApiError as error:
            if error.conflict or error.gone:
                await self._look_again(key)
            else:
                metrics.RECONCILE_ERRORS.labels(kind).inc()
                _log.error("%s %s: %s", kind, uid, error)
                self._queue.add_later(key, 5 * _RETRY_SECONDS)
        except Exception:
            metrics.RECONCILE_ERRORS.labels(kind).inc()
            _log.exception("%s %s", kind, uid)
            self._queue.add_later(key, 5 * _RETRY_SECONDS)

    async def _look_again(self, key: Key) -> None:
        """Reads an object again after a conflict: another client has written or deleted it."""
        kind, uid = key
        store = self._stores.claims if kind == "claim" else self._stores.pods
        known = store.get(uid)
        if known is None:
            return
        try:
            fresh = await self._api.get(store.resource, known["metadata"]["namespace"], known["metadata"]["name"])
        except (ApiError, *Unanswered) as error:
            if isinstance(error, ApiError) and error.gone:
                store.forget(uid)
            else:
                self._queue.add_later(key, _RETRY_SECONDS)
            return
        if fresh["metadata"]["uid"] != uid:
            store.forget(uid)
        else:
            store.store(fresh)
            self._queue.add_later(key, _GATHER_SECONDS)

    async def _work_claim(self, uid: str) -> None:
        claim, stored = self._index.claims.get(uid), self._stores.claims.get(uid)
        if claim is None or stored is None:
            return
        if claim.spec.pod is not None and self._index.own_pod(claim) is None and await self._orphaned(claim):
            await self._release(claim, "PodGone", "its pod is gone")
            return
        if (name := claim.spec.priority_class) and name not in self._priorities:
            said = f"there is no PriorityClass {name}: the claim has priority 0 until there is one"
            self._events.about(GPUCLAIMS, stored, "NoSuchPriorityClass", said, warning=True)
        decision = self._decisions.get(uid)
        status = self._next(claim, decision)
        if status != claim.status:
            await self._write(claim, stored, status)
        if self._decisions.get(uid) is decision:
            self._decisions.pop(uid, None)
        elif uid in self._decisions:
            self._queue.add(("claim", uid))

    def _next(self, claim: GPUClaim, decision: Placed | Waiting | None) -> ClaimStatus:
        now = datetime.datetime.now(datetime.UTC)
        stamp = timestamp(now)
        status = claim.status
        if status.phase is Phase.SUSPENDED:
            status = self._next_of_suspended(claim, decision, stamp)
        elif status.move is not None:
            status = self._moves.next(claim, self._all_appliances, stamp)
        elif status.phase in statuses.HOLDING:
            overdue = self._start_overdue(claim, now)
            failed = statuses.unhealthy(claim, self._all_appliances)
            if lost := self._why_lost(claim):
                status = statuses.displaced(claim, lost, stamp)
            elif overdue is not None:
                status = statuses.expired(claim, overdue, stamp)
            elif failed and not self._index.runs(claim):
                status = statuses.displaced(claim, failed, stamp)
            else:
                why = self.suspensions.why(claim)
                status = statuses.observed(claim, self._all_appliances, stamp, suspending=why is not None)
                if why is not None and status.phase is Phase.ALLOCATED:
                    status = self.suspensions.status_of_one_that_ends(claim, why, stamp)
                elif status == claim.status and status.phase is Phase.ALLOCATED:
                    status = self._moves.next(claim, self._all_appliances, stamp)
                    if status == claim.status and status.reason is not Reason.NOT_MOVED:
                        status = self.resizes.next(claim, stamp)
        elif isinstance(decision, Placed):
            status = statuses.placed(claim, decision, self._all_appliances, stamp)
        elif isinstance(decision, Waiting):
            status = statuses.waiting(claim, decision, stamp)
        held_back = next(filter(None, map(self._gates.why_held_back, self._index.users(claim))), "")
        return statuses.with_consumers(
            statuses.held_back(claim, status, held_back, stamp), self._index.consumers(claim)
        )

    def _why_lost(self, claim: GPUClaim) -> str:
        """Returns why the claim no longer has what its status says; empty if it has."""
        if statuses.gone_for_good(claim, self._all_appliances):
            return "the GPUs that the claim had are no longer in the pool"
        return self.served.lost(claim)

    def _next_of_suspended(self, claim: GPUClaim, decision: Placed | Waiting | None, stamp: str) -> ClaimStatus:
        if claim.status.move is not None:
            return self._moves.next(claim, self._all_appliances, stamp)
        if statuses.gone_for_good(claim, self._all_appliances):
            return statuses.displaced(claim, "the GPUs on which its programs waited are no longer in the pool", stamp)
        if isinstance(decision, Placed):
            return statuses.placed(claim, decision, self._all_appliances, stamp)
        status = self._moves.next(claim, self._all_appliances, stamp)
        if status != claim.status or status.reason is Reason.NOT_MOVED:
            return status
        why = self.suspensions.why(claim)
        if why is not None and why.lasts:
            return statuses.stays_suspended(claim, claim.status, why, stamp)
        return statuses.resuming(claim, decision, stamp) if isinstance(decision, Waiting) else claim.status

    def _start_overdue(self, claim: GPUClaim, now: datetime.datetime) -> int | None:
        """Returns the start deadline in seconds if it has passed and the pod has not started; else None."""
        pod = self._index.own_pod(claim)
        since = statuses.allocated_since(claim)
        if pod is None or since is None or pods.started(pod):
            return None
        pool = self._pools.get(claim.spec.pool)
        deadline = claim.spec.start_deadline or (pool.spec.start_deadline if pool else 0)
        if not deadline:
            return None
        left = (since - now).total_seconds() + deadline
        if left <= 0:
            return deadline
        self._queue.add_later(("claim", claim.uid), left + 0.1)
        return None

    async def _write(self, claim: GPUClaim, stored: Object, status: ClaimStatus) -> None:
        body = {"metadata": {"resourceVersion": claim.resource_version}, "status": status.to_object()}
        await self.usage.announce(claim, status)
        try:
            self._stores.claims.store(await self._api.patch(GPUCLAIMS, claim.namespace, claim.name, body, "status"))
        except ApiError:
            self.usage.retract(claim)
            raise
        audit.decided(claim, status, self._user_of)
        if status.reason == claim.status.reason:
            return
        if status.phase is Phase.ALLOCATED and claim.status.phase is Phase.PENDING:
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(claim.created)
            metrics.ALLOCATION_SECONDS.observe(age.total_seconds())
        warning = status.reason not in (Reason.ALLOCATED, Reason.MOVING, Reason.RESIZING)
        self._events.about(GPUCLAIMS, stored, status.reason, status.message, warning=warning)
        for pod in self._index.users(claim):
            self._events.about(PODS, pod, status.reason, status.message, warning=warning)

    def _warn_idle(self, claim: GPUClaim, message: str) -> None:
        audit.idle(claim, message, self._user_of)
        self._tell_of_idle(claim, "Idle", message)

    async def _release_idle(self, claim: GPUClaim, message: str) -> None:
        self._tell_of_idle(claim, "ReleasedIdle", message)
        await self._release(claim, "ReleasedIdle", message)

    def _tell_of_idle(self, claim: GPUClaim, reason: str, message: str) -> None:
        if (stored := self._stores.claims.get(claim.uid)) is not None:
            self._events.about(GPUCLAIMS, stored, reason, message, warning=True)
        for pod in self._index.users(claim):
            self._events.about(PODS, pod, reason, message, warning=True)

    def _tell_of_pool(self, pool: GPUPool, reason: str, message: str, warning: bool) -> None:
        thing = {"metadata": {"name": pool.name, "uid": pool.uid, "resourceVersion": pool.resource_version}}
        self._events.about(GPUPOOLS, thing, reason, message, warning=warning)

    def _user_of(self, claim: GPUClaim) -> str:
        if named := claim.labels.get(self._user_label):
            return named
        if (own := self._index.own_pod(claim)) is not None:
            return f"system:serviceaccount:{claim.namespace}:{pods.service_account(own)}"
        return self.usage.user(claim.uid)

    async def _work_pod(self, uid: str) -> None:
        pod = self._stores.pods.get(uid)
        if pod is None:
            self._gates.forget(uid)  # `_orphaned` handles the pod's claim
            return
        standing = await self._leaving.look(pod)
        if not standing.over:
            await self._gates.work(pod, self._bundle)
            return
        self._gates.ended(pod)
        if (own := self._index.own_claim(pod)) is not None:
            # The appliance ends the claim's sessions before other claims get the memory.
            await self._release(own, "PodEnded", standing.why)
        elif (named := self._index.named(*pods.named_claim(pod))) is not None:
            self._queue.add(("claim", named.uid))

    async def _release(self, claim: GPUClaim, reason: str, why: str) -> None:
        self._ending[claim.uid] = reason, why
        await self._api.delete(GPUCLAIMS, claim.namespace, claim.name, claim.uid)
        self._stores.claims.forget(claim.uid)

    async def _orphaned(self, claim: GPUClaim) -> bool:
        """Whether the pod of a claim is gone. The pod is not in the cache, perhaps because a user removed our label."""
        assert claim.spec.pod is not None
        if claim.name != pod_claim_name(claim.spec.pod.name, claim.spec.pod.uid):
            return True  # only the operator sets `pod`, and its claims have this name
        try:
            pod = await self._api.get(PODS, claim.namespace, claim.spec.pod.name)
        except ApiError as error:
            if error.gone:
                return True
            raise
        if pod["metadata"]["uid"] != claim.spec.pod.uid or (await self._leaving.look(pod)).over:
            return True
        self._queue.add_later(("claim", claim.uid), _ASK_AGAIN_SECONDS)
        return False

"""The reconciler of pools: it runs an appliance on each selected node and writes the pools' statuses.

An appliance is replaced only when no claim uses it, or at a deadline. A change of a pool or node wakes the loop. A pass
then reads the complete present state and makes it the wanted one, so the result does not depend on single events.
"""

import asyncio
import contextlib
import datetime
import logging
import os
from dataclasses import replace
from typing import Final

from remotegpu.api.conditions import timestamp
from remotegpu.api.kubernetes import (
    APPLIANCE_LABEL,
    COMPONENT_LABEL,
    POOL_LABEL,
    STATUS_PREFIX,
    server_name,
)
from remotegpu.api.objects import UNREADABLE
from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GPUPool
from remotegpu_operator import audit, metrics
from remotegpu_operator.appliances.authority import SECRETS, AuthorityError, CertificateAuthority, certificate_of
from remotegpu_operator.appliances.certificates import expiry
from remotegpu_operator.appliances.inventory import Inventory, Target
from remotegpu_operator.builders import appliances as builders
from remotegpu_operator.builders import states
from remotegpu_operator.builders.pools import api_addresses, disruption_budget, network_policy, service
from remotegpu_operator.builders.replacement import SERVING, next_to_drain
from remotegpu_operator.claims.claims import Claims
from remotegpu_operator.claims.stores import GPUPOOLS, Stores
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import PODS, Api, ApiError, Object, Resource, Unanswered
from remotegpu_operator.cluster.manifests import Manifests, mark, marked

_log = logging.getLogger(__name__)

ENDPOINT_SLICES: Final = Resource("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
STATEFUL_SETS: Final = Resource("apps/v1", "statefulsets", "StatefulSet")
_SHARED: Final = (
    (Resource("v1", "services", "Service"), service),
    (Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"), network_policy),
    (Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"), disruption_budget),
)

# The longest time between passes, even without a change.
RESYNC_SECONDS: Final = 20.0
# The interval for checking whether an appliance is lost, and the shortest time between passes.
TICK_SECONDS: Final = 0.5
STATUS_SECONDS: Final = 1.0
_FIRST_ANSWERS_SECONDS: Final = 3.0
_DRAINING_SINCE: Final = f"{STATUS_PREFIX}draining-since"


class Pools:
    def __init__(
        self,
        api: Api,
        stores: Stores,
        installation: builders.Installation,
        authority: CertificateAuthority,
        inventory: Inventory,
        changed: asyncio.Event,
    ) -> None:
        self._api = api
        self._stores = stores
        self._installation = installation
        self._authority = authority
        self._inventory = inventory
        self.known = asyncio.Event()
        self.wake = asyncio.Event()
        self._dirty = asyncio.Event()
        self._changed = changed
        self._pools: dict[str, GPUPool] = {}
        self._plans: dict[str, builders.Plan] = {}
        self._secrets: dict[str, Object] = {}
        self._manifests = Manifests(api, installation.namespace)
        # Why certificates cannot be renewed; empty if they can.
        self._renewal = ""
        # The last status of each appliance, kept also while it has no pod.
        self._last: dict[str, ApplianceStatus] = {}
        namespace, labels = installation.namespace, f"{COMPONENT_LABEL}=appliance,{APPLIANCE_LABEL}"
        self._sets = Cache(api, STATEFUL_SETS, self._object_changed, namespace=namespace, labels=labels)
        self._pods = Cache(api, PODS, self._object_changed, namespace=namespace, labels=labels)

    def status_is_stale(self) -> None:
        self._dirty.set()

    async def run(self, claims: Claims) -> None:
        async with asyncio.TaskGroup() as group:
            for cache in (self._sets, self._pods):
                group.create_task(cache.run())
            await self._sets.synced.wait()
            await self._pods.synced.wait()
            group.create_task(self._reconcile(claims))
            group.create_task(self._follow(claims))
            group.create_task(self._write_statuses(claims))

    def _object_changed(self, old: Object | None, new: Object | None) -> None:
        self._changed.set()
        if old is None or new is None or old["metadata"].get("generation") != new["metadata"].get("generation"):
            self.wake.set()

    # Appliances that should exist.

    async def _reconcile(self, claims: Claims) -> None:
        while True:
            self.wake.clear()
            try:
                await self._pass(claims)
            except Unanswered as error:
                _log.warning("pools: the API server does not answer (%r)", error)
                self.wake.set()
            except ApiError as error:
                metrics.RECONCILE_ERRORS.labels("pools").inc()
                _log.error("pools: %s", error)
            except AuthorityError as error:
                metrics.RECONCILE_ERRORS.labels("pools").inc()
                _log.error("certificates: %s", error)
            except (KeyError, ValueError):
                metrics.RECONCILE_ERRORS.labels("pools").inc()
                _log.exception("pools")
            # A pause, so that changes that arrive together need only one pass.
            await asyncio.sleep(TICK_SECONDS)
            await _either(self.wake, RESYNC_SECONDS)

    async def _pass(self, claims: Claims) -> None:
        namespace = self._installation.namespace
        labels = f"{COMPONENT_LABEL}=appliance,{APPLIANCE_LABEL}"
        secrets, _ = await self._api.list(SECRETS, namespace, labels)
        self._secrets = {secret["metadata"]["name"]: secret for secret in secrets}
        nodes = list(self._stores.nodes)
        pools = {pool.name: pool for pool in map(_read, self._stores.pools) if pool is not None}
        for name in self._pools.keys() - pools.keys():
            claims.remove_pool(name)
        for pool in pools.values():
            for appliance in pool.status.appliances:
                self._last.setdefault(appliance.name, appliance)
        self._pools = pools
        await self._renew()
        self._inventory.set_bundle(self._authority.bundle)
        claims.set_bundle(self._authority.bundle)
        installation = self._installation
        if installation.close_egress:
            installation = replace(installation, api_servers=await self._api_servers())
        self._plans = {plan.name: plan for pool in pools.values() for plan in builders.plans(pool, nodes)}
        for pool in pools.values():
            for resource, build in _SHARED:
                await self._manifests.keep(resource, build(pool, installation))
        for plan in self._plans.values():
            await self._keep(plan)
        self._changed.set()
        if not self.known.is_set():
            self._watch_pods()
            await self._inventory.all_tried(_FIRST_ANSWERS_SECONDS)
            self._tell(claims)
            self.known.set()
        await self._undrain()
        await self._replace(claims)

    async def _renew(self) -> None:
        """Renews the certificates. Each pool's status has a failure; it is raised only if there is no certificate."""
        problem = ""
        try:
            await self._authority.refresh([certificate_of(secret) for secret in self._secrets.values()])
        except (AuthorityError, ApiError) as error:
            problem = str(error)
            metrics.RECONCILE_ERRORS.labels("certificates").inc()
            _log.error("certificates: %s", error)
            if not self._authority.bundle:
                raise
        finally:
            if problem != self._renewal:
                self._renewal = problem
                self._dirty.set()
        found = self._authority.certificates
        found |= {name: certificate_of(secret) for name, secret in self._secrets.items()}
        metrics.CERTIFICATE_EXPIRES.clear()
        for name, certificate in found.items():
            if (end := expiry(certificate)) is not None:
                metrics.CERTIFICATE_EXPIRES.labels(name).set(end.timestamp())

    async def _api_servers(self) -> tuple[builders.ApiAddress, ...]:
        try:
            found = await self._api.get(ENDPOINT_SLICES, "default", "kubernetes")
        except ApiError as error:
            if not error.gone:
                raise
            found = {}
        environment = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        return api_addresses(found, *environment)

    async def _keep(self, plan: builders.Plan) -> None:
        name = builders.tls_secret_name(plan.name)
        if (pair := self._authority.leaf(self._secrets.get(name), server_name(plan.name))) is not None:
            body = builders.tls_secret(plan, self._installation.namespace, pair.certificate, pair.key)
            await self._api.apply(SECRETS, self._installation.namespace, body)
        wanted = marked(builders.stateful_set(plan, self._installation))
        present = self._set(plan.name)
        if present is None or mark(present) != mark(wanted):
            self._sets.store(await self._api.apply(STATEFUL_SETS, self._installation.namespace, wanted))

    # Removal and replacement of appliances.

    async def _replace(self, claims: Claims) -> None:
        """Drains and then deletes appliances that no pool selects, and those with an outdated pod template."""
        for unwanted in (each for each in self._sets if each["metadata"]["name"] not in self._plans):
            await self._drain(claims, unwanted, whole=True)
        for pool in self._pools.values():
            mine = [name for name, plan in self._plans.items() if plan.pool.name == pool.name]
            outdated = {name for name in mine if self._outdated(name)}
            chosen = next_to_drain(
                {name: self._last[name].phase for name in mine if name in self._last},
                outdated,
                {name: claims.used_by(name) for name in outdated},
                {name for name in outdated if self._draining_since(name) is not None},
            )
            if chosen is not None and (stateful_set := self._set(chosen)) is not None:
                await self._drain(claims, stateful_set, whole=False)

    async def _drain(self, claims: Claims, stateful_set: Object, *, whole: bool) -> None:
        """Takes one step to drain an appliance.

        The first step stops new claims. A later one deletes the pod when no claim uses it or the deadline has passed.
        `whole`: deletes the StatefulSet instead of its pod.
        """
        name, namespace = stateful_set["metadata"]["name"], self._installation.namespace
        since = self._draining_since(name)
        if since is None:
            version = stateful_set["metadata"]["resourceVersion"]
            note = {_DRAINING_SINCE: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
            body = {"metadata": {"resourceVersion": version, "annotations": note}}
            self._sets.store(await self._api.patch(STATEFUL_SETS, namespace, name, body))
            pool_name, node = _place(stateful_set)
            why = "no pool wants it any more" if whole else "its settings or its image changed"
            audit.drained(name, node, pool_name, f"{why}; it ends when no claim is on it, or at its deadline")
            self.wake.set()
            return
        pool = self._pools.get(_place(stateful_set)[0])
        waited = (datetime.datetime.now(datetime.UTC) - since).total_seconds()
        # An appliance that does not serve can be deleted at once.
        last = self._last.get(name)
        used = claims.used_by(name) if last is not None and last.phase in SERVING else 0
        if used and pool is not None and waited < pool.spec.update.drain_deadline:
            return
        if whole:
            _log.info("appliance %s: no pool wants it, it is deleted", name)
            await self._api.delete(STATEFUL_SETS, namespace, name, stateful_set["metadata"]["uid"])
            if (secret := self._secrets.get(builders.tls_secret_name(name))) is not None:
                await self._api.delete(SECRETS, namespace, secret["metadata"]["name"], secret["metadata"]["uid"])
        elif (pod := self._pod(name)) is not None and states.outdated(stateful_set, pod):
            _log.info("appliance %s: replaced (%d claims on it)", name, used)
            await self._api.delete(PODS, namespace, pod["metadata"]["name"], pod["metadata"]["uid"])

    async def _undrain(self) -> None:
        """Ends the draining of appliances that a pool selects and whose pod is not outdated."""
        for stateful_set in self._sets:
            name = stateful_set["metadata"]["name"]
            pod = self._pod(name)
            if pod is None or "deletionTimestamp" in pod["metadata"] or states.outdated(stateful_set, pod):
                continue
            if name in self._plans and self._draining_since(name) is not None:
                version = stateful_set["metadata"]["resourceVersion"]
                body = {"metadata": {"resourceVersion": version, "annotations": {_DRAINING_SINCE: None}}}
                answer = await self._api.patch(STATEFUL_SETS, self._installation.namespace, name, body)
                self._sets.store(answer)

    # The present state of appliances.

    async def _follow(self, claims: Claims) -> None:
        """Updates the statuses of appliances after each change, and every half second to find overdue answers."""
        while True:
            await _either(self._changed, TICK_SECONDS)
            self._changed.clear()
            self._watch_pods()
            self._tell(claims)

    def _watch_pods(self) -> None:
        found = map(_target, self._pods)
        self._inventory.set_targets([each for each in found if each.address], inherited=not self.known.is_set())

    def _tell(self, claims: Claims) -> None:
        # A planned appliance counts even without a StatefulSet: a deleted StatefulSet is created again.
        places = {plan.name: (plan.pool.name, plan.node) for plan in self._plans.values()}
        places |= {each["metadata"]["name"]: _place(each) for each in self._sets}
        for name in self._last.keys() - places.keys():
            del self._last[name]
            claims.usage.told(name, frozenset())
            claims.served.told(name, None)
            claims.packing.told(name, {})
        by_pool: dict[str, list[ApplianceStatus]] = {name: [] for name in self._pools}
        for name, (pool, node) in places.items():
            if pool in by_pool:
                status = self._status(name, node, cordoned=node in self._pools[pool].spec.cordoned)
                if status != self._last.get(name):
                    self._last[name] = status
                    self.wake.set()
                    self._dirty.set()
                by_pool[pool].append(status)
                contact = self._inventory.contact(name)
                if contact is not None and (report := contact.report) is not None:
                    claims.suspensions.told(name, report.suspended)
                    claims.packing.told(name, report.sessions)
                    claims.usage.told(name, report.in_use if contact.fresh() else frozenset())
                    claims.served.told(name, report.unserved if contact.fresh() else None)
                    claims.resizes.told(name, report.sizes, {uid: s.problem for uid, s in report.suspended.items()})
                else:
                    claims.suspensions.told(name, {})
                    claims.served.told(name, None)
                    if contact is None:
                        claims.usage.told(name, frozenset())
        for pool_name, found in by_pool.items():
            claims.set_pool(self._pools[pool_name], sorted(found, key=lambda each: each.name))

    def _status(self, name: str, node: str, *, cordoned: bool) -> ApplianceStatus:
        contact, last = self._inventory.contact(name), self._last.get(name)
        report = contact.report if contact else None
        draining = ""
        if report is not None and report.draining:
            draining = states.STOPPING
        elif self._draining_since(name) is not None:
            draining = states.OUTDATED if name in self._plans else states.UNWANTED
        elif cordoned:
            draining = states.CORDONED
        # A new leader trusts the status from the previous leader for a few seconds, as it trusts a report of its own.
        answers = contact is not None and contact.fresh()
        if contact is not None and report is None:
            answers &= last is not None and last.phase in SERVING and last.address == contact.target.address
        return states.appliance_status(
            states.Seen(
                name=name,
                node=node,
                pod=self._pod(name),
                gpus=report.gpus if report else tuple(last.gpus if last else ()),
                environments=report.environments if report else tuple(last.environments if last else ()),
                driver=report.driver if report else (last.driver if last else 0),
                answers=answers,
                problem=contact.problem if contact else "",
                draining=draining,
                full=report.full if report is not None else "",
                known=report is not None or (last is not None and last.phase is not AppliancePhase.STARTING),
            )
        )

    def _set(self, name: str) -> Object | None:
        return self._sets.named(self._installation.namespace, name)

    def _pod(self, name: str) -> Object | None:
        return self._pods.named(self._installation.namespace, f"{name}-0")

    def _outdated(self, name: str) -> bool:
        stateful_set = self._set(name)
        return stateful_set is not None and states.outdated(stateful_set, self._pod(name))

    def _draining_since(self, name: str) -> datetime.datetime | None:
        stateful_set = self._set(name)
        notes = (stateful_set or {}).get("metadata", {}).get("annotations") or {}
        text = notes.get(_DRAINING_SINCE)
        return datetime.datetime.fromisoformat(text) if text else None

    async def _write_statuses(self, claims: Claims) -> None:
        """Writes the statuses of pools that have changed, at most once a second."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            now = timestamp(datetime.datetime.now(datetime.UTC))
            for pool in list(self._pools.values()):
                capacity = claims.capacity(pool.name)
                metrics.count_pool(pool.name, capacity)
                limits = {each.node: each.memory_limit for each in self._plans.values() if each.pool.name == pool.name}
                status = states.pool_status(pool, capacity, self._renewal, now, limits, claims.packing.status(pool))
                if status == pool.status:
                    continue
                body = {"metadata": {"resourceVersion": pool.resource_version}, "status": status.to_object()}
                try:
                    answer = await self._api.patch(GPUPOOLS, None, pool.name, body, "status")
                    self._stores.pools.store(answer)
                    self._pools[pool.name] = GPUPool.from_object(answer)
                except ApiError as error:
                    # The next pass reads the pool again and compares the status again.
                    if not error.conflict and not error.gone:
                        _log.error("pool %s: %s", pool.name, error)
                    self.wake.set()
                    self._dirty.set()
                except Unanswered as error:
                    _log.warning("pool %s: the API server does not answer (%r)", pool.name, error)
                    self._dirty.set()
            await asyncio.sleep(STATUS_SECONDS)


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, for at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _read(stored: Object) -> GPUPool | None:
    try:
        return GPUPool.from_object(stored)
    except UNREADABLE as error:
        # The pool may have another version of the schema. Other pools must still be served.
        _log.error("pool %s: %r", stored["metadata"]["name"], error)
        return None


def _place(stateful_set: Object) -> tuple[str, str]:
    metadata = stateful_set["metadata"]
    node = (metadata.get("annotations") or {}).get(builders.NODE_ANNOTATION, "")
    return metadata["labels"].get(POOL_LABEL, ""), node


def _appliance(pod: Object) -> str:
    name: str = pod["metadata"]["labels"][APPLIANCE_LABEL]
    return name


def _target(pod: Object) -> Target:
    return Target(_appliance(pod), states.incarnation(pod), states.pod_address(pod), states.audience(pod))

"""What Prometheus can read: counters that the parts increment, gauges computed when asked. Base units throughout."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from remotegpu.rpc import pb

_WAIT_BUCKETS = (0.01, 0.1, 1, 10, 60, 600, 3600)


class Counters:
    """Everything that only grows."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.leases = Counter("remotegpu_leases_opened", "Leases granted.", registry=registry)
        self.lease_wait = Histogram(
            "remotegpu_lease_wait_seconds", "From the request to the lease.", registry=registry, buckets=_WAIT_BUCKETS
        )
        self.sessions = Counter("remotegpu_sessions_opened", "Sessions opened.", registry=registry)
        self.refusals = Counter(
            "remotegpu_refusals", "Requests refused, by gRPC status.", ["reason"], registry=registry
        )
        self.grants = Counter("remotegpu_grants", "Memory grants to sessions.", ["gpu"], registry=registry)
        self.grants_refused = Counter("remotegpu_grants_refused", "Grants past the share.", ["gpu"], registry=registry)
        self.worker_exits = Counter(
            "remotegpu_worker_exits",
            "Ended workers: clean, ended (by us), error, signal.",
            ["result"],
            registry=registry,
        )
        self.xids = Counter("remotegpu_xids", "Errors of the driver by their XID.", ["gpu", "xid"], registry=registry)
        self.offload_sessions = Counter(
            "remotegpu_offload_sessions_opened", "Sessions of acceptors opened.", ["environment"], registry=registry
        )
        self.zygote_restarts = Counter(
            "remotegpu_zygote_restarts", "How often an environment's zygote died.", ["environment"], registry=registry
        )
        self.gateway_restarts = Counter("remotegpu_door_restarts", "How often the gateway died.", registry=registry)
        self.stats = {
            "commands": Counter("remotegpu_commands", "Commands executed by workers.", registry=registry),
            "launches": Counter("remotegpu_launches", "Kernels launched by workers.", registry=registry),
            "bytes_in": Counter("remotegpu_received_bytes", "Bytes from clients.", registry=registry),
            "bytes_out": Counter("remotegpu_sent_bytes", "Bytes to clients.", registry=registry),
        }


class Gauges(Collector):
    """What is true now, from the same inventory that `remotegpu ls` shows."""

    def __init__(self, inventory: Callable[[], pb.InventoryReply]) -> None:
        self._inventory = inventory

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._inventory()
        for name, text in (
            ("total_bytes", "Memory of the GPU."),
            ("shareable_bytes", "Memory that leases can have."),
            ("leased_bytes", "Memory that leases have."),
            ("used_bytes", "Memory granted to sessions."),
        ):
            family = GaugeMetricFamily(f"remotegpu_gpu_{name}", text, labels=["gpu"])
            for gpu in now.gpus:
                family.add_metric([str(gpu.index)], getattr(gpu, name))
            yield family
        healthy = GaugeMetricFamily("remotegpu_gpu_healthy", "1 if the GPU takes new leases.", labels=["gpu"])
        for gpu in now.gpus:
            healthy.add_metric([str(gpu.index)], gpu.healthy)
        yield healthy
        yield from _of_claims(now)
        labels = ("environment", "backend", "python")
        environments = GaugeMetricFamily("remotegpu_environment", "1: it serves offload sessions.", labels=labels)
        for environment in now.environments:
            environments.add_metric([environment.name, environment.backend, environment.python], 1)
        yield environments
        yield GaugeMetricFamily("remotegpu_leases", "Leases now.", value=len(now.leases))
        yield GaugeMetricFamily(
            "remotegpu_sessions", "Sessions now.", value=sum(lease.sessions for lease in now.leases)
        )
        yield GaugeMetricFamily("remotegpu_draining", "1 while no new lease is opened.", value=now.draining)


def _of_claims(now: pb.InventoryReply) -> Iterable[GaugeMetricFamily]:
    """In Kubernetes: what each claim has on each GPU."""
    labels = ("gpu", "namespace", "claim", "uid")
    leased = GaugeMetricFamily("remotegpu_claim_leased_bytes", "Memory that the claim has.", labels=labels)
    used = GaugeMetricFamily("remotegpu_claim_used_bytes", "Memory granted to its sessions.", labels=labels)
    sessions = GaugeMetricFamily("remotegpu_claim_sessions", "Sessions of the claim.", labels=labels[1:])
    for lease in now.leases:
        if lease.claim:
            namespace, _, name = lease.claim.partition("/")
            names = (namespace, name, lease.claim_uid)
            sessions.add_metric(names, lease.sessions)
            for place in lease.places:
                leased.add_metric((place.gpu, *names), place.leased_bytes)
                used.add_metric((place.gpu, *names), place.used_bytes)
    return leased, used, sessions

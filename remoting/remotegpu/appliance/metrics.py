"""Metrics for Prometheus: counters that the parts increment, and gauges computed at each scrape. All in base units."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from remotegpu.appliance.backends.base import Readings
from remotegpu.rpc import pb

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_REVIEW_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_WAIT_BUCKETS = (0.01, 0.1, 1, 10, 60, 600, 3600)


class Counters:
    """All metrics that only increase."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.leases = Counter("remotegpu_leases_opened", "Leases granted.", registry=registry)
        self.lease_wait = Histogram(
            "remotegpu_lease_wait_seconds", "From the request to the lease.", registry=registry, buckets=_WAIT_BUCKETS
        )
        self.sessions = Counter("remotegpu_sessions_opened", "Sessions opened.", registry=registry)
        self.refusals = Counter(
            "remotegpu_refusals",
            "Requests refused, by gRPC status; door, page: connections turned away.",
            ["reason"],
            registry=registry,
        )
        self.grants = Counter("remotegpu_grants", "Memory grants to sessions.", ["gpu"], registry=registry)
        self.grants_refused = Counter("remotegpu_grants_refused", "Grants past the share.", ["gpu"], registry=registry)
        self.left_bytes = Counter(
            "remotegpu_left_bytes",
            "GPU memory that sessions left without overwriting it: killed, or their context was broken.",
            registry=registry,
        )
        self.code_asked = Counter(
            "remotegpu_code_cache_requests",
            "Images of device code that workers asked for, before their client had to send them: hit, miss.",
            ["result"],
            registry=registry,
        )
        self.worker_exits = Counter(
            "remotegpu_worker_exits",
            "Ended workers: clean, ended (by us), error, signal.",
            ["result"],
            registry=registry,
        )
        self.token_reviews = Histogram(
            "remotegpu_token_review_seconds",
            "Until the API server said whose a token is: confirmed, refused, unanswered.",
            ["outcome"],
            registry=registry,
            buckets=_REVIEW_BUCKETS,
        )
        self.xids = Counter("remotegpu_xids", "Errors of the driver by their XID.", ["gpu", "xid"], registry=registry)
        self.gpu_seconds = Counter(
            "remotegpu_gpu_seconds",
            "Time that leases had of a GPU, where its time is divided.",
            ["gpu", "namespace"],
            registry=registry,
        )
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
    """Current values, from the same inventory that `remotegpu ls` shows.

    `readings` asks the driver about the GPU with a UUID. `processes` returns the pids of all running processes by part.
    """

    def __init__(
        self,
        inventory: Callable[[], pb.InventoryReply],
        readings: Callable[[str], Readings],
        processes: Callable[[], Mapping[str, Iterable[int]]],
    ) -> None:
        self._inventory = inventory
        self._readings = readings
        self._processes = processes

    def collect(self) -> Iterable[Metric]:
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
        yield from _of_readings({str(gpu.index): self._readings(gpu.uuid) for gpu in now.gpus})
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
        held = GaugeMetricFamily("remotegpu_lease_host_bytes", "Of this machine's memory.", labels=["lease"])
        for lease in now.leases:
            held.add_metric([lease.lease_id[:8]], lease.host_bytes)
        yield held
        yield GaugeMetricFamily("remotegpu_draining", "1 while no new lease is opened.", value=now.draining)
        memory = GaugeMetricFamily(
            "remotegpu_resident_memory_bytes",
            "Memory of this machine that processes of the part hold.",
            labels=["part"],
        )
        for part, ids in self._processes().items():
            memory.add_metric([part], sum(map(resident_bytes, ids)))
        yield memory


def resident_bytes(process: int) -> int:
    """Returns the memory that a process holds, shared pages included; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _of_readings(by_gpu: Mapping[str, Readings]) -> Iterable[GaugeMetricFamily]:
    """Yields the measurements of the driver. Measurements that a GPU does not have are left out."""
    figures: dict[str, tuple[str, Callable[[Readings], float | None]]] = {
        "utilization_ratio": ("Part of the last moment in which a kernel ran.", _part("gpu_utilization_percent", 100)),
        "memory_utilization_ratio": (
            "Part of the last moment in which memory was read or written.",
            _part("memory_utilization_percent", 100),
        ),
        "memory_used_bytes": ("Memory that is in use, by whomever.", _part("memory_used_bytes", 1)),
        "temperature_celsius": ("Temperature.", _part("temperature_celsius", 1)),
        "power_watts": ("Power drawn.", _part("power_milliwatt", 1000)),
        "power_limit_watts": ("Power that it may draw.", _part("power_limit_milliwatt", 1000)),
    }
    for name, (text, figure) in figures.items():
        family = GaugeMetricFamily(f"remotegpu_gpu_{name}", text, labels=["gpu"])
        for gpu, readings in by_gpu.items():
            if (value := figure(readings)) is not None:
                family.add_metric([gpu], value)
        yield family


def _part(field: str, divisor: int) -> Callable[[Readings], float | None]:
    def figure(readings: Readings) -> float | None:
        value: int | None = getattr(readings, field)
        return None if value is None else value / divisor

    return figure


def _of_claims(now: pb.InventoryReply) -> Iterable[Metric]:
    """Returns the metrics of each claim on each GPU, in Kubernetes."""
    labels = ("gpu", "namespace", "claim", "uid")
    leased = GaugeMetricFamily("remotegpu_claim_leased_bytes", "Memory that the claim has.", labels=labels)
    used = GaugeMetricFamily("remotegpu_claim_used_bytes", "Memory granted to its sessions.", labels=labels)
    seconds = CounterMetricFamily("remotegpu_claim_gpu_seconds", "Time that the claim had of the GPU.", labels=labels)
    sessions = GaugeMetricFamily("remotegpu_claim_sessions", "Sessions of the claim.", labels=labels[1:])
    for lease in now.leases:
        if lease.claim:
            namespace, _, name = lease.claim.partition("/")
            names = (namespace, name, lease.claim_uid)
            sessions.add_metric(names, lease.sessions)
            for place in lease.places:
                leased.add_metric((place.gpu, *names), place.leased_bytes)
                used.add_metric((place.gpu, *names), place.used_bytes)
                if place.compute_milli:
                    seconds.add_metric((place.gpu, *names), place.gpu_nanoseconds / 1e9)
    return leased, used, sessions, seconds

"""The operator's metrics, served at /metrics."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from remotegpu.api.pools import AppliancePhase
from remotegpu_operator.allocation import Capacity

CLAIMS: Final = Gauge("remotegpu_claims", "Claims by phase", ["phase"])
ALLOCATION_SECONDS: Final = Histogram(
    "remotegpu_claim_allocation_seconds",
    "From a claim's creation until its share was written into its status",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
API_CALLS: Final = Counter("remotegpu_api_calls_total", "Calls to the API server", ["verb", "resource", "code"])
RECONCILE_ERRORS: Final = Counter("remotegpu_reconcile_errors_total", "Passes that failed", ["concern"])
APPLIANCES: Final = Gauge("remotegpu_appliances", "Appliances by pool and phase", ["pool", "phase"])
POOL_MEMORY: Final = Gauge("remotegpu_pool_memory_bytes", "Shareable memory of a pool", ["pool", "state"])
POOL_MILLI: Final = Gauge("remotegpu_pool_milli", "Thousandths of GPUs of a pool", ["pool", "state"])
OLDEST_WAITING: Final = Gauge("remotegpu_oldest_waiting_claim_seconds", "Age of the oldest claim that waits; 0: none")
CERTIFICATE_EXPIRES: Final = Gauge(
    "remotegpu_certificate_expires_seconds", "When a certificate ends, in seconds since 1970", ["certificate"]
)
LEADER: Final = Gauge("remotegpu_operator_leader", "1 in the process that holds the Lease")
EVENTS_DROPPED: Final = Counter("remotegpu_events_dropped_total", "Events not written because too many waited")


def count_pool(pool: str, capacity: Capacity) -> None:
    for state in ("total", "allocated", "free"):
        amount = getattr(capacity, state)
        POOL_MEMORY.labels(pool, state).set(amount.memory)
        POOL_MILLI.labels(pool, state).set(amount.milli)
    for phase in AppliancePhase:
        APPLIANCES.labels(pool, phase).set(sum(each.phase is phase for each in capacity.appliances))

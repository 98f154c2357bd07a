"""The parts of an appliance that an extension gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remotegpu.appliance.backends.base import Backend
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.gpus.hardware import Hardware
from remotegpu.appliance.machine.staging import Staging
from remotegpu.appliance.machine.uids import Uids
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.sessions.sessions import Sessions
from remotegpu.appliance.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    backend: Backend
    hardware: Hardware
    shareable: Sequence[int]  # bytes of each GPU that are available for leases
    uids: Uids
    staging: Staging
    counters: Counters
    gateway: Gateway
    sessions: Sessions
    hidden: Sequence[Path]  # paths that no tenant's process may read

"""The process: what happens when it starts, when it ends, and when it needs access to the API server."""

import dataclasses
from typing import Any

import kopf
from kopf._core.reactor import inventory

from remotegpu_operator.cluster.kube import WATCH_SECONDS
from remotegpu_operator.process import Process


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def process_starts(settings: kopf.OperatorSettings, memo: Process, **_: Any) -> None:
    """Waits for the Lease, and begins the work. kopf watches objects only after this."""
    configure(settings)
    await memo.start()


@kopf.on.cleanup(errors=kopf.ErrorsMode.PERMANENT)
async def process_ends(memo: Process, **_: Any) -> None:
    """Ends the work and gives the Lease back, after kopf's last handler."""
    await memo.end()


@kopf.on.login()
def access_is_needed(memo: Process, **arguments: Any) -> kopf.ConnectionInfo | None:
    inside = kopf.login_with_service_account(**arguments)
    # kopf's login alone needs cluster DNS.
    return dataclasses.replace(inside, server=memo.api.server) if inside else kopf.login_with_kubeconfig(**arguments)


def configure(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.connect_timeout = 3
    settings.networking.request_timeout = 10
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 15
    settings.persistence.diffbase_storage = NoDiffBase()


class NoDiffBase(kopf.DiffBaseStorage):
    """kopf stores no last state of an object, and so does not copy and compare each body: no handler needs it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        pass


class NoMemories(inventory.ResourceMemories):
    """kopf remembers nothing of single objects. It would for ever remember one whose deletion it missed."""

    async def recall(self, *_: Any, memobase: Any = None, **__: Any) -> inventory.ResourceMemory:
        return inventory.ResourceMemory(memo=memobase)

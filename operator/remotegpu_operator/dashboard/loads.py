"""Reads sessions and load from the appliances. Each replica polls the appliances, only while a page shows the load."""

import asyncio
import base64
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from remotegpu.api.failures import ApplianceError
from remotegpu.api.kubernetes import APPLIANCE_LABEL, appliance_audience, server_name
from remotegpu.api.pools import ApplianceStatus
from remotegpu.dashboard.load import Reading, load_of
from remotegpu.dashboard.state import Json, Scope
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint
from remotegpu_operator.appliances.authority import CA_SECRET, SECRETS
from remotegpu_operator.appliances.tokens import NoTokenError, Tokens
from remotegpu_operator.builders.replacement import SERVING
from remotegpu_operator.builders.states import audience, pod_address
from remotegpu_operator.cluster.kube import PODS, Api

_KEPT_SECONDS: Final = 4.0
_CALL_SECONDS: Final = 3.0
_PAUSE_PER_WORK: Final = 4
_THREADS: Final = 8


class Loads:
    def __init__(
        self, api: Api, namespace: str, tokens: Tokens, appliances: Callable[[], Iterable[ApplianceStatus]]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._tokens = tokens
        self._appliances = appliances
        self._readings: dict[str, Reading] = {}
        # The audience of the token for each appliance, by name and address. A new pod has another address.
        self._audiences: dict[tuple[str, str], str] = {}
        self._due = float("-inf")
        self._asking = asyncio.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="loads")
        # TLS reads the authority from a file, as in `Inventory`.
        self._ca_file = os.memfd_create("ca.crt")
        self._ca = Path(f"/proc/self/fd/{self._ca_file}")
        self._bundle = b""

    async def load(self, scope: Scope) -> Json:
        """Returns the sessions and load that `scope` may see. Polls the appliances if the last readings are too old.

        Raises the errors of `Api`.
        """
        async with self._asking:
            begun = time.monotonic()
            if begun >= self._due:
                await self._ask_all()
                self._due = time.monotonic() + max(_KEPT_SECONDS, _PAUSE_PER_WORK * (time.monotonic() - begun))
            return load_of(self._readings, scope, time.monotonic())

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        os.close(self._ca_file)

    async def _ask_all(self) -> None:
        serving = [each for each in self._appliances() if each.phase in SERVING and each.address]
        if serving:
            secret = await self._api.get(SECRETS, self._namespace, CA_SECRET)
            bundle = base64.b64decode(secret["data"]["bundle.crt"])
            if bundle != self._bundle:
                self._bundle = bundle
                self._ca.write_bytes(bundle)
        await self._look_at_pods(serving)
        self._tokens.keep(map(self._audience, serving))
        found = await asyncio.gather(*map(self._reading, serving))
        self._readings = {each.name: reading for each, reading in zip(serving, found, strict=True)}

    async def _look_at_pods(self, serving: list[ApplianceStatus]) -> None:
        """Finds the token audience of each appliance. It depends on the appliance's release, and so on its pod."""
        places = {(each.name, each.address) for each in serving}
        if places - self._audiences.keys():
            pods, _ = await self._api.list(PODS, self._namespace, APPLIANCE_LABEL)
            told = {(pod["metadata"]["labels"][APPLIANCE_LABEL], pod_address(pod)): audience(pod) for pod in pods}
            # A pod whose container is not running yet has no address. The next call checks it again.
            self._audiences |= told
        self._audiences = {place: found for place, found in self._audiences.items() if place in places}

    def _audience(self, appliance: ApplianceStatus) -> str:
        return self._audiences.get((appliance.name, appliance.address)) or appliance_audience(appliance.name)

    async def _reading(self, appliance: ApplianceStatus) -> Reading:
        try:
            token = await self._tokens.token(self._audience(appliance))
        except NoTokenError as error:
            return _unread(self._readings.get(appliance.name), str(error))
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, appliance, token)

    def _read(self, appliance: ApplianceStatus, token: str) -> Reading:
        before = self._readings.get(appliance.name)
        try:
            access = Access(token, self._ca, server_name(appliance.name))
            client = ApplianceClient(parse_endpoint(appliance.address), access, _CALL_SECONDS)
            with contextlib.closing(client):
                inventory = client.inventory()
        except (ApplianceError, OSError) as error:
            return _unread(before, str(error))
        return Reading.after(before, inventory, time.monotonic())


def _unread(before: Reading | None, problem: str) -> Reading:
    return replace(before or Reading(pb.InventoryReply(), time.monotonic()), busy={}, problem=problem)

"""The operator's requests to appliances, without an API server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
from cluster.certificates import Authority
from support.kubenodes import Appliance
from support.system import until

from remotegpu.api.kubernetes import server_name
from remotegpu.rpc import pb
from remotegpu_operator.appliances.inventory import Inventory, Target

ADDRESS = "127.0.15.99"


class Slow(Appliance):
    """Does not answer the first request, as while the API server does not review the operator's token."""

    def __init__(self) -> None:
        super().__init__("slow", ADDRESS, gpus=1, memory=1 << 30, token="token")
        self.connections: list[str] = []
        self.over = threading.Event()

    def Inventory(self, request: pb.InventoryRequest, context: grpc.ServicerContext) -> pb.InventoryReply:  # noqa: N802
        self.connections.append(context.peer())
        if len(self.connections) == 1:
            self.over.wait(60)
        return super().Inventory(request, context)


class Tokens:
    async def token(self, audience: str) -> str:
        del audience
        return "token"

    def keep(self, audiences: Any) -> None: ...


def test_after_a_request_without_an_answer_the_next_has_a_connection_of_its_own() -> None:
    """A gateway counts a call that its client gave up until the connection ends, while it does not know the client."""
    appliance, authority = Slow(), Authority("remotegpu")
    leaf = authority.issue("appliance", subjects=(server_name("slow"),))
    appliance.start(leaf.certificate, leaf.key)

    async def scenario() -> None:
        inventory = Inventory(Tokens(), asyncio.Event())
        inventory.set_bundle(authority.certificate.decode())
        inventory.set_targets([Target("slow", "1", f"{ADDRESS}:7070", "audience")], inherited=False)
        try:
            await asyncio.to_thread(until, lambda: len(appliance.connections) > 2, 60, "it is asked twice more")
        finally:
            await inventory.close()

    try:
        asyncio.run(scenario())
    finally:
        appliance.over.set()
        appliance.stop()
    first, second, third = appliance.connections[:3]
    assert first != second, "the connection of the request without an answer is closed"
    assert second == third, "and otherwise it stays"

"""The command `drain`: ends appliances without Kubernetes when they are no longer in use."""

import time
from collections.abc import Sequence
from typing import Final

from remotegpu.api.durations import parse_duration
from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.cli import exits
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

_POLL_SECONDS: Final = 1.0


def drain(appliances: Sequence[str], access: Access, deadline: str) -> None:
    """Starts the drain of all appliances, then waits for each. Raises CliError and ApplianceError."""
    try:
        seconds = parse_duration(deadline)
    except ValueError as error:
        raise exits.CliError(exits.USAGE, f"--deadline: {error}") from None
    clients = [ApplianceClient(parse_endpoint(each), access) for each in appliances]
    try:
        for client in clients:
            client.drain(seconds)
        for client in clients:
            _wait(client)
    finally:
        for client in clients:
            client.close()


def _wait(client: ApplianceClient) -> None:
    told = -1
    while told:
        try:
            left = len(client.inventory().leases)
        except ApplianceError as error:
            if error.failure is not Failure.UNAVAILABLE:
                raise
            print(f"{client.endpoint} answers no more, as one that has ended")  # noqa: T201
            return
        if left != told:
            print(f"{client.endpoint} drains: {left or 'no'} lease{'s' * (left != 1)} left", flush=True)  # noqa: T201
            told = left
        time.sleep(_POLL_SECONDS)

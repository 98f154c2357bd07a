"""Checks this installation and appliances."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from remotegpu.api.failures import ApplianceError
from remotegpu.api.names import APPLIANCE_ENV
from remotegpu.paths import NotBuiltError, find_dist
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

# The time limit for the answers of all appliances, so that the user waits less than five seconds.
_MOST_SECONDS: Final = 4.5


def local_checks(*, named: bool) -> Iterator[pb.Check]:
    dist = find_dist()
    # Only `run --native` and appliances with the software back end need the software GPU.
    for name, folder, lacking in (("client library", dist.client, "fail"), ("software GPU", dist.native, "warn")):
        try:
            yield pb.Check(name=name, status="ok", message=str(dist.library(folder)))
        except NotBuiltError as error:
            message, _, fix = str(error).partition(": ")
            if lacking == "warn":
                message += "; an appliance with NVIDIA GPUs does without it"
            yield pb.Check(name=name, status=lacking, message=message, fix=fix)
    if not named:
        fix = f"give --appliance HOST:PORT or set {APPLIANCE_ENV}"
        message = "none is named, only this installation was checked"
        yield pb.Check(name="appliance", status="warn", message=message, fix=fix)


def checks_of_all(appliances: Sequence[str], access: Access) -> Iterator[tuple[str, pb.Check]]:
    """Checks all appliances concurrently, and yields the results. An appliance without an answer in time fails."""
    asked = [(text, _Asked(text, access)) for text in appliances]
    until = time.monotonic() + _MOST_SECONDS
    for text, each in asked:
        for check in each.checks_by(until):
            yield text, check


class _Asked:
    """Checks an appliance in a daemon thread, which does not delay the end of the program."""

    def __init__(self, text: str, access: Access) -> None:
        self._found: list[pb.Check] = []
        self._thread = threading.Thread(target=self._ask, args=(text, access), daemon=True)
        self._thread.start()

    def checks_by(self, until: float) -> list[pb.Check]:
        self._thread.join(max(0.0, until - time.monotonic()))
        found = list(self._found)
        if self._thread.is_alive():
            message = f"there is no answer within {_MOST_SECONDS:.1f} s: its name, control port or data port hangs"
            fix = "see that no firewall drops what is sent to these ports, and try again: it may be overloaded"
            found.append(pb.Check(name="answer", status="fail", message=message, fix=fix))
        return found

    def _ask(self, text: str, access: Access) -> None:
        for check in appliance_checks(text, access):
            self._found.append(check)


def appliance_checks(text: str, access: Access) -> Iterator[pb.Check]:
    try:
        client = ApplianceClient(parse_endpoint(text), access)
    except ApplianceError as error:
        yield pb.Check(name="address", status="fail", message=str(error))
        return
    try:
        hello = client.hello()
        yield pb.Check(name="control port", status="ok", message=f"{hello.versions.program} answers")
        yield _data_port(client, hello)
        yield from client.health().checks
    except ApplianceError as error:
        yield pb.Check(name="control port", status="fail", message=str(error))
    finally:
        client.close()


def _data_port(client: ApplianceClient, hello: pb.HelloReply) -> pb.Check:
    try:
        client.connect_data(hello.data_port, tls=hello.tls).close()
    except ApplianceError as error:
        return pb.Check(name="data port", status="fail", message=str(error))
    return pb.Check(name="data port", status="ok", message=f"{hello.data_port} accepts connections")

"""The checks of this installation and of appliances."""

from collections.abc import Iterator

from remotegpu.api.failures import ApplianceError
from remotegpu.api.names import APPLIANCE_ENV
from remotegpu.paths import NotBuiltError, find_dist
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint


def local_checks(*, named: bool) -> Iterator[pb.Check]:
    dist = find_dist()
    # Only `run --native` and appliances with the software back end want the software GPU.
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

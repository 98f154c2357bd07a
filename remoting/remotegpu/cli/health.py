"""`remotegpu health`: numbered checks, each OK, WARN or FAIL, with why and what to do."""

from collections.abc import Iterator, Sequence

from remotegpu.api.names import APPLIANCE_ENV
from remotegpu.cli.show import console, print_json
from remotegpu.paths import NotBuiltError, find_dist
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, ApplianceError, parse_endpoint


def health(appliances: Sequence[str], access: Access, *, as_json: bool) -> bool:
    """Print all checks; whether none failed."""
    checks = [("here", check) for check in local_checks(named=bool(appliances))]
    for text in appliances:
        checks += [(text, check) for check in appliance_checks(text, access)]
    good = all(check.status != "fail" for _, check in checks)
    if as_json:
        fields = ("name", "status", "message", "fix")
        listed = [{"where": where, **{name: getattr(check, name) for name in fields}} for where, check in checks]
        print_json({"healthy": good, "checks": listed})
        return good
    out = console()
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    for number, (where, check) in enumerate(checks, 1):
        status = f"[{colours.get(check.status, 'red')}]{check.status.upper():4}[/]"
        out.print(f"{number:2} {status} ", end="")
        fix = f"\n        fix: {check.fix}" if check.fix else ""
        out.print(f"{where}: {check.name}: {check.message}{fix}", markup=False, highlight=False)
    return good


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

"""A pod with a share that asks its appliance for things that are not its own. Runs in an image with remotegpu's stubs.

    hostile.py honest | lease | other CLAIM_UID | operator | replay

Prints one line of JSON: the answer, the gRPC status, and the seconds that the call took.
`replay` prints it again each second, so that the test can delete the claim meanwhile.
"""

import json
import sys
import time
from pathlib import Path

import grpc

from remotegpu.rpc import WIRE_VERSION, pb, pb_grpc

FOLDER = Path("/var/run/secrets/remotegpu.io")
session = json.loads((FOLDER / "session").read_text())
place = session["appliances"][0]
channel = grpc.secure_channel(
    place["endpoint"],
    grpc.ssl_channel_credentials(session["ca"].encode()),
    [("grpc.ssl_target_name_override", place["server_name"])],
)
stub = pb_grpc.ControlStub(channel)
OWN = session["claim"]["uid"].replace("-", "")
TOKEN = (FOLDER / "token").read_text()
VERSIONS = pb.Versions(wire=WIRE_VERSION, program="hostile")


def hello(lease_id):
    return stub.Hello, pb.HelloRequest(versions=VERSIONS, lease_id=lease_id)


def ask(method, request, token=TOKEN):
    """Calls the method and prints the outcome as one line."""
    begun = time.monotonic()
    answer = {"code": "OK", "refusal": "", "devices": []}
    try:
        reply = method(request, metadata=(("authorization", f"Bearer {token}"),), timeout=5)
        reply = next(iter(reply)) if hasattr(reply, "__iter__") else reply
        answer["refusal"] = getattr(reply, "refusal", "")
        answer["devices"] = [device.memory_bytes for device in getattr(reply, "devices", [])]
    except grpc.RpcError as error:
        answer |= {"code": error.code().name, "refusal": error.details()}
    print(json.dumps(answer | {"seconds": time.monotonic() - begun}), flush=True)


kind, *arguments = sys.argv[1:]
grpc.channel_ready_future(channel).result(timeout=10)
match kind:
    case "honest":
        ask(*hello(OWN))
    case "lease":
        ask(stub.OpenLease, pb.OpenLeaseRequest(versions=VERSIONS, count=1, milli=1000, client="hostile"))
    case "other":
        ask(*hello(arguments[0].replace("-", "")))
    case "session":
        ask(stub.OpenSession, pb.OpenSessionRequest(versions=VERSIONS, lease_id=arguments[0].replace("-", ""), pid=1))
    case "operator":
        ask(stub.Inventory, pb.InventoryRequest())
    case "forged":
        ask(*hello(OWN), token="forged")
    case "replay":
        while True:
            ask(*hello(OWN))
            time.sleep(1)

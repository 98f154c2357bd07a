"""The Python client of an appliance's control service: stubs, channels, and errors of one sentence.

`client` makes the calls, `own_token` finds the token of an appliance of the same user, and `_core` imports gRPC with
our settings before any other module does. `_generated` has the stubs of `remoting/proto/control.proto`. The command
line, the operator and the appliance use this package. It imports only `api`.
"""

from remotegpu.rpc import _core  # noqa: F401 (before anything else imports gRPC)
from remotegpu.rpc._generated import control_pb2 as pb
from remotegpu.rpc._generated import control_pb2_grpc as pb_grpc
from remotegpu.rpc._generated.versions import OLDEST_WIRE, WIRE_VERSION

__all__ = ["OLDEST_WIRE", "WIRE_VERSION", "pb", "pb_grpc"]

"""The control service of an appliance as Python calls it: stubs, channels, and errors as one sentence.

`client` makes the calls, `own_token` finds the token of an appliance of the same user, and `_core` imports gRPC with
our settings before anything else does. `_generated` has the stubs of `remoting/proto/control.proto`. Used by the
command line and the operator, and by the appliance, which serves them. Of ours it imports only `api`.
"""

from remotegpu.rpc import _core  # noqa: F401 (before anything else imports gRPC)
from remotegpu.rpc._generated import control_pb2 as pb
from remotegpu.rpc._generated import control_pb2_grpc as pb_grpc
from remotegpu.rpc._generated.versions import OLDEST_WIRE, WIRE_VERSION

__all__ = ["OLDEST_WIRE", "WIRE_VERSION", "pb", "pb_grpc"]

"""The control service as seen from Python: stubs, channels, errors as one sentence. Imports only the API."""

from remotegpu.rpc import _core  # noqa: F401 (before anything else imports gRPC)
from remotegpu.rpc._generated import control_pb2 as pb
from remotegpu.rpc._generated import control_pb2_grpc as pb_grpc
from remotegpu.rpc._generated.versions import OLDEST_WIRE, WIRE_VERSION

__all__ = ["OLDEST_WIRE", "WIRE_VERSION", "pb", "pb_grpc"]

"""The control service as seen from Python: stubs, channels, errors as one sentence. Imports only the API."""

from remotegpu.rpc import _core  # noqa: F401 (before anything else imports gRPC)
from remotegpu.rpc._generated import control_pb2 as pb
from remotegpu.rpc._generated import control_pb2_grpc as pb_grpc

__all__ = ["WIRE_VERSION", "pb", "pb_grpc"]

# `WIRE_VERSION` of the crate `protocol`.
WIRE_VERSION = 9

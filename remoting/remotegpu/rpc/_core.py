"""Imports gRPC with our settings, before any other module imports it."""

import os

# No log of gRPC: we print each error in one line. No fork support: no forked child uses gRPC, and the fork handlers
# crashed between fork and exec (seen with grpcio 1.85 whenever a worker got its own uid).
_SETTINGS = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

_ours = [name for name in _SETTINGS if name not in os.environ]
os.environ.update({name: _SETTINGS[name] for name in _ours})

import grpc  # noqa: E402, F401

# gRPC has read the variables. They are removed, since the user's command inherits this environment.
for _name in _ours:
    del os.environ[_name]

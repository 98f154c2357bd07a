"""Imports gRPC with our settings, before any other module imports it."""

import os

# NONE: what fails is explained by us, in one line. No fork support: we start programs and never go on in a forked
# child, where its handlers crashed between fork and exec (seen with grpcio 1.85 whenever a worker got its own uid).
_SETTINGS = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

_ours = [name for name in _SETTINGS if name not in os.environ]
os.environ.update({name: _SETTINGS[name] for name in _ours})

import grpc  # noqa: E402, F401

# gRPC has read them. The user's command inherits our environment and must not find them there.
for _name in _ours:
    del os.environ[_name]

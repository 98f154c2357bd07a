"""The appliance: leases, sessions, grants, workers and the gateway of a machine with GPUs. Never imports the CLI."""

from remotegpu import rpc  # noqa: F401 (imports gRPC as it has to be, before the modules here do)

"""The appliance: leases, sessions, grants, workers and the door of a machine with GPUs. Never imports the CLI."""

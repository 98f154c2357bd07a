"""The appliance: leases, sessions, grants, workers and the door on a machine with GPUs, real or software. Never imports the CLI."""

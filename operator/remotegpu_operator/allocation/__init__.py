"""Which GPUs a claim gets. Pure; no I/O, no clock of its own."""

"""Back ends for GPUs: a driver library, an inventory and health. No knowledge of leases and sessions."""

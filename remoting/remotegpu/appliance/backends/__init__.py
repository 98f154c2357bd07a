"""Where GPUs come from: a driver library, an inventory and health. Knows nothing of leases and sessions."""

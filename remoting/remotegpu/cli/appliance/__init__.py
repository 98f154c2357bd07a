"""Commands about an appliance: to start, prepare and drain it, and to suspend or move its leases."""

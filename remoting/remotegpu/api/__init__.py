"""Names, quantities and typed objects that every part shares. Pure: no I/O, no clock, nothing of ours imported."""

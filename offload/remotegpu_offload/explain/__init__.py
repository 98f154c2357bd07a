"""A program is run here, on the CPU, and what of it would cross is counted: what `remotegpu offload explain` shows."""

"""The command line: `remotegpu run/ls/smi/health/bench/appliance/version`. No logic of shares."""

from remotegpu.cli.app import main

__all__ = ["main"]

"""The command line: `remotegpu run/ls/smi/health/bench/appliance/version`. Starts programs, shows, and explains errors."""

from remotegpu.cli.app import main

__all__ = ["main"]

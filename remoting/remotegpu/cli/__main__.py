"""Runs `python -m remotegpu.cli`, with which the CLI starts itself."""

from remotegpu.cli import main

main()

"""`python -m remotegpu.cli`, as the CLI starts itself."""

from remotegpu.cli.app import main

main()

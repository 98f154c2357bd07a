"""`python -m remotegpu.cli`, as the CLI starts itself."""

from remotegpu.cli import main

main()

"""The command line: `remotegpu` and `kubectl remotegpu` (`kubectl`).

`app` has the commands and their options; the work of each is in a module or folder next to it. `main` starts `run`
before it imports the other commands. The installed programs begin here. The command line of offload and a notebook's
share use some modules; no other part imports this package. It has no logic of shares: appliances and the operator
decide.
"""

import sys

__all__ = ["main"]


def main() -> None:
    # Imported here: the imports of a plain `run` take some milliseconds, all others a third of a second.
    from remotegpu.cli.run import plain as plain_run  # noqa: PLC0415

    plain_run.start(sys.argv[1:])

    from remotegpu.cli import app  # noqa: PLC0415

    app.main()

"""The command line: `remotegpu` and `kubectl remotegpu` (`kubectl`).

`app` has the commands and their options; the work of each is in a module or folder next to it. `main` lets `run` start
before the other commands are imported. The installed programs begin here; offload's command line and a notebook's share
use some modules. Nothing else imports it. It has no logic of shares: appliances and the operator decide.
"""

import sys

__all__ = ["main"]


def main() -> None:
    # Imported here: a plain `run` needs only imports of some milliseconds, the rest takes a third of a second.
    from remotegpu.cli.run import plain as plain_run  # noqa: PLC0415

    plain_run.start(sys.argv[1:])

    from remotegpu.cli import app  # noqa: PLC0415

    app.main()

"""The command line: `remotegpu run/ls/smi/health/bench/appliance/version`. No logic of shares."""

import sys

__all__ = ["main"]


def main() -> None:
    # Imported here: a plain `run` needs only imports of some milliseconds, the rest takes a third of a second.
    from remotegpu.cli.run import plain as plain_run  # noqa: PLC0415

    plain_run.start(sys.argv[1:])

    from remotegpu.cli import app  # noqa: PLC0415

    app.main()

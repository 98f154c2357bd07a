"""`python -m remotegpu_operator`: of several replicas one holds the Lease and works; the others wait for the Lease."""

import logging
import sys

import kopf

from remotegpu_operator import audit
from remotegpu_operator.handlers.startup import NoMemories
from remotegpu_operator.process import Process
from remotegpu_operator.settings import Settings, SettingsError

_log = logging.getLogger("remotegpu_operator")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    audit.set_up()
    # kopf logs every step. Messages for people are in the operator's log and in Events.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It logs each attempt of a request as an error, and raises the last one.
    logging.getLogger("kopf._cogs.clients.api").setLevel(logging.CRITICAL)
    try:
        process = Process(Settings.of())
    except SettingsError as error:
        _log.error("%s", error)
        return 2
    try:
        kopf.run(
            memo=process,
            memories=NoMemories(),
            stop_flag=process.stop,
            standalone=True,
            clusterwide=True,
        )
    except Exception:
        _log.exception("the operator failed")
        return 1
    return process.status


if __name__ == "__main__":
    sys.exit(main())

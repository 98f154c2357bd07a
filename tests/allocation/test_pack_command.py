"""Tests of the end of `kubectl remotegpu pack`: its request is answered, replaced, or not waited for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from remotegpu.api.kubernetes import PACK_ANNOTATION
from remotegpu.cli import exits
from remotegpu.cli.cluster.objects import Cluster
from remotegpu.cli.cluster.packing import pack


class _Pool:
    """A pool in place of the cluster. `later` is a request that comes after each other one; None: no other comes."""

    def __init__(self, later: str | None) -> None:
        self.later, self.annotation, self.asked = later, "", 0

    def patch(self, _: str, change: dict[str, Any]) -> None:
        self.annotation = change["metadata"]["annotations"][PACK_ANNOTATION]

    def get(self, _: str) -> dict[str, Any]:
        self.asked += 1
        annotations = {PACK_ANNOTATION: self.annotation if self.later is None else self.later}
        answer = {"request": self.annotation if self.later is None else "now-0", "message": "no move empties a GPU"}
        metadata = {"name": "p", "uid": "u", "annotations": annotations}
        return {"metadata": metadata, "spec": {}, "status": {"pack": answer}}


def test_a_request_that_another_one_replaced_is_not_waited_for() -> None:
    for later in ("now-1", ""):
        replaced = _Pool(later)
        with pytest.raises(exits.CliError, match="ask again") as told:
            pack(cast("Cluster", replaced), "p", dry_run=False, wait=True)
        assert told.value.code == exits.BUSY
        assert replaced.asked == 1


def test_nobody_waits_who_does_not_want_to(capsys: pytest.CaptureFixture[str]) -> None:
    for dry_run in (False, True):
        answered = _Pool(None)
        pack(cast("Cluster", answered), "p", dry_run=dry_run, wait=False)
        assert answered.asked == 0
        pack(cast("Cluster", answered), "p", dry_run=dry_run, wait=True)
        assert answered.asked == 1
    assert "no move empties a GPU" in capsys.readouterr().out

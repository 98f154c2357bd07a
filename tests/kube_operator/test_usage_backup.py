"""Tests of the commands in docs/operations.md that back up and restore the usage record while an operator writes it."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, SYSTEM, Kube, Object, claim, node, operator, pool, ready
from support.kubenodes import Nodes
from support.system import REMOTEGPU, ROOT, until

from remotegpu.api import usage
from remotegpu.api.usage import Record

MINE = CLAIMS.format("backup")
CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"


def documented(verb: str) -> list[str]:
    """Returns the arguments of the documented kubectl command for ConfigMaps with this verb."""
    section = (ROOT / "docs/operations.md").read_text().partition("## Back up and restore")[2].partition("\n## ")[0]
    lines = [line.strip().partition(" > ")[0] for line in section.splitlines() if f"    kubectl {verb}" in line]
    (only,) = [line for line in lines if "usage" in line]
    return shlex.split(only)[1:]


def kept(kube: Kube) -> list[Object]:
    return [each for each in kube.items(CONFIG_MAPS) if usage.USAGE_LABEL in each["metadata"].get("labels", {})]


def ended(record: Record) -> list[int]:
    return [each.end for each in record.holdings.values() if each.end is not None and not each.void]


def sums(record: Record, until: int) -> usage.Amounts:
    """Returns the sums without claims that existed for less than a second."""
    return {who: amount for who, amount in usage.amounts(record, 0, until).items() if amount != usage.Amount()}


def tenant(kube: Kube, number: int, stop: threading.Event) -> None:
    for count in itertools.count():
        if stop.is_set():
            return
        path = f"{MINE}/c{number}-{count}"
        kube("POST", MINE, claim(f"c{number}-{count}", "default", fraction="0.25"))
        until(lambda: kube.get(path).get("status", {}).get("phase") == "Allocated", 30, "it has its share")  # noqa: B023
        stop.wait(1 + number / 3)
        kube("DELETE", path)


def of_everybody(server: ApiServer) -> str:
    command = [REMOTEGPU, "usage", "--by", "namespace,claim", "-o", "csv", "--kubeconfig", str(server.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def restore(server: ApiServer, file: Path) -> None:
    server.kubectl(*documented("delete"))
    server.kubectl(*(str(file) if word == "usage.yaml" else word for word in documented("create")))


@pytest.mark.timeout(240)
def test_a_copy_is_of_one_moment_and_is_restored(server: ApiServer, kube: Kube, folder: Path) -> None:
    kube.namespace("backup")
    kube("POST", "/api/v1/nodes", node("node-a"))
    kube("POST", POOLS, pool("default", software={"gpus": 2, "memory": 1024 * MIB}))
    stop, copied = threading.Event(), folder / "copy.yaml"
    with Nodes(kube, subnet=38), ThreadPoolExecutor(4) as pool_of:
        with operator(server.kubeconfig, folder):
            ready(kube, 1)
            tenants = [pool_of.submit(tenant, kube, number, stop) for number in range(4)]

            def copy_of_the_middle() -> Record | None:
                """Returns a backup with some ended holdings and some open ones; None while there are not both."""
                copied.write_text(server.kubectl(*documented("get")).stdout)
                record = usage.read(yaml.safe_load(copied.read_text())["items"])
                return record if min(ended(record), default=record.until) < record.until and record.open() else None

            try:
                copy: Record = until(copy_of_the_middle, 60, "a copy of the middle")
                until(lambda: len(ended(usage.read(kept(kube)))) > len(ended(copy)) + 4, 30, "the record goes on")
            finally:
                stop.set()
            for each in tenants:
                each.result()
            until(lambda: not usage.read(kept(kube)).open(), 30, "the record has an end for each")
        last = usage.read(kept(kube))
        journals = {each["metadata"]["name"]: each["data"] for each in kept(kube)}

        # An entry that was written during the backup is in it completely, or not at all.
        assert not copy.problems
        for each in yaml.safe_load(copied.read_text())["items"]:
            if each["metadata"]["labels"][usage.USAGE_LABEL] == usage.JOURNAL:
                assert each["data"].items() <= journals[each["metadata"]["name"]].items()
        assert sums(copy, copy.until) == sums(last, copy.until) != {}

        before = of_everybody(server)
        whole = folder / "whole.yaml"
        whole.write_text(server.kubectl(*documented("get")).stdout)
        restore(server, whole)
        assert of_everybody(server) == before
        assert before.count("\n") > len(ended(copy))

        # An operator continues with the older backup, and records an end for the claims that are gone.
        restore(server, copied)
        with operator(server.kubeconfig, folder, "operator-1"):
            until(lambda: not usage.read(kept(kube)).open(), 60, "the record has an end for each")
        again = usage.read(kept(kube))
        assert not again.problems
        assert sums(again, copy.until) == sums(copy, copy.until)
        assert {each.uid for each in again.holdings.values() if each.unknown} == {each.uid for each in copy.open()}

"""Compares what the servers of two built trees cost: claims and pods through the operator and the webhook, against an
API server alone, and sessions of an appliance.

PYTHONPATH=tests:e2e .venv/bin/python tools/compare/servers.py OLD NEW [PAIRS [CLAIMS PODS SESSIONS]]

OLD and NEW are checkouts with `.venv`, `target/dist` and `target/cluster`. They take turns, PAIRS times (8), with so
many claims (300), pods (200) and sessions (500); 0 leaves a part out. Each round is made where its tree lies at NEW's
path, as compare.py does; that needs root. On a machine with a busy disk set TMPDIR to a folder in memory: an API server
writes there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import claims, webhook
from support.apiserver import api_server
from support.system import PROGRAMS, appliance, line, until
from support.webhook import Admission, issue, replica

LEASES = 10
TICK = os.sysconf("SC_CLK_TCK")


def main(old: str, new: str, pairs: str = "8", *sizes: str) -> None:
    trees = {"old": Path(old).resolve(), "new": Path(new).resolve()}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in range(int(pairs)):
        for which in ("old", "new") if pair % 2 == 0 else ("new", "old"):
            for name, value in in_tree(trees[which], trees["new"], sizes or ("300", "200", "500")).items():
                found[name][which].append(value)
        print(f"{pair + 1} of {pairs}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        show(found)


def show(found: dict[str, dict[str, list[float]]]) -> None:
    print("| | before | now | ratio of medians | median of each pair's ratio |\n|---|---|---|---|---|")
    for name, of in found.items():
        ratios = [now / before for before, now in zip(of["old"], of["new"], strict=True)]
        before, now = median(of["old"]), median(of["new"])
        print(f"| {name} | {before:.3g} | {now:.3g} | {now / before:.2f} | {median(ratios):.2f} |", flush=True)


def in_tree(tree: Path, seen_at: Path, sizes: tuple[str, ...]) -> dict[str, float]:
    """Runs one round where the tree lies at `seen_at`, by this very script for both."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "servers.py")
        script.write_bytes(Path(__file__).read_bytes())
        mount = f"mount --make-rprivate / && mount --bind {tree} {seen_at} && cd {seen_at}"
        run = f"PYTHONPATH=tests:e2e exec .venv/bin/python {script} --round {' '.join(sizes)}"
        command = ["unshare", "-m", "sh", "-c", f"{mount} && {run}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tree}: {done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def one_round(claims: str, pods: str, sessions: str) -> None:
    parts = ((of_operator, claims), (of_webhook, pods), (of_appliance, sessions))
    print(json.dumps({name: value for part, size in parts if int(size) for name, value in part(int(size)).items()}))


def of_operator(count: int) -> dict[str, float]:
    """All claims are made at once, 3 of 5 fit; then those are deleted, and the others get a share."""
    fit, nodes = count * 3 // 5, 5
    # A GPU has four claims.
    sizes = {"CLAIMS_ASKED": count, "CLAIMS_THAT_FIT": fit, "NODES": nodes, "GPUS_PER_NODE": fit // 4 // nodes}
    vars(claims).update(sizes)
    with api_server() as server, tempfile.TemporaryDirectory() as folder:
        result = claims.measure(server, Path(folder))
    return {
        f"{count} claims: s until all are placed or wait": result.seconds_to_settle,
        "s until those that waited have a share": result.seconds_to_rebind,
        "calls of the API server for a claim": result.calls_per_claim,
        "and for one that waited": result.calls_per_rebind,
        "operator's CPU, s": result.operator_cpu_seconds,
        "operator's memory, MiB": result.operator_memory_after_mib,
    }


def of_webhook(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, api_server() as server, ExitStack() as stack:
        authority = issue(Path(folder))
        one = stack.enter_context(replica(Path(folder), "--reuse-port"))
        two = stack.enter_context(replica(Path(folder), "--reuse-port", port=one.port))
        result = webhook.measure(Admission(server, one, authority), [one, two], pods=count)
    return {
        f"{count} pods through the webhook: s": count / result.with_per_second,
        "webhook's CPU for a pod, ms": result.webhook_cpu_ms_per_pod,
        "a review's median, ms": result.handler_p50_ms,
    }


def of_appliance(count: int) -> dict[str, float]:
    limits = ("--sessions-per-gpu", str(count), "--sessions-per-lease", str(count), "--quiet")
    with (
        tempfile.TemporaryDirectory() as folder,
        appliance("--grace", "0s", *limits, memory_mib=16 << 10) as remote,
    ):
        program = Path(folder, "many_sessions")
        subprocess.run(["cc", "-O1", "-o", program, PROGRAMS / "many_sessions.c", "-ldl"], check=True)
        before, began = cpu_of_tree(remote.process.pid), time.monotonic()
        with ExitStack() as stack:
            start = (str(program), str(count // LEASES))
            starts = (remote.start(*start, share=f"{1 / LEASES:.3f}", stdin=subprocess.PIPE) for _ in range(LEASES))
            hosts = [stack.enter_context(each) for each in starts]
            with ThreadPoolExecutor(LEASES) as pool:
                assert list(pool.map(line, hosts)) == ["ready"] * LEASES
            opened = time.monotonic() - began
        until(lambda: not remote.workers() and remote.leased_bytes() == 0, 60, "all sessions are gone")
        used = cpu_of_tree(remote.process.pid) - before
    return {f"{count} sessions: s until all are open": opened, "appliance's, gateway's and workers' CPU, s": used}


def cpu_of_tree(root: int) -> float:
    """The CPU time of a process, of its children, and of those that it has waited for."""
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    fields = Path(f"/proc/{root}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICK + sum(cpu_of_tree(int(child)) for child in children)


if __name__ == "__main__":
    one_round(*sys.argv[2:]) if sys.argv[1:2] == ["--round"] else main(*sys.argv[1:])

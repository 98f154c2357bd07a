"""The appliance's own health checks, each with the fault and its remedy. Pure."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remotegpu.api.addresses import is_loopback
from remotegpu.api.modes import ComputeMode
from remotegpu.appliance.secret_files import move_away
from remotegpu.appliance.settings import Settings
from remotegpu.appliance.shares.allocation import Capacity
from remotegpu.rpc import pb


@dataclass(frozen=True, slots=True)
class ClaimsState:
    """Whether the claims in Kubernetes were ever read (`known`), and why they cannot be read now."""

    known: bool
    trouble: str


@dataclass(frozen=True, slots=True)
class IdentitiesState:
    """How long an identity is trusted without the API server, and why the API server cannot be reached now."""

    believe_seconds: float
    trouble: str


@dataclass(frozen=True, slots=True)
class EnvironmentState:
    """The state of an environment for offload: its problem, and the isolation and accelerator of its sessions.

    `devices` says how sessions reach an accelerator; empty if they have none.
    """

    name: str
    description: str
    problem: str
    refused: bool = False  # the environment works, but its options are invalid, so the appliance does not serve it
    devices: str = ""
    unlimited: bool = False  # sessions can exceed their share of an accelerator
    level: str = ""
    lacks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of the checks."""

    settings: Settings
    gpus: Sequence[Capacity]
    overhead_bytes: int
    root: bool
    landlock: bool = False
    unwatched: str = ""
    draining: bool = False
    shortage: str = ""  # the reason why the appliance opens no session; empty if it does
    open_files: Sequence[Path] = ()  # secrets that other users of the machine may read or change
    admin_files: Sequence[Path] = ()  # an administrator's files beside the appliance's
    claims: ClaimsState | None = None
    identities: IdentitiesState | None = None
    environments: Sequence[EnvironmentState] = ()


def exposed_without(settings: Settings) -> list[str]:
    """Returns the security options that are missing on an appliance that other machines can reach."""
    if is_loopback(settings.host):
        return []
    lacks_tokens = settings.tokens is None and settings.kubernetes is None
    return ["--tokens"] * lacks_tokens + ["--cert and --key"] * (settings.cert is None)


def checks(now: Situation) -> Iterator[pb.Check]:
    """Yields the result of each check, the most basic checks first."""
    settings = now.settings
    yield from _gpus(now)
    if settings.backend == "cuda":
        yield _check(
            "gpu events",
            now.unwatched,
            good="the driver tells of errors (XIDs)",
            fix="such a GPU's failure is noticed by its error counters and by the self-test alone: see the driver",
            severity="warn",
        )
    yield _check(
        "accepts leases",
        "it is draining and opens no new lease" if now.draining else "",
        good="yes",
        fix="use another appliance",
    )
    yield _check(
        "room for sessions",
        f"it opens no lease until there is more: {now.shortage}" if now.shortage else "",
        good="descriptors and memory are free",
        fix="its leases and their programs go on; nothing has to be started anew",
    )
    yield _isolation(now)
    yield from itertools.chain.from_iterable(map(_environment, now.environments))
    if now.claims is not None:
        yield _check(
            "claims",
            now.claims.trouble,
            good="followed",
            fix="see the API server, and that this appliance may get, list and watch gpuclaims",
            severity="warn" if now.claims.known else "fail",
        )
    if now.identities is not None:
        yield _identities(now.identities)
    lacks = exposed_without(settings)
    yield _check(
        "encryption",
        "data and tokens travel in the clear" if "--cert and --key" in lacks else "",
        good="TLS" if settings.cert else "none, but only this machine reaches it",
        fix="start the appliance with --cert and --key",
        severity="warn",
    )
    yield _check(
        "authentication",
        "anybody who reaches the port can take a share, see all and move all" if settings.anybody else "",
        good=_good_authentication(now),
        fix="start the appliance with --tokens FILE, or without --anybody",
        severity="warn",
    )
    if settings.key is not None or settings.tokens is not None:
        files = " and ".join(map(str, now.open_files))
        yield _check(
            "secret files",
            f"other users of this machine may read or change {files}" if files else "",
            good="closed to other users of this machine",
            fix=f"chmod o=,g-w {' '.join(map(str, now.open_files))}; then replace what may have been read",
            severity="warn",
        )
        yield _check(
            "administrator's files",
            f"beside the appliance's lie {' and '.join(map(str, now.admin_files))}" if now.admin_files else "",
            good="not beside the appliance's",
            fix=move_away(now.admin_files) if now.admin_files else "",
            severity="warn",
        )
    turns = settings.compute_mode is ComputeMode.TURNS
    time = "by turns, as shares say" if turns else "as the driver likes, without weights"
    yield pb.Check(name="compute share", status="ok", message=f"memory is divided by shares; a GPU's time {time}")


def _isolation(now: Situation) -> pb.Check:
    own_uids = now.root and now.settings.uid_base != 0
    one_uid = "workers run under the appliance's own uid"
    return _check(
        "worker isolation",
        "" if own_uids or now.landlock else f"{one_uid}, and this kernel has no Landlock to keep them apart",
        good="every session has its own uid" if own_uids else f"{one_uid}; seccomp and Landlock keep them apart",
        fix="use a kernel with Landlock (5.13 or later) and --landlock require (in a cluster: landlock: Require of the "
        "pool), or start the appliance as root, without --uid-base 0",
        severity="warn",
    )


def _identities(now: IdentitiesState) -> pb.Check:
    believed = f"an identity that was confirmed is believed for {now.believe_seconds:.0f} s"
    return _check(
        "identities",
        f"the API server cannot be asked whose tokens are ({now.trouble}); {believed}" if now.trouble else "",
        good=f"tokens are reviewed by the API server; while it does not answer, {believed}",
        fix="see the API server; the time is --believe-seconds",
        severity="warn",
    )


def _environment(state: EnvironmentState) -> Iterator[pb.Check]:
    name = f"environment {state.name}"
    fix = "mend it, or start the appliance without it; it is tried again every half a minute"
    if state.refused:
        fix = "correct its --offload (in a pool: spec.offload) as the message says, or leave it out"
    severity = "warn" if state.refused else "fail"
    yield _check(name, state.problem, good=state.description, fix=fix, severity=severity)
    if state.devices:
        yield _check(
            f"{name}: devices",
            state.devices if state.unlimited else "",
            good=state.devices,
            fix="leave `direct` out of --offload (in a pool: `cudaDirect`), then sessions get CUDA as programs do",
            severity="warn",
        )
    if state.level:
        yield _check(
            f"{name}: isolation",
            f"sessions are kept apart by {state.level}, without {'; '.join(state.lacks)}" if state.lacks else "",
            good=f"sessions are kept apart by {state.level}, cgroups, seccomp and Landlock",
            fix="see `Safety, both ways` in docs/offload.md for what each level lacks and needs",
            severity="warn",
        )


def _good_authentication(now: Situation) -> str:
    if now.claims is not None:
        return "pods show their token, claims say what they may use"
    return "tokens are required" if now.settings.tokens else "the token of the user who started it is required"


def _gpus(now: Situation) -> Iterator[pb.Check]:
    tested = f"self-test passed, a context takes {now.overhead_bytes >> 20} MiB"
    if not now.gpus:
        fix = "check the driver, and CUDA_VISIBLE_DEVICES of the appliance"
        yield _check("gpus", "the driver shows no GPU", good="", fix=fix)
    # The appliance is usable as long as one GPU is healthy.
    severity = "warn" if any(not gpu.unhealthy for gpu in now.gpus) else "fail"
    for index, gpu in enumerate(now.gpus):
        yield _check(
            f"gpu {index}",
            gpu.unhealthy,
            good=tested if now.settings.self_test else "not tested (--no-self-test)",
            fix="see the appliance's log; restart it when the GPU is well",
            severity=severity,
        )


def _check(name: str, bad: str, *, good: str, fix: str, severity: str = "fail") -> pb.Check:
    return pb.Check(name=name, status=severity if bad else "ok", message=bad or good, fix=fix if bad else "")

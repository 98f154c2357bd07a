"""The command `remotegpu why`: reads objects of the cluster, and prints the explanation of the operator's package."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from typing import Any, Final

from remotegpu import extensions
from remotegpu.api.claims import pod_claim_name
from remotegpu.api.durations import format_duration
from remotegpu.api.kubernetes import API_VERSION, CLAIM_ANNOTATION, CLAIMS, GATE, POD_LABEL, POD_LABEL_VALUE, POOLS
from remotegpu.api.waiting import Answer
from remotegpu.cli import exits
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError
from remotegpu.cli.output import console, print_json, say

_MOST_NAMED: Final = 5
# The lists that an explanation needs. If the user may not read one, `remotegpu top` reports it and uses an empty list.
LISTS: Final = {
    "gpupools": (f"/apis/{API_VERSION}/{POOLS}", ""),
    "gpuclaims": (f"/apis/{API_VERSION}/{CLAIMS}", ""),
    "resourcequotas": ("/api/v1/resourcequotas", ""),
    "priorityclasses": ("/apis/scheduling.k8s.io/v1/priorityclasses", ""),
    "pods": ("/api/v1/pods", f"{POD_LABEL}={POD_LABEL_VALUE}"),
}


def why(cluster: Cluster, namespace: str, name: str, *, is_claim: bool, as_json: bool) -> None:
    namespace = namespace or cluster.namespace
    try:
        found = of_claim(cluster, namespace, name) if is_claim else of_pod(cluster, namespace, name)
    except RefusedError as error:
        raise exits.CliError(exits.UNAVAILABLE if error.status == 0 else exits.USAGE, next_step(error)) from None
    if as_json:
        print_json({"message": found} if isinstance(found, str) else dataclasses.asdict(found))
        return
    for line in [found] if isinstance(found, str) else lines(found):
        say(console(), line)


def of_claim(cluster: Cluster, namespace: str, name: str) -> Answer:
    """Explains a claim. Raises RefusedError; raises CliError if the claim is missing or invalid."""
    objects = {kind: cluster.list(path, selector) for kind, (path, selector) in LISTS.items()}
    try:
        return extensions.explainer()(namespace, name, objects, datetime.datetime.now(datetime.UTC))
    except KeyError:
        told = (
            f"there is no GPUClaim {namespace}/{name}: the operator makes a pod's some moments after the pod; if it "
            "does not, `remotegpu doctor --cluster` says why"
        )
        raise exits.CliError(exits.UNAVAILABLE, told) from None
    except ValueError as error:
        raise unreadable(namespace, name, error) from None


def of_pod(cluster: Cluster, namespace: str, name: str) -> Answer | str:
    """Explains the claim of a pod. Returns a sentence if the pod does not wait for a share."""
    pod = cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return _other_than_waiting(pod) or of_claim(cluster, namespace, _claim_of(pod))


def lines(answer: Answer) -> Iterator[str]:
    """Yields the lines of an answer for people."""
    yield f"{answer.claim} asks for {answer.asks} from pool {answer.pool}: {answer.phase}, {answer.reason}"
    if answer.message:
        yield f"  why      {answer.message}"
    yield from waiting(answer)


def waiting(answer: Answer) -> Iterator[str]:
    """Yields lines about the place in the queue, the claims to wait for, and shares that would start at once."""
    if answer.position:
        before = f", behind {_some(answer.ahead)}" if answer.ahead else ", it is the next"
        yield f"  queue    place {answer.position} of pool {answer.pool}{before}"
    for holder in answer.holders[:_MOST_NAMED]:
        yield (
            f"  ends     {holder.claim} has had {holder.has} for {format_duration(holder.held_seconds)}, "
            f"probably for another {_about(holder.ends_in_seconds)}"
        )
    if (rest := len(answer.holders) - _MOST_NAMED) > 0:
        yield f"  ends     and {rest} more claims"
    if answer.starts_in_seconds is not None:
        yield f"  starts   probably in {_about(answer.starts_in_seconds)}: {answer.estimate}"
    elif answer.position:
        yield "  starts   not known: no claim's end alone makes room for it"
    if answer.smaller:
        yield f"  now      a share of {' or '.join(answer.smaller)} would start at once"
    elif answer.position:
        yield "  now      no smaller share would start at once"


def _other_than_waiting(pod: Object) -> str:
    """Returns the reason why a pod does not wait for a share; empty if it does wait."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    if pod["metadata"].get("labels", {}).get(POD_LABEL) != POD_LABEL_VALUE:
        return (
            f"{name} asks for no share of a GPU, or was made past the webhook: give a container the limit "
            "remotegpu/fraction; `remotegpu doctor --cluster` says whether the webhook is called"
        )
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]
    if GATE in gates:
        if others := [gate for gate in gates if gate != GATE]:
            return (
                f"{name} has scheduling gate {', '.join(others)}, which is another's, and no share before it is gone: "
                "ask whoever put it there, as by `kubectl get workloads` for Kueue"
            )
        return ""
    phase = pod.get("status", {}).get("phase", "Pending")
    unmet = [each for each in pod.get("status", {}).get("conditions", ()) if each["status"] != "True"]
    if phase != "Pending" or not unmet:
        return f"{name} has its share and is {phase}"
    told = f"{unmet[0]['type']}: {unmet[0].get('message') or unmet[0].get('reason', '')}"
    return f"{name} has its share and waits for something else: {told}; see `kubectl describe pod`"


def claim_name(cluster: Cluster, namespace: str, name: str, is_claim: bool) -> str:
    """Returns the name of the claim: `name`, or the claim of the pod `name`. Raises RefusedError."""
    return name if is_claim else _claim_of(cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}"))


def _claim_of(pod: Object) -> str:
    """Returns the name of the claim that a pod uses."""
    metadata: Mapping[str, Any] = pod["metadata"]
    named = (metadata.get("annotations") or {}).get(CLAIM_ANNOTATION)
    return str(named) if named else pod_claim_name(metadata["name"], metadata["uid"])


def unreadable(namespace: str, name: str, error: Exception) -> exits.CliError:
    """Returns the error for a claim that cannot be read."""
    told = f"GPUClaim {namespace}/{name} cannot be read: {error}; correct it with `kubectl edit`"
    return exits.CliError(exits.USAGE, told)


def next_step(error: RefusedError) -> str:
    if error.status == 403:
        return f"{error}: ask somebody who may; `remotegpu why` needs all claims, pools and quotas"
    if error.status == 404:
        return f"{error}: name another one, or its namespace with -n; --claim takes the name of a GPUClaim"
    return f"{error}: see `remotegpu doctor --cluster`"


def _some(names: tuple[str, ...]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _about(seconds: int) -> str:
    """Formats an estimated duration, rounded down to whole minutes, tens of seconds or seconds."""
    step = 60 if seconds >= 600 else 10 if seconds >= 60 else 1
    return f"about {format_duration(seconds // step * step)}" if seconds else "some moments"

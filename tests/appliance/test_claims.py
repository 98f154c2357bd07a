"""An appliance in Kubernetes: claims and tokens on the real API server decide who gets what."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from support.apiserver import ApiServer
from support.claims import OPERATOR, SYSTEM, Claim, ClaimAppliance, Cluster, Pod, PodTenant, refusal
from support.system import MIB, Watch, until

from remotegpu.api.claims import Move, Phase
from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.kubernetes import AUDIENCE, appliance_audience, pool_audience

SHARE = 256 * MIB
# What is promised: a refusal within a second, the end of a deleted claim's sessions within ten.
REFUSED_SECONDS = 1.0
REVOKED_SECONDS = 10.0
POOL = pool_audience("default")


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer) -> Cluster:
    return Cluster(apiserver)


@pytest.fixture(scope="module")
def appliance(dist: Path, cluster: Cluster) -> Iterator[ClaimAppliance]:
    with ClaimAppliance(dist, cluster, "--gpus", "2", "--pool", "default") as it:
        until(it.ready, 10, "the claims are known")
        yield it


@dataclass(frozen=True)
class Team:
    """A namespace and two pods of it."""

    namespace: str
    pod: Pod
    other: Pod


@pytest.fixture(scope="module")
def team(cluster: Cluster) -> Team:
    namespace = cluster.namespace()
    return Team(namespace, cluster.pod(namespace), cluster.pod(namespace))


@pytest.fixture
def claim(cluster: Cluster, appliance: ClaimAppliance, team: Team) -> Iterator[Claim]:
    """Creates a claim for the team's first pod. Afterwards deletes the namespace's claims and waits for their end."""
    made = cluster.claim(team.namespace, appliance.place(SHARE), consumers=[team.pod])
    until(lambda: appliance.served(made), 5, "the appliance has seen the claim")
    yield made
    cluster.delete_claims(team.namespace)
    until(lambda: appliance.leased == 0, REVOKED_SECONDS, "all memory is free again")


def test_a_pod_gets_exactly_what_its_claim_says(appliance: ClaimAppliance, claim: Claim, team: Team) -> None:
    tenant = appliance.tenant(claim, team.pod)
    (device,) = tenant.hello().devices
    assert (device.memory_bytes, device.gpu_uuid) == (SHARE, appliance.gpus[0].uuid)
    session = tenant.session()
    assert session.grant(SHARE) == SHARE
    assert session.grant(1) == 0
    lease = appliance.served(claim)
    assert lease is not None
    assert (lease.claim, lease.sessions) == (f"{claim.namespace}/{claim.name}", 1)
    (place,) = lease.places
    assert (place.gpu, place.leased_bytes, place.used_bytes) == (appliance.gpus[0].uuid, SHARE, SHARE)
    assert [gpu.leased_bytes for gpu in appliance.gpus] == [SHARE, 0]
    metric = f'remotegpu_claim_used_bytes{{claim="{claim.name}",gpu="{place.gpu}",namespace="{claim.namespace}"'
    assert metric in appliance.get("/metrics")[1]
    tenant.close_session(session)
    assert appliance.gpus[0].used_bytes == 0


def of_yesterday(cluster: Cluster, pod: Pod) -> str:
    """Returns an expired version of the pod's token, signed by the API server's own key."""
    header, payload, _ = pod.token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    claims |= {"exp": int(time.time()) - 60, "iat": int(time.time()) - 3660, "nbf": int(time.time()) - 3660}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    key = serialization.load_pem_private_key(cluster.server.ca_file.with_name("service-account.key").read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    signature = key.sign(f"{header}.{payload}".encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{header}.{payload}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def made_anew(cluster: Cluster, team: Team) -> str:
    """The token of a pod that is gone."""
    pod = cluster.pod(team.namespace)
    cluster.delete_pod(pod)
    return pod.token


@pytest.mark.parametrize(
    ("token", "status"),
    [
        (lambda cluster, team: team.other.token, "PERMISSION_DENIED"),
        (lambda cluster, team: cluster.pod(cluster.namespace()).token, "PERMISSION_DENIED"),
        (lambda cluster, team: cluster.token(SYSTEM, OPERATOR), "PERMISSION_DENIED"),
        (lambda cluster, team: cluster.operator_token("appliance-x"), "UNAUTHENTICATED"),
        (
            lambda cluster, team: cluster.token(team.namespace, pod=team.pod, audience=pool_audience("x")),
            "UNAUTHENTICATED",
        ),
        (lambda cluster, team: cluster.token(team.namespace), "PERMISSION_DENIED"),
        (lambda cluster, team: cluster.token(team.namespace, pod=team.pod, audience=None), "UNAUTHENTICATED"),
        (lambda cluster, team: made_anew(cluster, team), "UNAUTHENTICATED"),
        (lambda cluster, team: of_yesterday(cluster, team.pod), "UNAUTHENTICATED"),
        (lambda cluster, team: team.pod.token[:-8] + "AAAAAAAA", "UNAUTHENTICATED"),
        (lambda cluster, team: "no token at all", "UNAUTHENTICATED"),
        (lambda cluster, team: "", "UNAUTHENTICATED"),
    ],
    ids=[
        "pod",
        "namespace",
        "operator",
        "operator elsewhere",
        "other pool",
        "no pod",
        "audience",
        "deleted",
        "expired",
        "forged",
        "junk",
        "none",
    ],
)
def test_a_token_that_is_not_the_pods_is_refused(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team, token: Callable[..., str], status: str
) -> None:
    tenant = appliance.tenant(claim, token(cluster, team))
    name = f"{claim.namespace}/{claim.name}"
    for method in ("Hello", "OpenSession", "DeviceState"):
        asked = Watch()
        assert refusal(tenant.call, method, lease_id=claim.lease_id)[0] == status
        assert asked.within(REFUSED_SECONDS)
        assert len(appliance.audits(method, name)) == 1
    assert appliance.client.inventory().leases[0].sessions == 0


def test_the_pods_own_token_opens_no_other_claim(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team
) -> None:
    theirs = cluster.claim(team.namespace, appliance.place(SHARE), consumers=[team.other])
    until(lambda: appliance.served(theirs), 5, "the appliance has seen the claim")
    session = appliance.tenant(theirs, team.other).session()
    for method in ("Hello", "OpenSession", "DeviceState"):
        assert (
            refusal(appliance.tenant(theirs, team.pod).call, method, lease_id=theirs.lease_id)[0] == "PERMISSION_DENIED"
        )
    mine = appliance.tenant(claim, team.pod)
    assert refusal(mine.close_session, session)[0] == "PERMISSION_DENIED"
    assert refusal(mine.call, "Hello", lease_id="ab" * 16)[0] == "NOT_FOUND"
    assert refusal(mine.call, "Hello", lease_id="../x\n" * 100)[0] == "NOT_FOUND"
    assert all(len(line) < 1000 for line in appliance.audits())
    assert session.grant(MIB) == MIB, "the neighbour's session continues"


def test_a_pod_opens_closes_and_sees_nothing_beside_its_claim(
    appliance: ClaimAppliance, claim: Claim, team: Team
) -> None:
    mine = appliance.tenant(claim, team.pod)
    calls: dict[str, dict[str, Any]] = {
        "OpenLease": {"count": 1, "milli": 1000},
        "CloseLease": {"lease_id": claim.lease_id},
        "Inventory": {},
        "Health": {},
        "Drain": {"deadline_seconds": 0},
        "InviteLease": {"lease_id": claim.lease_id},
        "MoveLease": {"lease_id": claim.lease_id, "to": appliance.endpoint, "invitation": "ab" * 32},
        "SuspendLease": {"lease_id": claim.lease_id},
        "ResumeLease": {"lease_id": claim.lease_id},
        "ResizeLease": {"lease_id": claim.lease_id, "milli": 1000},
    }
    for method, fields in calls.items():
        assert refusal(mine.call, method, **fields)[0] == "PERMISSION_DENIED"
        assert appliance.audits(method)
    assert appliance.served(claim), "nothing has ended"
    with pytest.raises(ApplianceError) as refused:
        appliance.lease()
    assert refused.value.failure is Failure.DENIED


def test_pods_of_one_claim_share_its_limit_but_not_their_sessions(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team
) -> None:
    cluster.allocate(claim, appliance.place(SHARE), consumers=[team.pod, team.other])
    mine, theirs = appliance.tenant(claim, team.pod), appliance.tenant(claim, team.other)
    first, second = mine.session(), theirs.session()
    assert first.grant(SHARE - MIB) == SHARE - MIB
    assert second.grant(2 * MIB) == 0
    assert second.grant(MIB) == MIB
    assert refusal(mine.close_session, second)[0] == "PERMISSION_DENIED"

    cluster.allocate(claim, appliance.place(SHARE), consumers=[team.pod])
    assert "may no longer use the claim" in second.rest()
    until(lambda: first.grant(MIB) == MIB, 5, "the other pod's session continues, with what was freed")
    assert refusal(theirs.hello)[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "end",
    [
        lambda cluster, claim: cluster.delete_claim(claim),
        lambda cluster, claim: cluster.allocate(claim, phase=Phase.LOST),
        lambda cluster, claim: cluster.allocate(claim),
    ],
    ids=["deleted", "lost", "placed elsewhere"],
)
def test_the_sessions_of_an_ended_claim_end(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team, end: Callable[..., None]
) -> None:
    tenant = appliance.tenant(claim, team.pod)
    session = tenant.session()
    session.grant(MIB)
    end(cluster, claim)
    ended = Watch()
    assert "the lease has ended" in session.rest()
    assert ended.within(REVOKED_SECONDS)
    until(lambda: appliance.leased == 0, REVOKED_SECONDS, "its memory is free")
    assert refusal(tenant.open_session)[0] == "NOT_FOUND"


def test_a_claim_that_does_not_fit_becomes_a_lease_when_it_does(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team
) -> None:
    total = appliance.gpus[0].shareable_bytes
    late = cluster.claim(claim.namespace, appliance.place(total - SHARE + 1), consumers=[team.pod])
    until(lambda: appliance.audits("a lease", late.name), 5, "it is refused")
    assert appliance.leased == SHARE
    cluster.delete_claim(claim)
    assert appliance.tenant(late, team.pod).hello().devices[0].memory_bytes == total - SHARE + 1


def test_a_pod_that_drains_goes_on_and_its_successor_comes_after_its_sessions(
    cluster: Cluster, appliance: ClaimAppliance
) -> None:
    """The operator deletes the claim after the pod has ended, or if it cannot know: then containers may still run."""
    total = appliance.gpus[0].shareable_bytes
    namespace = cluster.namespace()
    drains, successor = cluster.pod(namespace), cluster.pod(namespace)
    claim = cluster.claim(namespace, appliance.place(total), consumers=[drains])
    session = appliance.tenant(claim, drains).session()
    cluster.ask_to_end(drains)
    # The token of a pod that is being deleted is valid, also one that a container started just now has.
    fresh = replace(drains, token=cluster.token(namespace, pod=drains))
    assert session.grant(MIB) == MIB
    late = appliance.tenant(claim, fresh).session()
    assert late.grant(MIB) == MIB

    cluster.delete_claim(claim)
    following = cluster.claim(namespace, appliance.place(total), consumers=[successor])
    assert appliance.tenant(following, successor).hello().devices[0].memory_bytes == total
    for each in (session, late):
        assert "the lease has ended" in each.rest()
    assert refusal(appliance.tenant(claim, fresh).open_session)[0] == "NOT_FOUND"
    # It has all of the GPU, and the next tests need a part of it.
    cluster.delete_claim(following)
    until(lambda: not appliance.served(following), 10, "the appliance has let go of the claim")


def test_the_sessions_of_an_ended_claim_end_before_others_have_its_memory(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team
) -> None:
    """Its worker stands still and does not end: what was placed on its GPU waits, and what was placed elsewhere not."""
    total = appliance.gpus[0].shareable_bytes
    session = appliance.tenant(claim, team.pod).session()
    worker = session.ask("pid")
    os.kill(worker, signal.SIGSTOP)
    try:
        cluster.delete_claim(claim)
        following = cluster.claim(team.namespace, appliance.place(total), consumers=[team.pod])
        elsewhere = cluster.claim(team.namespace, appliance.place(SHARE, gpu=1), consumers=[team.pod])
        until(lambda: appliance.served(elsewhere), 5, "the appliance has seen all three")

        def placed() -> bool:
            there = appliance.served(following) is not None
            assert not (there and stands(worker)), "the memory was given away before its session had ended"
            return there

        until(placed, REVOKED_SECONDS, "the appliance has ended the worker, and placed what waited for its memory")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def stands(pid: int) -> bool:
    """Whether a process is stopped, so that it is there and does nothing."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


@pytest.mark.parametrize("wrong", [{"gpu": "GPU-0"}, {"memory": 1}], ids=str)
def test_a_claim_with_an_invalid_status_becomes_no_lease(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team, wrong: dict[str, Any]
) -> None:
    bad = cluster.claim(claim.namespace, replace(appliance.place(SHARE), **wrong), consumers=[team.pod])
    until(lambda: appliance.audits("a lease", bad.name), 5, "it is refused")
    assert appliance.served(bad) is None
    assert appliance.served(claim), "the others are served"


def test_the_operators_token_counts_at_one_appliance(cluster: Cluster, appliance: ClaimAppliance, claim: Claim) -> None:
    """An appliance that receives the token cannot use it at another appliance, nor as a pod's token."""
    mine, theirs = cluster.operator_token(appliance.name), cluster.operator_token("appliance-of-mallory")
    # The token of the previous release's operator, as after a rollback.
    before = cluster.token(SYSTEM, OPERATOR)
    assert all(appliance.tenant(claim, token).call("Inventory").leases for token in (mine, before))
    for token in (theirs, cluster.token(SYSTEM, OPERATOR, audience=POOL)):
        asked = appliance.tenant(claim, token)
        for method in ("Inventory", "InviteLease", "Drain"):
            status, why = refusal(
                asked.call, method, **({"lease_id": claim.lease_id} if method == "InviteLease" else {})
            )
            assert status == "UNAUTHENTICATED", method
            assert "audience" in why


def test_a_pods_token_is_for_its_pool(cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team) -> None:
    """A token for all pools, which running pods have, is still accepted; but only where the claim is."""
    for audience in (POOL, AUDIENCE):
        token = cluster.token(team.namespace, pod=team.pod, audience=audience)
        assert appliance.tenant(claim, token).hello().devices
        elsewhere = cluster.claim(team.namespace, consumers=[team.pod])
        assert refusal(appliance.tenant(elsewhere, token).hello)[0] == "NOT_FOUND"
    for audience in (pool_audience("x"), appliance_audience(appliance.name)):
        token = cluster.token(team.namespace, pod=team.pod, audience=audience)
        assert refusal(appliance.tenant(claim, token).hello)[0] == "UNAUTHENTICATED"


def told_where(tenant: PodTenant) -> tuple[str, str]:
    """The status, and the new address that the reply names."""
    with pytest.raises(grpc.RpcError) as refused:
        tenant.hello()
    told: Any = dict(cast("Any", refused.value.trailing_metadata()) or ())
    return refused.value.code().name, str(told.get("remotegpu-moved", ""))


def test_where_a_claim_has_moved_is_told_to_its_pods_alone(cluster: Cluster, dist: Path, team: Team) -> None:
    outside = cluster.pod(cluster.namespace())
    with ClaimAppliance(dist, cluster, "--grace", "60s") as one, ClaimAppliance(dist, cluster, "--grace", "60s") as two:
        here, there = one.place(SHARE), two.place(SHARE)
        claim = cluster.claim(team.namespace, here, consumers=[team.pod])
        until(lambda: one.served(claim), 10, "it is served")
        cluster.allocate(claim, here, consumers=[team.pod], move=Move(one.name, (there,)))
        invited: list[str] = []

        def invite() -> bool:
            with contextlib.suppress(ApplianceError):
                invited.append(two.client.invite_lease(claim.lease_id))
            return bool(invited)

        until(invite, 10, "the other one has heard that the claim moves there")
        with one.client.move_lease(claim.lease_id, two.client, invited[0]) as progress:
            assert list(progress)
        cluster.allocate(claim, there, consumers=[team.pod])
        until(lambda: two.served(claim), 10, "it is there")
        status, where = told_where(one.tenant(claim, team.pod))
        assert (status, json.loads(where)["endpoint"]) == ("NOT_FOUND", two.endpoint)
        for stranger in (team.other, outside):
            assert told_where(one.tenant(claim, stranger)) == ("PERMISSION_DENIED", "")
        assert told_where(one.tenant(claim, "")) == ("UNAUTHENTICATED", "")
        # A later pod, at the address of the earlier one.
        cluster.allocate(claim, there, consumers=[team.other])
        until(lambda: told_where(one.tenant(claim, team.other))[0] == "NOT_FOUND", 10, "it is told")
        assert told_where(one.tenant(claim, team.pod)) == ("PERMISSION_DENIED", "")
        cluster.delete_claim(claim)
        until(lambda: told_where(one.tenant(claim, team.other))[0] == "PERMISSION_DENIED", 10, "nobody is")


def test_what_it_has_no_room_for_it_reports_until_it_has(
    cluster: Cluster, appliance: ClaimAppliance, claim: Claim, team: Team
) -> None:
    """A status that no operator wrote: two claims that are more than a GPU, and one for a GPU that is elsewhere."""

    def reported() -> set[str]:
        return {each.lease_id for each in appliance.client.inventory().unserved}

    assert reported() == set()
    whole = cluster.claim(team.namespace, appliance.place(appliance.gpus[0].shareable_bytes), consumers=[team.pod])
    strange = replace(appliance.place(SHARE), gpu="GPU-elsewhere")
    elsewhere = cluster.claim(team.namespace, strange, consumers=[team.pod])
    until(lambda: reported() == {whole.lease_id, elsewhere.lease_id}, 5, "both are refused")
    assert appliance.served(claim) is not None, "the claim that has its share keeps it"
    why = {each.lease_id: each.why for each in appliance.client.inventory().unserved}
    assert "GPU-elsewhere" in why[elsewhere.lease_id]
    cluster.delete_claim(claim)
    until(lambda: appliance.served(whole) is not None, REVOKED_SECONDS, "there is room now")
    assert reported() == {elsewhere.lease_id}
    cluster.delete_claim(elsewhere)
    until(lambda: reported() == set(), 5, "nothing is refused")

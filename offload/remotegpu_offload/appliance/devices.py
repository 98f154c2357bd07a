"""Decides how sessions of an environment reach an accelerator, and checks their conditions. Pure except for `stage`."""

import secrets
import shutil
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from remotegpu.appliance.machine.staging import Staging
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.sessions.state import Lease
from remotegpu.appliance.settings import EnvironmentOption
from remotegpu.appliance.shares.allocation import LeasedGpus
from remotegpu.appliance.shares.grants import Quota
from remotegpu.appliance.shares.views import PhysicalGpu, devices_of_lease
from remotegpu.frameworks import use_client
from remotegpu.paths import Dist
from remotegpu_offload.acceptor.environment import NODES, VISIBLE

# The memory of each GPU for a self-test: more than torch needs for one small result.
_SELF_TEST_BYTES: Final = 64 << 20
_SELF_TEST_SESSIONS: Final = 2


class Access(Enum):
    """How a session reaches an accelerator. The sandbox admits device nodes only for OPEN."""

    NONE = auto()
    SHARE = auto()  # CUDA through the client's library and a worker, like every other program
    OPEN = auto()  # the session opens the devices itself


def access_of(option: EnvironmentOption, *, real: bool) -> Access:
    """Returns the access of an environment's sessions.

    `real`: the appliance has NVIDIA GPUs. The software GPU is used only if the option names `cuda`.
    """
    if option.backend in ("rocm", "xpu"):
        return Access.OPEN
    if option.backend == "cpu" or not (real or option.backend):
        return Access.NONE
    return Access.OPEN if option.direct else Access.SHARE


def refusal_of(option: EnvironmentOption) -> str:
    """Returns the reason why the appliance cannot serve this environment; "" if it can."""
    if option.backend not in ("rocm", "xpu") or option.exclusive:
        return ""
    return (
        f"nothing can hold sessions on {option.backend} to a part of a device: write "
        f"--offload {option.name}={option.python}:{option.backend},exclusive (in a pool: exclusive: true), then each "
        "session needs a lease of every GPU of the appliance as a whole"
    )


def refusal_of_lease(option: EnvironmentOption, placement: LeasedGpus, shareable: Sequence[int]) -> str:
    """Returns the reason why this lease cannot use an exclusive environment; "" if it can."""
    whole = dict(zip(placement.gpus, placement.sizes, strict=True))
    if not option.exclusive or all(whole.get(gpu, 0) >= size for gpu, size in enumerate(shareable)):
        return ""
    return (
        f"environment {option.name} is exclusive, because nothing holds its sessions to a part of a device, and this "
        f"lease is not all of the appliance's {len(shareable)} GPUs: ask for them as a whole (`-n {len(shareable)}` "
        "without -p and -m; in a pod, a fraction of as many), or name another environment"
    )


def nodes_of(option: EnvironmentOption, access: Access) -> tuple[str, ...]:
    """Returns the prefixes of the names of the device nodes that the sandbox admits."""
    return NODES[option.backend or "cuda"] if access is Access.OPEN else ()


def state_of(option: EnvironmentOption, access: Access) -> tuple[str, bool]:
    """Returns a sentence for users on how sessions reach their devices, and whether their share is unlimited."""
    match access:
        case Access.NONE:
            return "", False
        case Access.SHARE:
            return "sessions use CUDA through workers, within the budget of their lease", False
    if option.exclusive:
        return "each session opens the devices itself, and has all GPUs of the appliance (exclusive)", False
    return (
        "sessions open NVIDIA's device nodes themselves (direct): neither the memory that they take nor which GPUs "
        "they use is limited",
        True,
    )


def visible(access: Access, backend: str, listed: str) -> dict[str, str]:
    """Returns the variables that show a session only its own devices.

    `listed`: the devices as the back end names them.
    """
    hidden = {name: "" for names in VISIBLE.values() for name in names}
    if access is Access.SHARE:
        # The client's library shows the lease's devices.
        return {name: value for name, value in hidden.items() if name not in VISIBLE["cuda"]}
    return hidden | (dict.fromkeys(VISIBLE[backend], listed) if access is Access.OPEN else {})


def stage(staging: Staging, dist: Dist) -> Dist:
    """Copies the files that a CUDA session loads to a folder that every user can read."""
    root = staging.folder("cuda")
    for folder in (dist.client, dist.native / "stand-ins", dist.frameworks):
        if folder.is_dir():
            shutil.copytree(folder, root / folder.relative_to(dist.root), symlinks=True, dirs_exist_ok=True)
    if dist.ptxas.exists():
        shutil.copy(dist.ptxas, root / dist.ptxas.relative_to(dist.root))
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    return Dist(root)


def client_variables(dist: Dist, *, software: bool) -> Mapping[str, str]:
    """Returns the variables of a zygote whose sessions use CUDA through the client's library."""
    variables: dict[str, str] = {}
    use_client(variables, dist, software=software)
    return variables


def self_test_lease(gpus: Sequence[PhysicalGpu], access: Access) -> Lease:
    """Makes the lease of an environment's self-test, which no client sees.

    With access SHARE the lease has a little memory of each GPU. That memory is outside the part that leases can have:
    it comes from the reserve for an idle session's context.
    """
    lease_id = secrets.token_hex(16)
    places = tuple(range(len(gpus))) if access is Access.SHARE else ()
    sizes = (_SELF_TEST_BYTES,) * len(places)
    quotas = [Quota(size) for size in sizes]
    devices = devices_of_lease(gpus, places, lease_id, sizes)
    sessions = (_SELF_TEST_SESSIONS,) * len(places)
    return Lease(lease_id, "", "self-test", LeasedGpus(places, sizes), devices, quotas, Exports(quotas), sessions)

"""The installed chart: its parts, how they are found, and what they report when a test has failed."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from typing import Final

from support.checker import SYSTEM, ready
from support.kubectl import CLUSTER, ROOT, Kubectl, KubectlError, Object
from support.system import until

from remotegpu.api.kubernetes import APPLIANCE_LABEL, COMPONENT_LABEL, DEFAULT_POOL, POOL_LABEL

RELEASE: Final = "remotegpu"
CHART: Final = ROOT / "charts" / "remotegpu"
LOCK: Final = ROOT / "target" / "e2e" / "helm.lock"
# Two nodes with one software GPU each: what every test may count on.
VALUES: Final = ROOT / "e2e" / "values.yaml"


class Installation:
    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def upgrade(self, *more: str) -> None:
        """`helm upgrade --install` with the values of the tests; sessions of pytest take turns."""
        LOCK.parent.mkdir(parents=True, exist_ok=True)
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            arguments = ["--namespace", SYSTEM, "--create-namespace", "--values", str(VALUES), "--wait", "--timeout=4m"]
            # A release left by an interrupted run would keep helm from beginning.
            pending = f"owner=helm,name={RELEASE},status in (pending-install,pending-upgrade,pending-rollback)"
            self.kubectl("delete", "secrets", "-n", SYSTEM, "-l", pending)
            self.kubectl.helm("upgrade", "--install", RELEASE, str(CHART), *arguments, *builds(), *more)

    def pods(self, component: str, **labels: str) -> list[Object]:
        """Pods of a part that are not being deleted: operator, webhook, deviceplugin, appliance."""
        pods = self.kubectl.all("pods", SYSTEM, {COMPONENT_LABEL: component, **labels})
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def appliances(self, pool: str = DEFAULT_POOL) -> list[Object]:
        return self.pods("appliance", **{POOL_LABEL: pool})

    def appliance(self, name: str) -> Object | None:
        return next(iter(self.pods("appliance", **{APPLIANCE_LABEL: name})), None)

    def wait_until_ready(self, seconds: float = 120) -> None:
        """Waits until every pod of every part is ready, and each pool has its appliances."""
        last: list[str] = []

        def all_ready() -> bool:
            nonlocal last
            # Only what something keeps alive: the pod of `helm test` ends.
            pods = [pod for pod in self.kubectl.all("pods", SYSTEM) if "ownerReferences" in pod["metadata"]]
            last = [pod["metadata"]["name"] for pod in pods if not ready(pod)]
            last += [pool["metadata"]["name"] for pool in self.kubectl.all("gpupools") if not pool_ready(pool)]
            return bool(pods) and not last

        try:
            until(all_ready, seconds, "the installation is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}; not ready: {', '.join(last)}") from None

    def leader(self) -> Object:
        """The operator's pod that holds the Lease."""
        lease = self.kubectl.get("lease", "remotegpu-operator", SYSTEM)
        holder = lease["spec"]["holderIdentity"] if lease else ""
        return next(pod for pod in self.pods("operator") if holder.startswith(pod["metadata"]["name"]))

    def save_state(self, folder: Path) -> None:
        """Saves logs of all parts and the cluster's description of them."""
        folder.mkdir(parents=True, exist_ok=True)
        for arguments, file in (
            (("get", "gpupools,gpuclaims,pods", "-A", "-o", "wide"), "objects.txt"),
            (("get", "events", "-A", "--sort-by=.lastTimestamp"), "events.txt"),
            (("get", "gpupools,gpuclaims", "-A", "-o", "yaml"), "pools-and-claims.yaml"),
        ):
            with contextlib.suppress(KubectlError):
                (folder / file).write_text(self.kubectl(*arguments))
        with contextlib.suppress(KubectlError):
            for pod in self.kubectl.all("pods", SYSTEM):
                name = pod["metadata"]["name"]
                for previous in (False, True):
                    with contextlib.suppress(KubectlError):
                        log = self.kubectl("logs", "-n", SYSTEM, name, "--all-containers", f"--previous={previous}")
                        (folder / f"{name}{'.previous' if previous else ''}.log").write_text(log)


def builds() -> list[str]:
    """Returns Helm values that name each image's build to its pods: a new build under the old tag replaces them."""
    values = []
    for component, image in (("operator", "operator"), ("webhook", "operator"), ("devicePlugin", "deviceplugin")):
        key = (CLUSTER / "images" / f"localhost_remotegpu-{image}_dev.key").read_text().strip()
        values.append(f"--set-string={component}.podAnnotations.build={key}")
    return values


def pool_ready(pool: Object) -> bool:
    return str(pool.get("status", {}).get("phase")) == "Ready"

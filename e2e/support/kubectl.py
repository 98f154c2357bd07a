"""kubectl, as a person types it, with answers as Python values."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "target" / "cluster"

Object = dict[str, Any]


class KubectlError(Exception):
    """The message that kubectl or helm wrote to stderr."""


class Kubectl:
    """kubectl and helm for one cluster. `access` holds the arguments that name the cluster and the user."""

    def __init__(self, access: Sequence[str]) -> None:
        self.access = tuple(access)

    @classmethod
    def of_environment(cls) -> Kubectl:
        """The cluster of `make cluster`, or of the user's kubeconfig the context that REMOTEGPU_E2E_CONTEXT names."""
        context = os.environ.get("REMOTEGPU_E2E_CONTEXT")
        return cls([f"--context={context}"] if context else [f"--kubeconfig={CLUSTER / 'admin.kubeconfig'}"])

    def command(self, *arguments: str) -> list[str]:
        return [str(CLUSTER / "bin" / "kubectl"), *self.access, *arguments]

    def helm(self, *arguments: str, seconds: float = 300) -> str:
        access = [each.replace("--context", "--kube-context") for each in self.access]
        command = [str(CLUSTER / "bin" / "helm"), *access, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise KubectlError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def try_to(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> tuple[int, str, str]:
        """Returns exit status, stdout and stderr."""
        done = subprocess.run(self.command(*arguments), input=stdin, capture_output=True, text=True, timeout=seconds)
        return done.returncode, done.stdout, done.stderr

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        status, out, err = self.try_to(*arguments, stdin=stdin, seconds=seconds)
        if status:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {err.strip() or out.strip()}")
        return out

    def refusal(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs a command that must be refused; returns the error message."""
        status, out, err = self.try_to(*arguments, stdin=stdin)
        assert status, f"kubectl {' '.join(arguments)} was not refused: {out}{err}"
        return err.strip()

    def as_user(self, user: str) -> Kubectl:
        return Kubectl([*self.access, f"--as={user}"])

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None if there is none."""
        out = self("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
        return json.loads(out) if out.strip() else None

    def all(self, kind: str, namespace: str | None = None, selector: Mapping[str, str] | None = None) -> list[Object]:
        """All objects of a kind, in one namespace or in all."""
        where = ["-n", namespace] if namespace else ["-A"]
        chosen = ["-l", ",".join(f"{key}={value}" for key, value in selector.items())] if selector else []
        items: list[Object] = json.loads(self("get", kind, *where, *chosen, "-o", "json"))["items"]
        return items

    def apply(self, *objects: Object, namespace: str = "default") -> None:
        self("apply", "-n", namespace, "-f", "-", stdin=as_list(objects))

    def create(self, *objects: Object, namespace: str = "default", seconds: float = 60) -> None:
        self("create", "-n", namespace, "-f", "-", stdin=as_list(objects), seconds=seconds)


def as_list(objects: Sequence[Object]) -> str:
    """Returns the objects as one document for kubectl."""
    if len(objects) == 1:
        return json.dumps(objects[0])
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})

"""The programs a cluster needs on this machine: Debian packages, and those built from Go modules with a build cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.control_plane import PROGRAMS
from cluster.progress import step

HERE = Path(__file__).parent
POLICY = Path("/usr/sbin/policy-rc.d")

# For each package, a program that it brings.
PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "ipset": "ipset",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "sysctl": "procps",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    # The loader of an image that does not have glibc.
    "/lib/x86_64-linux-musl/libc.so": "musl",
}
KUBE = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
    "kube-netpol",
)


@dataclass(frozen=True)
class GoProgram:
    """A program built from Go. `source` is a folder of ours with a module, or a versioned package of another module."""

    name: str
    source: str
    version: str = ""

    def command(self) -> list[str]:
        flags = ["go", "build", "-trimpath"]
        if not self.version:
            return ["go", "install", "-trimpath", self.source]
        major, minor = self.version.removeprefix("v").split(".")[:2]
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        linked = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())
        return [*flags, "-ldflags", f"-s -w {linked}", "-o", str(PROGRAMS / self.name), "."]

    @property
    def folder(self) -> Path:
        return HERE / self.source if self.version else HERE

    def key(self) -> str:
        """Returns a digest of everything that the program is made of."""
        digest = hashlib.sha256(" ".join(self.command()[1:]).replace(str(PROGRAMS), "").encode())
        for file in sorted(self.folder.glob("*")) if self.version else ():
            if file.suffix in {".go", ".mod", ".sum"}:
                digest.update(file.read_bytes())
        return digest.hexdigest()


GO_PROGRAMS = (
    GoProgram("kube", ".", "v1.34.4"),
    GoProgram("helm", "helm.sh/helm/v3/cmd/helm@v3.19.5"),
    GoProgram("kube-apiserver-newest", "newest", "v1.37.1"),
)


def install() -> None:
    """Installs everything that is missing."""
    _install_packages()
    for program in GO_PROGRAMS:
        _build(program)
    for name in KUBE:
        link = PROGRAMS / name
        if not link.is_symlink():
            link.symlink_to("kube")


def _install_packages() -> None:
    packages = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"the cluster needs the Debian packages {' '.join(packages)}; install them, or run as root")
    with step(f"Debian packages {' '.join(packages)}"), _no_services():
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "-qq", *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keeps packages from starting services: etcd and containerd would take the cluster's ports and folders."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def _build(program: GoProgram) -> None:
    stamp = PROGRAMS / f".{program.name}.key"
    if (PROGRAMS / program.name).exists() and stamp.exists() and stamp.read_text() == program.key():
        return
    if shutil.which("go") is None:
        raise RuntimeError(f"building {program.name} needs Go 1.26 or newer; install it and run the same again")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    with step(f"Go program {program.name} (minutes the first time)"):
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(PROGRAMS)}
        subprocess.run(program.command(), cwd=program.folder, env=environment, check=True)
    stamp.write_text(program.key())

"""Generates the list of packages: those that apt would install from trixie, except the driver's libraries and cuDNN.

Run it when the mirrors have dropped a version of the list:

PYTHONPATH=tools python -m torch_bed.resolve >tools/torch_bed/packages.txt
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from torch_bed import fetch, packages

SUITE: Final = "trixie main contrib non-free"
WANTED: Final = (
    "python3-torch-cuda",
    "libopenblas0-pthread",
    "python3-scipy",
    "python3-setuptools",
    "python3-torchvision",
)
# Packages that are needed to install others, but not to run them.
LEFT_OUT: Final = frozenset(
    [
        "adduser",
        "base-passwd",
        "ca-certificates",
        "debconf",
        "dpkg",
        "login.defs",
        "openssl",
        "passwd",
        "python3-minimal",
    ]
)
STAND_IN: Final = """\
Package: stand-in
Status: install ok installed
Maintainer: nobody <nobody@localhost>
Architecture: amd64
Version: 1
Provides: nvidia-cudnn (= 9.5.1.17), libcuda1 (= 580), libcuda.so.1 (= 580), libnvidia-ml1 (= 580),
 libnvidia-ml.so.1 (= 580)
Description: what remotegpu and the stub of cuDNN stand for

"""
HEAD: Final = """\
What `make torch-bed` unpacks: Debian trixie's torch 2.6 with CUDA 12.4 and all that it needs, for amd64.
Name, version, SHA-256, size and path below a mirror; `python -m torch_bed.resolve` makes the list anew."""


def within(root: Path, mirror: str) -> list[packages.Package]:
    (root / "lists" / "partial").mkdir(parents=True)
    (root / "status").write_text(STAND_IN)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (root / "sources.list").write_text(f"deb [arch=amd64 signed-by={keys}] {mirror} {SUITE}\n")
    (root / "apt.conf").write_text(
        f'Dir::State::lists "{root}/lists"; Dir::State::status "{root}/status"; Dir::Cache "{root}/cache";\n'
        f'Dir::Etc::sourcelist "{root}/sources.list"; Dir::Etc::sourceparts "/dev/null";\n'
        'APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Sandbox::User "root";\n'
    )
    environment = os.environ | {"APT_CONFIG": str(root / "apt.conf"), "LC_ALL": "C"}

    def apt(*command: str) -> str:
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    apt("apt-get", "-qq", "update")
    planned = apt("apt-get", "install", "--simulate", "--no-install-recommends", *WANTED)
    named = [line.split()[1:3] for line in planned.splitlines() if line.startswith("Inst ")]
    exact = [f"{name}={version.lstrip('(')}" for name, version in named if name not in LEFT_OUT]
    return packages.stanzas(apt("apt-cache", "show", *exact))


def main() -> int:
    mirrors = packages.bases(fetch.sources(), os.environ.get("REMOTEGPU_DEBIAN_MIRROR", ""))
    with tempfile.TemporaryDirectory() as folder:
        print(packages.write(within(Path(folder), mirrors[0]), HEAD), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The list of the only paths that a session may read. docs/offload.md describes it for users."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

# Programs, libraries and their data. Users keep no files there.
_SYSTEM: Final = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store")
# The entries of /etc that libraries read. None tells how this machine is administered, or who has which rights.
_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts",
    "gai.conf", "group", "host.conf", "hostname", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "mime.types", "nsswitch.conf", "OpenCL",
    "os-release", "passwd", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols",
    "resolv.conf", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan",
    "xml",
)  # fmt: skip
# The files in which libraries look up processors, memory and its limits.
_PROC: Final = (
    "cpuinfo", "devices", "driver/nvidia", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version",
    "vmstat",
)  # fmt: skip
_SYS: Final = ("bus", "class", "dev", "devices", "fs/cgroup", "kernel/mm", "module")
# Files of accelerators that a session needs if it opens the devices itself.
_ACCELERATORS: Final = ("/etc/amd", "/etc/nvidia", "/opt/amdgpu", "/opt/intel", "/opt/nvidia", "/opt/rocm")
_MAPPED_FILE: Final = re.compile(r"(/[^\n]*\.so[^\n/]*)$", re.MULTILINE)


def readable(named: Sequence[Path], *, own_processes: bool, accelerators: bool) -> list[Path]:
    """Returns the paths that a session of this interpreter may read.

    Args:
        named: further paths, from the administrator.
        own_processes: /proc shows only the session's processes.
        accelerators: the session opens the devices itself.
    """
    proc = ["/proc"] if own_processes else ["/proc/self", *(f"/proc/{name}" for name in _PROC)]
    system = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *(f"/sys/{name}" for name in _SYS), *proc]
    system += _ACCELERATORS if accelerators else ()
    return [*map(Path, system), *needed(), *_mapped(), *named]


def needed() -> list[Path]:
    """Returns the paths that this interpreter needs: its own installation, and every folder on its path."""
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, *(entry for entry in sys.path if entry)]
    # A virtual environment is found by a link that lies in it, so the link's own folder counts too.
    places += [str(Path(sys.executable).parent), str(Path(sys.executable).resolve().parent)]
    places += [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    places += [str(Path(program).parent) for program in [os.environ.get("TRITON_PTXAS_PATH")] if program]
    return list(outermost(Path(os.path.realpath(place)) for place in places))


def outermost(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the paths that do not lie below another one."""
    chosen: list[Path] = []
    for path in sorted(set(paths), key=lambda one: len(one.parts)):
        if path != Path("/") and not any(path.is_relative_to(one) for one in chosen):
            chosen.append(path)
            yield path


def _mapped() -> list[Path]:
    """Returns the libraries that this process has loaded, from any folder, because programs that it starts load
    them."""
    return sorted({Path(name) for name in _MAPPED_FILE.findall(Path("/proc/self/maps").read_text(errors="replace"))})

"""The client's files on the node, one folder for each version: a running container keeps the version it started with.

A restarted container gets the same mounts as at the first start of its pod. So a version stays on the node while the
kubelet's checkpoint lists a pod that uses it.
"""

import base64
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from remotegpu_deviceplugin._generated.deviceplugin_pb2 import ContainerAllocateResponse

# The kubelet's checkpoint file, next to the kubelet's socket. The file has the plugins' answers for each pod. Its
# format is not public: if the file has an unexpected form, `remove_unused` removes nothing.
CHECKPOINT: Final = "kubelet_internal_checkpoint"

_LEFT_SECONDS: Final = 600.0
_ALL_ADD: Final = 0o1777

_log = logging.getLogger(__name__)


class InstallError(Exception):
    """The client's files cannot be written to the node's disk; the message says why and what to do."""


def install(source: Path, host: Path) -> Path:
    """Copies `source` to a folder in `host` that is named by a hash of its content, and returns that folder.

    An existing complete copy is not copied again. Raises InstallError if the disk cannot be written. Then the
    unfinished copy is removed, and the other versions stay.
    """
    try:
        return _install(source, host)
    except OSError as error:
        # shutil.Error has the errors of many files: the first one is enough for the message.
        reason = error.strerror or (error.args[0][0][2] if isinstance(error, shutil.Error) else error)
        raise InstallError(
            f"the client's files cannot be written to {host} ({reason}): make room on the node's disk, or make it "
            f"writable; no pod with a share starts on this node until then"
        ) from None


def _install(source: Path, host: Path) -> Path:
    host.mkdir(mode=0o755, parents=True, exist_ok=True)
    for leftover in host.glob(".new-*"):
        # A younger folder may belong to another plugin that starts on this node at the same time.
        if time.time() - leftover.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(leftover)
    version = host / _digest(source)
    if version.is_dir() and _digest(version) == version.name:
        return version
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=host))
    try:
        shutil.copytree(source, new, symlinks=True, dirs_exist_ok=True)
        new.chmod(0o755)
        for file in _files(new):
            with file.open("rb") as written:
                os.fsync(written.fileno())
        if version.is_dir() and _digest(version) == version.name:
            return version
        if version.exists():
            # The folder is incomplete since a crash of the machine. Running containers keep the files they mounted.
            shutil.rmtree(version)
        new.rename(version)
    finally:
        # The copy still exists if another plugin was faster, or if the disk was full.
        shutil.rmtree(new, ignore_errors=True)
    _log.info("the client's files are in %s", version)
    return version


def local_sockets(host: Path) -> Path | None:
    """Creates the folder for the local sockets of this node's appliances, next to `host`, and returns its path.

    Appliances do not run as root. The folder's sticky bit keeps an appliance from removing the socket of another.
    Returns None and logs a warning if the disk cannot be written: copies then go through the network.
    """
    folder = host.with_name("local")
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
        if folder.stat().st_mode & 0o7777 != _ALL_ADD:
            folder.chmod(_ALL_ADD)
    except OSError as error:
        _log.warning(
            "%s cannot be made (%s), so pods share no memory with appliances on this node and their copies take the "
            "network: make the node's disk writable, and start this pod again",
            folder,
            error.strerror,
        )
        return None
    return folder


def remove_unused(host: Path, current: Path, checkpoint: Path) -> None:
    """Removes the versions except `current` that no pod of this node uses, according to the kubelet's checkpoint."""
    others = [path for path in host.iterdir() if path.is_dir() and path != current]
    if not others:
        return
    try:
        used = used_versions(checkpoint, host)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, DecodeError) as error:
        _log.warning(
            "old versions of the client's files stay in %s: %s does not say which are used (%r)",
            host,
            checkpoint,
            error,
        )
        return
    for version in others:
        if version.name not in used:
            try:
                shutil.rmtree(version)
            except OSError as error:
                _log.warning("%s, which no pod uses, cannot be removed (%s)", version, error.strerror)
            else:
                _log.info("removed %s, which no pod uses", version)


def used_versions(checkpoint: Path, host: Path) -> set[str]:
    """Returns the names of the versions that pods of this node use, according to the kubelet's checkpoint.

    Raises an error of reading, JSON or protobuf if the checkpoint has an unexpected form.
    """
    used = set()
    for entry in json.loads(checkpoint.read_text())["Data"]["PodDeviceEntries"] or []:
        told = ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
        paths = [Path(mount.host_path) for mount in told.mounts]
        used |= {path.relative_to(host).parts[0] for path in paths if path.is_relative_to(host)}
    return used


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _digest(folder: Path) -> str:
    """Hashes all paths, file contents and link targets in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        if path.is_symlink():
            digest.update(f"{path.readlink()}\0".encode())
        elif path.is_file():
            with path.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]

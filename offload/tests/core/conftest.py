"""Fixtures that test files share: a session under the rules of the file's own `USER`, two peers, a program's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from offload_local import peer_pair
from offload_modules import UserModule
from offload_programs import Project

from remotegpu_offload.client.session import Session
from remotegpu_offload.wire import Peer


@pytest.fixture(scope="module")
def user(request: pytest.FixtureRequest) -> UserModule:
    """Returns the `USER` of the test file."""
    module: UserModule = request.module.USER
    return module


@pytest.fixture(scope="module")
def session(user: UserModule) -> Iterator[Session]:
    with user.session() as session:
        yield session


@pytest.fixture
def local(user: UserModule) -> ModuleType:
    """Returns the user's module as it is."""
    return user.load()


@pytest.fixture
def remote(user: UserModule, session: Session) -> ModuleType:
    """Returns the user's module with all that its rules name replaced."""
    return user.replaced(session)


@pytest.fixture
def pair() -> Iterator[tuple[Peer, Peer]]:
    """Yields the program's and the acceptor's end of one connection, both in this process."""
    with peer_pair() as peers:
        yield peers


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Makes an empty folder for a program, run locally and in an acceptor that cannot see it."""
    return Project(tmp_path)

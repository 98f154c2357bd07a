"""A training moves to another acceptor, or loses its own, and does not notice: its losses are the same bit for bit."""

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.offload import LocalAcceptors
from support.offload_armed import arm
from torch import nn

from remotegpu.offload.client.session import Session
from remotegpu.offload.config.model import Config, SessionRules
from remotegpu.offload.torch import device, link, state
from remotegpu.offload.wire.errors import LostError

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]

STEPS = 12


@pytest.fixture(scope="module")
def acceptors() -> LocalAcceptors:
    return LocalAcceptors()


@pytest.fixture(scope="module")
def session(acceptors: LocalAcceptors) -> Iterator[Session]:
    # Snapshots are taken when a test asks for one.
    rules = SessionRules(resume_seconds=60, snapshot_seconds=3600)
    yield from arm(Config(session=rules), acceptors)


class Training:
    """A little of everything: batch normalisation, dropout, momentum, a generator, a view, random batches."""

    def __init__(self, device_name: str = "cuda") -> None:
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 5)
        ).to(device_name)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.01)
        self.noise = torch.Generator(device_name).manual_seed(9)
        self.base = torch.zeros(40, device=device_name)
        self.row = self.base.view(8, 5)[3]
        self.device = device_name
        self.losses: list[float] = []

    def step(self) -> None:
        x = torch.randn(16, 1, 6, 6, device=self.device, generator=self.noise)
        y = torch.randint(5, (16,), device=self.device)
        loss = nn.functional.cross_entropy(self.net(x) + self.row, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.base += 0.01
        self.losses.append(loss.item())


@pytest.fixture(scope="module")
def undisturbed(session: Session) -> list[float]:
    training = Training()
    for _ in range(STEPS):
        training.step()
    return training.losses


def test_a_switch_in_mid_epoch_changes_nothing(session: Session, undisturbed: list[float]) -> None:
    training = Training()
    pids = set()
    for step in range(STEPS):
        training.step()
        pids.add(acceptor_pid(session))
        if step in {3, 7}:
            # In the middle of everything: operations have been queued and not sent.
            pending = training.row * 2
            session.switch()
            assert pending.shape == (5,)
    assert training.losses == undisturbed
    assert len(pids) == 3
    assert session.moves >= 2
    # Views still look at the same storage.
    assert training.row.tolist() == training.base[15:20].tolist()


def test_storages_stay_as_many_as_the_program_has(session: Session) -> None:
    training = Training()
    training.step()
    session.switch()
    there = link.ask({"op": "stats"}).header["storages"]
    assert there == len(device.current().storages)


def test_another_thread_switches_while_the_program_runs(session: Session, undisturbed: list[float]) -> None:
    training = Training()
    ended = threading.Event()
    failed: list[BaseException] = []

    def move() -> None:
        try:
            for _ in range(3):
                session.switch()
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    mover = threading.Thread(target=move)
    mover.start()
    while not ended.is_set() and len(training.losses) < 500:
        training.step()
    mover.join(120)
    assert not failed
    while len(training.losses) < STEPS:
        training.step()
    assert training.losses[:STEPS] == undisturbed


def test_a_killed_acceptor_is_made_up_for_from_its_snapshot_and_the_journal(
    session: Session, undisturbed: list[float]
) -> None:
    training = Training()
    for step in range(STEPS):
        if step in {2, 6}:
            session.snapshot()
        if step in {4, 5, 9}:
            pid = acceptor_pid(session)
            # Work is under way when it dies.
            queued = training.base * 3
            os.kill(pid, signal.SIGKILL)
            assert queued is not None
        training.step()
    assert training.losses == undisturbed


def test_a_kill_while_a_question_waits_is_answered_by_the_next_one(session: Session) -> None:
    x = torch.arange(1000.0, device="cuda")
    session.snapshot()
    for _ in range(3):
        x = x + 1
        pid = acceptor_pid(session)
        killer = threading.Timer(0.0, os.kill, (pid, signal.SIGKILL))
        killer.start()
        total = x.sum().item()
        mask = x > 500
        picked = x[mask].sum().item()
        killer.join()
        assert total == x.cpu().sum().item()
        assert picked == x.cpu()[mask.cpu()].sum().item()
    assert x[0].item() == 3.0


def test_resized_storages_and_failures_move_too(session: Session) -> None:
    x = torch.arange(4.0, device="cuda")
    alias = x.view(2, 2)
    x.resize_(6)
    bad = torch.arange(3, device="cuda")[torch.tensor([7], device="cuda")]
    with pytest.raises(IndexError, match="aten::index"):
        torch.cuda.synchronize()
    session.switch()
    alias[0, 0] = 9
    assert x[:4].tolist() == [9, 1, 2, 3]
    with pytest.raises(IndexError, match="aten::index"):
        bad.cpu()


def test_the_number_of_threads_moves_too(session: Session) -> None:
    try:
        torch.set_num_threads(3)
        assert link.ask({"op": "index"}).header["threads"] == 3
        session.switch()
        assert link.ask({"op": "index"}).header["threads"] == 3
    finally:
        torch.set_num_threads(1)


def test_generators_begin_anew_on_another_kind_of_device(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    part = session.parts["torch"]
    assert isinstance(part, state.TorchPart)
    with part.holding():
        saved = part.save(session.peer)
    assert saved.backend == "cpu" and saved.generators[0][0] == 0
    torch.manual_seed(77)
    want = torch.rand(3, device="cuda").tolist()
    torch.rand(5, device="cuda")
    original = part.save
    monkeypatch.setattr(part, "save", lambda peer: replace(original(peer), backend="cuda"))
    with pytest.warns(RuntimeWarning, match="random numbers begin anew"):
        session.switch()
    assert torch.rand(3, device="cuda").tolist() == want


def test_too_long_a_journal_is_said(session: Session) -> None:
    journal = device.current().stream.journal
    assert journal is not None
    session.snapshot()
    kept = torch.zeros(10, device="cuda")
    torch.cuda.synchronize()
    journal._limit = 1000
    try:
        kept += torch.rand(4000).cuda()[:10]
        torch.cuda.synchronize()
        os.kill(acceptor_pid(session), signal.SIGKILL)
        with pytest.raises(LostError, match=r"more was sent.*snapshots"):
            kept.tolist()
    finally:
        journal._limit = 1 << 30


def acceptor_pid(session: Session) -> int:
    connector: Any = session.connector
    return int(connector.processes[-1].pid)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield

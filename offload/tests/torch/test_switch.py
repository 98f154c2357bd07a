"""A training moves to another acceptor, or loses its own, and does not notice: its losses are the same bit for bit."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from offload_armed import arm
from offload_local import LocalAcceptors
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config, SessionRules
from remotegpu_offload.torch import device
from remotegpu_offload.torch.stream import link, state
from remotegpu_offload.wire.errors import LostError

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
    remote = link.ask({"op": "stats"}).header["storages"]
    assert remote == len(device.current().storages)


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


class Disturbed(TorchDispatchMode):  # type: ignore[misc] # torch is not typed here
    """Kills the acceptor just before the operation of this number, counted from 1, and waits until it has ended."""

    def __init__(self, session: Session, at: int = 0) -> None:
        super().__init__()
        self.operations = 0
        self._session = session
        self._at = at

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        if self.operations == self._at:
            connector: Any = self._session.connector
            connector.processes[-1].kill()
            connector.processes[-1].wait()
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def operations(session: Session) -> int:
    """How many operations the training has. Those of backward passes count where their thread has the mode too."""
    training = Training()
    with Disturbed(session) as mode:
        for _ in range(STEPS):
            training.step()
    return int(mode.operations)


@pytest.mark.parametrize("seed", range(6))
def test_an_acceptor_killed_at_a_random_operation_is_made_up_for(
    session: Session, undisturbed: list[float], operations: int, seed: int
) -> None:
    at = random.Random(seed).randint(1, operations)
    training = Training()
    before = acceptor_pid(session)
    # Taken at a random step too; before it there is what the last test has left and the journal.
    snapshot = random.Random(-seed).randrange(STEPS)
    with Disturbed(session, at):
        for step in range(STEPS):
            if step == snapshot:
                with contextlib.suppress(LostError):
                    session.snapshot()
            training.step()
    assert acceptor_pid(session) != before, f"operation {at} of {operations} was not reached"
    assert training.losses == undisturbed


@pytest.mark.parametrize("seed", range(3))
def test_without_resuming_the_error_of_a_random_operation_names_it(seed: int, operations: int) -> None:
    """In a process of its own, whose session is lost with its acceptor."""
    at = random.Random(seed).randint(1, operations)
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, str(at)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"acceptor local0 of this test is gone \(.*on_disconnect: resume.*"
        r"\[the last operation sent was aten::\w+(\.\w+)?\]",
        done.stdout.strip(),
    ), done.stdout


class Failing(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad @ torch.ones(7, 7, device=grad.device)


def _raise(_gradient: object) -> None:
    raise ValueError("in a hook")


@pytest.mark.parametrize("failing", ["hook", "function", "nested"])
def test_an_error_in_a_backward_pass_is_raised_where_it_began(session: Session, failing: str) -> None:
    def loss(device_name: str) -> torch.Tensor:
        x = torch.ones(3, 3, device=device_name, requires_grad=True)
        y = (x * 2).relu()
        if failing == "hook":
            y.register_hook(_raise)
        elif failing == "function":
            y = Failing.apply(y)
        else:
            y = torch.utils.checkpoint.checkpoint(lambda z: Failing.apply(z).sin(), y, use_reentrant=True)
        return (y + 1).sum()

    for _ in range(3):
        with pytest.raises((ValueError, RuntimeError)) as here:
            loss("cpu").backward()
        with pytest.raises(type(here.value)) as remote:
            loss("cuda").backward()
        assert str(remote.value).splitlines()[0] == str(here.value).splitlines()[0]
    # And the device is as good as before.
    x = torch.ones(3, device="cuda", requires_grad=True)
    assert torch.autograd.grad((x * 4).sum(), x)[0].tolist() == [4, 4, 4]


def lose(at: int) -> None:
    """Print the error of a training whose acceptor dies at this operation."""
    acceptors = LocalAcceptors()
    for opened in arm(Config(), acceptors):
        training = Training()
        try:
            with Disturbed(opened, at):
                for _ in range(STEPS):
                    training.step()
        except LostError as error:
            print(error)


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
    with pytest.warns(RuntimeWarning, match=r"\bcuda\b.*\bcpu\b"):
        session.switch()
    assert torch.rand(3, device="cuda").tolist() == want


def test_too_long_a_journal_is_reported(session: Session) -> None:
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
        with pytest.raises(LostError, match="`snapshots:`"):
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


if __name__ == "__main__":
    lose(int(sys.argv[1]))

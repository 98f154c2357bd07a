"""DataLoaders, pinned memory and forked children: workers stay on the CPU and leave the connection alone (trap 11)."""

import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from offload_armed import trips
from torch.utils.data import DataLoader, Dataset, TensorDataset

from remotegpu_offload.client.session import Session
from remotegpu_offload.torch.stream import link
from remotegpu_offload.torch.stream.stream import FORKED
from remotegpu_offload.wire.errors import LostError, OffloadError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.usefixtures("armed"),
    # torch says of every fork beside threads that it may hang.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Squares(Dataset):  # type: ignore[misc]
    """A dataset that reports which process read an item, and what that process sees of the device."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index * index, os.getpid(), int(torch.cuda.is_available())])


@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_feed_the_device(armed: Session, workers: int, pin: bool) -> None:
    kept = torch.ones(5, device="cuda")
    found, pids = [], set()
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers, pin_memory=pin, timeout=60 if workers else 0)
    for batch in loader:
        assert batch.device == torch.device("cpu")
        assert batch.is_pinned() == pin
        remote = batch.to("cuda", non_blocking=True)
        found += remote[:, 0].tolist()
        pids |= set(remote[:, 1].tolist())
        assert remote[:, 2].tolist() == [1] * 4
    assert found == [index * index for index in range(24)]
    assert (os.getpid() in pids) == (workers == 0)
    # The workers have ended; what they had inherited is still there.
    assert kept.sum().item() == 5


def test_persistent_workers_and_seeds() -> None:
    data = TensorDataset(torch.arange(12))
    loader = DataLoader(
        data, 4, shuffle=True, num_workers=1, persistent_workers=True, generator=torch.Generator().manual_seed(0)
    )
    rounds = [[int(x) for (batch,) in loader for x in batch.cuda().tolist()] for _ in range(2)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == list(range(12)) and rounds[0] != rounds[1]


@pytest.mark.timeout(120)
def test_workers_that_meet_tensors_of_the_device_say_so() -> None:
    """It is an error here, as with CUDA: the program does not wait for a batch that no worker can send."""
    data = TensorDataset(torch.arange(8.0, device="cuda"))
    with pytest.raises(OffloadError, match=re.escape(FORKED)):
        list(DataLoader(data, batch_size=2, num_workers=1))


def test_pinning_is_the_tensor_itself() -> None:
    x = torch.ones(3)
    assert not x.is_pinned()
    assert x.pin_memory() is x and x.is_pinned()
    assert torch.zeros(3, pin_memory=True).tolist() == [0, 0, 0]
    assert x.cuda(non_blocking=True).tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match=r"'torch\.cuda\.FloatTensor'"):
        torch.ones(3, device="cuda").pin_memory()


def test_a_forked_child_has_no_device_and_harms_nobody(armed: Session) -> None:
    tensor = torch.arange(4.0, device="cuda")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    before = trips(armed)
    child = context.Process(target=_in_a_child, args=(answers, tensor))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    told = [answers.get() for _ in range(4)]
    assert told[0] is True
    assert told[1:3] == [FORKED] * 2
    assert told[3] == 6.0
    # The child freed what it had inherited, and this process still has it.
    assert trips(armed) == before
    assert tensor.tolist() == [0, 1, 2, 3]


def _sum(make: Callable[[Any], Any], given: Any) -> float:
    return float(make(given).sum().item())


def _in_a_child(answers: Any, tensor: Any) -> None:
    answers.put(link.forked())
    for make in (lambda given: torch.zeros(2, device="cuda"), lambda given: given + 1):
        try:
            answers.put(f"it worked: {_sum(make, tensor)}")
        except (OffloadError, RuntimeError) as error:
            answers.put(str(error))
    torch.manual_seed(1)
    del tensor
    answers.put(torch.arange(4.0).sum().item())


def test_a_tensor_of_the_device_goes_to_no_other_process() -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    with pytest.raises(RuntimeError, match=r"\.cpu\(\).*--split app\b"):
        queue.put(torch.ones(2, device="cuda"))


def test_a_killed_acceptor_is_an_error_that_says_so(armed: Session) -> None:
    """Runs last, because nothing works afterwards: this session keeps no snapshots."""
    x = torch.ones(3, device="cuda")
    assert x.sum().item() == 3
    connector: Any = armed.connector
    os.kill(connector.processes[-1].pid, signal.SIGKILL)
    connector.processes[-1].wait(60)
    with pytest.raises(LostError, match=r"\bresume\b.*\baten::"):
        _sum(lambda given: given + 1, x)
    with pytest.raises(LostError):
        torch.cuda.synchronize()

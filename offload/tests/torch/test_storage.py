"""Storages of the remote device: their addresses, their ends, and that nothing stays behind."""

import copy
import gc
import os
import threading
from typing import Any

import pytest
import torch
from offload_torch import same, to_cpu, to_remote
from torch import nn

from remotegpu_offload.torch import codec, shown
from remotegpu_offload.torch.acceptor.executor import Executor, FailedError
from remotegpu_offload.torch.codec import FIRST_TEMPLATE, Meta, Template
from remotegpu_offload.torch.device import Remote
from remotegpu_offload.torch.errors import checked
from remotegpu_offload.torch.storage import Blueprint, Storages, address_of

pytestmark = pytest.mark.frameworks


def alive(remote: Remote) -> tuple[int, int]:
    """Storages at this end and at the other, after everything has been executed."""
    gc.collect()
    checked(remote.stream.ask("sync"))
    return len(remote.storages), int(checked(remote.stream.ask("stats")).header["storages"])


def test_an_address_tells_storage_and_place(remote: Remote) -> None:
    x = to_remote(torch.arange(12.0).view(3, 4))
    first = address_of(x)
    assert first >= codec.FLOOR
    assert first % (1 << codec.SHIFT) == 0
    assert address_of(x[1:, 2:]) == first + (4 + 2) * 4
    assert address_of(x[3:]) == first
    assert address_of(torch.ones(2)) == 0
    assert x.untyped_storage().nbytes() == 48
    assert x[1].untyped_storage().data_ptr() == first
    assert address_of(to_remote(torch.ones(4))) >> codec.SHIFT != first >> codec.SHIFT


def test_a_storage_ends_with_its_last_view(remote: Remote) -> None:
    before = alive(remote)
    x = to_remote(torch.ones(4, 4))
    view = x.t()[1:]
    del x
    assert alive(remote) == (before[0] + 1, before[1] + 1)
    same(view, torch.ones(3, 4))
    del view
    assert alive(remote) == before


def test_autograd_keeps_what_it_saved(remote: Remote) -> None:
    """A saved tensor has lost its Python object; its storage is there until the graph goes."""
    before = alive(remote)
    x = to_remote(torch.full((3,), 2.0)).requires_grad_()
    y = x.exp().sin().sum()
    gc.collect()
    y.backward()
    same(x.grad, torch.full((3,), 2.0).exp() * torch.full((3,), 2.0).exp().cos())
    del x, y
    assert alive(remote) == before


def test_slots_are_used_again(remote: Remote) -> None:
    """Or there would be an end to them after 16 million tensors."""
    x = to_remote(torch.ones(4))
    seen = set()
    for _ in range(1000):
        seen.add(address_of(x + 1) >> codec.SHIFT)
    assert len(seen) < 10
    same(x + 1, torch.full((4,), 2.0))


def test_steps_leave_nothing(remote: Remote) -> None:
    """After each of many training steps both ends have as many storages, templates and descriptions as before."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(shown.NAME)
    optimizer = torch.optim.AdamW(model.parameters())
    x = to_remote(torch.randn(6, 4))

    def step() -> None:
        optimizer.zero_grad()
        (model(x).square().mean() + x[x > 0].sum()).backward()
        optimizer.step()

    for _ in range(3):
        step()
    optimizer.zero_grad()
    before, misses = alive(remote), remote.engine.misses
    for _ in range(100):
        step()
    optimizer.zero_grad()
    assert alive(remote) == before
    assert remote.engine.misses == misses
    assert not remote.stream.entries


def test_templates_are_forgotten_in_time(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose shapes never repeat must not fill the memory of either end."""
    monkeypatch.setattr("remotegpu_offload.torch.dispatch.TEMPLATES", 50)
    x = to_remote(torch.arange(200.0))
    kept = x[:7] * 2
    for count in range(1, 180):
        same((x[:count] * 2).sum(), (torch.arange(200.0)[:count] * 2).sum())
        assert sum(map(len, remote.engine._caches)) <= 60
    same(kept + 1, torch.arange(7.0) * 2 + 1)


def test_copies_are_independent(remote: Remote) -> None:
    x = to_remote(torch.ones(3))
    module = nn.Linear(3, 3).to(shown.NAME)
    module.register_buffer("shared", x)
    twin = copy.deepcopy(module)
    x.add_(1)
    with torch.no_grad():
        module.weight.zero_()
    same(twin.shared, torch.ones(3))
    assert bool(to_cpu(twin.weight).any())
    again = copy.deepcopy(x)
    again.zero_()
    same(x, torch.full((3,), 2.0))
    # What shares a storage shares it in the copy.
    base = to_remote(torch.zeros(4))
    first, second = copy.deepcopy([base, base[1:]])
    first.fill_(5)
    same(second, torch.full((3,), 5.0))
    same(base, torch.zeros(4))
    same(copy.copy(base), base)


def test_storages_by_themselves(remote: Remote) -> None:
    before = alive(remote)
    storage = torch.UntypedStorage(12, device=shown.NAME)
    assert storage.nbytes() == 12
    assert storage.data_ptr() >= codec.FLOOR
    x = torch.empty(0, device=shown.NAME).set_(storage, 0, (3,))
    x.fill_(4)
    twin = storage.clone()
    x.zero_()
    same(torch.empty(0, device=shown.NAME).set_(twin, 0, (3,)), torch.full((3,), 4.0))
    assert torch.UntypedStorage([1, 2, 3], device=shown.NAME).tolist() == [1, 2, 3]
    assert torch.UntypedStorage(5).nbytes() == 5
    assert list(storage.cpu()) == [0] * 12
    assert torch.UntypedStorage(0, device=shown.NAME).nbytes() == 0
    del storage, twin, x
    assert alive(remote) == before


def test_storages_end_in_any_thread(remote: Remote) -> None:
    before = alive(remote)

    def work() -> None:
        for _ in range(200):
            to_remote(torch.ones(3)).mul(2)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads, thread
    assert alive(remote) == before


def test_a_destructor_may_use_the_device(remote: Remote) -> None:
    """The garbage collector may run it in the middle of an operation."""
    seen = []

    class Holder:
        def __init__(self) -> None:
            self.tensor = to_remote(torch.ones(2))
            self.cycle = self

        def __del__(self) -> None:
            seen.append(self.tensor + 1)

    for _ in range(50):
        Holder()
    x = to_remote(torch.zeros(2))
    for _ in range(2000):
        x = x + 1
    gc.collect()
    assert len(seen) == 50
    same(seen[-1], torch.full((2,), 2.0))
    same(x, torch.full((2,), 2000.0))


def test_a_forked_child_has_no_device(remote: Remote) -> None:
    """The child ends without a message to the acceptor, and its parent continues."""
    x = to_remote(torch.ones(3))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            del x
            gc.collect()
            code = 0 if float(torch.ones(2).sum()) == 2.0 else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    same(x + 1, torch.full((3,), 2.0))


def test_large_tensors_travel_in_pages(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remotegpu_offload.torch.kernels.PAGE", 1000)
    x = torch.randn(33, 17)
    before = remote.source.peer.counters.round_trips
    same(to_remote(x), x)
    assert remote.source.peer.counters.round_trips == before + 3


# The executor alone, against a client that does not keep to the rules


def executor() -> Executor:
    return Executor(torch.device("cpu"))


def allocate(address: int, count: int) -> bytes:
    return codec.ALLOCATE_ENTRY.pack(codec.ALLOCATE, address, count)


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        (codec.ENTRY.pack(77), r"\b77\b"),
        (codec.TEMPLATE_ENTRY.pack(codec.TEMPLATE, 3) + b"[1]", "template"),
        (codec.TEMPLATE_ENTRY.pack(codec.TEMPLATE, 2) + b"{}", "template"),
        (Template(FIRST_TEMPLATE, "aten::no_such", (), {}, "", ()).encode(), r"\baten::no_such\b"),
        (Template(FIRST_TEMPLATE, "os::system", (), {}, "", ()).encode(), r"\bos::system\b"),
        (codec.RESIZE_ENTRY.pack(codec.RESIZE, 1 << 48, 2 << 48, 8), rf"\b{1 << 48:#x}\b"),
    ],
)
def test_broken_batches_are_refused(entries: bytes, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        executor().run(entries, [])


def test_puts_stay_within_their_storage() -> None:
    one = executor()
    address = 1 << 48
    one.run(allocate(address, 16), [])
    with pytest.raises(ValueError, match=r"\b8\b.*\b16\b"):
        one.run(codec.PUT_ENTRY.pack(codec.PUT, address, 16), [bytearray(8)])
    with pytest.raises(ValueError, match=r"\b16\b.*\b8\b.*\b16\b"):
        one.run(codec.PUT_ENTRY.pack(codec.PUT, address + 8, 16), [bytearray(16)])
    with pytest.raises(ValueError, match=rf"\b{2 << 48:#x}\b"):
        one.bytes_at(2 << 48, 1)
    assert one.bytes_at(address, 16).numel() == 16


def test_dependents_of_a_failure_fail_and_no_others() -> None:
    one = executor()
    meta = Meta(torch.float32, (2,), (1,))
    other = Meta(torch.float32, (3,), (1,))
    add = Template(16, "aten::add.Tensor", (codec.Tensor(0, meta), codec.Tensor(1, other)), {}, "QQQ", (meta,))
    neg = Template(17, "aten::neg", (codec.Tensor(0, meta),), {}, "QQ", (meta,))
    a, b, c, d, e = ((number << 48) for number in range(1, 6))
    for address in (a, b):
        one.run(allocate(address, 12), [])
    calls = [(16, a, b, c), (17, c, d), (17, a, e)]
    one.run(add.encode() + neg.encode() + b"".join(_call(*call) for call in calls), [])
    for address in (c, d):
        with pytest.raises(FailedError, match=r"\b1, aten::add\.Tensor\(float32\[2\], float32\[3\]\)"):
            one.tensor(address, meta)
    assert one.tensor(e, meta).shape == (2,)
    with pytest.raises(FailedError, match=r"\b1, aten::add\.Tensor\b"):
        one.check()


def _call(number: int, *values: int) -> bytes:
    return codec.ENTRY.pack(number) + b"".join(value.to_bytes(8, "little") for value in values)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, "x", [1, [2, None]], 1 + 2j, torch.float16, torch.strided, torch.channels_last],
    ids=str,
)
def test_arguments_survive_the_wire(value: Any) -> None:
    template = Template(16, "aten::x", (value,), {"k": value}, "", ())
    decoded = Template.decode(template.encode()[codec.TEMPLATE_ENTRY.size :])
    assert decoded == template


def test_ends_are_noticed_once() -> None:
    ended: list[bytes] = []
    storages = Storages(torch.device(shown.NAME, 0), ended.append)
    made = Blueprint(storages, Meta(torch.float32, (2, 2), (2, 1))).build(storages.take())
    views = [made.t(), made[0]]
    del made
    assert not ended
    views.clear()
    assert len(ended) == 1
    assert len(storages) == 0

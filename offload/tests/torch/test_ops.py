"""Operations on the remote device against the same operations here."""

import struct
import threading
from typing import Any

import pytest
import torch
from offload_torch import both, by_line, same, to_cpu, to_remote

from remotegpu_offload.torch import codec, device, layouts, shown
from remotegpu_offload.torch.acceptor.executor import Executor, FailedError
from remotegpu_offload.torch.device import Remote
from remotegpu_offload.torch.storage import LARGEST

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("remote")]

A = torch.randn(4, 6)
B = torch.randn(4, 6)
I = torch.randint(0, 4, (3,))  # noqa: E741


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(6, 4),
        lambda x: x.t(),
        lambda x: x[1:3, ::2],
        lambda x: x[None].expand(3, 4, 6),
        lambda x: x.permute(1, 0)[2:],
        lambda x: x.unfold(1, 3, 2),
        lambda x: x.as_strided((2, 3), (6, 2), 1),
        lambda x: x.diagonal(),
        lambda x: x.split([2, 4], 1),
        lambda x: x.unbind(1),
        lambda x: x.chunk(3, 1),
        lambda x: x.reshape(-1)[3:].view(3, 7).t(),
        lambda x: torch.view_as_complex(x.view(4, 3, 2)),
        lambda x: x.view(torch.int32),
        lambda x: x.squeeze().unsqueeze(1).transpose(0, 2),
    ],
    ids=by_line,
)
def test_views(function: Any) -> None:
    """A view is the same tensor here: what is written to it is read in the other."""
    both(function, A)
    if function(A) is not None and isinstance(function(A), torch.Tensor) and function(A).dtype is torch.float32:

        def written(x: Any) -> Any:
            view = function(x)
            if not any(stride == 0 for stride in view.stride()):
                view.mul_(3).add_(1)
            return x

        both(written, A)


def test_views_send_nothing(remote: Remote) -> None:
    x = to_remote(A)
    remote.synchronize()
    before = remote.stream.operations
    _ = x.view(6, 4), x.t(), x[1:], x.expand(2, 4, 6), x.unsqueeze(0), x.detach()
    assert remote.stream.operations + len(remote.stream.entries) == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.add_(y),
        lambda x, y: x.mul_(2).sub_(y).clamp_(0),
        lambda x, y: x.copy_(y.flip(0)),
        lambda x, y: x.t().copy_(y.t()),
        lambda x, y: x[1].zero_() + y[0],
        lambda x, y: x.masked_fill_(y > 0, -1),
        lambda x, y: x.index_fill_(1, torch.tensor([0, 2], device=x.device), 5.0),
        lambda x, y: x.index_add_(0, torch.tensor([3, 1], device=x.device), y[:2]),
        lambda x, y: x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64, device=x.device), y[:, :1]),
        lambda x, y: x.addcdiv_(y, y.abs() + 1, value=0.5),
        lambda x, y: torch._foreach_add_([x, x[0]], [y, y[0]]) or x,
        lambda x, y: x.__setitem__((slice(None), 2), y[:, 1]) or x,
        lambda x, y: x.__setitem__(y > 0, 0.0) or x,
        lambda x, y: x.__setitem__(y > 0, y[y > 0]) or x,
    ],
    ids=by_line,
)
def test_in_place(function: Any) -> None:
    both(function, A, B)


def test_in_place_counts_versions() -> None:
    """autograd notices a saved tensor that was written to, as everywhere."""
    x = to_remote(A).requires_grad_()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("size", [(0,), (2, 2), (4, 6), (9, 9)])
def test_out_takes_the_size_of_the_result(size: tuple[int, ...]) -> None:
    out = torch.empty(size, device=shown.NAME)
    if 0 not in size and size != (4, 6):
        with pytest.warns(UserWarning, match="resized"):
            result = torch.add(to_remote(A), to_remote(B), out=out)
    else:
        result = torch.add(to_remote(A), to_remote(B), out=out)
    assert result is out
    same(out, A + B)
    same(out * 2, (A + B) * 2)


def test_out_of_a_view_writes_the_base() -> None:
    base = torch.zeros(2, 4, 6, device=shown.NAME)
    torch.mul(to_remote(A), to_remote(B), out=base[1])
    same(base[1], A * B)
    assert not to_cpu(base[0]).any()


def test_out_of_unknown_size() -> None:
    out = torch.empty(0, dtype=torch.int64, device=shown.NAME)
    torch.nonzero(to_remote(A) > 0, out=out)
    same(out, torch.nonzero(A > 0))


def test_several_results_into_out() -> None:
    values, places = torch.empty(0, device=shown.NAME), torch.empty(0, dtype=torch.int64, device=shown.NAME)
    torch.sort(to_remote(A), dim=1, out=(values, places))
    same((values, places), tuple(torch.sort(A, dim=1)))


def test_resize_keeps_the_content_and_grows() -> None:
    x = to_remote(torch.arange(6.0))
    alias = x.view(2, 3)
    x.resize_(2, 2)
    same(x, torch.arange(4.0).view(2, 2))
    x.resize_(10)
    assert x.untyped_storage().nbytes() == 40
    same(x[:6], torch.arange(6.0))
    alias.fill_(7)
    same(x[:6], torch.full((6,), 7.0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x < 0),
        lambda x: (x * 2).round().unique(return_counts=True),
        lambda x: x.round().unique(dim=0),
        lambda x: torch.unique_consecutive(x.round()),
        lambda x: torch.where(x > 0),
        lambda x: x.abs().long().view(-1).bincount(),
        lambda x: torch.repeat_interleave(x, torch.tensor([0, 2, 1, 3], device=x.device), 0),
        lambda x: torch.argwhere(x > 0),
        lambda x: x.sort(descending=True),
        lambda x: x.topk(3),
        lambda x: x.quantile(0.3, 1),
        lambda x: x.median(),
        lambda x: x.histc(5, -1, 1),
        lambda x: torch.stft(x.view(-1), 8, return_complex=True, window=torch.ones(8, device=x.device)),
        lambda x: torch.nn.functional.one_hot(x.abs().long(), 9),
        lambda x: x.cumsum(1).flip(0).roll(2, 1),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.linalg.svdvals(x),
        lambda x: x.view(-1)[torch.tensor([1, 2])],
        lambda x: x.equal(x.clone()),
        lambda x: torch.allclose(x, x + 1),
        lambda x: bool((x > 5).any()),
        lambda x: x.tolist(),
        lambda x: x.sum().item(),
        lambda x: len(x) + x.size(1) + int(x.numel()),
        lambda x: torch.cat([x, x[:0], x]),
        lambda x: x.new_zeros(2).add(x.new_tensor([1.0, 2.0]).to(x.device)),
    ],
    ids=by_line,
)
def test_results(function: Any) -> None:
    both(function, A)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.conj() + 1,
        lambda x: x.conj().imag,
        lambda x: x.conj().clone(),
        lambda x: x.conj().resolve_conj() @ x.mH,
        lambda x: torch.fft.ifft(torch.fft.fft(x)),
        lambda x: torch.fft.hfft(x),
        lambda x: torch.fft.ihfft(x.real),
        lambda x: x.conj().t().contiguous(),
        lambda x: x.mul(2j).add(1 - 1j).abs(),
        lambda x: x.conj().imag.neg().view(-1),
        lambda x: torch.view_as_real(x).sum(0),
        lambda x: x.clone().copy_(x.conj()),
        lambda x: x.conj()[0, 0].item(),
        lambda x: x.angle(),
        lambda x: torch.linalg.solve(x @ x.mH, x),
    ],
    ids=by_line,
)
def test_complex(function: Any) -> None:
    both(function, torch.randn(3, 4, dtype=torch.complex64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8, torch.uint16, torch.bool]
)
def test_types(dtype: torch.dtype) -> None:
    x = (A * 3).to(dtype)
    both(lambda y: y.to(torch.float32), x)
    both(lambda y: y.clone().t(), x)
    assert to_remote(x).dtype is dtype


def test_types_that_dlpack_does_not_know() -> None:
    x = A.to(torch.float8_e4m3fn)
    assert to_cpu(to_remote(x)).view(torch.uint8).equal(x.view(torch.uint8))
    both(lambda y: y.to(torch.float32), x)


def test_plain_numbers_do_not_promote() -> None:
    """A number, a tensor without dimensions that is here, and one that is there each promote in their own way."""
    x = torch.ones(3, dtype=torch.float16)
    for number in (2, 2.5, True, torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor(3)):
        assert (to_remote(x) * number).dtype is (x * number).dtype
        same(to_remote(x) * number, x * number)
    zero = torch.tensor(1.5)
    assert (to_remote(zero) * torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float64
    assert (to_remote(zero) * 2.0).dtype is torch.float32


def test_equal_constants_of_other_types_are_other_calls() -> None:
    x = to_remote(torch.arange(4))
    assert (x + 1).dtype is torch.int64
    assert (x + 1.0).dtype is torch.float32
    assert (x + True).dtype is torch.int64
    assert torch.full((2,), 1, device=shown.NAME).dtype is torch.int64
    assert torch.full((2,), 1.0, device=shown.NAME).dtype is torch.float32
    same(torch.arange(0, 3, 1, device=shown.NAME), torch.arange(0, 3, 1))
    same(torch.arange(0.0, 3.0, 1.0, device=shown.NAME), torch.arange(0.0, 3.0, 1.0))


def test_changing_numbers_make_no_new_templates(remote: Remote) -> None:
    """A learning rate that decays must not be learnt again each step."""
    x = to_remote(A)
    x.mul_(0.5)
    before = remote.engine.misses
    for step in range(50):
        x.mul_(1 / (step + 1))
        x.add_(x, alpha=step + 2)
    assert remote.engine.misses <= before + 1
    want = A.clone().mul_(0.5)
    for step in range(50):
        want.mul_(1 / (step + 1)).add_(want, alpha=step + 2)
    same(x, want)


# Errors


def test_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match=r"\bremote:0\b.*\bcpu\b.*\baten::add\.Tensor\b"):
        to_remote(A) + B
    with pytest.raises(RuntimeError, match=r"(?=.*\bremote:0\b).*\bcpu\b"):
        B @ to_remote(A).t()


def test_shapes_that_do_not_fit_are_an_error_at_once() -> None:
    with pytest.raises(RuntimeError, match=r"size of tensor a \(6\) must match"):
        to_remote(A) + to_remote(torch.ones(5))


def test_a_late_error_names_the_operation(remote: Remote) -> None:
    """The kernel finds out that an index is out of range; the next answer names the operation."""
    table, x = to_remote(A), to_remote(torch.tensor([1, 99]))
    wrong = torch.nn.functional.embedding(x, table)
    after = wrong * 2 + 1
    with pytest.raises(IndexError, match=r"\b\d+, aten::embedding\(float32\[4, 6\], int64\[2\]\)"):
        table.sum().item()
    # The error was reported. Work that does not depend on it succeeds; other work always fails, for the same reason.
    same(table.sum(), A.sum())
    for _ in range(2):
        with pytest.raises(IndexError, match="aten::embedding"):
            after.cpu()
    remote.synchronize()


def test_a_failed_write_spoils_what_it_would_have_written(remote: Remote) -> None:
    x = to_remote(torch.zeros(4))
    x.index_fill_(0, to_remote(torch.tensor([9])), 1.0)
    with pytest.raises(IndexError, match="aten::index_fill_"):
        remote.synchronize()
    with pytest.raises(IndexError, match="aten::index_fill_"):
        (x + 1).sum().item()


def test_a_refused_write_spoils_nothing() -> None:
    """The error was reported where it was called, and the program may go on, as with any device."""
    x = to_remote(torch.zeros(4))
    with pytest.raises(RuntimeError, match="output with shape"):
        x.add_(to_remote(torch.ones(3, 4)))
    same(x.add_(1), torch.ones(4))


def test_the_host_cannot_see_the_memory() -> None:
    x = to_remote(A)
    with pytest.raises(TypeError, match="can't convert remote:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(ValueError, match="Unknown device type remote"):
        torch.from_dlpack(x)
    assert to_cpu(x).numpy().shape == (4, 6)


def test_too_large_a_tensor_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=str(LARGEST)):
        torch.empty(1 << 41, dtype=torch.uint8, device=shown.NAME)


def test_sparse_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="Sparse"):
        torch.empty(3, 3, layout=torch.sparse_coo, device=shown.NAME)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
        lambda x: torch.quantize_per_channel(
            x, torch.ones(4).to(x.device), torch.zeros(4).to(x.device), 0, torch.qint8
        ),
        lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.int8), 0.1, 0),
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: x.to_sparse_csc(),
        lambda x: x.to_sparse_bsr((2, 2)),
        lambda x: x.to_mkldnn(),
        lambda x: torch._nested_tensor_from_mask(x[None], torch.ones(1, 4, dtype=torch.bool, device=x.device)),
        lambda x: torch._nested_from_padded(x[None], torch.tensor([[4, 6]], device=x.device)),
    ],
    ids=by_line,
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_for_its_name_is_not_dense(make: Any) -> None:
    """The rule of `layouts.reason`, against what torch makes: no dense tensor on the CPU, an error on the device."""
    assert layouts.kind(make(A)) is not None
    with pytest.raises(NotImplementedError):
        make(to_remote(A))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.full((4,), 0.1, device=x.device), torch.zeros(4, device=x.device), 0, -128, 127
        ),
        lambda x: torch._fake_quantize_learnable_per_tensor_affine(
            x, torch.full((1,), 0.1, device=x.device), torch.zeros(1, device=x.device), -128, 127
        ),
        lambda x: torch._nested_compute_contiguous_strides_offsets(torch.tensor([[2, 3], [4, 3]], device=x.device)),
        lambda x: torch._nested_tensor_from_mask_left_aligned(x[None], x[None, :, 0] > -99),
        lambda x: torch._convert_indices_from_coo_to_csr(torch.tensor([0, 0, 2], device=x.device), 3),
        lambda x: torch._validate_compressed_sparse_indices(
            True,
            torch.tensor([0, 1, 2], device=x.device),
            torch.tensor([0, 1], device=x.device),
            2,
            2,
            2,
        ),
        lambda x: x.sparse_dim(),
    ],
    ids=by_line,
)
def test_names_of_other_tensors_for_dense_ones(function: Any) -> None:
    """Operations that the rule accepts are for dense tensors indeed: they run there."""
    both(function, A)


def test_no_operation_is_sent_whose_origin_is_refused(remote: Remote) -> None:
    """`a.out` calls `a`: where the device lacks one, it lacks both."""
    placements = remote.registered
    for name, how in placements.items():
        if how == "acceptor":
            assert layouts.reason(name) is None
            keys = ("CPU", "CUDA")
            if not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys):
                assert not {placements.get(each) for each in layouts.origins(name)} & device.LACKING, name
    assert placements["aten::_to_dense.out"] == "no kernel for dense tensors"
    assert placements["aten::_fused_dropout.out"] == "the acceptor has no kernel"
    assert placements["aten::quantize_per_tensor"] == "not dense"


def test_a_result_that_is_not_dense_is_an_error() -> None:
    """The acceptor detects it for an operation that no rule knows."""
    executor = Executor(torch.device("cpu"))
    executor._allocate(1 << codec.SHIFT, 8)
    meta = codec.Meta(torch.float32, (2,), (1,))
    for number, outs in ((codec.FIRST_TEMPLATE, (meta,)), (codec.FIRST_TEMPLATE + 1, None)):
        told = codec.Template(
            number, "aten::quantize_per_tensor", (codec.Tensor(0, meta), 0.1, 0, torch.qint8), {}, "QQ", outs, 1
        )
        call = struct.pack("<IQQ", number, 1 << codec.SHIFT, 2 << codec.SHIFT)
        executor.run(told.encode() + call, [])
        with pytest.raises(FailedError, match=r"\bquantize_per_tensor\b.*\bfunction:"):
            executor.check()


# Copies


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies(non_blocking: bool) -> None:
    x = A.to(shown.NAME, non_blocking=non_blocking)
    same(x, A)
    same(x.to("cpu", torch.float64, non_blocking=non_blocking), A.double())
    same(A.t().to(shown.NAME), A.t())
    assert A.t().to(shown.NAME).stride() == A.t().stride()
    assert x.to(shown.NAME) is x
    assert x.to("meta").is_meta
    target = torch.zeros(6, 4)
    target.t().copy_(x)
    same(target.t(), A)
    other = torch.zeros(2, 4, 6, dtype=torch.float64, device=shown.NAME)
    other[0].copy_(A)
    other[1] = B.half()
    same(other, torch.stack([A.double(), B.half().double()]))
    same(torch.zeros(2, 4, 6, device=shown.NAME).copy_(A), A.expand(2, 4, 6))
    assert x.half().cpu().dtype is torch.float16


def test_a_copy_has_the_content_of_its_time(remote: Remote) -> None:
    """The copy is done when `to` returns, though nobody has waited: the source may change."""
    for size in (10, 300_000):
        source = torch.arange(float(size))
        x = source.to(shown.NAME, non_blocking=True)
        source.zero_()
        same(x, torch.arange(float(size)))
    before = remote.source.peer.counters.round_trips
    A.to(shown.NAME)
    assert remote.source.peer.counters.round_trips == before


def test_empty_tensors() -> None:
    x = to_remote(torch.ones(0, 3))
    assert to_cpu(x).shape == (0, 3)
    same(x.sum(0), torch.zeros(3))
    same(torch.cat([x, to_remote(torch.ones(2, 3))]), torch.ones(2, 3))
    same(x @ to_remote(torch.ones(3, 2)), torch.ones(0, 2))


def test_printing() -> None:
    """The text is the same as here, with few round trips: the tensor is fetched once."""
    x = torch.arange(6.0).view(2, 3)
    assert repr(to_remote(x)).replace(", device='remote:0'", "") == repr(x)
    big = torch.arange(40_000.0)
    assert repr(to_remote(big)).replace(", device='remote:0'", "") == repr(big)


def test_printing_costs_one_round_trip(remote: Remote) -> None:
    x = to_remote(A)
    before = remote.source.peer.counters.round_trips
    repr(x)
    assert remote.source.peer.counters.round_trips == before + 1


def test_threads_share_the_device() -> None:
    """Operations of several threads, each in its own order."""
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        x = torch.full((8,), float(number), device=shown.NAME)
        for _ in range(100):
            x = x + 1
            x.mul_(1.0)
        results[number] = x.cpu()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: float(x[0]) for number, x in results.items()} == {number: number + 100.0 for number in range(4)}

"""One test for each known trap of a torch device that is written in Python (numbers as in the notes on the design)."""

import copy
import gc
import io
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_torch import both, same, to_cpu, to_remote
from torch import nn

from remotegpu_offload.torch import device, shown
from remotegpu_offload.torch.device import Remote, UnsupportedTorchError
from remotegpu_offload.wire.errors import OffloadError

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("remote")]


def test_1_storages_have_their_true_size() -> None:
    """With storages of no bytes deepcopy crashes, and torch's own bounds checks refuse views."""
    x = to_remote(torch.randn(1, 4, 1, 5))
    assert x.untyped_storage().nbytes() == 80
    same(copy.deepcopy(x), x)
    assert len(x.tolist()[0]) == 4
    assert "remote:0" in repr(x)
    same(x.clone().squeeze_(), x.squeeze())
    both(lambda y: torch.stft(y, 8, window=torch.ones(8, device=y.device), return_complex=True), torch.randn(40))
    both(lambda y: y.quantile(torch.tensor([0.1, 0.5], device=y.device), dim=0), torch.randn(9, 3))
    saved = io.BytesIO()
    torch.save(to_cpu(x), saved)
    saved.seek(0)
    same(torch.load(saved), x)


def test_2_operations_that_only_change_the_shape_change_it_here() -> None:
    """Were they sent, the shape here would silently stay, and a product would have the wrong one."""
    both(lambda x: x.t_() @ x.t(), torch.randn(3, 4))
    both(lambda x: x.squeeze_().unsqueeze_(0).transpose_(0, 1).swapaxes_(0, 1), torch.randn(3, 1, 4))
    both(lambda x: x.unsqueeze_(1).squeeze_(1).swapdims_(0, 1).sum(0), torch.randn(3, 4))
    both(lambda x: x.as_strided_((2, 2), (1, 2)).add_(1), torch.randn(3, 4))
    both(lambda x: x.detach_().t_().add_(1), torch.randn(3, 4))


def test_3_the_handle_is_the_storage() -> None:
    """autograd's saved results lose their Python object, not their storage; its end is noticed exactly once."""
    ended: list[int] = []
    x = to_remote(torch.ones(3)).requires_grad_()
    y = x.exp()
    weakref.finalize(y.untyped_storage(), ended.append, 1)
    z = y.sum()
    del y
    gc.collect()
    assert not ended
    z.backward()
    same(x.grad, torch.ones(3).exp())
    del z
    gc.collect()
    assert ended == [1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_4_fused_cells_that_only_cuda_has(kind: Any) -> None:
    """torch takes them for granted on every device but the CPU; this acceptor has none."""
    torch.manual_seed(0)
    net = kind(4, 6, 2, bidirectional=True)
    x = torch.randn(5, 3, 4)

    def run(module: nn.Module, batch: Any) -> Any:
        out, state = module(batch)
        module.zero_grad()
        out.square().mean().backward()
        return out, state, [p.grad for p in module.parameters()]

    same(run(copy.deepcopy(net).to(shown.NAME), to_remote(x)), run(net, x), rtol=1e-4, atol=1e-6)
    cell = nn.LSTMCell(4, 6)
    both(lambda y: copy.deepcopy(cell).to(y.device)(y), torch.randn(3, 4))


@pytest.mark.parametrize("batch_first", [False, True])
def test_4_sequences_are_packed_on_the_device(batch_first: bool) -> None:
    """How many sequences go on at each step is the host's, also where the rows are not."""
    lengths = torch.tensor([2, 5, 3])

    def run(x: Any) -> Any:
        x = x.clone().requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        assert packed.batch_sizes.device.type == "cpu" and packed.data.device == x.device
        packed.data.square().sum().backward()
        rows, found = nn.utils.rnn.pad_packed_sequence(packed, batch_first)
        return packed.data, x.grad, rows, found, packed.batch_sizes

    for x in (torch.randn(3, 5, 4), torch.randn(5, 3, 4).transpose(0, 1)):
        x = x if batch_first else x.transpose(0, 1)
        same(run(to_remote(x)), run(x))
        for wrong in ([1, 2, 3], [3, 2, 0], [3, 2]):
            for where in (x, to_remote(x)):
                with pytest.raises(RuntimeError, match="length"):
                    nn.utils.rnn.pack_padded_sequence(where, torch.tensor(wrong), batch_first)


def test_4_attention_decomposes() -> None:
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    both(lambda *t: nn.functional.scaled_dot_product_attention(*t, is_causal=True), q, k, v, rtol=1e-4, atol=1e-5)


PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
PADDINGS = {
    "no padding": None,
    "padding": PADDING,
    "padding in the middle": torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 1]], dtype=torch.bool),
    "padding as numbers": torch.zeros(3, 5).masked_fill(PADDING, -torch.inf),
    "nothing but padding": torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool),
}
MASKS = {
    "no mask": None,
    "a mask": torch.triu(torch.ones(5, 5, dtype=torch.bool), 1),
    "a mask of numbers": torch.randn(5, 5),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_4_transformers_in_inference(mode: Any, padding: Any, mask: Any, batch_first: bool) -> None:
    """torch has a kernel for a whole layer, one for an attention, and nested tensors for what is padded; what it
    returns for padding is zeros, or what the norm makes of them.
    """
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=batch_first)
    nested, plain = (nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=on) for on in (True, False))
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    for norm in (nested.norm, plain.norm):
        nn.init.normal_(norm.bias)

    def run(y: Any, mask: Any, padding: Any) -> Any:
        results = []
        for module in (nested, plain, layer):
            results.append(copy.deepcopy(module).to(y.device).eval()(y, mask, padding))
        moved = copy.deepcopy(attention).to(y.device).eval()
        for weights in (True, False):
            out, found = moved(y, y, y, padding, need_weights=weights, attn_mask=mask)
            assert (found is not None) is weights
            results += [out, found]
        return results

    with mode():
        both(run, x, mask, padding, **CLOSE)


@pytest.mark.filterwarnings("ignore")
def test_4_a_whole_transformer_and_encoders_with_options() -> None:
    whole = nn.Transformer(8, 2, 2, 2, 16, batch_first=True).eval()
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, mask_check=False).eval()
    x = torch.randn(3, 5, 8)

    def move(module: nn.Module, y: Any) -> Any:
        return copy.deepcopy(module).to(y.device)

    with torch.no_grad():
        both(lambda y, p: move(whole, y)(y, y, None, None, None, p, p, p), x, PADDING, **CLOSE)
        both(lambda y, p: move(encoder, y)(y, None, p, is_causal=True), x, PADDING, **CLOSE)
        both(lambda y, p: move(encoder, y)(y[0], None, p[0]), x, PADDING, **CLOSE)
        # The host's own transformers are as before.
        assert not encoder(x, None, PADDING)[0, 3].any()
    # In training nobody leaves padding out.
    rows = move(encoder.train(), to_remote(x))(to_remote(x), None, to_remote(PADDING))
    assert to_cpu(rows)[0, 3].any()


@pytest.mark.filterwarnings("ignore")
def test_4_transformers_are_scripted_as_before() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x = torch.randn(3, 5, 8)
    scripted = torch.jit.script(encoder)
    with torch.no_grad():
        same(scripted(x, None, PADDING), encoder(x, None, PADDING), **CLOSE)
        same(scripted.to(shown.NAME)(to_remote(x)), encoder(x), **CLOSE)


def test_5_out_and_results_that_are_arguments() -> None:
    """An empty `out` takes the size of the result, and what is returned is the very object that was given."""
    x = to_remote(torch.randn(3))
    out = torch.empty(0, device=shown.NAME)
    assert torch.exp(x, out=out) is out
    same(out, to_cpu(x).exp())
    assert x.add_(1) is x
    values, places = torch.empty(0, device=shown.NAME), torch.empty(0, dtype=torch.int64, device=shown.NAME)
    given = torch.max(x[None], 1, out=(values, places))
    assert given[0] is values
    same((values, places), tuple(torch.max(to_cpu(x)[None], 1)))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add", lambda x: x + x),
        ("mul by a number", lambda x: x * 2.5),
        ("softmax", lambda x: torch.softmax(x, 0)),
        ("clone", lambda x: x.clone()),
        ("in place", lambda x: x.add_(1.0)),
        ("foreach", lambda x: torch._foreach_mul_([x, x[1:]], 1.0)),
    ],
)
def test_6_one_operation_is_one_entry(remote: Remote, name: str, call: Any) -> None:
    """Not `empty` and then the same with `out`."""
    x = to_remote(torch.randn(4))
    call(x)
    gc.collect()
    remote.synchronize()
    before = remote.stream.operations
    kept = call(x)
    remote.synchronize()
    assert remote.stream.operations == before + 1, name
    del kept


def test_10_nothing_is_registered_for_cuda_itself() -> None:
    """The first operation with a gradient would end the process."""
    assert "remotegpu" not in "".join(
        line for line in torch._C._dispatch_dump("aten::add.Tensor").splitlines() if line.startswith("CUDA")
    )
    x = to_remote(torch.ones(2)).requires_grad_()
    (x + 1).sum().backward()
    same(x.grad, torch.ones(2))


def test_12_one_failure_poisons_nothing_else(remote: Remote) -> None:
    """All in one batch: what depends on the failed operation fails, what stands between them does not."""
    x, wrong = to_remote(torch.zeros(3)), to_remote(torch.tensor([7]))
    before = x + 1
    failed = x[wrong]
    between = before * 2
    after = failed + between[:1]
    with pytest.raises(IndexError, match=r"\b\d+, aten::index\.Tensor\(float32\[3\], int64\[1\]\)"):
        remote.synchronize()
    same(between, torch.full((3,), 2.0))
    with pytest.raises(IndexError, match=r"aten::index\.Tensor"):
        after.cpu()
    del failed, after
    remote.synchronize()


def test_13_an_operation_is_a_few_bytes(remote: Remote) -> None:
    """230 when pickled; a template's number and three addresses here."""
    x = to_remote(torch.ones(5))
    kept = x + x
    remote.synchronize()
    before, operations = remote.stream.bytes, remote.stream.operations
    for _ in range(100):
        kept = x + x
    remote.synchronize()
    sent, bytes_ = remote.stream.operations - operations, remote.stream.bytes - before
    # Each of them also frees the result before.
    assert sent == 200
    assert bytes_ <= 100 * (4 + 3 * 8 + 4 + 8) + 8 * 100
    same(kept, torch.full((5,), 2.0))


SCRIPT = """
    import sys, torch
    sys.path.insert(0, {tests!r})
    from offload_local import local_session
    from remotegpu_offload.torch import device
    with local_session() as session:
        device.activate(session)
"""


def run_alone(lines: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program of its own with the device: it may crash."""
    program = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parents[1] / "support")) + textwrap.indent(
        textwrap.dedent(lines), "    "
    )
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **env},
        check=False,
    )


def test_16_lazy_conjugation_ends() -> None:
    """In its own process: without a kernel for `clone` that knows the bit, torch recurses until the stack is full."""
    done = run_alone(
        """
        x = torch.randn(3, 4, dtype=torch.complex64)
        r = x.to("remote")
        for f in (
            lambda t: t.conj() + 1,
            lambda t: t.conj().clone(),
            lambda t: t.conj().resolve_conj(),
            lambda t: t.mH.contiguous(),
            lambda t: t.conj().imag + 1,
            lambda t: t.conj().imag.clone(),
            lambda t: t.conj().to(torch.complex128),
            lambda t: torch.conj_physical(t),
            lambda t: torch.fft.ihfft(t.real),
            lambda t: torch.fft.hfft(t),
            lambda t: torch.fft.ifft(t),
        ):
            torch.testing.assert_close(f(r).cpu(), f(x))
        assert r.conj().is_conj() and not r.conj().clone().is_conj()
        print("fine")
        """
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_16_checks_are_synchronous() -> None:
    """An operation that returns nothing and raises would otherwise raise who knows where."""
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(to_remote(torch.zeros(3, 3)))
    with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
        torch.linalg.cholesky(to_remote(-torch.eye(3)))


def test_synchronous_mode_shows_the_line() -> None:
    """REMOTEGPU_SYNC=1: the error is raised where the operation is called."""
    done = run_alone(
        """
        table, index = torch.ones(3, 2).to("remote"), torch.tensor([9]).to("remote")
        wrong = torch.nn.functional.embedding(index, table)  # here
        print("not reached")
        """,
        REMOTEGPU_SYNC="1",
    )
    assert "not reached" not in done.stdout
    assert "IndexError: index out of range" in done.stderr
    assert "torch.nn.functional.embedding" in done.stderr or "in embedding" in done.stderr


def test_a_torch_without_python_devices_is_refused_with_advice() -> None:
    done = run_alone_unsupported()
    assert "cannot have a device that is written in Python" in done
    assert "--split app" in done


def run_alone_unsupported() -> str:
    program = textwrap.dedent(
        """
        from torch.utils import backend_registration
        del backend_registration._setup_privateuseone_for_python_backend
        from remotegpu_offload.torch import device
        try:
            device.prepare()
        except device.UnsupportedTorchError as error:
            print(error)
        """
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    ).stdout


def test_there_is_one_remote_device() -> None:
    before = device.current()
    with pytest.raises(OffloadError):
        device.activate(before.source)
    assert device.current() is before
    assert issubclass(UnsupportedTorchError, RuntimeError)


def test_a_lost_acceptor_is_named() -> None:
    """Killed while operations are on their way: the next request names the lost acceptor; later ones do so at once."""
    done = run_alone(
        """
        import os, signal
        from remotegpu_offload.wire.errors import LostError
        x = torch.ones(3, device="remote")
        x.sum().item()
        children = [int(p) for p in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
        for child in children:
            os.kill(child, signal.SIGKILL)
        for _ in range(2):
            try:
                for _ in range(100000):
                    x = x + 1
                x.sum().item()
                print("no error")
            except LostError as error:
                print("lost:", error)
        """
    )
    assert done.stdout.count("lost:") == 2, done.stdout + done.stderr

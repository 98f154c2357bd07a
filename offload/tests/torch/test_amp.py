"""Mixed precision: the lists of autocast against CUDA's own, and what they do."""

from typing import Any

import pytest
import torch
from offload_armed import trips
from torch import nn
from torch.nn import functional

from remotegpu_offload.client.session import Session
from remotegpu_offload.torch.script import amp

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("armed")]

# One vendor's own, which never travel.
_VENDORS = {"cudnn_convolution", "cudnn_convolution_transpose", "_cudnn_rnn"}


def test_the_lists_are_those_of_cuda() -> None:
    """Every operation for which torch registers CUDA's autocast is on one of our lists, and none beside."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    cuda = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has(name, "AutocastCUDA")
    }
    ours = {*amp.LOWER, *amp.FLOAT32, *amp.FLOAT32_RESULT, *amp.FLOAT32_NORM, *amp.WIDEST, "binary_cross_entropy"}
    assert cuda - ours == _VENDORS
    assert ours - cuda == set()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_list_does_what_it_says(dtype: Any) -> None:
    a = torch.rand(4, 4, device="cuda") + 0.5
    low = a.to(dtype)
    with torch.autocast("cuda", dtype=dtype):
        assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == dtype
        assert (a @ a).dtype == dtype
        assert functional.linear(a, a).dtype == functional.conv1d(a[None], a[None]).dtype == dtype
        assert low.exp().dtype == low.pow(2).dtype == functional.layer_norm(low, (4,)).dtype == torch.float32
        assert low.sum().dtype == low.softmax(1).dtype == low.cumsum(0).dtype == torch.float32
        assert low.sum(dtype=torch.float64).dtype == torch.float64
        assert low.softmax(1, dtype).dtype == dtype
        assert low.norm().dtype == torch.float32
        assert torch.addcmul(low, a, low).dtype == torch.float32
        assert torch.addcmul(low, low, low).dtype == dtype
        # On no list: as the arguments are.
        assert (a + 1).dtype == torch.float32 and functional.relu(low).dtype == dtype
        # Only floating types are cast, and float64 is not.
        assert (a.double() @ a.double()).dtype == torch.float64
        assert torch.arange(3, device="cuda").sum().dtype == torch.int64
        with torch.autocast("cuda", enabled=False):
            assert not torch.is_autocast_enabled("cuda")
            assert (a @ a).dtype == torch.float32
        with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
            functional.binary_cross_entropy(low.clamp(0, 1), low.clamp(0, 1))
    assert (a @ a).dtype == torch.float32
    # The device's autocast is not the CPU's.
    with torch.autocast("cuda", dtype=dtype):
        assert (a.cpu() @ a.cpu()).dtype == torch.float32


def test_gradients_come_in_the_parameters_type_and_casts_are_kept() -> None:
    linear = nn.Linear(8, 8).cuda()
    x = torch.rand(4, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = linear(linear(x))
        # The weight and the bias were each cast once.
        assert len(amp._casts) == 2
        y.float().sum().backward()
    assert not amp._casts
    assert linear.weight.grad is not None and linear.weight.grad.dtype == torch.float32
    plain = nn.Linear(8, 8).cuda()
    plain.load_state_dict(linear.state_dict())
    plain(plain(x)).sum().backward()
    assert plain.weight.grad is not None
    torch.testing.assert_close(linear.weight.grad.cpu(), plain.weight.grad.cpu(), rtol=0.05, atol=0.05)


def test_all_spellings() -> None:
    x = torch.rand(2, 2, device="cuda")
    with torch.amp.autocast("cuda"), torch.amp.autocast_mode.autocast("cuda"):
        assert (x @ x).dtype == torch.float16
    with pytest.warns(FutureWarning):
        older = torch.cuda.amp.autocast(dtype=torch.bfloat16)
    with older:
        assert (x @ x).dtype == torch.bfloat16
        assert torch.is_autocast_enabled()

    @torch.autocast("cuda")  # type: ignore[untyped-decorator]
    def product(y: Any) -> Any:
        return y @ y

    assert product(x).dtype == torch.float16
    assert torch.amp.is_autocast_available("cuda")

    class Double(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, y: Any) -> Any:
            assert y.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
            return y * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    with torch.autocast("cuda"):
        assert Double.apply(x.half().requires_grad_()).dtype == torch.float32


def test_a_scaler_skips_steps_that_overflow(armed: Session) -> None:
    linear = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.SGD(linear.parameters(), 0.1)
    with pytest.warns(FutureWarning):
        scaler = torch.cuda.amp.GradScaler(init_scale=2.0**16, growth_interval=2)
    assert scaler.is_enabled()
    before = linear.weight.detach().cpu().clone()
    for value, scale in ((1.0, 2.0**16), (float("inf"), 2.0**15), (1.0, 2.0**15), (1.0, 2.0**16)):
        optimizer.zero_grad()
        loss = linear(torch.full((1, 2), value, device="cuda")).sum()
        scaler.scale(loss).backward()
        asked = trips(armed)
        scaler.step(optimizer)
        # It asks whether any gradient was infinite.
        assert trips(armed) == asked + 1
        scaler.update()
        assert scaler.get_scale() == scale
        now = linear.weight.detach().cpu()
        assert torch.isfinite(now).all()
        assert torch.equal(now, before) == (value != 1.0)
        before = now.clone()

"""torch.compile on pointwise operations, reductions and normalisation against torch on the CPU."""

from __future__ import annotations

import cases
import torch
from torch.nn import functional

torch.manual_seed(7)
# Else inductor measures which of a reduction's kernels is the fastest, and they add in another order. Its own setting,
# TORCHINDUCTOR_DETERMINISTIC, is lost in the thread that compiles a backward pass (torch 2.15).
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False  # torch's own kernel for it has no PTX


def compare(function, *arguments, **tolerance):
    compiled = torch.compile(function)(*[argument.cuda() for argument in arguments])
    torch.testing.assert_close(compiled.cpu(), function(*arguments), **tolerance)
    return [compiled]


def pointwise():
    x, y = torch.randn(64, 300), torch.rand(64, 300)
    return (
        compare(lambda x, y: functional.gelu(x * 2 + y).sin() + 1, x, y)
        + compare(lambda x, y: torch.where(x > 0, x.exp(), y.log()).clamp(-2, 5).tanh(), x, y)
        # Compiled, what lies between two operations is not rounded to half precision.
        + compare(lambda x, y: (x.half() * y.half() + 1).float(), x, y, rtol=4e-3, atol=4e-3)
        + compare(lambda x, y: (x + y[:, :1]).transpose(0, 1).contiguous(), x, y)
    )


def reduction():
    x = torch.randn(50, 333)
    return compare(lambda x: x.sum(0), x) + compare(lambda x: x.var(1), x) + compare(lambda x: x.argmax(1), x)


def softmax():
    return compare(lambda x: functional.softmax(x, -1) + functional.log_softmax(x, 0), torch.randn(64, 300))


def layer_norm():
    x, weight, bias = torch.randn(64, 300), torch.randn(300), torch.randn(300)
    return compare(lambda x, w, b: functional.layer_norm(x, (300,), w, b), x, weight, bias)


def batch_norm():
    x, mean, variance = torch.randn(8, 6, 10, 10), torch.randn(6), torch.rand(6) + 0.5
    return compare(lambda x, m, v: functional.batch_norm(x, m, v, eps=1e-4), x, mean, variance)


def backward():
    x, weight = torch.randn(32, 128), torch.randn(128)

    def gradients(device):
        leaves = [tensor.detach().to(device).requires_grad_() for tensor in (x, weight)]
        step = lambda x, w: functional.silu(functional.rms_norm(x, (128,), w)).square()  # noqa: E731
        result = (step if device == "cpu" else torch.compile(step))(*leaves)
        result.backward(torch.full((32, 128), 0.25).to(device))
        return [leaf.grad for leaf in leaves]

    got = gradients("cuda")
    torch.testing.assert_close([gradient.cpu() for gradient in got], gradients("cpu"))
    return got


if __name__ == "__main__":
    cases.main(globals())

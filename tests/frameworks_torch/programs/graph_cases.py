"""CUDA graphs of torch: captured, replayed, and made by torch.compile; right against torch on the CPU."""

from __future__ import annotations

import cases
import torch
import triton
import triton.language as tl

torch.manual_seed(7)


@triton.jit
def scale_kernel(source, target, factor, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(target + offsets, tl.load(source + offsets, mask=inside) * factor, mask=inside)


def scale(source, target, factor):
    scale_kernel[(triton.cdiv(source.numel(), 128),)](source, target, factor, source.numel(), BLOCK=128)


def captured():
    """Kernels, copies and fills: a replay uses the input's current content."""
    source, target = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    scale(source, target, 3.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale(source, target, 3.0)
        middle = torch.empty_like(target)
        middle.copy_(target)
        scale(middle, target, 2.0)
    kept = []
    for _ in range(3):
        host = torch.randn(1000)
        source.copy_(host)
        graph.replay()
        assert torch.equal(target.cpu(), host * 3.0 * 2.0)
        kept.append(target.cpu())
    return kept


def two_streams():
    """A fork and a join by torch's streams."""
    source = torch.randn(512)
    left, right = torch.zeros(512, device="cuda"), torch.zeros(512, device="cuda")
    given = source.cuda()
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    scale(given, left, 1.0)
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            scale(given, right, 5.0)
        scale(given, left, 4.0)
        torch.cuda.current_stream().wait_stream(side)
        scale(right, right, 2.0)
    graph.replay()
    assert torch.equal(left.cpu(), source * 4.0)
    assert torch.equal(right.cpu(), source * 5.0 * 2.0)
    return left.cpu(), right.cpu()


def shared_pool():
    """Graphs for several sizes share a pool, as in a decode loop."""
    pool = torch.cuda.graph_pool_handle()
    graphs = {}
    for size in (64, 32, 16, 8):
        source, target = torch.zeros(size, 16, device="cuda"), torch.zeros(size, 16, device="cuda")
        scale(source, target, 2.0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            between = torch.empty_like(target)
            scale(source, between, 2.0)
            scale(between, target, 3.0)
        graphs[size] = graph, source, target
    kept = []
    for size in (8, 64, 16, 32, 8):
        graph, source, target = graphs[size]
        host = torch.randn(size, 16)
        source.copy_(host)
        graph.replay()
        assert torch.equal(target.cpu(), host * 2.0 * 3.0)
        kept.append(target.cpu())
    return kept


def reduce_overhead():
    """torch.compile uses graphs by itself. The inputs stay where they are: torch's own kernel for copies of lists is
    machine code, which runs only on NVIDIA's GPUs.
    """

    @torch.compile(mode="reduce-overhead")
    def step(x, y):
        return torch.relu(x * y + 1.0).sum(dim=1)

    left, right = torch.zeros(64, 32, device="cuda"), torch.zeros(64, 32, device="cuda")
    torch._dynamo.mark_static_address(left)
    torch._dynamo.mark_static_address(right)
    kept = []
    for _ in range(5):
        x, y = torch.randn(64, 32), torch.randn(64, 32)
        left.copy_(x)
        right.copy_(y)
        result = step(left, right).cpu()
        assert torch.allclose(result, torch.relu(x * y + 1.0).sum(dim=1), rtol=1e-5, atol=1e-5)
        kept.append(result)
    return kept


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(_, given):
        target = torch.empty_like(given)
        scale(given, target, 3.0)
        return target

    @staticmethod
    def backward(_, gradient):
        target = torch.empty_like(gradient)
        scale(gradient, target, 5.0)
        return target


def graphed_callables():
    """Callables of torch.cuda.make_graphed_callables: a graph for each function's call, and one for its gradient."""
    sample = torch.zeros(256, device="cuda", requires_grad=True)
    first, second = torch.cuda.make_graphed_callables((Scaled.apply, Scaled.apply), ((sample,), (sample,)))
    kept = []
    for _ in range(3):
        host, gradient = torch.randn(256), torch.randn(256)
        given = host.cuda().requires_grad_()
        result = second(first(given))
        result.backward(gradient.cuda())
        assert torch.equal(result.detach().cpu(), host * 3.0 * 3.0)
        assert torch.equal(given.grad.cpu(), gradient * 5.0 * 5.0)
        kept += [result.detach().cpu(), given.grad.cpu()]
    return kept


def spoilt():
    """A forbidden call ends the capture with torch's error, and the next capture works."""
    tensor = torch.zeros(8, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tensor.cpu()
    except RuntimeError as error:
        assert "capture" in str(error).lower(), error
    else:
        raise AssertionError("no error")
    torch.cuda.synchronize()
    return captured()


if __name__ == "__main__":
    cases.main(globals())

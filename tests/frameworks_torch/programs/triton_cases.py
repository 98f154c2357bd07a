"""Ordinary Triton kernels against torch on the CPU."""

from __future__ import annotations

import cases
import torch
import triton
import triton.language as tl

torch.manual_seed(7)


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


def vector_add():
    results = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8):
        x, y = (torch.randint(-50, 50, (10_007,)).to(dtype) for _ in range(2))
        out = torch.empty_like(x, device="cuda")
        add_kernel[(triton.cdiv(x.numel(), 1024),)](x.cuda(), y.cuda(), out, x.numel(), BLOCK=1024)
        assert torch.equal(out.cpu(), x + y), dtype
        results.append(out)
    return results


@triton.jit
def softmax_kernel(out, x, row, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < columns
    start = tl.program_id(0) * row
    values = tl.load(x + start + i, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + start + i, powers / tl.sum(powers, axis=0), mask=inside)


def softmax():
    x = torch.randn(37, 781)
    out = torch.empty_like(x, device="cuda")
    softmax_kernel[(37,)](out, x.cuda(), 781, 781, BLOCK=1024, num_warps=8)
    torch.testing.assert_close(out.cpu(), torch.softmax(x, 1))
    return [out]


@triton.jit
def layer_norm_kernel(x, weight, bias, out, mean_out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * columns + i, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    result = centred * scale * tl.load(weight + i, mask=inside) + tl.load(bias + i, mask=inside)
    tl.store(out + row * columns + i, result, mask=inside)
    tl.store(mean_out + row, mean)


def layer_norm():
    results = []
    for dtype in (torch.float32, torch.float16):
        x, weight, bias = torch.randn(19, 300).to(dtype), torch.randn(300).to(dtype), torch.randn(300).to(dtype)
        out = torch.empty_like(x, device="cuda")
        mean = torch.empty(19, device="cuda")
        layer_norm_kernel[(19,)](x.cuda(), weight.cuda(), bias.cuda(), out, mean, 300, 1e-5, BLOCK=512)
        want = torch.nn.functional.layer_norm(x.float(), (300,), weight.float(), bias.float(), 1e-5)
        torch.testing.assert_close(out.cpu(), want.to(dtype))
        torch.testing.assert_close(mean.cpu(), x.float().mean(1))
        results += [out, mean]
    return results


@triton.jit
def matmul_kernel(a, b, out, m, n, k, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * k + inner, mask=(rows[:, None] < m) & (inner < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + columns, mask=(inner[:, None] < k) & (columns < n), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + rows[:, None] * n + columns, total, mask=(rows[:, None] < m) & (columns < n))


def multiply(dtype, precision, tolerance):
    m, n, k = 100, 70, 90
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    out = torch.empty(m, n, device="cuda")
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 32))
    matmul_kernel[grid](a.cuda(), b.cuda(), out, m, n, k, PRECISION=precision, BM=64, BN=32, BK=32)
    torch.testing.assert_close(out.cpu(), (a.double() @ b.double()).float(), rtol=tolerance, atol=tolerance)
    return [out]


def dot_of_half():
    return multiply(torch.float16, "tf32", 1e-4) + multiply(torch.bfloat16, "tf32", 1e-4)


def dot_of_single():
    return multiply(torch.float32, "ieee", 1e-4)


def dot_in_tf32():
    return multiply(torch.float32, "tf32", 2e-2) + multiply(torch.float32, "tf32x3", 1e-3)


@triton.jit
def scan_kernel(x, total, greatest, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(total + i, tl.cumsum(values, 0))
    tl.store(greatest + i, tl.associative_scan(values, 0, larger))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


def scan():
    x = torch.randint(-1000, 1000, (2048,))
    total, greatest = (torch.empty_like(x, device="cuda") for _ in range(2))
    scan_kernel[(1,)](x.cuda(), total, greatest, BLOCK=2048)
    assert torch.equal(total.cpu(), x.cumsum(0))
    assert torch.equal(greatest.cpu(), x.cummax(0).values)
    return [total, greatest]


@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, tl.load(x + i, mask=inside) / (1 - p), 0.0), mask=inside)


def philox(seed, counters):
    """The first word of Philox-4x32-10 for each counter, after Salmon et al., "Parallel random numbers", 2011."""
    mask = 0xFFFFFFFF
    firsts = []
    for counter in counters:
        c, key = [counter, 0, 0, 0], [seed & mask, seed >> 32]
        for _ in range(10):
            high, low = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [low >> 32 ^ c[1] ^ key[0], low & mask, high >> 32 ^ c[3] ^ key[1], high & mask]
            key = [key[0] + 0x9E3779B9 & mask, key[1] + 0xBB67AE85 & mask]
        firsts.append(c[0])
    return torch.tensor(firsts, dtype=torch.int64)


def dropout():
    x = torch.randn(3000)
    out = torch.empty_like(x, device="cuda")
    dropout_kernel[(triton.cdiv(3000, 512),)](x.cuda(), out, 3000, 0.25, 123, BLOCK=512)
    # Triton makes a float of the word taken as a signed number.
    signed = philox(123, range(3000))
    signed = torch.where(signed >= 1 << 31, signed - (1 << 32), signed)
    uniform = torch.where(signed < 0, -signed - 1, signed).float() * 4.6566127342e-10
    torch.testing.assert_close(out.cpu(), torch.where(uniform > 0.25, x / 0.75, torch.zeros(())))
    return [out]


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + i, mask=i < n), 1, mask=i < n)


def atomics():
    x = torch.randint(0, 9, (5000,))
    out = torch.zeros(9, dtype=torch.int32, device="cuda")
    histogram_kernel[(triton.cdiv(5000, 256),)](x.cuda(), out, 5000, BLOCK=256)
    assert torch.equal(out.cpu(), x.bincount(minlength=9).int())
    return [out]


@triton.jit
def order_kernel(x, ordered, place, flipped, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(ordered + i, tl.sort(values))
    tl.store(place, tl.argmin(values, 0))
    square = tl.reshape(values, (BLOCK // 16, 16))
    tl.store(flipped + i, tl.reshape(tl.trans(square), (BLOCK,)))


def sort_and_transpose():
    x = torch.randperm(512).float()
    ordered, flipped = (torch.empty_like(x, device="cuda") for _ in range(2))
    place = torch.empty(1, dtype=torch.int32, device="cuda")
    order_kernel[(1,)](x.cuda(), ordered, place, flipped, BLOCK=512)
    assert torch.equal(ordered.cpu(), x.sort().values)
    assert place.item() == x.argmin().item()
    assert torch.equal(flipped.cpu().view(16, 32), x.view(32, 16).T)
    return [ordered, place, flipped]


tuned_add_kernel = triton.autotune(
    [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((256, 2), (1024, 4), (2048, 8))], key=["n"]
)(add_kernel)


def autotune():
    """Times the configurations by events; any may win, and all are right."""
    x, y = torch.randn(50_000), torch.randn(50_000)
    out = torch.empty_like(x, device="cuda")
    tuned_add_kernel[lambda meta: (triton.cdiv(50_000, meta["BLOCK"]),)](x.cuda(), y.cuda(), out, 50_000)
    assert torch.equal(out.cpu(), x + y)
    assert all(0 < time < 1000 for times in tuned_add_kernel.configs_timings.values() for time in times)
    return [out]


if __name__ == "__main__":
    cases.main(globals())

"""torch's own use of a GPU, apart from its kernels: properties, copies, memory, streams, data loading."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import cases
import torch
from torch.utils.data import DataLoader, TensorDataset

MIB = 1 << 20
# The share that the test gives to every program.
SHARE = 2048 * MIB

torch.manual_seed(7)


def properties():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    device = torch.cuda.get_device_properties(0)
    assert (device.major, device.minor) == torch.cuda.get_device_capability()
    assert device.name == torch.cuda.get_device_name()
    assert device.total_memory == SHARE
    assert device.warp_size == 32
    assert not torch.cuda.can_device_access_peer(0, 0)


def memory_info():
    free, total = torch.cuda.mem_get_info()
    assert total == SHARE
    tensor = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    less, _ = torch.cuda.mem_get_info()
    assert 256 * MIB <= free - less <= 260 * MIB
    del tensor


def management():
    """Uses NVML, through the `nvidia-ml-py` that is installed with torch."""
    tensor = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    assert 512 * MIB <= torch.cuda.device_memory_used() <= SHARE
    assert 0 <= torch.cuda.utilization() <= 100
    assert 0 <= torch.cuda.memory_usage() <= 100
    assert str(os.getpid()) in torch.cuda.list_gpu_processes()
    counted = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    environment = os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    done = subprocess.run([sys.executable, "-c", counted], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True 1\n"
    del tensor


def copies():
    results = []
    for dtype in (torch.float32, torch.float16, torch.bool, torch.complex64):
        host = torch.randn(1000, 100).to(dtype)
        device = host.cuda()
        assert torch.equal(device.cpu(), host)
        results.append(device)
    x = torch.arange(1000.0)
    device = x.cuda()
    device[100:200].copy_(device[500:600])
    x[100:200] = x[500:600]
    assert torch.equal(device.cpu(), x)
    assert torch.equal(device.clone().cpu(), x)
    assert torch.equal(device.view(10, 100)[3].cpu(), x.view(10, 100)[3])
    assert device[150].item() == 550
    assert torch.equal(torch.zeros(77, device="cuda").cpu(), torch.zeros(77))
    return [*results, device]


def pinned_copies():
    host = torch.randn(4 * MIB).pin_memory()
    assert host.is_pinned()
    back = torch.empty_like(host, pin_memory=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        device = host.to("cuda", non_blocking=True)
        back.copy_(device, non_blocking=True)
    stream.synchronize()
    assert torch.equal(back, host)
    return [device]


def streams_and_events():
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    host = torch.randn(MIB)
    with torch.cuda.stream(first):
        start.record()
        device = host.cuda(non_blocking=True)
        end.record()
    second.wait_event(end)
    with torch.cuda.stream(second):
        copy = device.clone()
        copy.record_stream(second)
    torch.cuda.current_stream().wait_stream(second)
    torch.cuda.synchronize()
    assert end.query() and first.query() and second.query()
    assert 0 < start.elapsed_time(end) < 60_000
    assert torch.equal(copy.cpu(), host)
    return [copy]


def caching_allocator():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tensors = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 30, 200)]
    assert torch.cuda.memory_allocated() - before == 231 * MIB
    address = tensors.pop().data_ptr()
    again = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() == address, "the cache gives the block again"
    del tensors, again
    assert torch.cuda.memory_reserved() >= 200 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 200 * MIB
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] - before == 231 * MIB
    assert "allocated memory" in torch.cuda.memory_summary().lower()


def out_of_memory():
    """The limit is the share, not the GPU: another tenant's memory is out of reach, and afterwards everything works."""
    torch.cuda.empty_cache()
    kept = torch.arange(1000.0).cuda()
    held = []
    try:
        while True:
            held.append(torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert "CUDA out of memory" in str(error)
    assert len(held) in (19, 20), f"{len(held)} blocks of 100 MiB in a share of 2 GiB"
    try:
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("more than the share")
    del held
    torch.cuda.empty_cache()
    assert torch.equal(kept.cpu(), torch.arange(1000.0))
    assert torch.empty(1800 * MIB, dtype=torch.uint8, device="cuda").numel() == 1800 * MIB


def expandable_segments():
    """With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: physical memory is mapped behind reserved addresses."""
    host = torch.randn(10 * MIB)
    tensors = [host.cuda() for _ in range(5)]
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    assert all(torch.equal(tensor.cpu(), host) for tensor in tensors)
    del tensors[1:4]
    torch.cuda.empty_cache()
    tensors.append(torch.cat([host, host]).cuda())
    assert torch.equal(tensors[0].cpu(), host)
    assert torch.equal(tensors[-1][: host.numel()].cpu(), host)
    return tensors[:1]


def data_loader():
    """Workers are forked from a process that uses the GPU; a thread of ours pins their output."""
    data, labels = torch.randn(200, 33), torch.arange(200)
    torch.zeros(1, device="cuda")
    loader = DataLoader(TensorDataset(data, labels), batch_size=32, num_workers=2, pin_memory=True)
    for _ in range(2):
        batches = []
        for rows, numbers in loader:
            assert rows.is_pinned()
            batches.append((rows.to("cuda", non_blocking=True), numbers.cuda(non_blocking=True)))
        assert torch.equal(torch.cat([rows.cpu() for rows, _ in batches]), data)
        assert torch.equal(torch.cat([numbers.cpu() for _, numbers in batches]), labels)
    return [rows for rows, _ in batches]


def saved_model():
    model = torch.nn.Linear(20, 30).cuda()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location="cuda")
    assert torch.equal(loaded["weight"].cpu(), model.weight.cpu())
    return loaded.values()


if __name__ == "__main__":
    cases.main(globals())

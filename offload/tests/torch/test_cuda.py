"""The facade of torch.cuda: answered by the acceptor, harmless, or refused with a sentence; never a driver's error
(trap 9).
"""

import inspect
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_armed import trips
from torch import nn

from remotegpu_offload.client.session import Session
from remotegpu_offload.torch.storage import LARGEST

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("armed")]


def test_the_device_is_available_and_has_its_properties() -> None:
    assert torch.cuda.is_available() and torch.cuda.is_initialized()
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    torch.cuda.set_device(0)
    torch.cuda.set_device("cuda:0")
    torch.cuda.init()
    with torch.cuda.device(0), torch.cuda.device("cuda"), torch.cuda.device_of(torch.ones(1, device="cuda")):
        assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match=r"\bcuda:0\b"):
        torch.cuda.set_device(1)
    with pytest.raises(ValueError, match=r"\bcpu\b"):
        torch.cuda.set_device("cpu")
    found = torch.cuda.get_device_properties(0)
    assert torch.cuda.get_device_name() == found.name and found.name.startswith("CPU of the acceptor")
    assert found.total_memory > 1 << 28 and found.multi_processor_count >= 1
    # A CPU has no compute capability: programs that look for one take their careful way.
    assert torch.cuda.get_device_capability() == (found.major, found.minor) == (0, 0)
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.get_arch_list() == []


def test_properties_are_asked_once(armed: Session) -> None:
    torch.cuda.get_device_properties()
    before = trips(armed)
    for _ in range(5):
        torch.cuda.get_device_name()
        torch.cuda.get_device_capability()
        torch.cuda.is_available()
        torch.cuda.device_count()
    assert trips(armed) == before


def test_memory_is_the_acceptors(armed: Session) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    kept = torch.zeros(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() == before + (4 << 20)
    assert torch.cuda.max_memory_allocated() >= before + (4 << 20)
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == before + (4 << 20)
    assert "MiB" in torch.cuda.memory_summary()
    assert kept.numel()
    del kept
    assert torch.cuda.memory_allocated() == before
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.accelerator.memory_allocated() == torch.xpu.memory_allocated() == before
    assert torch.mps.current_allocated_memory() == before


def test_streams_and_events(armed: Session) -> None:
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before = trips(armed)
    x = torch.ones(64, 64, device="cuda")
    start.record()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x @ x
        y.record_stream(stream)
    torch.cuda.current_stream().wait_stream(stream)
    end.record(stream)
    end.wait()
    assert trips(armed) == before
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    assert end.query() and stream.query() and not torch.cuda.is_current_stream_capturing()
    assert y.sum().item() == 64**3
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)
    before = trips(armed)
    with pytest.raises(RuntimeError):
        torch.cuda.Event(enable_timing=True).elapsed_time(end)
    assert trips(armed) == before, "the acceptor is not asked"


def test_an_error_of_the_device_comes_with_synchronize() -> None:
    x = torch.arange(4, device="cuda")
    y = x[torch.tensor([9], device="cuda")]
    with pytest.raises(IndexError, match=r"aten::index"):
        torch.cuda.synchronize()
    with pytest.raises(IndexError, match="aten::index"):
        y.tolist()
    assert x.tolist() == [0, 1, 2, 3]


def test_backends_and_cudnn() -> None:
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.version() is None and not torch.backends.cudnn.is_available()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.backends.cudnn.flags(enabled=False):
        assert nn.Conv1d(1, 1, 1).cuda()(torch.ones(1, 1, 1, device="cuda")).is_cuda
    nn.LSTM(2, 3).cuda().flatten_parameters()
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.get_device_module() is torch.cuda


def test_the_accelerator_is_the_device() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    torch.accelerator.synchronize()
    torch.accelerator.set_device_index(0)


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch.cuda.graph(None),
        lambda: torch.cuda.make_graphed_callables(nn.Linear(1, 1), (torch.ones(1),)),
        lambda: torch.cuda.cudart(),
        lambda: torch.cuda.ExternalStream(1),
        lambda: torch.cuda.MemPool(),
        lambda: torch.cuda.memory_snapshot(),
        lambda: torch.cuda.caching_allocator_alloc(1),
        lambda: torch.cuda.list_gpu_processes(),
        lambda: torch.cuda.temperature(),
        lambda: torch.distributed.init_process_group("nccl"),
        lambda: torch.distributed.init_process_group(),
        lambda: torch.cuda.utilization(),
    ],
    ids=lambda use: f"line{use.__code__.co_firstlineno}",
)
def test_what_it_cannot_do_is_a_sentence_with_the_next_step(use: Any) -> None:
    with pytest.raises(RuntimeError, match=r"`remotegpu offload (run|stats)\b"):
        use()


def test_nothing_public_reaches_for_a_driver() -> None:
    """Called with nothing, everything in torch.cuda works, wants arguments, or is refused by us."""
    quiet = {"init", "set_per_process_memory_fraction", "caching_allocator_enable"}
    for name in sorted(set(torch.cuda.__all__) - quiet):
        value = getattr(torch.cuda, name, None)
        if not callable(value) or inspect.ismodule(value) or name.endswith(("Storage", "Error")):
            continue
        try:
            value()
        except TypeError:
            continue
        except RuntimeError as error:
            assert "remote" in str(error), name


def test_compiling_is_refused_where_it_would_make_kernels_here() -> None:
    x = torch.ones(3, device="cuda")
    assert torch.compile(lambda y: y + 1, backend="eager")(x).tolist() == [2.0] * 3
    model = torch.compile(nn.Linear(3, 1).cuda(), backend="aot_eager")
    model(x).sum().backward()
    with pytest.raises(Exception, match=r"\btorch\.compile: .*--split app\b.*backend='eager'"):
        torch.compile(_plus_one)(x)
    with pytest.raises(RuntimeError, match=r"^torch\.export:.*\.cpu\(\)"):
        torch.export.export(nn.Linear(3, 1).cuda(), (x,))


def _plus_one(x: Any) -> Any:
    return x + 1


def test_marks_of_nvtx_are_silent() -> None:
    with torch.cuda.nvtx.range("forward"):
        torch.cuda.nvtx.mark("here")


def _profiled(x: Any, old: bool) -> Any:
    made = (
        torch.autograd.profiler.profile(use_device="cuda")
        if old
        else torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    )
    with made as profile:
        (x + 1).sum().item()
    return profile


@pytest.mark.parametrize("old", [False, True])
def test_profilers_time_what_is_here_and_say_so_once(capfd: pytest.CaptureFixture[str], old: bool) -> None:
    x = torch.ones(3, device="cuda")
    with pytest.warns(RuntimeWarning, match=r"\bcuda\b.*`remotegpu offload run\b") as warned:
        profile = _profiled(x, old)
    assert len(warned) == 1
    assert {"aten::add", "aten::sum", "aten::item"} <= {event.key for event in profile.key_averages()}
    said = capfd.readouterr().err
    assert "frame #" not in said and "Failed to record" not in said


def test_too_large_is_out_of_memory_whoever_finds_it(armed: Session) -> None:
    """A program that searches for a batch size that fits continues after the error."""
    with pytest.raises(torch.OutOfMemoryError, match=str(LARGEST)):
        torch.zeros(10**13, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=str(LARGEST)):
        torch.ones(1, device="cuda").expand(10**13) + 1
    with pytest.raises(torch.OutOfMemoryError, match=str(LARGEST)):
        torch.empty(0, device="cuda").resize_(10**13)
    x = torch.ones(3, device="cuda")
    torch.cuda.synchronize()
    connector: Any = armed.connector
    acceptor = connector.processes[-1].pid
    pages = int(Path(f"/proc/{acceptor}/statm").read_text().split()[0])
    soft, hard = resource.prlimit(acceptor, resource.RLIMIT_AS)
    resource.prlimit(acceptor, resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    try:
        y = torch.zeros(1 << 33, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=str(1 << 33)):
            torch.cuda.synchronize()
        with pytest.raises(torch.OutOfMemoryError):
            y.sum().item()
    finally:
        resource.prlimit(acceptor, resource.RLIMIT_AS, (soft, hard))
    assert (x + 1).tolist() == [2.0] * 3


def test_constructors_from_before_devices() -> None:
    assert torch.cuda.FloatTensor([1, 2]).tolist() == [1.0, 2.0]
    assert torch.cuda.ByteTensor(2, 3).shape == (2, 3)
    assert torch.cuda.LongTensor(torch.Size([4])).dtype == torch.int64
    assert torch.cuda.HalfTensor.dtype == torch.float16
    assert torch.zeros(2).type(torch.cuda.BoolTensor).dtype == torch.bool
    assert torch.ones(2, device="cuda").type(torch.float64).is_cuda

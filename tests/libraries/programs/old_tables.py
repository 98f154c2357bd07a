"""Runs a case of cublas_streams.py with private tables as a driver has them that says nothing of contexts and streams:
the slots that answer their numbers succeed without an answer. cuBLAS then takes one workspace for two streams.
"""

from __future__ import annotations

import ctypes
import mmap
from ctypes import CFUNCTYPE, byref, c_char, c_int, c_size_t, c_void_p, cast

LIBRARY_SUPPORT = bytes.fromhex("21318c60971432488ca641ff7324c8f2")
CONTEXT_ID, STREAM_ID, STREAM_TOKEN = 4, 39, 51
succeed = CFUNCTYPE(c_int)(lambda: 0)


def break_slots() -> None:
    cuda, libc, table = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None), c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuGetExportTable(byref(table), (c_char * 16)(*LIBRARY_SUPPORT)) == 0
    assert table.value
    for slot in (CONTEXT_ID, STREAM_ID, STREAM_TOKEN):
        at = table.value + 8 * slot
        page = at // mmap.PAGESIZE * mmap.PAGESIZE
        assert libc.mprotect(c_void_p(page), c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE) == 0
        c_void_p.from_address(at).value = cast(succeed, c_void_p).value


if __name__ == "__main__":
    break_slots()
    import cases
    import cublas_streams

    cases.main(vars(cublas_streams))

"""Two ranks of NCCL in one process, on two devices: prints each rank's answer, seconds and sentence, as JSON."""

import ctypes
import json
import os
import threading
import time
from importlib.metadata import files

RANKS = 2


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def library(distribution, name):
    (found,) = (file for file in files(distribution) if file.name == name)
    return ctypes.CDLL(str(found.locate()))


runtime = library("nvidia-cuda-runtime", "libcudart.so.13")
nccl = library("nvidia-nccl-cu13", "libnccl.so.2")
nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
nccl.ncclGetErrorString.restype = ctypes.c_char_p
answers = [None] * RANKS
name = Id()
assert nccl.ncclGetUniqueId(ctypes.byref(name)) == 0


def join(rank):
    assert runtime.cudaSetDevice(rank) == 0
    communicator = ctypes.c_void_p()
    start = time.monotonic()
    code = nccl.ncclCommInitRank(ctypes.byref(communicator), RANKS, name, rank)
    sentence = nccl.ncclGetErrorString(code).decode()
    answers[rank] = {"code": code, "seconds": time.monotonic() - start, "sentence": sentence}


threads = [threading.Thread(target=join, args=(rank,)) for rank in range(RANKS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(answers), flush=True)
# NCCL's own threads may not have ended.
os._exit(0)

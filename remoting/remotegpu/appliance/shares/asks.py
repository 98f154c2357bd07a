"""Parses and checks the shares in gRPC requests."""

from typing import Final

import grpc

from remotegpu.api.quantities import MILLI_PER_GPU, Ask, Compute
from remotegpu.appliance.refusal import RefusalError

_MOST_GPUS: Final = 1024


def compute_of(milli: int, limit_milli: int) -> Compute:
    """Returns the requested part of a GPU's time. 0 means not given. Raises RefusalError if it is invalid."""
    if milli <= (limit_milli or MILLI_PER_GPU) <= MILLI_PER_GPU:
        return Compute(milli, limit_milli or MILLI_PER_GPU)
    message = (
        f"{milli}/1000 of a GPU's time, at most {limit_milli}/1000: a limit is at least the guarantee, and at most 1"
    )
    raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, message)


def ask_of(count: int, milli: int, memory_bytes: int) -> Ask:
    """Returns the requested share. Raises RefusalError if it is invalid."""
    if not 1 <= count <= _MOST_GPUS:
        message = f"{count} GPUs were asked for; ask for 1 to {_MOST_GPUS}"
    elif bool(milli) == bool(memory_bytes):
        message = "a share is given by a fraction or by memory: exactly one of them"
    elif milli > MILLI_PER_GPU:
        message = f"{milli}/1000 is more than one GPU; a share is a part of one GPU, or several whole ones"
    else:
        return Ask(count, milli, memory_bytes)
    raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, message)

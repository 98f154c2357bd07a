"""Measures the time of two moves of a session in torch mode.

Usage: `python moving.py MIB THERE BACK`, where THERE and BACK are environments. The device is almost empty in the move
to THERE, and has MIB mebibytes in the move to BACK. Prints JSON with the seconds of the first move, and the additional
seconds for each GiB.
"""

import json
import sys
import time

import torch

from remotegpu_offload.client import session

_PIECE_MIB = 16


def move(environment: str, tensors: list[torch.Tensor]) -> float:
    """Moves the session to `environment` and checks the tensors. Returns the seconds of the move."""
    before = [tensor.sum().item() for tensor in tensors]
    began = time.perf_counter()
    session.current().switch(environment=environment)
    took = time.perf_counter() - began
    if before != [tensor.sum().item() for tensor in tensors]:
        sys.exit("what was on the device is not what came out of the move")
    return took


def main() -> None:
    mib, away, back = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    tensors = [torch.ones(4, device="cuda")]
    little = move(away, tensors)
    tensors += [torch.randn(_PIECE_MIB << 18, device="cuda") for _ in range(mib // _PIECE_MIB)]
    much = move(back, tensors)
    print(json.dumps({"switch_s": little, "switch_s_per_gib": (much - little) / mib * 1024}))  # noqa: T201


if __name__ == "__main__":
    main()

"""The program's random number generators on the remote device, and how an operation's argument is recognised as one.

torch makes a new Python object each time it passes a generator to an operation. Therefore a remote generator is also a
CPU generator, whose seed combines a mark of this process with the generator's id.
"""

import os
import weakref
from typing import Any, Final

import torch

from remotegpu_offload.torch import shown

DEFAULT: Final = 0
"""The id of the device's own generator, on the wire."""

MARK: Final = int.from_bytes(os.urandom(5), "little") << 20
made: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()

_Local: Any = torch._C.Generator


def generator_id(generator: Any) -> int:
    """Returns the id of the generator that an operation received as `generator=`; `DEFAULT` for None.

    Raises RuntimeError for a generator of another device, as torch does.
    """
    if generator is None:
        return DEFAULT
    own: int | None = getattr(generator, "id", None)
    seed = own if own is not None else _Local.initial_seed(generator) ^ MARK
    if seed not in made:
        kind = _Local.device.__get__(generator).type
        raise RuntimeError(f"Expected a '{shown.current()}' device type for generator but found '{kind}'")
    return int(seed)

"""The generators that the program has on the remote device, and how one is recognised among an operation's arguments.

torch makes a new Python object for a generator each time that it hands one to an operation. So ours is recognised by
the seed of the generator on the CPU that it also is: a mark of this process and its id.
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
    """The id on the wire of what an operation got as `generator=`; `DEFAULT` for None.

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

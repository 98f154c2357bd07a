"""Libraries that take a path in Python and open it in C, but take an open file as well: they get that."""

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from remotegpu.offload.importing.hooks import when_imported

if TYPE_CHECKING:
    from remotegpu.offload.files.layer import Layer


def install(layer: "Layer") -> None:
    """From now on, and for what is imported later."""
    when_imported("torch", lambda torch: _adapt_torch(torch, layer))


def _adapt_torch(torch: ModuleType, layer: "Layer") -> None:
    original: Any = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *arguments: Any, **keywords: Any) -> Any:
        if layer.theirs(f) is None:
            return original(obj, f, *arguments, **keywords)
        with layer.open(f, "wb") as file:
            return original(obj, file, *arguments, **keywords)

    torch.save = save  # type: ignore[attr-defined]
    serialization: Any = getattr(torch, "serialization", None)
    if serialization is not None:
        serialization.save = save

"""Plans for calls with the same shapes, strides, types and constants, and for their results. Each plan is made once."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from remotegpu_offload.torch import shapes
from remotegpu_offload.torch.codec import Meta
from remotegpu_offload.torch.storage import Blueprint, address_of, meta_of

_NUMBERS: Final = frozenset(
    ("number", "Optional[number]", "List[number]", "float", "Optional[float]", "Tensor", "Optional[Tensor]")
)


class Plan:
    """The plan of one call: how to pack its entry, the new tensors, and the structure of the result."""

    __slots__ = ("fresh", "kind", "leased", "number", "pack", "result")

    def __init__(
        self, kind: int, number: int, form: str, fresh: Sequence[Blueprint], result: Any, leased: int = 0
    ) -> None:
        self.kind = kind
        self.number = number
        self.pack = struct.Struct("<I" + form).pack
        self.fresh = fresh
        self.result = result
        self.leased = leased


# The kind of a plan's result: the first argument itself; one new tensor; any other; results that only the acceptor
# knows; or new sizes for a written argument, after which the call is repeated.
IN_PLACE, FRESH, MIXED, ASKED, RESIZED = range(5)


class Alias:
    """A result that is an argument: the same object must be returned."""

    __slots__ = ("where",)

    def __init__(self, where: int | str) -> None:
        self.where = where

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[self.where] if isinstance(self.where, str) else args[self.where]


def is_scalar(argument: Any) -> bool:
    """Returns whether an argument's value does not affect the form of the results.

    Such values are sent with each call.
    """
    return str(argument.type) in _NUMBERS


def aliases_of(schema: Any) -> tuple[Alias | None, ...]:
    """Returns, for each result of an operation, the argument that it is, or None."""
    arguments = {
        frozenset(argument.alias_info.before_set): Alias(argument.name if argument.kwarg_only else index)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    return tuple(
        None if returned.alias_info is None else arguments.get(frozenset(returned.alias_info.before_set))
        for returned in schema.returns
    )


def results_of(
    schema: Any, aliases: Sequence[Alias | None], results: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Meta], list[Any]]:
    """Converts inferred results: returns the tree of results (indexes of new tensors), their metas, and arguments to
    resize.

    Raises Unknown for results that are not tensors.
    """
    metas: list[Meta] = []
    resized = []

    def leaf(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            return [leaf(item) for item in value]
        if not isinstance(value, torch.Tensor) or not (value.is_meta or address_of(value)):
            raise shapes.Unknown
        metas.append(meta_of(value))
        return len(metas) - 1

    many = len(schema.returns) != 1
    tree = []
    for alias, value in zip(aliases, results if many else (results,), strict=False) if results is not None else ():
        if alias is None:
            tree.append(leaf(value))
            continue
        before = alias.of(args, kwargs)
        if isinstance(before, torch.Tensor) and tuple(before.shape) != tuple(value.shape):
            resized.append((alias, tuple(value.shape), value.stride()))
        tree.append(alias)
    return (tuple(tree) if many and tree else tree[0] if tree else None), metas, resized


def assemble(tree: Any, tensors: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(tree, int):
        return tensors[tree]
    if isinstance(tree, Alias):
        return tree.of(args, kwargs)
    if isinstance(tree, (list, tuple)):
        return type(tree)(assemble(item, tensors, args, kwargs) for item in tree)
    return tree

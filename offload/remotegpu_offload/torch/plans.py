"""Plans of calls that have the same shapes, strides, types and constants, and of their results: each is learnt once."""

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
    """The plan of one call: the entry's packer, the tensors that come out, and how they make up the result."""

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


# The kind of a plan's result: the first argument itself, one fresh tensor, anything else; something only the acceptor
# knows; or other sizes of an argument that is written to, after which the call is made again.
IN_PLACE, FRESH, MIXED, ASKED, RESIZED = range(5)


class Alias:
    """A result that is an argument: the very object must be returned."""

    __slots__ = ("where",)

    def __init__(self, where: int | str) -> None:
        self.where = where

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[self.where] if isinstance(self.where, str) else args[self.where]


def is_scalar(argument: Any) -> bool:
    """Whether values of this argument change only what is calculated, and not the form of the results: they are sent
    with each call."""
    return str(argument.type) in _NUMBERS


def aliases_of(schema: Any) -> tuple[Alias | None, ...]:
    """Returns, for each result of an operation, the argument that it is, if any."""
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
    """Converts the inference's results: the tree of results (numbers of fresh tensors), their metas, and the arguments
    to resize.

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

"""Finds the last operation of a batch, for the error message of a lost acceptor."""

import struct
from collections.abc import Iterable

from remotegpu_offload.torch import codec
from remotegpu_offload.torch.codec import Template

_FIXED = {
    codec.FREE: codec.FREE_ENTRY.size,
    codec.ALLOCATE: codec.ALLOCATE_ENTRY.size,
    codec.PUT: codec.PUT_ENTRY.size,
    codec.RESIZE: codec.RESIZE_ENTRY.size,
    codec.FORGET: codec.FORGET_ENTRY.size,
}


def last_operation(batch: bytes, known: Iterable[bytes]) -> str:
    """Returns the last operation in a batch, such as `aten::add.Tensor`; "" if there is none.

    `known`: the entries of all templates.
    """
    templates = {template.number: template for template in map(_template, known)}
    at, found = codec.BATCH.size, ""
    while at < len(batch):
        number = codec.ENTRY.unpack_from(batch, at)[0]
        if number in _FIXED:
            at += _FIXED[number]
        elif number == codec.TEMPLATE:
            at += codec.TEMPLATE_ENTRY.size + codec.TEMPLATE_ENTRY.unpack_from(batch, at)[1]
        elif number in templates:
            found = templates[number].name
            at += codec.ENTRY.size + struct.calcsize("<" + templates[number].form)
        else:
            break
    return found


def _template(entry: bytes) -> Template:
    return Template.decode(entry[codec.TEMPLATE_ENTRY.size :])

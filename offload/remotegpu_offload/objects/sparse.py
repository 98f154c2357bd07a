"""Pickles SciPy's sparse matrices and arrays as parts, from which checked constructors rebuild them."""

from typing import Any, Final

import scipy.sparse as sp

from remotegpu_offload.objects import restricted
from remotegpu_offload.objects.encoder import Encoder, register

_COMPRESSED: Final = ("csr", "csc", "bsr")
_OTHERS: Final = ("coo", "dia")


@restricted.allow
def sparse(form: Any, kind: Any, parts: Any, shape: Any) -> Any:
    """Makes a sparse matrix or array in one of SciPy's formats. Checks all indices, because SciPy's C code does not."""
    if form not in (*_COMPRESSED, *_OTHERS) or kind not in {"matrix", "array"}:
        raise TypeError("not a sparse format that is known")
    made = getattr(sp, f"{form}_{kind}")(parts, shape=tuple(shape))
    if form in _COMPRESSED:
        made.check_format(full_check=True)
    return made


@restricted.allow
def as_format(base: Any, form: Any) -> Any:
    """Converts a sparse matrix or array to a format that is built from others."""
    if not sp.issparse(base) or form not in {"lil", "dok"}:
        raise TypeError("not a sparse format that is known")
    return base.asformat(form)


def _reduce(_encoder: Encoder, value: Any) -> Any:
    kind = "array" if isinstance(value, sp.sparray) else "matrix"
    match value.format:
        case "csr" | "csc" | "bsr":
            return sparse, (value.format, kind, (value.data, value.indices, value.indptr), value.shape)
        case "coo":
            return sparse, ("coo", kind, (value.data, value.coords), value.shape)
        case "dia":
            return sparse, ("dia", kind, (value.data, value.offsets), value.shape)
    return as_format, (value.tocoo(), value.format)


for _kind in (sp.spmatrix, sp.sparray):
    register(_kind, _reduce)

"""The acceptor's executor: holds storages, and executes entries one after the other on one device. It does no I/O.

An operation's failure affects only operations that depend on it: its results, and storages that it would have written,
become a sentinel for the failure. The next answer for which the client waits reports the failure, and so does each
operation that needs one of these results.
"""

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from remotegpu_offload.torch import codec
from remotegpu_offload.torch.acceptor.operation import Operation, flat
from remotegpu_offload.torch.codec import (
    ALLOCATE_ENTRY,
    ENTRY,
    FREE_ENTRY,
    PUT_ENTRY,
    RESIZE_ENTRY,
    SHIFT,
    TEMPLATE_ENTRY,
    Meta,
    Template,
    meta_to_json,
)

_OFFSET: Final = (1 << SHIFT) - 1
_HOST: Final = torch.device("cpu")
# Most failures to report: the first ones show the cause, and thousands may follow.
_UNTOLD: Final = 100


# Most views of one storage that are cached. A tensor that is filled piece by piece would create new views without end.
_VIEWS: Final = 256


class Failure:
    """Sentinel in place of a storage that an operation failed to make."""

    __slots__ = ("text", "told", "type")

    def __init__(self, kind: str, text: str) -> None:
        self.type = kind
        self.text = text
        self.told = False

    def to_json(self) -> dict[str, str]:
        self.told = True
        return {"type": self.type, "text": self.text}


class FailedError(Exception):
    """An answer needs the result of a failed operation."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Storage:
    """One storage, and the tensors on it that operations have used, by address and description."""

    __slots__ = ("storage", "tensors")

    def __init__(self, storage: Any, tensors: dict[Any, Any] | None = None) -> None:
        self.storage = storage
        self.tensors: dict[Any, Any] = tensors if tensors is not None else {}


def _absent(held: "Storage | Failure | None", address: int) -> Exception:
    return FailedError(held) if isinstance(held, Failure) else ValueError(f"there is no storage at {address:#x}")


class Executor:
    """Storages by slot, and the operations on them. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.storages: dict[int, Storage | Failure] = {}
        self.executed = 0
        # Results whose number or shape the client did not know, by the first address that it reserved.
        self.results: dict[int, list[Any] | Failure] = {}
        # Returns the random number generator with a client's id.
        self.generator: Callable[[int], Any] | None = None
        self._operations: dict[int, Operation] = {}
        # Templates from before the last FORGET: another thread of the client may still use one.
        self._older: dict[int, Operation] = {}
        self._untold: list[Failure] = []
        self._exported = itertools.count(codec.FIRST_THERE)

    def run(self, batch: Any, buffers: Sequence[Any]) -> None:
        """Executes the entries of a batch, which come after its number. Raises ValueError for invalid data."""
        at, end = 0, len(batch)
        data = iter(buffers)
        read = ENTRY.unpack_from
        operations = self._operations
        with torch.no_grad():
            while at < end:
                number = read(batch, at)[0]
                operation = operations.get(number) or self._older.get(number)
                if operation is not None:
                    values = operation.read(batch, at + 4)
                    at += 4 + operation.size
                    self.executed += 1
                    self._execute(operation, values)
                elif number == codec.FREE:
                    self.storages.pop(FREE_ENTRY.unpack_from(batch, at)[1] >> SHIFT, None)
                    at += FREE_ENTRY.size
                else:
                    at = self._manage(number, batch, at, data)

    def tensor(self, address: int, meta: Meta) -> Any:
        """Returns the tensor at an address.

        Raises FailedError for a failed operation's result, ValueError for no storage.
        """
        held = self.storages.get(address >> SHIFT)
        if type(held) is not Storage:
            raise _absent(held, address)
        key = (address, meta)
        found = held.tensors.get(key)
        if found is None:
            if len(held.tensors) >= _VIEWS:
                held.tensors.clear()
            found = held.tensors[key] = self._view(held.storage, address & _OFFSET, meta)
        return found

    def export(self, storage: Any) -> int:
        """Assigns an address to a storage that a function has made. The client frees it."""
        # After a move, the earlier acceptor's slots are in use.
        number = next(number for number in self._exported if number not in self.storages)
        self.storages[number] = Storage(storage)
        return number << SHIFT

    def bytes_at(self, address: int, count: int) -> Any:
        """Returns `count` bytes at an address as a uint8 tensor.

        Raises the errors of `tensor`, and ValueError if the range exceeds the storage.
        """
        held = self.storages.get(address >> SHIFT)
        if type(held) is not Storage:
            raise _absent(held, address)
        at = address & _OFFSET
        if at + count > held.storage.nbytes():
            raise ValueError(f"{count} bytes at {at}: the storage has {held.storage.nbytes()}")
        return self._view(held.storage, at, Meta(torch.uint8, (count,), (1,)))

    def take(self, ticket: int) -> list[Any]:
        """Returns the results that an operation stored under a ticket. Raises FailedError if the operation failed."""
        results = self.results.pop(ticket)
        if isinstance(results, Failure):
            raise FailedError(results)
        return results

    def note(self, failure: Failure) -> None:
        """Records a failure for the next answer for which the client waits."""
        if len(self._untold) < _UNTOLD:
            self._untold.append(failure)

    def check(self) -> None:
        """Raises FailedError for the first failure that was not reported yet."""
        untold = [failure for failure in self._untold if not failure.told]
        self._untold = []
        if untold:
            raise FailedError(untold[0])

    def _view(self, storage: Any, offset: int, meta: Meta) -> Any:
        made = torch.empty(0, dtype=meta.dtype, device=storage.device)
        made.set_(storage, offset // meta.dtype.itemsize, meta.size, meta.stride)
        if meta.conj:
            torch._C._set_conj(made, True)
        if meta.neg:
            torch._C._set_neg(made, True)
        return made

    def _manage(self, number: int, batch: Any, at: int, data: Any) -> int:
        """Executes an entry that is not an operation. Returns the offset of the next entry."""
        match number:
            case codec.TEMPLATE:
                begin = at + TEMPLATE_ENTRY.size
                end: int = begin + TEMPLATE_ENTRY.unpack_from(batch, at)[1]
                template = Template.decode(bytes(batch[begin:end]))
                self._operations[template.number] = Operation(template)
                return end
            case codec.ALLOCATE:
                _, address, count = ALLOCATE_ENTRY.unpack_from(batch, at)
                self._allocate(address, count)
                return at + ALLOCATE_ENTRY.size
            case codec.PUT:
                _, address, count = PUT_ENTRY.unpack_from(batch, at)
                self._put(address, count, next(data))
                return at + PUT_ENTRY.size
            case codec.RESIZE:
                _, old, new, count = RESIZE_ENTRY.unpack_from(batch, at)
                self._resize(old, new, count)
                return at + RESIZE_ENTRY.size
            case codec.FORGET:
                self._older = self._operations.copy()
                self._operations.clear()
                return at + ENTRY.size
        raise ValueError(f"no template has the number {number}")

    def _allocate(self, address: int, count: int) -> None:
        try:
            self.storages[address >> SHIFT] = Storage(torch.UntypedStorage(count, device=self.device))
        except RuntimeError as error:
            self._fail(error, f"allocation of {count} bytes", [address])

    def _put(self, address: int, count: int, data: Any) -> None:
        if len(data) != count:
            raise ValueError(f"{len(data)} bytes came where {count} were announced")
        if not count:
            return
        with contextlib.suppress(FailedError):
            self.bytes_at(address, count).copy_(torch.frombuffer(data, dtype=torch.uint8))

    def _resize(self, old: int, new: int, count: int) -> None:
        held = self.storages.get(old >> SHIFT)
        if type(held) is not Storage:
            if held is None:
                raise ValueError(f"there is no storage at {old:#x}")
        elif held.storage.nbytes() < count:
            held.storage.resize_(count)
            held.tensors.clear()
        self.storages[new >> SHIFT] = held

    def _execute(self, operation: Operation, values: Sequence[Any]) -> None:
        out: Any = None
        try:
            args, kwargs = operation.arguments(self, values)
            out = operation.call(*args, **kwargs)
            if operation.clears:
                self._clear(operation, values)
            if operation.single is not None:
                if isinstance(out, (list, tuple)):
                    out = out[0]
                self._result(operation, values[-1], operation.single, out)
            elif operation.outs is None:
                self.results[operation.ticket(values)] = self._describe(
                    operation, out, values, [*args, *kwargs.values()]
                )
            elif operation.outs:
                new = [made for made in flat(out) if made is not None and not operation.has_written(made, args, kwargs)]
                for address, meta, made in zip(values[-len(operation.outs) :], operation.outs, new, strict=True):
                    self._result(operation, address, meta, made)
        except FailedError as error:
            if operation.outs is None:
                self.results[operation.ticket(values)] = error.failure
                return
            for address in operation.written(values):
                self.storages[address >> SHIFT] = error.failure
        except Exception as error:
            # A client that waits for the results gets the error now. Storages that the operation would write stay
            # usable.
            written = () if operation.outs is None else operation.written(values)
            failure = self._fail(operation.undense(out) or error, operation.described(self.executed), written)
            if operation.outs is None:
                self.results[operation.ticket(values)] = failure

    def _fail(self, error: Exception, what: str, written: Sequence[int]) -> Failure:
        failure = Failure(
            type(error).__name__.removeprefix("_"), f"{error}\n[{what}, on the remote device {self.device}]"
        )
        self.note(failure)
        for address in written:
            self.storages[address >> SHIFT] = failure
        return failure

    def _result(self, operation: Operation, address: int, meta: Meta | None, made: Any) -> None:
        """Stores a result at the address and in the layout that the client expects."""
        if meta is None:
            return
        if tuple(made.shape) != meta.size or made.dtype is not meta.dtype:
            raise RuntimeError(
                f"{operation.name} returned {made.dtype}{list(made.shape)} where {meta} was expected: "
                "this version of torch differs from the client's"
            )
        if made.is_conj() or made.is_neg():
            made = made.resolve_conj().resolve_neg()
        if made.stride() != meta.stride or made.storage_offset() or made.device.type != self.device.type:
            lies = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=self.device)
            made = lies.copy_(made)
        self.storages[address >> SHIFT] = Storage(made.untyped_storage(), {(address, meta): made})

    def _describe(self, operation: Operation, out: Any, values: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Describes results that the client does not know in advance; stores their tensors at the reserved
        addresses."""
        lent = iter(values[len(values) - operation.leased :])

        def tell(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if any(value is arg for arg in args):
                    return {"alias": meta_to_json(_meta(value))}
                held = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.device).copy_(
                    value
                )
                meta = _meta(held)
                address = next(lent)
                self.storages[address >> SHIFT] = Storage(held.untyped_storage(), {(address, meta): held})
                return {"meta": meta_to_json(meta)}
            if isinstance(value, (list, tuple)):
                return [tell(item) for item in value]
            return {"complex": [value.real, value.imag]} if isinstance(value, complex) else value

        many = len(operation.call._schema.returns) != 1
        return [tell(value) for value in out] if many and out is not None else [] if out is None else [tell(out)]

    def _clear(self, operation: Operation, values: Sequence[Any]) -> None:
        """Clears cached tensors whose sizes an operation may have changed: their keys no longer describe them."""
        for index in operation.tensors:
            held = self.storages.get(values[index] >> SHIFT)
            if type(held) is Storage:
                held.tensors.clear()


def _meta(tensor: Any) -> Meta:
    return Meta(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())


def memory(tensor: Any) -> memoryview:
    """Returns the bytes of a dense tensor on the host without a copy. The memoryview keeps the tensor alive."""
    count = tensor.numel() * tensor.dtype.itemsize
    if not count:
        return memoryview(b"")
    found = (ctypes.c_char * count).from_address(tensor.data_ptr())
    setattr(found, "tensor", tensor)  # noqa: B010 (the type has no such attribute for the type checker)
    return memoryview(found).cast("B")

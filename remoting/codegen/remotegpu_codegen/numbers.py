"""The lock of numbers: the symbol of each number that was ever assigned."""

from collections.abc import Iterable, Mapping

from remotegpu_codegen.registry import Function, RegistryError

HEAD = (
    "# Every number that was ever given out, whether or not its function is still there. Written by remoting/codegen.\n"
)


def parse(text: str) -> dict[int, str]:
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {int(number): symbol for number, symbol in rows}


def extend(lock: Mapping[int, str], functions: Iterable[Function]) -> dict[int, str]:
    """Returns the lock with the functions added.

    Raises RegistryError if a number had another symbol, or a symbol another number.
    """
    extended = dict(lock)
    numbers = {symbol: number for number, symbol in lock.items()}
    for function in functions:
        owner = extended.setdefault(function.number, function.symbol)
        if owner != function.symbol:
            raise RegistryError(f"{function.symbol}: number {function.number} belongs to {owner} forever")
        before = numbers.get(function.symbol, function.number)
        if before != function.number:
            raise RegistryError(f"{function.symbol}: has the number {before}, which cannot change")
    return extended


def render(lock: Mapping[int, str]) -> str:
    return HEAD + "".join(f"{number} {symbol}\n" for number, symbol in sorted(lock.items()))

"""Sends exceptions to the other end: with the same type if this program has it, and with the other end's traceback."""

import builtins
import linecache
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

_OURS: Final = "remotegpu_offload."


class RemoteError(RuntimeError):
    """An exception of a type that this program does not have; `type_name` is the qualified name at the other end."""

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name

    def __str__(self) -> str:
        return f"{self.type_name}: {self.args[0]}" if self.type_name else str(self.args[0])


class RemoteTraceback(Exception):  # noqa: N818 - only a cause, like concurrent.futures' _RemoteTraceback
    """The cause of an exception from the other end: the text of its traceback there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


PASSED: Final = "_remotegpu_passed"
"""Attribute of an exception from the other end: the exception's number there."""


class TooDeepError(RecursionError):
    """Functions of both ends called each other too deeply."""


def describe(error: BaseException, where: str) -> dict[str, Any]:
    """Describes an exception as JSON, for users and for `rebuild`. The exception's arguments are sent separately."""
    kind = type(error)
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "text": _text(error),
        "notes": [str(note) for note in getattr(error, "__notes__", ())],
        "chain": _chain(traceback.TracebackException.from_exception(error, capture_locals=False)),
        "where": where,
        "passed": getattr(error, PASSED, None),
    }


def contents(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the exception's arguments and attributes."""
    state = {key: value for key, value in vars(error).items() if key not in ("__notes__", PASSED)}
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        # `__reduce__` includes the names of files, which `args` lacks.
        return error.__reduce__()[1], state  # type: ignore[return-value]
    return error.args, state


def rebuild(described: dict[str, Any], found: tuple[Any, Any] | None) -> BaseException:
    """Rebuilds the exception. `found`: the result of `contents` at the other end, or None if it cannot be read here."""
    name = f"{described.get('module')}.{described.get('name')}"
    text = str(described.get("text", ""))
    error: BaseException | None = None
    if found is not None:
        error = _made(_type(described), *found)
    if error is None:
        error = RemoteError(text, name.removeprefix("builtins."))
    for note in described.get("notes", ()):
        error.add_note(str(note))
    where = described.get("where")
    if where:
        error.add_note(f"raised at {where}; its traceback there is above, as the cause")
    setattr(error, PASSED, described.get("id"))
    error.__cause__ = RemoteTraceback(render(described.get("chain", ())))
    return error


def _type(described: dict[str, Any]) -> type[BaseException] | None:
    """Returns the exception's type; None if this program itself has not imported the module."""
    module, name = described.get("module"), described.get("name")
    found: Any = builtins if module == "builtins" else sys.modules.get(str(module))
    for part in str(name).split("."):
        found = vars(found).get(part) if found is not None and hasattr(found, "__dict__") else None
    if isinstance(found, type) and issubclass(found, BaseException) and found.__module__ == module:
        return found
    return None


def _made(kind: type[BaseException] | None, arguments: Any, state: Any) -> BaseException | None:
    if kind is None or not isinstance(arguments, tuple) or not isinstance(state, dict):
        return None
    try:
        # A constructor in Python may take other arguments than `args`, and may have side effects.
        error = kind(*arguments) if kind.__module__ == "builtins" else kind.__new__(kind, *arguments)
        if kind.__module__ != "builtins":
            error.args = arguments
        vars(error).update({str(key): value for key, value in state.items()})
    except Exception:
        return None
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:
        return f"<its text raised {type(other).__name__}>"


def _chain(formatted: traceback.TracebackException) -> list[dict[str, Any]]:
    """Returns the exception and its causes, earliest first."""
    chain: list[dict[str, Any]] = []
    part: traceback.TracebackException | None = formatted
    link = ""
    while part is not None and len(chain) < 32:
        chain.append(
            {
                "frames": [[at.filename, at.lineno, at.name, at.line or ""] for at in _users(part.stack)],
                "last": "".join(part.format_exception_only()),
                "link": link,
            }
        )
        if part.__cause__ is not None:
            link, part = "The above exception was the direct cause of the following exception:", part.__cause__
        elif part.__context__ is not None and not part.__suppress_context__:
            link, part = "During handling of the above exception, another exception occurred:", part.__context__
        else:
            part = None
    return chain[::-1]


def _users(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Returns the stack without frames of this package; the whole stack if there are no others."""
    ours = __file__.rpartition("/functions/")[0]
    return [frame for frame in stack if not frame.filename.startswith(ours)] or list(stack)


def render(chain: Sequence[Any]) -> str:
    """Formats the chain like a Python traceback. Uses this program's source lines if the other end lacks them."""
    lines: list[str] = []
    for each in chain:
        frames = [
            traceback.FrameSummary(str(file), int(line), str(name), line=str(text) or _line(str(file), int(line)))
            for file, line, name, text in each.get("frames", ())
        ]
        if frames:
            lines += ["Traceback (most recent call last):\n", *traceback.StackSummary.from_list(frames).format()]
        lines.append(str(each.get("last", "")))
        if each.get("link"):
            lines.append(f"\n{each['link']}\n\n")
    return "".join(lines)


def _line(file: str, line: int) -> str:
    """Returns a source line, or "". Reads only files that are loaded here: other paths may be devices."""
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if file in loaded or file in linecache.cache:
        return linecache.getline(file, line).strip()
    return ""

"""The client's half of function mode: stubs of functions and classes, and objects that the acceptor may call."""

import contextlib
import functools
import importlib
import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, Final

from remotegpu_offload.client.session import Session, current
from remotegpu_offload.code.server import CodeServer
from remotegpu_offload.config.model import ClassRule, Config, FunctionRule
from remotegpu_offload.functions import (
    asynchronous,
    classes,
    containers,
    estimators,
    lost,
    moving,
    mutation,
    profiles,
    proxies,
    unchanged,
)
from remotegpu_offload.functions.link import Link
from remotegpu_offload.functions.plan import MARK, Plan, named
from remotegpu_offload.objects.codec import Codec, CrossingError, RefusedError, Replaced
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.request import Request

# Functions and classes that rules have replaced in this process. The acceptor has them under the same names.
_replaced: Final[dict[int, Replaced]] = {}


class _NotThereError(Exception):
    """The acceptor lacks the function that the header names, because the session has moved since it was sent."""


class Client:
    """The calls of one session. The function `of` returns the session's client."""

    def __init__(self, session: Session) -> None:
        config = session.config
        self.codec = Codec(
            client=True,
            packages=profiles.packages(config),
            trusted=config.trust == "full",
        )
        self.codec.replaced = _replaced
        self.codec.stands_for = _stands_for
        self.codec.plain = classes.plain
        self.codec.proxies["instance"] = lambda handle, kind: classes.received(self, handle, kind)
        self.link = Link(self.codec, lambda: session.peer, self._called_back, "the program")
        self.codec.proxies.update(proxies.by_kind(self.link) | containers.kinds(self.link))
        self._levels: dict[str, int] = {}
        self._sent = unchanged.Sent()
        self._session = session
        self._code = session.services.get("code")
        self._resident = [rule.pattern for rule in profiles.rules(config) if isinstance(rule, ClassRule)]
        session.objects = self.codec
        session.register(moving.ObjectsPart(self))
        # As long as the acceptor holds no objects, its loss loses none.
        session.states.setdefault(moving.ObjectsPart.name, None)
        session.serve(Service.CALL, self._serve)
        session.serve(Service.OBJECTS, self.link.answer_about_objects)

    def begin_anew(self) -> None:
        """Forgets the settings and functions that were sent, because a new acceptor does not have them."""
        self._levels = {}
        self._sent.clear()

    def call(self, plan: Plan, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Makes one call of a function, in one round trip."""
        sent, sent_keywords, keys = plan.arguments(arguments, keywords)
        if len(sent) > 1 and _have_arrays(sent):
            sent = importlib.import_module("remotegpu_offload.objects.arrays").sharing(sent)
        try:
            with lost.naming(lambda: f"in the call of {lost.name_of(plan.function)}"):
                if plan.name is not None or "m" in plan.header:
                    return self.send(dict(plan.header), (sent, sent_keywords), keys, arguments, keywords)
                return self._call_by_value(plan, sent, sent_keywords, keys, arguments, keywords)
        except CrossingError as error:
            raise plan.about_argument(error) from error.__cause__

    def _call_by_value(
        self,
        plan: Plan,
        sent: tuple[Any, ...],
        sent_keywords: dict[str, Any],
        keys: list[mutation.Key] | None,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        function = plan.function
        header = dict(plan.header)
        if gone := self._sent.gone():
            header["dead"] = gone
        content = unchanged.content(function)
        if content is None:
            return self.send(header, (function, sent, sent_keywords), keys, arguments, keywords)
        header["f"] = number = self.codec.identify(function)
        if self._sent.has(function, content):
            with contextlib.suppress(_NotThereError):
                return self.send(dict(header), (None, sent, sent_keywords), keys, arguments, keywords)
        result = self.send(header, (function, sent, sent_keywords), keys, arguments, keywords)
        self._sent.add(function, number, content)
        return result

    def send(
        self,
        header: dict[str, Any],
        payload: Any,
        keys: list[mutation.Key] | None = None,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        """Sends a request. Applies the changes of arguments and shows the warnings of the answer, and returns the
        result."""
        levels = _levels()
        if levels != self._levels:
            self._levels = header["levels"] = levels
        if self._resident:
            header["resident"] = self._resident
        if keys is not None:
            header["mutates"] = keys
        with lost.naming(lambda: lost.called(header, payload)):
            if isinstance(self._code, CodeServer):
                # A source that was edited since the last call, as in a notebook, is loaded again in the acceptor.
                self._code.refresh(self._session.peer)
            result, answered = self.link.ask_fully(header, payload)
        if "unknown" in answered:
            raise _NotThereError
        if "changes" in answered:
            result = self._changed(result, answered, keys or [], arguments, keywords or {})
        if "warned" in answered:
            _warn(answered["warned"])
        return result

    def _changed(
        self,
        told: Any,
        header: dict[str, Any],
        keys: list[mutation.Key],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """Applies the acceptor's changes to the arguments. Returns the result, which may be an argument."""
        result, changes = told
        if "same" in header and header["same"] not in keys:
            raise RefusedError(f"the acceptor returned {header['same']!r}, which no `mutates` names")
        result = mutation.apply(changes, keys, lambda key: _argument(arguments, keywords, key), result)
        return _argument(arguments, keywords, header["same"]) if "same" in header else result

    def _serve(self, request: Request) -> Message | None:
        if request.id == 0:
            if request.header.get("op") == "log":
                _log(request.header["record"])
            return None
        return self.link.answer(request)

    def _called_back(self, header: dict[str, Any], payload: Any) -> tuple[Any, dict[str, Any]]:
        """Executes a call of the acceptor.

        The acceptor may use only objects that were sent to it, and only methods of their kind. Raises RefusedError
        otherwise.
        """
        target, kind = self.codec.exports.entry(header.get("o"))
        method = str(header.get("m"))
        if method not in proxies.METHODS.get(kind, ()):
            raise RefusedError(f"the acceptor asked for {method!r} of a {kind}, which it may not")
        if method == "__next__":
            return self.link.push(target, min(int(header.get("most", 1)), proxies.AHEAD)), {}
        arguments, keywords = payload
        return getattr(target, method)(*arguments, **keywords), {}


_clients: Final[weakref.WeakKeyDictionary[Session, Client]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def of(session: Session | None = None) -> Client:
    """Returns the calls of a session. None means the session of this process, which is opened if necessary.

    Raises OffloadError if no acceptor can be reached.
    """
    if session is None:
        session = current()
    client = _clients.get(session)
    if client is None:
        with _lock:
            client = _clients.get(session)
            if client is None:
                client = _clients[session] = Client(session)
    return client


def wrap(function: Callable[..., Any], rule: FunctionRule, session: Session | None = None, method: str = "") -> Any:
    """Returns the stub of a function: it has the same signature, and runs in the acceptor of `session`.

    `method`: the name of the class method, if the function is one.
    """
    name = named(function)
    plan = Plan(function, rule, name, method)

    def call(*arguments: Any, **keywords: Any) -> Any:
        return of(session).call(plan, arguments, keywords)

    wrapper = functools.wraps(function)(asynchronous.like(function, call))
    setattr(wrapper, MARK, plan)
    if isinstance(function, functools._lru_cache_wrapper):
        for attribute in ("cache_info", "cache_clear", "cache_parameters"):
            setattr(wrapper, attribute, _of_cache(function, attribute, name, session))
    if name is not None:
        _replaced[id(function)] = Replaced(name, function)
    return wrapper


def _of_cache(
    function: Callable[..., Any], attribute: str, name: tuple[str, str] | None, session: Session | None
) -> Callable[[], Any]:
    """Returns a method of a cached function's cache, which is in the acceptor."""
    plan = Plan(function, FunctionRule(attribute), name)
    plan.header["a"] = attribute
    return lambda: of(session).call(plan, (), {})


def decorated(value: Any, name: str, config: Config, session: Session | None = None, method: str = "") -> Any:
    """Returns the stub of the function or class with this qualified name; the value itself if no rule names it."""
    if getattr(value, MARK, None) is not None:
        return value
    if isinstance(value, type):
        for rule in profiles.rules(config):
            if isinstance(rule, ClassRule) and rule.matches(name):
                base = _shell(value)
                where = name.rsplit(".", value.__qualname__.count(".") + 1)[0]
                made = classes.stub(value, rule, lambda: of(session), where, base)
                # A class of `__main__` is sent by value. Sending its name would make the acceptor execute the whole
                # script.
                if (called := named(value)) is not None:
                    _replaced[id(value)] = Replaced(called, value)
                return made
    elif callable(value):
        for rule in profiles.rules(config):
            if isinstance(rule, FunctionRule) and rule.matches(name):
                return wrap(value, rule, session, method)
    return value


def _shell(kind: type) -> type[classes.Shell]:
    """Returns the shell class of the stub for this class."""
    return estimators.EstimatorShell if estimators.is_estimator(kind) else classes.Shell


def install(module: Any, config: Config, session: Session | None = None) -> list[str]:
    """Replaces the functions and classes that the rules name, in a newly imported module. Returns the replaced names.

    A glob matches only names that the module defines; a plain name also matches imported ones.
    """
    replaced = []
    home: str = module.__name__
    for rule in profiles.rules(config):
        for holder, attribute, name in _named(module, home, rule):
            value = inspect.getattr_static(holder, attribute)
            kind = type(value) if isinstance(value, staticmethod | classmethod) else None
            function = value.__func__ if kind is not None else value
            method = attribute if kind is classmethod else ""
            new = decorated(function, name, config, session, method)
            if new is not function:
                setattr(holder, attribute, kind(new) if kind is not None else new)
                replaced.append(name)
    return replaced


def _named(module: Any, home: str, rule: FunctionRule | ClassRule) -> Iterable[tuple[Any, str, str]]:
    """Yields the places of a rule's functions or classes in the module: (holder, attribute, qualified name)."""
    if any(letter in rule.pattern for letter in "*?["):
        for attribute, value in list(vars(module).items()):
            fits = isinstance(value, type) if isinstance(rule, ClassRule) else inspect.isroutine(value)
            if fits and getattr(value, "__module__", None) == home and rule.matches(f"{home}.{attribute}"):
                yield module, attribute, f"{home}.{attribute}"
        return
    if not rule.pattern.startswith(home + "."):
        return
    *between, attribute = rule.pattern[len(home) + 1 :].split(".")
    holder = module
    for part in between:
        holder = vars(holder).get(part)
        # The name belongs to a submodule.
        if not isinstance(holder, type):
            return
    if attribute in vars(holder):
        yield holder, attribute, rule.pattern


def _stands_for(value: Any) -> Any:
    return vars(value).get(MARK)


def _have_arrays(arguments: tuple[Any, ...]) -> bool:
    """Returns whether several arguments are NumPy arrays."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and sum(type(value) is numpy.ndarray for value in arguments) > 1


def _argument(arguments: tuple[Any, ...], keywords: dict[str, Any], key: Any) -> Any:
    return arguments[key] if isinstance(key, int) else keywords[key]


def _levels() -> dict[str, int]:
    """Returns the log levels that this program has set for its loggers."""
    levels = {
        name: logger.level
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level
    }
    levels[""] = logging.root.level
    return levels


def _log(record: Sequence[Any]) -> None:
    name, level, path, line, text, function = record
    logger = logging.getLogger(str(name) if name != "root" else None)
    if logger.isEnabledFor(int(level)):
        made = logger.makeRecord(str(name), int(level), str(path), int(line), str(text), (), None, str(function))
        logger.handle(made)


def _warn(told: Iterable[Sequence[Any]]) -> None:
    for text, module, name, filename, line in told:
        category = _category(module, name)
        warnings.warn_explicit(str(text), category, str(filename), int(line))


def _category(module: Any, name: Any) -> type[Warning]:
    """Returns the warning's class if this program has imported it and it takes only a text; otherwise UserWarning."""
    found: Any = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if (
        isinstance(found, type)
        and issubclass(found, Warning)
        and not isinstance(vars(found).get("__init__"), FunctionType)
    ):
        return found
    return UserWarning

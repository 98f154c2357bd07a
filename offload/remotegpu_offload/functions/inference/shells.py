"""The program's stubs for sessions of ONNX Runtime, and for their arguments and results.

Sessions, bindings and values live at the acceptor. Options are made here, where their errors are reported, and travel
as the settings that were made. A model's inputs and outputs never change, so they are requested once.
"""

import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

from remotegpu_offload.functions import classes
from remotegpu_offload.functions.inference import acceptor, model
from remotegpu_offload.functions.plan import MARK
from remotegpu_offload.objects import restricted
from remotegpu_offload.objects.codec import HANDLE, RefusedError
from remotegpu_offload.objects.encoder import Encoder, register

_ACCEPTOR: Final = acceptor.__name__
# Attributes that shells of sessions keep here.
_DESCRIBED: Final = "_remotegpu_described"
_OPTIONS: Final = "_remotegpu_options"


@dataclass(frozen=True, eq=False)
class NodeArg:
    """Counterpart of onnxruntime's class, of which only a session makes instances."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, eq=False)
class ModelMetadata:
    """Counterpart of onnxruntime's class."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class LibraryShell(classes.Shell):
    """A shell that answers itself what its class defines, and forwards the rest."""

    __slots__ = ()

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        classes.create(self, arguments, keywords)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if MARK in vars(cls):
            # An acceptor names it in handles. No instance is made by that.
            restricted.allow_type(classes.plan_of(cls).original)

    @classmethod
    def _remotegpu_stays(cls, original: type, name: str) -> bool:
        own = any(name in vars(base) for base in cls.__mro__ if base.__module__ == __name__)
        return own or super()._remotegpu_stays(original, name)

    def _remotegpu_ask(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the acceptor's part, about this object."""
        return classes.call(self, {"op": "call", "t": [_ACCEPTOR, function]}, (self, *arguments))

    def _remotegpu_method(self, name: str, *arguments: Any) -> Any:
        return classes.call(self, {"op": "call", "m": name}, (self, *arguments))


class SessionShell(LibraryShell):
    """Shell for `InferenceSession`."""

    __slots__ = ()

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(sess_options, OptionsShell | None):
            kind = type(sess_options).__qualname__
            raise TypeError(f"sess_options is a {kind} that cannot travel: make it by onnxruntime.SessionOptions()")
        given = _model(classes.plan_of(type(self)).original, path_or_bytes)
        settings = None if sess_options is None else sess_options._remotegpu_settings()
        opening = acceptor.Opening(given, settings, providers, provider_options, kwargs)
        if HANDLE in vars(self):
            # A class that is derived from it has set attributes before.
            self._remotegpu_ask("opened", opening)
        else:
            client = classes.plan_of(type(self)).caller()
            ident = client.codec.exports.mint()
            header = {"op": "call", "t": [_ACCEPTOR, "opened"], "id": ident, "kind": "instance"}
            client.send(header, ((type(self), opening), {}))
            classes.adopt(self, client, client.codec.held.handle(ident, "instance"))
        object.__setattr__(self, _OPTIONS, sess_options)
        if settings is not None and settings.values.get("optimized_model_filepath"):
            Path(settings.values["optimized_model_filepath"]).write_bytes(self._remotegpu_ask("optimized"))

    def _remotegpu_describe(self) -> dict[str, Any]:
        found: dict[str, Any] | None = vars(self).get(_DESCRIBED)
        if found is None:
            told = self._remotegpu_ask("described")
            found = {
                name: [NodeArg(str(each[0]), str(each[1]), list(each[2])) for each in told[name]]
                for name in ("inputs", "outputs", "initializers")
            }
            found["meta"] = ModelMetadata(*told["meta"])
            object.__setattr__(self, _DESCRIBED, found)
        return found

    def get_inputs(self) -> Any:
        """Returns the inputs, like onnxruntime's method."""
        return self._remotegpu_describe()["inputs"]

    def get_outputs(self) -> Any:
        """Returns the outputs, like onnxruntime's method."""
        return self._remotegpu_describe()["outputs"]

    def get_overridable_initializers(self) -> Any:
        """Returns the initializers that can be overridden, like onnxruntime's method."""
        return self._remotegpu_describe()["initializers"]

    def get_modelmeta(self) -> Any:
        """Returns the model's metadata, like onnxruntime's method."""
        return self._remotegpu_describe()["meta"]

    def get_session_options(self) -> Any:
        """Returns the options that the session was given."""
        if vars(self).get(_OPTIONS) is None:
            object.__setattr__(self, _OPTIONS, sys.modules["onnxruntime"].SessionOptions())
        return vars(self)[_OPTIONS]

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Sets the providers, like onnxruntime's method."""
        self._remotegpu_ask("set_providers", providers, provider_options)

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Callable[..., Any], user_data: Any, run_options: Any = None
    ) -> None:
        """Runs like onnxruntime's method: calls `callback` with results, `user_data` and a message, in another
        thread."""

        def wait() -> None:
            try:
                results, message = self.run(output_names, input_feed, run_options), ""
            except Exception as error:
                results, message = [], str(error)
            callback(results, user_data, message)

        threading.Thread(target=wait, name="onnxruntime", daemon=True).start()

    def end_profiling(self) -> str:
        """Ends profiling like onnxruntime's method. Returns the file's name, empty without profiling. The file is
        written here.

        Raises RefusedError for a file name that is not a profile's.
        """
        options = self.get_session_options()
        if not options.enable_profiling:
            return ""
        name, data = self._remotegpu_ask("profile")
        path = profile_path(options.profile_file_prefix, name)
        path.write_bytes(data)
        return str(path)


def profile_path(prefix: str, name: Any) -> Path:
    """Returns the path of a profile here: below the prefix that the program set, under the name that the acceptor
    gave."""
    where = Path(prefix)
    if not re.fullmatch(re.escape(where.name) + r"_[\w.-]*\.json", str(name), re.ASCII):
        raise RefusedError(f"the acceptor named the profile {name!r}, which does not begin with {where.name!r}")
    return where.parent / str(name)


class ValueShell(LibraryShell):
    """Shell for `OrtValue`."""

    __slots__ = ()

    def data_ptr(self) -> int:
        """Returns the address of its data at the acceptor: good only to be bound there."""
        return Address(self._remotegpu_method("data_ptr"))


class BindingShell(LibraryShell):
    """Shell for `IOBinding`."""

    __slots__ = ()

    def bind_input(
        self, name: Any, device_type: Any, device_id: Any, element_type: Any, shape: Any, buffer_ptr: Any
    ) -> None:
        """Binds like onnxruntime's method; the address must be that of an OrtValue."""
        _check(buffer_ptr)
        self._remotegpu_method("bind_input", name, device_type, device_id, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: Any,
        device_type: Any = "cpu",
        device_id: Any = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: Any = None,
    ) -> None:
        """Binds like onnxruntime's method; an address must be that of an OrtValue."""
        if buffer_ptr is not None:
            _check(buffer_ptr)
        self._remotegpu_method("bind_output", name, device_type, device_id, element_type, shape, buffer_ptr)


class Address(int):
    """An address in the acceptor's memory."""

    __slots__ = ()


def _check(pointer: Any) -> None:
    if not isinstance(pointer, Address):
        raise ValueError(
            f"{pointer!r} is an address in this program's memory, and the session lives at the acceptor: bind an "
            "OrtValue (bind_ortvalue_input, bind_ortvalue_output), or an array (bind_cpu_input)"
        )


class OptionsShell(classes.Shell):
    """Shell for `SessionOptions` and `RunOptions`: the options themselves are here, and record the calls and
    settings."""

    __slots__ = ()
    # Methods that are also called here: their results can be asked for, or they report an error.
    _also_local: ClassVar = frozenset((
        "add_free_dimension_override_by_denotation", "add_free_dimension_override_by_name", "add_run_config_entry",
        "add_session_config_entry", "get_run_config_entry", "get_session_config_entry", "has_providers",
    ))  # fmt: skip

    def __init_subclass__(cls, **keywords: Any) -> None:
        # A class that a program derives from it stays in this program.
        super(classes.Shell, cls).__init_subclass__(**keywords)
        if MARK in vars(cls):
            for name, member in vars(classes.plan_of(cls).original).items():
                if callable(member) and not name.startswith("_"):
                    setattr(cls, name, _recorded(name, member, here=name in cls._also_local))

    @classmethod
    def _remotegpu_stays(cls, _original: type, _name: str) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_remotegpu_values", {})
        object.__setattr__(self, "_remotegpu_calls", [])

    def _remotegpu_settings(self) -> acceptor.Settings:
        kind = "RunOptions" if hasattr(type(self), "add_run_config_entry") else "SessionOptions"
        values = {name: _portable(value) for name, value in vars(self)["_remotegpu_values"].items()}
        return acceptor.Settings(kind, values, list(vars(self)["_remotegpu_calls"]))

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            vars(self)["_remotegpu_values"][name] = value
        else:
            self.__getattr__(name)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        self.__reduce_ex__(4)


def _recorded(name: str, member: Any, *, here: bool) -> Callable[..., Any]:
    def recorder(self: Any, *arguments: Any, **keywords: Any) -> Any:
        found = member(self, *arguments, **keywords) if here else None
        if not name.startswith(("get_", "has_")):
            told = tuple([_portable(each) for each in arguments])
            vars(self)["_remotegpu_calls"].append((name, told, keywords))
        return found

    recorder.__name__ = name
    recorder.__doc__ = member.__doc__
    return recorder


def _portable(value: Any) -> Any:
    """Makes a value portable: a member of onnxruntime's enumerations travels by its name."""
    kind = type(value)
    is_member = kind.__module__.startswith("onnxruntime.") and hasattr(kind, "__members__")
    return acceptor.Member(kind.__name__, value.name) if is_member else value


def _model(original: type, given: Any) -> Any:
    """Reads a file of this program here; anything else goes to the acceptor as it is."""
    if not isinstance(given, str | os.PathLike):
        return given
    try:
        return model.read(os.fspath(given))
    except OSError:
        # onnxruntime reports the error in its own words.
        next(base for base in original.__mro__ if base.__module__.startswith("onnxruntime."))(given)
        raise


def _reduce(_writer: Encoder, value: OptionsShell) -> Any:
    return acceptor.built, (value._remotegpu_settings(),)


register(OptionsShell, _reduce)

"""At the acceptor: opens sessions of ONNX Runtime with a program's arguments, and answers its questions about them."""

import copyreg
import importlib
import shutil
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from remotegpu_offload.functions.inference import model as models
from remotegpu_offload.functions.inference.model import Model

CUDA: Final = "CUDAExecutionProvider"
# Substitutes for CUDA where there is none: providers for accelerators that need nothing prepared.
_ACCELERATORS: Final = ("MIGraphXExecutionProvider", "ROCMExecutionProvider", "OpenVINOExecutionProvider")
# Attributes of the session at this end, besides those of onnxruntime.
_OPENING: Final = "_remotegpu_opening"
_SCRATCH: Final = "_remotegpu_scratch"


class Member(NamedTuple):
    """A member of one of onnxruntime's enumerations."""

    kind: str
    name: str


class Settings(NamedTuple):
    """SessionOptions or RunOptions: what was set, and which methods were called."""

    kind: str
    values: dict[str, Any]
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Opening(NamedTuple):
    """The arguments of a session's constructor. `model`: a Model if it was a file, else what was given."""

    model: Any
    settings: Settings | None
    providers: Any
    options: Any
    more: dict[str, Any]


def available_provider(name: str, available: Sequence[str]) -> str:
    """Returns the provider that a program means. CUDA is its word for an accelerator; without one onnxruntime says what
    there is, and uses the CPU."""
    if name != CUDA or CUDA in available:
        return name
    return next((each for each in available if each in _ACCELERATORS), CUDA)


def available_providers(providers: Any, options: Any, available: Sequence[str]) -> tuple[Any, Any]:
    """Returns both arguments with `available_provider` applied. Options for CUDA do not apply to its substitute."""
    if not isinstance(providers, Sequence) or available_provider(CUDA, available) == CUDA:
        return providers, options
    names = [each[0] if isinstance(each, tuple) and each else each for each in providers]
    instead = available_provider(CUDA, available)
    if CUDA not in names:
        return providers, options
    at = names.index(CUDA)
    # Named twice, it is only warned of.
    put = [] if instead in names else [instead]
    new_options = options
    if isinstance(options, Sequence) and len(options) == len(providers):
        new_options = [*options[:at], *({} for _ in put), *options[at + 1 :]]
    return [*providers[:at], *put, *providers[at + 1 :]], new_options


def built(settings: Settings) -> Any:
    """Builds the options object."""
    library = _library()
    made = getattr(library, settings.kind)()
    for name, value in settings.values.items():
        setattr(made, name, _member(value))
    for name, arguments, keywords in settings.calls:
        given = [_member(each) for each in arguments]
        if name == "add_provider" and given:
            given[0] = available_provider(given[0], library.get_available_providers())
        getattr(made, name)(*given, **keywords)
    return made


def _member(value: Any) -> Any:
    return getattr(getattr(_library(), value.kind), value.name) if isinstance(value, Member) else value


def opened(session: Any, opening: Opening) -> Any:
    """Opens a session of this class; or opens this session, which was made without its constructor."""
    made = object.__new__(session) if isinstance(session, type) else session
    library = _library()
    source = opening.model
    if isinstance(source, Model):
        source = models.write(source, _scratch(made)) if source.beside else source.data
    providers, options = available_providers(opening.providers, opening.options, library.get_available_providers())
    settings = _options(made, opening.settings)
    library.InferenceSession.__init__(made, source, settings, providers, options, **opening.more)
    if isinstance(opening.model, Model) and opening.model.beside:
        # The weights are read again from where they were laid.
        opening = opening._replace(model=Model(opening.model.name, b"", {}))
    setattr(made, _OPENING, opening)
    copyreg.pickle(type(made), _again)
    return made


def _library() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ModuleNotFoundError(
            f"the acceptor's Python ({sys.executable}) has no onnxruntime: install there the build for its "
            "accelerator, or name another environment of the appliance in remotegpu.yaml",
            name="onnxruntime",
        ) from None


def _scratch(session: Any) -> str:
    """Returns a folder that exists as long as the session."""
    folder: str | None = vars(session).get(_SCRATCH)
    if folder is None:
        folder = tempfile.mkdtemp(prefix="onnxruntime-")
        setattr(session, _SCRATCH, folder)
        weakref.finalize(session, shutil.rmtree, folder, ignore_errors=True)
    return folder


def _options(session: Any, settings: Settings | None) -> Any:
    """Builds the session's options. Files of onnxruntime go into the session's folder, from where the program fetches
    them."""
    if settings is None:
        return None
    made = built(settings)
    for name in ("optimized_model_filepath", "profile_file_prefix"):
        path = getattr(made, name)
        if path and name in settings.values:
            setattr(made, name, str(Path(_scratch(session), Path(path).name)))
    if made.enable_profiling and "profile_file_prefix" not in settings.values:
        made.profile_file_prefix = str(Path(_scratch(session), made.profile_file_prefix))
    return made


def _again(session: Any) -> Any:
    """Reduces a session so that it can move to another acceptor: it is opened there with the same arguments as here."""
    opening: Opening = vars(session)[_OPENING]
    if isinstance(opening.model, Model) and not opening.model.data:
        opening = opening._replace(model=models.read(str(Path(_scratch(session), opening.model.name))))
    return opened, (type(session), opening)


def set_providers(session: Any, providers: Any, options: Any) -> None:
    """Sets the providers of the session, and keeps them for when it moves."""
    setattr(session, _OPENING, vars(session)[_OPENING]._replace(providers=providers, options=options))
    session.set_providers(*available_providers(providers, options, _library().get_available_providers()))


def described(session: Any) -> dict[str, Any]:
    """Describes the session: inputs, outputs and metadata, which never change."""
    meta = session.get_modelmeta()
    return {
        name: [(each.name, each.type, each.shape) for each in found]
        for name, found in (
            ("inputs", session.get_inputs()),
            ("outputs", session.get_outputs()),
            ("initializers", session.get_overridable_initializers()),
        )
    } | {
        "meta": (
            meta.producer_name,
            meta.graph_name,
            meta.domain,
            meta.description,
            meta.graph_description,
            meta.version,
            dict(meta.custom_metadata_map),
        )
    }


def optimized(session: Any) -> bytes:
    """Returns the optimized model, where the options asked for one."""
    return Path(session.get_session_options().optimized_model_filepath).read_bytes()


def profile(session: Any) -> tuple[str, bytes]:
    """Ends profiling, and returns the name and the content of the file that was written."""
    path = Path(session.end_profiling())
    return path.name, path.read_bytes() if path.is_file() else b""

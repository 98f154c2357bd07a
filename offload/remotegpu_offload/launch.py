"""Runs a program in this interpreter as `python` would, with its rules armed; with `--split app` in an acceptor.

    python -m remotegpu_offload.launch [--split torch|rules|app] [--config F] [--backend B] SCRIPT ...

Instead of a script: `-m MODULE`, `-c COMMAND`.
"""

import argparse
import os
import signal
import sys
import types
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from remotegpu_offload.importing.libraries import install_finder

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from remotegpu_offload.config.model import Config
    from remotegpu_offload.program.client import Target

USAGE: Final = 2
UNAVAILABLE: Final = 69
_BACKENDS: Final = ("cuda", "rocm", "xpu", "cpu")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the program. Ends this process with the program's exit code or signal."""
    from remotegpu_offload.config.errors import ConfigError
    from remotegpu_offload.config.load import load
    from remotegpu_offload.wire import OffloadError

    options, target = _arguments(sys.argv[1:] if arguments is None else arguments)
    # From here on, these belong to the program.
    sys.argv[:] = target.argv
    sys.path[:1] = ["" if target.kind == "command" else target.folder]
    try:
        config = load(options.config)
        if options.backend:
            config = replace(config, session=replace(config.session, backends=(options.backend,)))
        if options.split == "app":
            _end(_run_in_acceptor(config, target))
        _end(_run_locally(config, target, torch_only=options.split == "torch"))
    except (ConfigError, OffloadError) as error:
        print(f"remotegpu: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE if isinstance(error, ConfigError) else UNAVAILABLE)


def _arguments(given: list[str]) -> "tuple[argparse.Namespace, Target]":
    from remotegpu_offload.program.client import Target

    parser = argparse.ArgumentParser(prog="python -m remotegpu_offload.launch", description=__doc__, add_help=False)
    parser.add_argument("--split", choices=("torch", "rules", "app"), default="rules")
    parser.add_argument("--config")
    parser.add_argument("--backend", choices=_BACKENDS)
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    own: list[str] = []
    rest = list(given)
    # argparse would also parse the program's own options.
    while rest and rest[0].startswith("--"):
        own.append(rest.pop(0))
        if "=" not in own[-1] and rest and own[-1] != "--":
            own.append(rest.pop(0))
    options = parser.parse_args(own)
    if rest[:1] in (["-m"], ["-c"]) and len(rest) > 1:
        kind, value, *more = rest
        if kind == "-m":
            return options, Target("module", value, ("-m", *more))
        return options, Target("command", value, ("-c", *more))
    if not rest or rest[0].startswith("-"):
        parser.error("a SCRIPT, `-m MODULE` or `-c COMMAND` is missing")
    script = os.path.abspath(rest[0])
    if os.path.isdir(script):
        script = os.path.join(script, "__main__.py")
    try:
        with open(script, "rb"):
            pass
    except OSError as error:
        # The same message as Python's.
        sys.stderr.write(
            f"{sys.executable}: can't open file {os.path.abspath(rest[0])!r}: [Errno {error.errno}] {error.strerror}\n"
        )
        sys.exit(USAGE)
    return options, Target("script", script, tuple(rest))


def _run_in_acceptor(config: "Config", target: "Target") -> int:
    from remotegpu_offload.program.client import open_session, run

    session = open_session(config, target)
    try:
        return run(session, target)
    finally:
        session.close()


def _run_locally(config: "Config", target: "Target", *, torch_only: bool) -> int:
    from remotegpu_offload.client.session import configure
    from remotegpu_offload.importing.arm import arm, arm_children
    from remotegpu_offload.program.main import outcome

    configure(config)
    arm(lambda: config, torch_only=torch_only)
    arm_children(config, torch_only=torch_only)
    how, number = outcome(lambda: _execute(config, target, torch_only=torch_only))
    return -number if how == "signal" else number


def _execute(config: "Config", target: "Target", *, torch_only: bool) -> None:
    import runpy
    from importlib.abc import InspectLoader

    from remotegpu_offload.importing.arm import main_code, main_names
    from remotegpu_offload.program.main import new_main

    if target.kind == "command":
        new_main(compile(target.value, "<string>", "exec", dont_inherit=True), None, None, None)()
        return
    spec: ModuleSpec | None = None
    source: bytes | str | None
    if target.kind == "module":
        try:
            _, spec, code = runpy._get_module_details(target.value, runpy._Error)  # type: ignore[attr-defined]
        except runpy._Error as error:  # type: ignore[attr-defined]
            sys.exit(f"{sys.executable}: {error}")
        assert spec is not None
        sys.argv[0] = file = str(spec.origin)
        # Without source the code runs unchanged, and no rule applies to it.
        source = spec.loader.get_source(spec.name) if isinstance(spec.loader, InspectLoader) else None
    else:
        file, code = target.value, None
        with open(file, "rb") as opened:
            source = opened.read()
    if source is not None:
        code = compile(source, file, "exec", dont_inherit=True) if torch_only else main_code(source, file, config)
    assert isinstance(code, types.CodeType)
    run = new_main(code, spec, file, None if spec is None else spec.parent)
    if not torch_only:
        sys.modules["__main__"].__dict__.update(main_names(config))
    run()


def _end(result: int) -> NoReturn:
    from remotegpu_offload.program.client import end_like

    if result == -signal.SIGINT:
        # The interpreter ends its threads, runs its exit functions, and then ends itself by the signal, without a
        # message.
        sys.excepthook = lambda *_details: None
        raise KeyboardInterrupt
    sys.exit(end_like(result))


if __name__ == "__main__":
    install_finder()
    main()

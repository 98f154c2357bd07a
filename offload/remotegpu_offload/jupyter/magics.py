"""`%load_ext remotegpu`: `%remotegpu use BACKEND`, `%remotegpu stats`, and `%%offload` for cells that run elsewhere."""

import itertools
import json
import shlex
from dataclasses import replace
from typing import Any, Final, cast, get_args

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from remotegpu_offload import config as configuration
from remotegpu_offload.client import session as sessions
from remotegpu_offload.config.model import Backend, FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.jupyter import cell
from remotegpu_offload.program.main import thin
from remotegpu_offload.wire import OffloadError

_USAGE: Final = "write `%remotegpu use BACKEND` (cuda, rocm, xpu or cpu), `%remotegpu stats` or `%remotegpu close`"
_RULE: Final = FunctionRule("remotegpu_offload.jupyter.cell.run")


@magics_class
class OffloadMagics(Magics):  # type: ignore[misc]
    """One session for the notebook, opened when it is first needed."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._numbers = itertools.count(1)

    @line_magic  # type: ignore[untyped-decorator]
    def remotegpu(self, line: str) -> None:
        """Where `%%offload` runs, and what it cost.

        %remotegpu use cpu      run there from now on; what is there already moves
        %remotegpu stats        what crossed so far
        %remotegpu close        end the session
        """
        try:
            match shlex.split(line):
                case ["use", backend] if backend in get_args(Backend):
                    self._use(cast(Backend, backend))
                case ["stats"]:
                    self._stats()
                case ["close"]:
                    if (session := sessions.opened()) is not None:
                        session.close()
                case _:
                    raise UsageError(_USAGE)
        except (OffloadError, configuration.ConfigError) as error:
            raise UsageError(str(error)) from None

    @cell_magic  # type: ignore[untyped-decorator]
    def offload(self, line: str, source: str) -> Any:
        """Run the cell in the acceptor: what it reads of the notebook travels there, what it assigns comes back."""
        if line.strip():
            raise UsageError("%%offload takes no arguments: choose where it runs by `%remotegpu use BACKEND`")
        text = self.shell.transform_cell(source)
        try:
            session = sessions.current()
            names = cell.names_of(text)
        except (OffloadError, configuration.ConfigError) as error:
            raise UsageError(str(error)) from None
        space = self.shell.user_ns
        values, modules = cell.split(space, names.reads)
        run = client.wrap(cell.run, _RULE, session)
        try:
            changed, last = run(text, f"<offloaded cell {next(self._numbers)}>", values, modules, names.writes)
        except Exception as error:
            # The cell's error, below many lines of ours that nobody wrote into the notebook.
            thin(error)
            raise
        cell.define(text, space)
        space.update(changed)
        return last

    def _use(self, backend: Backend) -> None:
        session = sessions.opened()
        if session is None:
            config = configuration.load()
            rules = replace(config.session, backends=(backend,), environment="auto")
            session = sessions.Session.open(replace(config, session=rules))
            sessions.use(session)
        elif session.environment.backend != backend:
            session.switch(backend=backend)
        print(session.place)  # noqa: T201

    def _stats(self) -> None:
        session = sessions.opened()
        if session is None:
            print("no session yet: `%%offload` opens one")  # noqa: T201
            return
        print(json.dumps(session.stats(), indent=1, default=str))  # noqa: T201

"""The magics of `%load_ext remotegpu`.

`%remotegpu -p 0.25` leases a share of a GPU for the notebook. `%%offload` runs a cell in an acceptor, and `%remotegpu
use BACKEND` chooses the acceptor's back end.
"""

import itertools
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, cast, get_args

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from remotegpu.api.names import SHARES_ENV
from remotegpu_offload import config as configuration
from remotegpu_offload.client import session as sessions
from remotegpu_offload.config.model import Backend, FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.jupyter import cell
from remotegpu_offload.program.main import thin
from remotegpu_offload.wire import OffloadError

_USAGE: Final = (
    "write `%remotegpu use BACKEND` (cuda, rocm, xpu or cpu), `%remotegpu stats`, `%remotegpu close`, or "
    "`%remotegpu -p 0.25` and other options of `remotegpu run` for a share"
)
_RULE: Final = FunctionRule("remotegpu_offload.jupyter.cell.run")


class Share(Protocol):
    """The interface of the notebook's own share of a GPU."""

    def take(self, words: Sequence[str], show: Callable[[str], None]) -> None:
        """Opens or changes the share. Raises ValueError if it is not available."""

    def line(self) -> str: ...

    def close(self) -> None: ...


@magics_class
class OffloadMagics(Magics):  # type: ignore[misc]
    """The notebook's share and its session, each opened at the first use."""

    def __init__(self, shell: Any, new_share: Callable[[], Share]) -> None:
        super().__init__(shell)
        self._numbers = itertools.count(1)
        self._new_share = new_share
        self._share: Share | None = None

    @line_magic  # type: ignore[untyped-decorator]
    def remotegpu(self, line: str) -> None:
        """Leases a share of a GPU for this notebook, and chooses the acceptor of `%%offload`.

        %remotegpu -p 0.25      CUDA of this notebook runs on a quarter of a GPU; options as of `remotegpu run`
        %remotegpu use cpu      `%%offload` runs there from now on; what is there already moves
        %remotegpu stats        what crossed so far
        %remotegpu close        end the session, and give the share back
        """
        try:
            match words := shlex.split(line):
                case [option, *_] if option.startswith("-"):
                    self._take(words)
                case ["use", backend] if backend in get_args(Backend):
                    self._use(cast(Backend, backend))
                case ["stats"]:
                    self._stats()
                case ["close"]:
                    if (session := sessions.opened()) is not None:
                        session.close()
                    if self._share is not None:
                        self._share.close()
                case _:
                    raise UsageError(_USAGE)
        except (OffloadError, configuration.ConfigError) as error:
            raise UsageError(str(error)) from None

    @cell_magic  # type: ignore[untyped-decorator]
    def offload(self, line: str, source: str) -> Any:
        """Runs the cell in the acceptor.

        Sends the variables that the cell reads, and updates those that the cell assigns.
        """
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
            # Removes the frames of this package, which do not help the user.
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

    def _take(self, words: Sequence[str]) -> None:
        if self._share is None:
            if SHARES_ENV in os.environ:
                raise UsageError("this notebook has a share already, its pod's or that of `remotegpu run`")
            self._share = self._new_share()
        shown = False

        def show(text: str) -> None:
            # A notebook updates the line in place. A terminal would print it again for each update.
            nonlocal shown
            if not shown or hasattr(self.shell, "kernel"):
                display({"text/plain": text}, raw=True, display_id="remotegpu", update=shown)
            shown = True

        try:
            self._share.take(words, show)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def _stats(self) -> None:
        session = sessions.opened()
        if self._share is not None:
            print(self._share.line())  # noqa: T201
            if session is None:
                return
        if session is None:
            print("no session yet: `%%offload` opens one")  # noqa: T201
            return
        print(json.dumps(session.stats(), indent=1, default=str))  # noqa: T201

"""`remotegpu offload serve`, `open` and `bootstrap`: publish applications, and run them where only Python is
installed."""

import functools
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from remotegpu.api import addresses, names
from remotegpu.cli import exits
from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.manifest import Manifest, Permissions, key_text

_REQUIREMENTS = "requirements.txt"


def serve(
    folder: Annotated[Path, typer.Argument(help="The application: its program, modules, data.")],
    name: Annotated[str, typer.Option("--name", "-n", help="The name by which it is opened.")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where.")] = "127.0.0.1:7080",
    cert: Annotated[Path | None, typer.Option("--cert", help="Certificate; needed beyond this machine.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Its key.")] = None,
    signing_key: Annotated[
        Path | None, typer.Option("--signing-key", help="The Ed25519 key that signs; made if it is missing.")
    ] = None,
    entry: Annotated[str, typer.Option("--entry", help="The program in the folder; else main.py.")] = "",
    python: Annotated[str, typer.Option("--python", help="The least version that it runs on.")] = "3.11",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the token that clients have to show.")
    ] = None,
) -> None:
    """Publish an application: machines with only Python run it by `open`, and fetch its files page by page.

    Its `remotegpu.yaml` lists its permissions there: `files` that it reads and writes, and `env` variables. Files in
    `code.never` are not sent.
    """
    from remotegpu_offload.reverse import bootstrap  # noqa: PLC0415 (only where it is needed)
    from remotegpu_offload.reverse.server import Server, Shelf  # noqa: PLC0415
    from remotegpu_offload.reverse.signing import Signer  # noqa: PLC0415

    try:
        signer = Signer(signing_key or _config_home() / "serve.pem")
        application = _Application(folder.resolve(), name, entry, python)
        collect = application.collector()
        collect()
        shelf = Shelf({name: collect}, {name: application.folder}, signer.sign)
        address = _address(listen)
        token = _read(token_file) if token_file else os.environ.get(names.TOKEN_ENV, "")
        server = Server(address, shelf, bootstrap=bootstrap.build(), tls=_tls(cert, key, address[0]), token=token)
    except ReverseError as error:
        raise exits.CliError(exits.USAGE, str(error)) from None
    except OSError as error:
        raise exits.CliError(exits.UNAVAILABLE, f"{listen} cannot be listened at: {error}") from None
    public = key_text(signer.public)
    print(f"{name}: {server.url}/{name}", flush=True)  # noqa: T201
    print(f"signed by {public}", flush=True)  # noqa: T201
    print(f"open it: remotegpu offload open --trust {public} {server.url}/{name}", flush=True)  # noqa: T201
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def open_(
    address: Annotated[str, typer.Argument(metavar="HOST[:PORT]/NAME", help="As `serve` prints it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the application.")] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="The authority of the server's certificate.")] = None,
    trust: Annotated[str, typer.Option("--trust", metavar="KEY", help="The key that must have signed it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to what it may do.")] = False,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="File with the server's token.")] = None,
    cache: Annotated[Path | None, typer.Option("--cache", metavar="FOLDER", help="Where pages are kept.")] = None,
    stats: Annotated[Path | None, typer.Option("--stats", metavar="FILE", help="Write there what travelled.")] = None,
) -> None:
    """Run an application from a server. Before the first run, shows its permissions and asks for agreement."""
    from remotegpu_offload.reverse.command import open_application, wish_of  # noqa: PLC0415

    token = _read(token_file) if token_file else os.environ.get(names.TOKEN_ENV, "")
    try:
        wish = wish_of(
            address, ca=ca, token=token, trust=trust, cache=cache, stats=stats, arguments=tuple(arguments or ())
        )
    except ReverseError as error:
        raise exits.CliError(exits.USAGE, str(error)) from None
    raise typer.Exit(open_application(wish, yes=yes))


def bootstrap(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("remotegpu.pyz"),
) -> None:
    """Write `remotegpu.pyz`, the client for machines that have only Python."""
    from remotegpu_offload.reverse import bootstrap  # noqa: PLC0415

    try:
        output.write_bytes(bootstrap.build())
        output.chmod(0o755)
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"{output} cannot be written: {error.strerror}") from None
    print(f"python3 -I {output} open HOST[:PORT]/NAME")  # noqa: T201


def register(app: typer.Typer) -> None:
    app.command()(serve)
    app.command("open", context_settings={"allow_interspersed_args": False})(open_)
    app.command()(bootstrap)


@dataclass(frozen=True)
class _Application:
    folder: Path
    name: str
    entry: str
    python: str

    def collector(self) -> Callable[[], Manifest]:
        """Returns a function that makes the manifest of the folder's current content. Raises ReverseError."""
        from remotegpu_offload.reverse.collect import Stamp, collect  # noqa: PLC0415

        known: dict[Stamp, str] = {}

        def make() -> Manifest:
            permissions, kept = self._rules()
            return collect(
                self.folder,
                self.name,
                entry=self.entry,
                python=self.python,
                permissions=permissions,
                requirements=self._requirements(),
                kept=kept,
                known=known,
            )

        return make

    def _rules(self) -> tuple[Permissions, Callable[[str], bool]]:
        from remotegpu_offload import config  # noqa: PLC0415
        from remotegpu_offload.code.allowed import allowed  # noqa: PLC0415

        file = self.folder / "remotegpu.yaml"
        if not file.is_file():
            return Permissions(), lambda _path: False
        try:
            rules = config.load(file)
        except config.ConfigError as error:
            raise ReverseError(str(error)) from None
        never = allowed((), rules.code.never, str(self.folder))
        return Permissions(rules.files.read, rules.files.write, rules.env.passes), functools.partial(
            _kept, never.kept, str(self.folder)
        )

    def _requirements(self) -> tuple[str, ...]:
        file = self.folder / _REQUIREMENTS
        if not file.is_file():
            return ()
        lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
        return tuple(line for line in lines if line and not line.startswith("-"))


def _kept(never: Callable[[str, str | None], bool], folder: str, path: str) -> bool:
    from remotegpu_offload.reverse.collect import module_of  # noqa: PLC0415

    return never(module_of(path)[0], f"{folder}/{path}")


def _tls(cert: Path | None, key: Path | None, host: str) -> ssl.SSLContext | None:
    if cert is None and key is None:
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise ReverseError(f"beyond this machine the server needs a certificate: give --cert and --key for {host}")
        return None
    if cert is None or key is None:
        raise ReverseError("--cert and --key belong together: give both")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ReverseError(f"the certificate {cert} with the key {key} cannot be used: {error}") from None
    return context


def _address(text: str) -> tuple[str, int]:
    try:
        return addresses.split(text)
    except ValueError:
        raise ReverseError(f"--listen {text!r}: write HOST:PORT, as 127.0.0.1:7080") from None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"the token file {file} cannot be read: {error.strerror}") from None


def _config_home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "remotegpu"

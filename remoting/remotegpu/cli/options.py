"""Options that several commands share, and their parsers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from remotegpu.api import names
from remotegpu.api.quantities import QuantityError, parse_memory
from remotegpu.cli import exits

if TYPE_CHECKING:
    from remotegpu.rpc.client import Access

ApplianceOption = Annotated[
    str,
    typer.Option("--appliance", "-a", envvar=names.APPLIANCE_ENV, metavar="HOST:PORT[,...]", help="Appliances to use."),
]


def _warn_of_token(context: typer.Context, token: str) -> str:
    source = context.get_parameter_source("token")
    if token and source is not None and source.name == "COMMANDLINE":
        message = f"everybody on this machine sees --token in `ps`: use --token-file or {names.TOKEN_ENV}"
        typer.echo(f"remotegpu: warning: {message}", err=True)
    return token


TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        envvar=names.TOKEN_ENV,
        help="Token for appliances that want one; better by file or variable.",
        show_envvar=True,
        callback=_warn_of_token,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar=names.TOKEN_FILE_ENV, help="File with the token (kept out of `ps`)."),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", envvar=names.CA_ENV, help="Certificate authority of the appliances; turns TLS on."),
]
ServerNameOption = Annotated[
    str, typer.Option("--server-name", envvar=names.SERVER_NAME_ENV, help="Name in the certificate, if not the host.")
]
CountOption = Annotated[
    int,
    typer.Option("--count", "-n", min=1, max=1024, help="How many GPUs, of several appliances if need be."),
]
FractionOption = Annotated[str | None, typer.Option("--fraction", "-p", help="Part of each GPU, as 0.25.")]
MemoryOption = Annotated[str | None, typer.Option("--memory", "-m", help="Memory of each GPU, as 4GiB.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the share is free.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show it again after each change, until Ctrl-C.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Print it once, as text; without a terminal it is so anyway.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Less of everything: rough figures.")]
RunsOption = Annotated[int | None, typer.Option("--runs", min=1, help="How often everything is measured; 3.")]
ClusterOption = Annotated[
    bool,
    typer.Option("--cluster", help="Also the cluster that kubectl is set to; its checks need the extra kubernetes."),
]
KubeconfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="How to reach the cluster, if not as kubectl does.")
]
ContextOption = Annotated[str, typer.Option(metavar="NAME", help="The context of the kubeconfig, if not its current.")]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Its namespace. Default: the context's, or `default`.")
]
ClaimsOfOption = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Claims of it. Default: all that you may list.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Options of `remotegpu offload`.
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar=names.CONFIG_ENV, help="The configuration; else remotegpu.yaml of this folder."
    ),
]
PythonOption = Annotated[
    str | None, typer.Option("--python", help="The interpreter of the program; else `python` of the shell.")
]
BackendOption = Annotated[
    Literal["cuda", "rocm", "xpu", "cpu"] | None,
    typer.Option("--backend", "-b", help="That kind of accelerator, whatever the configuration says."),
]
EnvironmentOption = Annotated[
    str | None, typer.Option("--environment", "-e", help="That environment of an appliance; else the first that fits.")
]


def bytes_of(option: str, text: str) -> int:
    try:
        return parse_memory(text)
    except QuantityError as error:
        raise exits.CliError(exits.USAGE, f"{option}: {error}") from None


def split(appliances: str) -> list[str]:
    return [part for part in appliances.split(",") if part.strip()]


def required(appliances: str) -> list[str]:
    found = split(appliances)
    if not found:
        raise exits.CliError(
            exits.USAGE, f"no appliance is named: give --appliance HOST:PORT or set {names.APPLIANCE_ENV}"
        )
    return found


def read_access(token: str, token_file: Path | None, ca: Path | None, server_name: str) -> "Access":
    if not token and token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            message = f"the token file {token_file} cannot be read: {error.strerror}; correct --token-file"
            raise exits.CliError(exits.USAGE, message) from None
        if not token.isascii() or len(token.split()) > 1:
            message = f"{token_file} holds more than a token: name a file with nothing else, as `user.token`"
            raise exits.CliError(exits.USAGE, message)
    from remotegpu.rpc.client import Access  # noqa: PLC0415 (gRPC)

    return Access(token=token or None, ca=ca, server_name=server_name or None)

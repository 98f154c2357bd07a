"""The options that several commands have, and what is made of them."""

from pathlib import Path
from typing import Annotated

import typer

from remotegpu.api import names
from remotegpu.cli import exits
from remotegpu.rpc.client import Access

ApplianceOption = Annotated[
    str,
    typer.Option("--appliance", "-a", envvar=names.APPLIANCE_ENV, metavar="HOST:PORT[,...]", help="Appliances to use."),
]
TokenOption = Annotated[
    str, typer.Option("--token", envvar=names.TOKEN_ENV, help="Token for appliances that want one.", show_envvar=True)
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def split(appliances: str) -> list[str]:
    return [part for part in appliances.split(",") if part.strip()]


def required(appliances: str) -> list[str]:
    found = split(appliances)
    if not found:
        raise exits.CliError(
            exits.USAGE, f"no appliance is named: give --appliance HOST:PORT or set {names.APPLIANCE_ENV}"
        )
    return found


def read_access(token: str, token_file: Path | None, ca: Path | None, server_name: str) -> Access:
    if not token and token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise exits.CliError(exits.USAGE, f"the token file {token_file} cannot be read: {error.strerror}") from None
    return Access(token=token or None, ca=ca, server_name=server_name or None)

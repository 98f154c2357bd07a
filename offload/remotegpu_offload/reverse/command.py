"""`python -I remotegpu.pyz open HOST/NAME`: the client's command, which needs only the standard library."""

import argparse
import os
import sys
from pathlib import Path

from remotegpu_offload.reverse.errors import ReverseError
from remotegpu_offload.reverse.fetch import Server, parse_address
from remotegpu_offload.reverse.opening import Wish, become, prepare
from remotegpu_offload.reverse.store import default_folder

REFUSED = 2


def open_application(wish: Wish, *, yes: bool) -> int:
    """Replaces this process by an application. Returns only if it cannot be run, with the exit code."""

    def ask(text: str) -> bool:
        print(text, file=sys.stderr)  # noqa: T201
        if yes:
            return True
        if not sys.stdin.isatty():
            print("There is nobody to ask: agree beforehand by --yes.", file=sys.stderr)  # noqa: T201
            return False
        print("Run it? [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    try:
        plan, environment = prepare(wish, ask)
    except (ReverseError, ValueError, OSError) as error:
        print(f"remotegpu: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    become(plan, environment)
    raise AssertionError("execve does not return")


def wish_of(
    address: str,
    *,
    ca: Path | None = None,
    token: str = "",
    trust: str = "",
    cache: Path | None = None,
    stats: Path | None = None,
    arguments: tuple[str, ...] = (),
) -> Wish:
    """Parses the address, and returns the user's choices. Raises ReverseError."""
    url, name = parse_address(address)
    return Wish(Server(url, ca, token), name, (cache or default_folder()).resolve(), arguments, trust, stats)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="remotegpu.pyz", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    opening = commands.add_parser("open", help="run an application from a server")
    opening.add_argument("address", help="HOST[:PORT]/NAME")
    opening.add_argument("arguments", nargs=argparse.REMAINDER, help="of the application")
    opening.add_argument("--ca", type=Path, metavar="FILE", help="the authority of the server's certificate")
    opening.add_argument("--trust", default="", metavar="KEY", help="the key that must have signed it")
    opening.add_argument("--yes", action="store_true", help="agree to what it may do")
    opening.add_argument("--token-file", type=Path, metavar="FILE", help="else the variable REMOTEGPU_TOKEN")
    opening.add_argument("--cache", type=Path, metavar="FOLDER", help="where pages are kept")
    opening.add_argument("--stats", type=Path, metavar="FILE", help="write what travelled there, as JSON")
    given = parser.parse_args(words)
    try:
        token = given.token_file.read_text().strip() if given.token_file else os.environ.get("REMOTEGPU_TOKEN", "")
        wish = wish_of(
            given.address, ca=given.ca, token=token, trust=given.trust, cache=given.cache, stats=given.stats,
            arguments=tuple(given.arguments),
        )  # fmt: skip
    except (ReverseError, OSError) as error:
        print(f"remotegpu: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    return open_application(wish, yes=given.yes)

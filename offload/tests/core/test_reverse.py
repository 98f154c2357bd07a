"""Applications on a server, run by a Python that has nothing: what comes, in how many trips, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster.certificates import Authority

from remotegpu_offload.reverse import bootstrap, confine
from remotegpu_offload.reverse.collect import collect
from remotegpu_offload.reverse.manifest import Permissions, key_text
from remotegpu_offload.reverse.server import Server, Shelf
from remotegpu_offload.reverse.signing import Signer

SECONDS = 60
MAIN = """
import json, os, sys
from shapes import area
import shapes.numbers as numbers
from importlib import resources

def main():
    here = os.path.dirname(__file__)
    data = open(os.path.join(here, "data", "table.csv")).read()
    packaged = resources.files("shapes").joinpath("units.txt").read_text()
    print(json.dumps({
        "area": area(3), "data": data, "units": packaged, "arguments": sys.argv[1:], "name": __name__,
        "listed": sorted(name for name in os.listdir(here) if not name.startswith((".", "__"))),
        "exists": os.path.exists(os.path.join(here, "data", "large.bin")),
        "variables": sorted(name for name in os.environ if name.startswith("MY_")),
    }))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A program with a package, relative imports, packaged data, and a file that nobody needs."""
    folder = tmp_path / "digits"
    (folder / "shapes").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "main.py").write_text(MAIN)
    (folder / "shapes" / "__init__.py").write_text("from .numbers import PI\n\ndef area(r):\n    return PI * r * r\n")
    (folder / "shapes" / "numbers.py").write_text("PI = 3\n")
    (folder / "shapes" / "units.txt").write_text("metres")
    (folder / "data" / "table.csv").write_text("a,b\n1,2\n")
    (folder / "data" / "large.bin").write_bytes(b"x" * (5 << 20))
    (folder / "never.py").write_text("raise RuntimeError\n")
    return folder


@dataclass
class Published:
    """A running server of one application, and the machine that opens it."""

    folder: Path
    server: Server
    key: str
    home: Path
    permissions: Permissions = field(default_factory=Permissions)
    more: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return f"{self.server.url}/digits"

    def open(self, *words: str, yes: bool = True, after: tuple[str, ...] = (), **variables: str) -> Any:
        """`python -I remotegpu.pyz open`, with an interpreter that has no package of ours."""
        boot = self.home / "remotegpu.pyz"
        boot.write_bytes(bootstrap.build())
        command = [sys.executable, "-S", "-I", str(boot), "open", "--cache", str(self.home / "cache")]
        command += ["--stats", str(self.home / "stats.json"), *self.more, *(["--yes"] if yes else []), *words]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **variables}
        return subprocess.run(
            [*command, self.address, *after],
            capture_output=True, text=True, timeout=SECONDS, cwd=self.home, env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def result(self, *words: str, **more: Any) -> dict[str, Any]:
        ended = self.open(*words, **more)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return found

    @property
    def trips(self) -> int:
        return int(json.loads((self.home / "stats.json").read_text())["trips"])

    def refusal(self, *words: str, **more: Any) -> str:
        before = self.server.counters.pages
        ended = self.open(*words, **more)
        assert ended.returncode == 2 and ended.stdout == "", (ended.stdout, ended.stderr)
        assert self.server.counters.pages == before, "something was fetched that may not be run"
        return str(ended.stderr)


def publish(
    folder: Path, home: Path, signer: Signer, *, tls: ssl.SSLContext | None = None, token: str = "", **rules: Any
) -> Server:
    home.mkdir(exist_ok=True)
    shelf = Shelf({"digits": lambda: collect(folder, "digits", **rules)}, {"digits": folder}, signer.sign)
    server = Server(("127.0.0.1", 0), shelf, bootstrap=bootstrap.build(), tls=tls, token=token)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@pytest.fixture
def published(application: Path, tmp_path: Path) -> Iterator[Published]:
    signer = Signer(tmp_path / "serve.pem")
    server = publish(application, tmp_path / "home", signer)
    yield Published(application, server, key_text(signer.public), tmp_path / "home")
    server.shutdown()
    server.server_close()


def test_a_program_runs_as_it_would_on_the_server(published: Published) -> None:
    local = subprocess.run(
        [sys.executable, "-B", str(published.folder / "main.py"), "one", "two"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert published.result(after=("one", "two")) == json.loads(local.stdout)


def test_first_start_and_second_start_are_counted(published: Published) -> None:
    """First: the manifest, all code at once, and a trip for each file that is opened. Second: only the manifest."""
    published.result()
    assert published.trips == 2 + 3
    assert not list((published.home / "cache").rglob("never.pyc"))
    first = published.result()
    assert published.trips == 1
    (published.folder / "shapes" / "numbers.py").write_text("PI = 4\n")
    published.server.shelf._current.clear()
    changed = published.result()
    assert (first["area"], changed["area"]) == (27, 36)
    assert published.trips == 2


def test_the_exit_code_and_the_traceback_are_the_programs(published: Published) -> None:
    (published.folder / "main.py").write_text("import shapes\n\ndef fails():\n    raise SystemExit(7)\nfails()\n")
    assert published.open().returncode == 7
    (published.folder / "shapes" / "__init__.py").write_text("one = 1\nraise ValueError('the shape of it')\n")
    published.server.shelf._current.clear()
    ended = published.open()
    assert ended.returncode == 1
    assert "raise ValueError('the shape of it')" in ended.stderr and 'shapes/__init__.py", line 2' in ended.stderr


def test_a_page_that_was_changed_on_the_way_is_not_run(published: Published) -> None:
    envelope = published.server.shelf.envelope("digits")
    assert envelope is not None
    # The same size, so that nothing but its hash tells.
    (published.folder / "shapes" / "numbers.py").write_text("PI = 9\n")
    published.server.shelf.clock = lambda: published.server.shelf._current["digits"][0]
    ended = published.open()
    assert ended.returncode == 2 and ended.stdout == ""
    assert "shapes/numbers.py" in ended.stderr and "manifest" in ended.stderr
    pages = [page.read_text() for page in (published.home / "cache").rglob("pages/*/*") if page.stat().st_size < 100]
    assert "PI = 9\n" not in pages


@pytest.mark.parametrize("part", ["manifest", "signature", "key"])
def test_a_changed_manifest_is_refused(published: Published, part: str) -> None:
    content = published.server.shelf.envelope("digits")
    assert content is not None
    texts = json.loads(content)
    raw = bytearray(base64.b64decode(texts[part]))
    raw[len(raw) // 2] ^= 1
    texts[part] = base64.b64encode(bytes(raw)).decode()
    now, manifest, _ = published.server.shelf._current["digits"]
    published.server.shelf._current["digits"] = (now, manifest, json.dumps(texts).encode())
    published.server.shelf.clock = lambda: now
    assert "signature" in published.refusal()


def test_another_key_and_an_older_version_are_refused(published: Published, tmp_path: Path) -> None:
    published.result("--trust", published.key)
    first = published.server.shelf._current["digits"]
    (published.folder / "never.py").write_text("pass\n")
    published.server.shelf._current["digits"] = (0.0, *first[1:])
    published.result()
    now = published.server.shelf.clock()
    published.server.shelf._current["digits"] = (now, *first[1:])
    published.server.shelf.clock = lambda: now
    assert f"{published.home}/" in published.refusal(), "the file that remembers the newer one"

    other = Signer(tmp_path / "other.pem")
    published.server.shelf.sign = other.sign
    published.server.shelf._current.clear()
    refused = published.refusal()
    assert published.key in refused and key_text(other.public) in refused
    refused = published.refusal("--trust", published.key)
    assert "--trust" in refused and key_text(other.public) in refused
    # Its owner says that the new key is theirs.
    published.result("--trust", key_text(other.public))


def test_permissions_are_shown_asked_for_and_enforced(application: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    signer = Signer(tmp_path / "serve.pem")
    permissions = Permissions(("./in/**",), ("./out/**",), ("MY_*",))
    server = publish(application, home, signer, permissions=permissions)
    published = Published(application, server, key_text(signer.public), home)
    (home / "in").mkdir()
    (home / "out").mkdir()
    (home / "in" / "a.txt").write_text("given")
    (home / "secret.txt").write_text("secret")
    (application / "main.py").write_text(
        "import json, os, pathlib, tempfile\n"
        "def attempt(act):\n"
        "    try:\n        return act()\n"
        "    except OSError as error:\n        return type(error).__name__\n"
        "w = lambda path: pathlib.Path(path).write_text('x')\n"
        "print(json.dumps({'in': attempt(lambda: open('in/a.txt').read()), 'out': attempt(lambda: w('out/b.txt')),\n"
        "  'secret': attempt(lambda: open('secret.txt').read()), 'known': attempt(lambda: w('cache/known.json')),\n"
        "  'over': attempt(lambda: w('in/a.txt')), 'scratch': attempt(lambda: tempfile.TemporaryFile().write(b'x')),\n"
        "  'variables': sorted(k for k in os.environ if k.startswith(('MY_', 'YOUR_')))}))\n"
    )
    try:
        refused = published.refusal(yes=False, MY_KEY="1")
        assert "There is nobody to ask: agree beforehand by --yes." in refused and "you did not agree" in refused
        for shown in (
            "may read     ./in/**",
            "may write    ./out/**",
            "variables    MY_*",
            published.key,
            "first time",
        ):
            assert shown in refused, refused
        assert ("NOTHING ENFORCES IT" in refused) is not confine.available()
        done = published.result(MY_KEY="1", YOUR_KEY="2")
        assert done.pop("variables") == ["MY_KEY"]
        if not confine.available():
            return
        assert done == {
            "in": "given", "out": 1, "secret": "PermissionError", "known": "PermissionError",
            "over": "PermissionError", "scratch": 1,
        }  # fmt: skip
        assert (home / "in" / "a.txt").read_text() == "given"
        # Agreed once: not asked again, until it wants more.
        assert published.result(yes=False)["in"] == "given"
        server.shelf.collect = {
            "digits": lambda: collect(
                application, "digits", permissions=Permissions(("./in/**", "~/keys"), ("./out/**",))
            )
        }
        server.shelf._current.clear()
        again = published.refusal(yes=False)
        assert "~/keys (new)" in again and "it wants more now" in again
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("end", ["pass", "1 / 0", "os.kill(os.getpid(), 9)"])
def test_its_folders_are_made_and_its_scratch_folder_is_gone_when_it_has_ended(published: Published, end: str) -> None:
    permissions = Permissions((), ("./made/deep/**",))
    published.server.shelf.collect = {
        "digits": lambda: collect(published.folder, "digits", permissions=permissions),
    }
    (published.folder / "main.py").write_text(
        "import os, tempfile\n"
        "if not os.path.isdir('made/deep'): os.makedirs('made/deep')\n"
        "open('made/deep/a', 'w').write('x')\n"
        "open(os.path.join(tempfile.mkdtemp(), 'b'), 'w').write('y')\n"
        f"print(tempfile.gettempdir(), flush=True)\n{end}\n"
    )
    published.server.shelf._current.clear()
    ended = published.open()
    shown = [line for line in ended.stderr.splitlines() if not line.startswith("  ")]
    assert shown == (
        ["Traceback (most recent call last):", "ZeroDivisionError: division by zero"] if "/" in end else []
    )
    assert (published.home / "made" / "deep" / "a").read_text() == "x"
    scratch = Path(ended.stdout.strip())
    assert scratch.name.startswith("remotegpu-app-")
    deadline = time.monotonic() + SECONDS
    while scratch.exists():
        assert time.monotonic() < deadline, "the scratch folder stays"
        time.sleep(0.01)


def test_a_person_is_asked_on_a_terminal(published: Published) -> None:
    for answer, code in (("n\n", 2), ("y\n", 0)):
        ours, theirs = pty.openpty()
        boot = published.home / "remotegpu.pyz"
        boot.write_bytes(bootstrap.build())
        command = [sys.executable, "-I", str(boot), "open", "--cache", str(published.home / "cache"), published.address]
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            os.write(ours, answer.encode())
            _, error = process.communicate(timeout=SECONDS)
        os.close(ours)
        assert b"Run it? [y/N]" in error and process.returncode == code, error


def test_over_tls_the_authority_decides_and_the_token_opens(application: Path, tmp_path: Path) -> None:
    authority = Authority("an authority")
    authority.issue("server", subjects=("127.0.0.1",)).write(tmp_path, "tls")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    signer = Signer(tmp_path / "serve.pem")
    server = publish(application, tmp_path / "home", signer, tls=context, token="open sesame")
    published = Published(application, server, key_text(signer.public), tmp_path / "home")
    try:
        assert published.address.startswith("https://")
        assert "--ca" in published.refusal()
        published.more = ("--ca", str(tmp_path / "ca.crt"))
        assert "REMOTEGPU_TOKEN" in published.refusal()
        assert published.result(REMOTEGPU_TOKEN="open sesame", MY_KEY="1")["area"] == 27
        # The token is ours, not the application's.
        (application / "main.py").write_text(
            "import json, os\nprint(json.dumps({'token': 'REMOTEGPU_TOKEN' in os.environ}))"
        )
        server.shelf._current.clear()
        assert published.result(REMOTEGPU_TOKEN="open sesame") == {"token": False}
    finally:
        server.shutdown()
        server.server_close()


def test_what_cannot_be_opened_says_what_to_do(published: Published) -> None:
    assert "'http://127.0.0.1:1/'" in refused_address(published, "http://127.0.0.1:1/")
    assert "--cert, --key" in refused_address(published, "http://example.com/digits")
    assert re.search(r"'other'.*\bdigits\b", refused_address(published, f"{published.server.url}/other"))
    published.server.shelf.collect = {
        "digits": lambda: collect(published.folder, "digits", requirements=("numpy>=2", "no-such-package")),
    }
    said = published.refusal()
    assert "numpy>=2, no-such-package" in said and "'no-such-package'" in said
    published.server.shutdown()
    published.server.server_close()
    assert published.server.url in published.refusal()


def refused_address(published: Published, address: str) -> str:
    boot = published.home / "remotegpu.pyz"
    boot.write_bytes(bootstrap.build())
    command = [sys.executable, "-I", str(boot), "open", "--yes", "--cache", str(published.home / "cache"), address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 2
    return ended.stderr


def test_the_server_opens_nothing_but_what_it_published(published: Published, tmp_path: Path) -> None:
    import http.client

    (published.folder / ".secret").write_text("hidden")
    (tmp_path / "outside.txt").write_text("outside")
    (published.folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    envelope = published.server.shelf.envelope("digits")
    assert envelope is not None
    manifest = json.loads(base64.b64decode(json.loads(envelope)["manifest"]))
    assert not {".secret", "link.txt"} & manifest["files"].keys()
    host, port = published.server.server_address[:2]
    for path in (
        "/",
        "/v1/pages/../../etc/passwd",
        "/v1/pages/" + "0" * 64,
        "/main.py",
        "//etc/passwd",
        "/v1/apps/../x",
    ):
        connection = http.client.HTTPConnection(str(host), int(port), timeout=SECONDS)
        connection.request("GET", path)
        assert connection.getresponse().status == 404, path
        connection.close()
    connection = http.client.HTTPConnection(str(host), int(port), timeout=SECONDS)
    connection.request("POST", "/v1/pages", b"x" * 100, {"Content-Length": "100"})
    assert connection.getresponse().status == 400
    connection.close()
    # Its file became a link to another after the manifest was made.
    digest = manifest["files"]["never.py"]["sha256"]
    (published.folder / "never.py").unlink()
    (published.folder / "never.py").symlink_to(tmp_path / "outside.txt")
    assert published.server.shelf.page(digest) is None


def test_the_command_serves_and_opens(application: Path, tmp_path: Path) -> None:
    """Through `remotegpu offload`, and the rules in the application's remotegpu.yaml."""
    (application / "remotegpu.yaml").write_text(
        "version: 1\ncode: {never: [never]}\nfiles: {read: ['./in/**']}\nenv: {pass: [MY_KEY]}\n"
    )
    program = shutil.which("remotegpu", path=Path(sys.executable).parent)
    assert program is not None
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "MY_KEY": "1"}
    command = [program, "offload", "serve", str(application), "--name", "digits", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[1]
            key = server.stdout.readline().split()[-1]
            assert server.stdout.readline() == f"open it: remotegpu offload open --trust {key} {address}\n"
            opening = [program, "offload", "open", "--trust", key, "--yes", "--cache", str(tmp_path / "cache"), address]
            ended = subprocess.run(opening, capture_output=True, text=True, timeout=SECONDS, env=environment)
            assert ended.returncode == 0, ended.stderr
            assert json.loads(ended.stdout)["variables"] == ["MY_KEY"]
            assert "never" not in json.loads(ended.stdout)["listed"] and "./in/**" in ended.stderr
        finally:
            server.terminate()
            server.wait(SECONDS)

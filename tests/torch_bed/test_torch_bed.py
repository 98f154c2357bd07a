"""How `make torch-bed` fetches and unpacks: resumed, verified, from any mirror, and with each failure in one line."""

from __future__ import annotations

import hashlib
import http.server
import io
import lzma
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_bed import __main__ as main
from torch_bed import deb, fetch, launcher, packages, stub
from torch_bed.__main__ import LIST
from torch_bed.packages import Package

CONTENT = bytes(range(256)) * 4000


class Mirror(http.server.BaseHTTPRequestHandler):
    """A server of files. It cuts the first `cuts` answers in the middle, and sends the rest if it is asked to."""

    files: dict[str, bytes]
    asked: list[tuple[str, str | None]]
    cuts: int
    resumes = True

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Range"]))
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if self.headers["Range"] else 0
        begin = begin if self.resumes else 0
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        rest = content[begin:]
        if self.cuts:
            type(self).cuts -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[tuple[type[Mirror], str]]:
    class Own(Mirror):
        pass

    Own.files, Own.asked, Own.cuts = {}, [], 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield Own, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def package(content: bytes = CONTENT) -> Package:
    return Package(
        "libx", "1.0-2", hashlib.sha256(content).hexdigest(), len(content), "pool/main/x/libx_1.0-2_amd64.deb"
    )


@pytest.mark.parametrize("resumes", [True, False])
def test_a_download_that_was_cut_goes_on(mirror: tuple[type[Mirror], str], tmp_path: Path, resumes: bool) -> None:
    handler, address = mirror
    handler.files["/" + package().path] = CONTENT
    handler.cuts, handler.resumes = 1, resumes
    came: list[int] = []
    file = fetch.fetch(package(), [address], tmp_path, fetch.opener(), came.append)
    assert file.read_bytes() == CONTENT
    assert [asked for _, asked in handler.asked] == [None, f"bytes={len(CONTENT) // 2}-"]
    assert sum(came) == len(CONTENT) * (1 if resumes else 1.5)
    # What is there is not asked for again.
    assert fetch.fetch(package(), [address], tmp_path, fetch.opener()) == file
    assert len(handler.asked) == 2


def test_a_wrong_sum_is_not_kept_and_the_next_mirror_is_asked(
    mirror: tuple[type[Mirror], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, address = mirror
    monkeypatch.setattr(fetch, "TRIES", 1)
    handler.files |= {"/bad/" + package().path: CONTENT[::-1], "/good/" + package().path: CONTENT}
    file = fetch.fetch(package(), [f"{address}/bad", f"{address}/good"], tmp_path, fetch.opener())
    assert file.read_bytes() == CONTENT
    file.unlink()
    with pytest.raises(fetch.NotFetchedError, match="SHA-256 is not the list's"):
        fetch.fetch(package(), [f"{address}/bad"], tmp_path, fetch.opener())
    assert list(tmp_path.iterdir()) == []


def test_what_no_mirror_has_is_one_line_with_its_name(mirror: tuple[type[Mirror], str], tmp_path: Path) -> None:
    handler, address = mirror
    with pytest.raises(fetch.NotFetchedError) as caught:
        fetch.fetch(package(), [f"{address}/a", f"{address}/b"], tmp_path, fetch.opener())
    assert str(caught.value).startswith("libx 1.0-2: no mirror has it (pool/main/x/libx_1.0-2_amd64.deb: 404")
    assert "\n" not in str(caught.value)
    # A mirror that says no is not asked twice.
    assert [path.split("/")[1] for path, _ in handler.asked] == ["a", "b"]


def archive(members: list[tarfile.TarInfo], contents: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for member in members:
            content = contents.get(member.name, b"")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return file.getvalue()


def ar(parts: list[tuple[str, bytes]]) -> bytes:
    made = b"!<arch>\n"
    for name, content in parts:
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        made += b"\n" * (len(content) % 2)
    return made


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def test_a_package_is_unpacked_as_dpkg_does(tmp_path: Path) -> None:
    program = tarfile.TarInfo("./usr/bin/hello")
    program.mode = 0o755
    members = [program, link("./usr/lib/near", "../bin/hello"), link("./usr/lib/far", "/usr/bin/hello")]
    content = lzma.compress(archive(members, {"./usr/bin/hello": b"#!/bin/sh\necho hello\n"}))
    file = tmp_path / "hello.deb"
    # An odd length in front, after which a byte of filling stands.
    file.write_bytes(ar([("debian-binary", b"2.0"), ("control.tar.xz", b"not read"), ("data.tar.xz", content)]))
    root = tmp_path / "root"
    deb.unpack(file, root)
    hello = root / "usr" / "bin" / "hello"
    assert subprocess.run([hello], capture_output=True, text=True, check=True).stdout == "hello\n"
    assert (root / "usr/lib/near").resolve() == hello
    assert (root / "usr/lib/far").resolve() == hello


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"<html>", "does not begin as an ar archive"),
        (ar([("debian-binary", b"2.0\n")]), "has no data.tar"),
        (ar([("data.tar.zst", b"")]), "compressed in a way"),
        (
            ar([("data.tar.xz", lzma.compress(b"x" * 20000)[:40])]),
            "ended before|Compressed file|invalid header|unexpected",
        ),
        (ar([("data.tar.xz", lzma.compress(archive([link("../../out", "/etc")], {})))]), "outside the destination"),
    ],
    ids=["html", "empty", "zst", "cut", "escaping"],
)
def test_what_is_no_package_is_refused_with_its_name(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "bad.deb"
    file.write_bytes(content)
    with pytest.raises(deb.NoPackageError, match=why) as caught:
        deb.unpack(file, tmp_path / "root")
    assert str(file) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_list_is_whole() -> None:
    wanted = packages.parse(LIST.read_text())
    names = [each.name for each in wanted]
    assert len(names) == len(set(names))
    assert {"libtorch-cuda-2.6", "libc6", "python3.13", "libopenblas0-pthread", "python3-scipy"} <= set(names)
    assert all(each.path.startswith("pool/") for each in wanted)
    # No address of a mirror, which are those of apt's sources.
    assert "://" not in LIST.read_text()
    assert packages.parse(packages.write(wanted, "head")) == wanted
    # What the README and the Makefile say.
    assert packages.megabytes(sum(each.size for each in wanted)) == "1.45 GB"


def test_a_line_that_is_no_package_is_named() -> None:
    with pytest.raises(ValueError, match=r"line 2 of the list is no package: 'libx 1\.0'"):
        packages.parse("# head\nlibx 1.0\n")


def test_what_apt_says_of_packages_is_read() -> None:
    fields = ["Package: a", "Version: 1:2", "Size: 3", f"SHA256: {'0' * 64}", "Description: of", " b: c"]
    text = "\n".join([*fields, "Filename: pool/a.deb", "", "Package: b", ""])
    assert packages.stanzas(text) == [Package("a", "1:2", "0" * 64, 3, "pool/a.deb")]


def test_mirrors_are_those_of_apt_and_the_one_that_a_person_names_comes_first() -> None:
    targets = "http://one/debian/\nhttp://one/debian/\nhttp://two/security/\ncdrom:[x]/\n"
    assert packages.bases(targets) == ["http://one/debian", "http://two/security"]
    assert packages.bases(targets, "https://mine/d/")[0] == "https://mine/d"


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="needs cc and nm")
def test_the_stub_has_what_is_asked_of_cudnn_and_refuses(tmp_path: Path) -> None:
    asking, program = tmp_path / "libasking.so", tmp_path / "program"
    (tmp_path / "asking.c").write_text(
        "#include <stdio.h>\nint cudnnCreate(void **); unsigned long cudnnGetVersion(void);\n"
        "const char *cudnnGetErrorString(int);\n"
        "void ask(void) { void *h; int e = cudnnCreate(&h);\n"
        'printf("%d %lu %s\\n", e, cudnnGetVersion(), cudnnGetErrorString(e)); }\n'
    )
    (tmp_path / "program.c").write_text("void ask(void); int main(void) { ask(); return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "asking.c", "-o", asking], check=True)
    stub.build([asking], tmp_path / stub.NAME)
    # As torch finds it: by its name, at the program's start.
    libraries = [asking, tmp_path / stub.NAME, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(["cc", str(tmp_path / "program.c"), *map(str, libraries), "-o", str(program)], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("1001 90501 there is no cuDNN")
    assert "make torch-bed CUDNN=1" in said


def test_the_launcher_gives_the_loader_the_programs_own_path_first(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    loader = tmp_path / "usr/lib64/ld-linux-x86-64.so.2"
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    loader.chmod(0o755)
    launcher.lay(tmp_path)

    def arguments(environment: dict[str, str]) -> list[str]:
        command = [str(tmp_path / "python3"), "-c", "print(1)"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    for given, first in (({}, f"{tmp_path}/cudnn"), ({"LD_LIBRARY_PATH": "/mine"}, "/mine")):
        said = arguments(given)
        assert said[:2] == ["--argv0", f"{tmp_path}/usr/bin/python3"]
        assert said[3].split(":")[0] == first
        assert said[4:] == [f"{tmp_path}/usr/bin/python3.13", "-c", "print(1)"]


def wheel(folder: Path) -> str:
    """Makes a wheel of cuDNN's name with one library. Returns its SHA-256."""
    file = folder / "nvidia_cudnn_cu12-9.5.1.17-py3-none-any.whl"
    info = "nvidia_cudnn_cu12-9.5.1.17.dist-info"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(f"nvidia/cudnn/lib/{main.REAL}", "a library")
        made.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: 9.5.1.17\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("is_right", [True, False])
def test_cudnn_is_what_its_sum_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_right: bool
) -> None:
    listed = tmp_path / "cudnn.txt"
    name, option = main.CUDNN.read_text().split()
    assert option.startswith("--hash=sha256:")
    listed.write_text(f"{name} --hash=sha256:{wheel(tmp_path) if is_right else option.rpartition(':')[2]}\n")
    wheel(tmp_path)
    monkeypatch.setattr(main, "CUDNN", listed)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    final = tmp_path / "bed"
    final.mkdir()
    if is_right:
        main.lay_cudnn(final, real=True)
        assert (final / "cudnn" / main.REAL).read_text() == "a library"
    else:
        with pytest.raises(SystemExit, match="nothing of it was kept"):
            main.lay_cudnn(final, real=True)
        assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
        assert list((final / "cudnn").iterdir()) == []

"""A libcudnn whose functions refuse every call: torch is linked with cuDNN, but most of torch works without it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

NAME: Final = "libcudnn.so.9"
# The libraries of torch that name functions of cuDNN.
ASKING: Final = ("libtorch_cuda.so.2.6", "libtorch_cuda_linalg.so.2.6.0", "libtorch_python.so.2.6")
VERSION: Final = 90501
NOT_INITIALIZED: Final = 1001


class NoCompilerError(Exception):
    """The stub needs a program that the machine lacks; the message names it."""


def functions(undefined: str) -> list[str]:
    """Returns the names of cuDNN's functions in the output of `nm -D --undefined-only`."""
    names = (line.split()[-1].split("@")[0] for line in undefined.splitlines() if line.strip())
    return sorted({name for name in names if name.startswith("cudnn")})


def source(names: Iterable[str]) -> str:
    """Returns C code in which every function refuses, except the two that return a version or a text."""
    told = {
        "cudnnGetVersion": f"size_t cudnnGetVersion(void) {{ return {VERSION}; }}",
        "cudnnGetErrorString": 'const char *cudnnGetErrorString(int error) { (void)error; return "there is no cuDNN: '
        'set torch.backends.cudnn.enabled = False, or run `make torch-bed CUDNN=1`"; }',
    }
    refused = "int {name}(void) {{ return {code}; }}"
    made = [told.get(name) or refused.format(name=name, code=NOT_INITIALIZED) for name in names]
    return "\n".join(["#include <stddef.h>", *made]) + "\n"


def program(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise NoCompilerError(f"the stub of cuDNN needs {names[0]}: install it, or run `make torch-bed CUDNN=1`")


def build(asking: Sequence[Path], library: Path) -> None:
    nm, cc = program("nm"), program("cc", "gcc", "clang")
    undefined = subprocess.run([nm, "-D", "--undefined-only", *asking], check=True, capture_output=True, text=True)
    code, versions = library.with_suffix(".c"), library.with_suffix(".map")
    code.write_text(source(functions(undefined.stdout)))
    versions.write_text(f"{library.name} {{ global: cudnn*; local: *; }};\n")
    linked = [f"-Wl,-soname,{library.name}", f"-Wl,--version-script,{versions}"]
    subprocess.run([cc, "-shared", "-fPIC", "-nostdlib", *linked, str(code), "-o", str(library)], check=True)

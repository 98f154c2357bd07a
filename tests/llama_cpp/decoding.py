"""llama.cpp as tools/llama_cpp.sh builds it, and its output natively, on a share and on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy
from support import proxied
from support.system import REMOTEGPU, ROOT, Appliance

FOLDER: Final = ROOT / "target" / "serving"
PROGRAMS: Final = FOLDER / "llama.cpp" / "bin"
SECONDS: Final = 600
Logits = numpy.ndarray[Any, numpy.dtype[numpy.float32]]


def program(name: str) -> str:
    found = PROGRAMS / name
    assert (FOLDER / ".built").exists(), "llama.cpp is not built: run `make llama-cpp`, then this test again"
    return str(found)


def native_command(*command: str, gpus: int = 1) -> list[str]:
    """A command on the software GPU; a run on the CPU also loads CUDA's library, which needs a driver."""
    return [REMOTEGPU, "run", "--native", "-n", str(gpus), "--", *command]


def built_decoder(folder: Path) -> Path:
    """Builds our program with the headers and libraries of that build."""
    made, source = folder / "decode", FOLDER / "source"
    program("llama-server")
    subprocess.run(
        ["c++", "-O1", "-o", made, Path(__file__).parent / "programs" / "decode.cpp", "-I", source / "include",
         "-I", source / "ggml" / "include", "-L", PROGRAMS, f"-Wl,-rpath,{PROGRAMS}", "-Wl,--allow-shlib-undefined",
         "-lllama", "-lggml", "-lggml-base"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return made


@dataclass(frozen=True)
class Decoded:
    tokens: list[int]
    logits: Logits  # of each step
    stderr: str
    statistics: dict[str, Any]

    def count(self, name: str) -> int:
        """Returns a figure of the statistics, such as `round_trips`, or the number of calls of a function."""
        found: int = (self.statistics | self.statistics["functions"]).get(name, 0)
        return found

    def milliseconds(self) -> list[float]:
        """Returns the milliseconds of each step."""
        *_, told = (line for line in self.stderr.splitlines() if line.startswith("ms:"))
        return [float(word) for word in told.split()[1:]]


@dataclass(frozen=True)
class Decoder:
    """Decodes in a folder of its own, by the program."""

    made: Path
    folder: Path

    def command(self, model: Path, steps: int, split: str) -> list[str]:
        return [str(self.made), str(model), str(steps), str(self.folder / "logits"), split]

    def decode(
        self,
        model: Path,
        steps: int,
        appliance: Appliance | None,
        *,
        split: str = "none",
        gpus: int = 1,
        other: Appliance | None = None,
        cache: str | None = None,
        settings: Mapping[str, str] | None = None,
        delay_ms: float | None = None,
    ) -> Decoded:
        """Decodes on software GPUs in the program itself, or on those of the appliance and the other one. Uses flash
        attention if a type of the cache is given.
        """
        command = self.command(model, steps, split)
        statistics = self.folder / "statistics"
        statistics.unlink(missing_ok=True)
        if appliance is None:
            whole = native_command(*command, gpus=gpus)
        else:
            both = ("--appliance", f"{appliance.endpoint},{other.endpoint}") if other else ()
            whole = appliance.command(*command, options=("-n", str(gpus), *both))
        environment = {"REMOTEGPU_STATS": str(statistics)} | caching(cache) | dict(settings or {})
        if appliance is None or delay_ms is None:
            return self.run(whole, environment)
        with proxied.delayed(appliance, delay_ms / 2):
            return self.run(proxied.command(appliance, *command), environment | {"REMOTEGPU_CARRIER": "direct"})

    def on_the_cpu(self, model: Path, tokens: list[int], cache: str | None = None) -> Decoded:
        """The same tokens by llama.cpp's own CPU back end."""
        command = [*self.command(model, len(tokens), "none"), ",".join(map(str, tokens))]
        return self.run(native_command(*command), {"DECODE_ON_CPU": "1"} | caching(cache))

    def run(self, command: list[str], more: dict[str, str]) -> Decoded:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | more)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr[-8000:]}"
        tokens = [int(token) for token in done.stdout.strip().split(",")]
        logits = numpy.fromfile(self.folder / "logits", numpy.float32).reshape(len(tokens), -1)
        statistics = self.folder / "statistics"
        return Decoded(tokens, logits, done.stderr, json.loads(statistics.read_text()) if statistics.exists() else {})


def caching(cache: str | None) -> dict[str, str]:
    return {"DECODE_CACHE": cache} if cache else {}


def error(found: Logits, right: Logits) -> float:
    """The normalised mean of squares, by which llama.cpp's own tests compare back ends."""
    return float(((found - right) ** 2).sum() / (right**2).sum())

"""Builds the library that detects outputs that a driver leaves unwritten, from the rows of `parameters.yaml`."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from remotegpu_codegen import parameters, registry
from remotegpu_codegen.parameters import HANDLES, OTHER_HANDLES, Field, Parameter
from support.system import ROOT

REGISTRY = ROOT / "remoting" / "registry"
TABLE = parameters.load(REGISTRY)
KNOWN = registry.load(REGISTRY)
FILLINGS = (0xA5, 0x5A)

SIZES = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "size": 8}
# Outputs of one pointer or handle.
SIZES |= dict.fromkeys(("address", "host", "entry", "table", "string", "blob", "memory", "page_locked"), 8)
SIZES |= dict.fromkeys(HANDLES | OTHER_HANDLES, 8)
MOST_LISTS = 3
CALLS = 1024
SLOT = struct.Struct(f"<QQ{CALLS // 8}s")
# Their result is a text.
NO_STATUS = {"nvmlErrorString"}


@dataclass(frozen=True)
class Answer:
    """A field that a function returns."""

    function: str
    parameter: str
    field: str
    optional: bool

    def __str__(self) -> str:
        return f"{self.function}: {self.parameter}{'.' if self.field else ''}{self.field}"


@dataclass
class Report:
    worked: dict[str, int]
    written: dict[Answer, int]
    unwritten: dict[Answer, set[int]]
    """In which calls, counted for each function from 0; those beyond the first 1024 are left out."""


class Layout:
    """The table in C, and the meaning of the report's places."""

    def __init__(self, symbols: list[str]) -> None:
        described = TABLE.all
        variants = {symbol: f.symbol for f in KNOWN.driver for symbol in f.symbols}
        self.bases = sorted({variants.get(symbol, symbol) for symbol in symbols})
        self.answers: list[Answer] = []
        self._outputs: list[str] = []
        self._fields: list[str] = []
        spans = {}
        for base in self.bases:
            start = len(self._outputs)
            for parameter in described.get(base, ()):
                if parameter.out and not parameter.later and parameter.when != "failure":
                    self._add(base, described[base], parameter)
            spans[base] = start, len(self._outputs) - start
        rows = []
        for symbol in symbols:
            base = variants.get(symbol, symbol)
            start, count = spans[base]
            rows.append(f'{{"{symbol}",{int(base in NO_STATUS)},{self.bases.index(base)},{start},{count}}}')
        self.text = f"""enum {{ FUNCTIONS = {len(symbols)}, ROWS = {len(self.bases)}, SLOTS = {len(self.answers)} }};
static const struct field fields[] = {{\n{_lines(self._fields)}}};
static const struct output outputs[] = {{\n{_lines(self._outputs)}}};
static const struct function functions[] = {{\n{_lines(rows)}}};
"""

    def _add(self, base: str, all_: tuple[Parameter, ...], parameter: Parameter) -> None:
        words = dict(_words(all_))
        by_name = {p.name: p for p in all_}
        kind, element, factors, guards = _shape(parameter, words)
        when, wanted = "NONE", 0
        if parameter.when:
            name, _, value = parameter.when.partition("=")
            when, wanted = str(words[name]), int(value)
        # NVML reads the length of a `first` in any case.
        lists = [str(words[p.name]) for p in all_ if p.kind == "list" and p.out and p.arguments[1] == parameter.name]
        lists = lists[:MOST_LISTS]
        lists += ["NONE"] * (4 - len(lists))
        lengths = [_factor(text, by_name, words) for text in factors] + ["{NONE,0,0,1}"] * (2 - len(factors))
        for guard, guarded, of in guards:
            fields = _fields(of) if of else [Field(0, "bytes", "")]
            structured = {field.name: field for field in fields}
            slot = len(self.answers)
            self.answers += [
                Answer(
                    base, parameter.name + (f"[{guarded}]" if len(guards) > 1 else ""), f.name, bool(parameter.section)
                )
                for f in fields
            ]
            self._outputs.append(
                f"{{{words[parameter.name]},{kind},{int(parameter.read)},{_size(of) if of else element},"
                f"{{{','.join(lengths)}}},{guard},{guarded},{when},{wanted},{{{','.join(lists)}}},"
                f"{len(self._fields)},{len(fields) if of else 0},{slot}}}"
            )
            self._fields += [_field(field, structured) for field in fields]

    def read(self, file: Path) -> Report:
        data = file.read_bytes()
        worked = struct.unpack_from(f"<{len(self.bases)}Q", data)
        slots = SLOT.iter_unpack(data[8 * len(self.bases) :])
        written, unwritten = {}, {}
        for answer, (times, kept, calls) in zip(self.answers, slots, strict=True):
            written[answer] = times
            if kept:
                unwritten[answer] = {call for call in range(CALLS) if calls[call // 8] >> call % 8 & 1}
        return Report(dict(zip(self.bases, worked, strict=True)), written, unwritten)


def _lines(rows: list[str]) -> str:
    return "".join(f"{row},\n" for row in rows)


def _words(all_: tuple[Parameter, ...]) -> Iterator[tuple[str, int]]:
    """Yields the place of each parameter: six are in registers, the others and those passed in memory on the stack."""
    registers, stack = 0, 6
    for parameter in all_:
        if parameter.kind == "whole":
            yield parameter.name, stack
            stack += int(parameter.arguments[0]) // 8
        elif registers < 6:
            yield parameter.name, registers
            registers += 1
        else:
            yield parameter.name, stack
            stack += 1


def _size(kind: str) -> int:
    return TABLE.structures[kind].size if kind in TABLE.structures else SIZES[kind]


def _fields(kind: str) -> list[Field]:
    return list(TABLE.structures[kind].fields) if kind in TABLE.structures else [Field(0, kind, "")]


def _shape(
    parameter: Parameter, words: Mapping[str, int]
) -> tuple[str, int, list[str], list[tuple[str, int, str | None]]]:
    """Kind, size of an element, factors of the length; and for each form guard, its value and type of the element."""
    kind, arguments = parameter.kind, parameter.arguments
    always = ("NONE", 0)
    if kind in ("list", "first"):
        return kind.upper(), 0, [arguments[1]], [(*always, arguments[0])]
    if kind in ("bytes", "text", "data"):
        return kind.upper(), 1, arguments[0].split("*"), [(*always, None)]
    if kind == "range_attributes":
        return "RANGES", 0, [arguments[1]], [(str(words[arguments[0]]), 0, None)]
    if kind == "pointer_attributes":
        forms = TABLE.attributes["pointer_attribute"].items()
        return "EACH", 0, [arguments[0]], [(str(words[arguments[1]]), value, of) for value, of in forms]
    if kind in TABLE.attributes:
        forms = TABLE.attributes[kind].items()
        return "PLAIN", 0, [], [(str(words[arguments[0]]), value, of) for value, of in forms]
    return "PLAIN", 0, [], [(*always, kind)]


def _factor(text: str, by_name: Mapping[str, Parameter], words: Mapping[str, int]) -> str:
    text = text.strip()
    if text.isdigit():
        return f"{{NONE,0,0,{text}}}"
    parameter = by_name[text]
    return f"{{{words[text]},{SIZES[parameter.kind]},{int(parameter.out)},0}}"


def _field(field: Field, structured: Mapping[str, Field]) -> str:
    text = re.fullmatch(r"text\d+", field.kind) is not None
    size = int(field.kind.removeprefix("text")) if text else SIZES.get(field.kind, 0)
    of = structured[field.of] if field.of else None
    values = [*field.values, 0, 0, 0, 0][:4]
    return (
        f"{{{field.offset},{size},{int(text)},{int(field.out)},{of.offset if of else 'NONE'},"
        f"{int(bool(of and of.out))},{len(field.values)},{{{','.join(map(str, values))}}}}}"
    )


STUB = """.globl {name}
.type {name},@function
{name}: push %rbp
mov %rsp,%rbp
sub $64,%rsp
mov %rdi,(%rsp)
mov %rsi,8(%rsp)
mov %rdx,16(%rsp)
mov %rcx,24(%rsp)
mov %r8,32(%rsp)
mov %r9,40(%rsp)
movsd %xmm0,48(%rsp)
lea 16(%rbp),%rax
mov %rax,56(%rsp)
mov ${index},%edi
mov %rsp,%rsi
call enter
leave
ret
"""


@dataclass(frozen=True)
class Interposer:
    folder: Path
    driver: Path
    layout: Layout

    def variables(self, report: Path, filling: int) -> dict[str, str]:
        """The environment of a program whose driver is to be watched."""
        return {
            "LD_LIBRARY_PATH": os.fspath(self.folder),
            "OUTPUTS_DRIVER": os.fspath(self.driver),
            "OUTPUTS_REPORT": os.fspath(report),
            "OUTPUTS_FILL": f"{filling:x}",
        }


def build(driver: Path, folder: Path) -> Interposer:
    """Compiles a libcuda.so.1, which is a libnvidia-ml.so.1 too, into `folder`."""
    listing = subprocess.run(["nm", "-D", "--defined-only", driver], check=True, capture_output=True, text=True)
    names = (line.split()[-1] for line in listing.stdout.splitlines())
    symbols = sorted({name for name in names if name.startswith(("cu", "nvml"))})
    layout = Layout(symbols)
    stubs = "".join(STUB.format(name=name, index=index) for index, name in enumerate(symbols))
    places = "".join(f".quad {name}\n" for name in symbols)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.h").write_text(layout.text)
    (folder / "stubs.S").write_text(
        f'.text\n{stubs}.section .data.rel,"aw"\n.hidden stubs\n.globl stubs\nstubs:\n{places}'
        '.section .note.GNU-stack,"",@progbits\n'
    )
    source = Path(__file__).with_name("interposer.c")
    # The linker binds our own names to ours, whatever else the program has loaded.
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-I", os.fspath(folder)]
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", *flags, "-o", library, source, folder / "stubs.S", "-ldl"], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library.name)
    return Interposer(folder, driver, layout)

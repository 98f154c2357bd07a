"""Builds a libcuda.so.1 that counts every call and forwards it, as independent evidence of a program's calls.

It shares no code with the client. Each exported symbol is a trampoline of two instructions (count, jump), so no
signature is needed. `cuGetProcAddress` returns trampolines too, because most programs find the driver through it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

# Calls that wait for the GPU, by the CUDA driver API's "API synchronization behavior". Each of these needs one round
# trip, and no other call needs one.
SYNCHRONISING = (
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
)

_PREFIX = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define N %(count)d
__attribute__((visibility("hidden"))) uint64_t tracer_counts[N];
__attribute__((visibility("hidden"))) void *tracer_targets[N];
static const char *names[N] = { %(names)s };
%(declarations)s
static void *const trampolines[N] = { %(trampolines)s };
static int (*real_get)(const char *, void **, int, uint64_t, int *);
static void *real_old_get;
static void *reals[N];
static uint64_t gets[2];

/* One function may be told to do nothing and to say that it worked: do the program's checks notice? */
static int idle(void) { return 0; }
static int is_idle(const char *name) {
    const char *chosen = getenv("TRACER_IDLE");
    size_t length = chosen ? strlen(chosen) : 0;
    return chosen && !strncmp(name, chosen, length) && (!name[length] || !strncmp(name + length, "_pt", 3));
}

__attribute__((constructor)) static void start(void) {
    void *real = dlopen(getenv("TRACER_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    if (!real) { fprintf(stderr, "tracer: %%s\n", dlerror()); abort(); }
    for (int i = 0; i < N; i++) {
        reals[i] = dlsym(real, names[i]);
        tracer_targets[i] = is_idle(names[i]) ? (void *)idle : reals[i];
    }
    *(void **)&real_get = dlsym(real, "cuGetProcAddress_v2");
    real_old_get = dlsym(real, "cuGetProcAddress");
}

__attribute__((destructor)) static void end(void) {
    FILE *f = fopen(getenv("TRACER_OUT"), "w");
    fprintf(f, "{\"cuGetProcAddress\":%%lu,\"cuGetProcAddress_v2\":%%lu", gets[0], gets[1]);
    for (int i = 0; i < N; i++)
        if (tracer_counts[i]) fprintf(f, ",\"%%s\":%%lu", names[i], tracer_counts[i]);
    fputs("}", f);
    fclose(f);
}

int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuGetProcAddress(const char *, void **, int, uint64_t);

static int get(const char *name, void **out, int version, uint64_t flags, int *status) {
    int code = real_get(name, out, version, flags, status);
    if (code || !out) return code;
    for (int i = 0; i < N; i++)
        if (*out && *out == reals[i]) { *out = trampolines[i]; break; }
    if (*out == (void *)real_get) *out = (void *)cuGetProcAddress_v2;
    if (*out && *out == real_old_get) *out = (void *)cuGetProcAddress;
    return code;
}
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    __atomic_fetch_add(&gets[1], 1, __ATOMIC_RELAXED);
    return is_idle("cuGetProcAddress_v2") ? 0 : get(name, out, version, flags, status);
}
int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    __atomic_fetch_add(&gets[0], 1, __ATOMIC_RELAXED);
    return is_idle("cuGetProcAddress") ? 0 : get(name, out, version, flags, 0);
}
"""


def build(driver: Path, folder: Path) -> Path:
    """Compiles a tracer of the library `driver` into `folder`. Returns the folder for LD_LIBRARY_PATH."""
    listing = subprocess.run(["nm", "-D", "--defined-only", str(driver)], check=True, capture_output=True, text=True)
    names = [line.split()[-1] for line in listing.stdout.splitlines()]
    names = sorted({n for n in names if n.startswith(("cu", "nvml"))} - {"cuGetProcAddress", "cuGetProcAddress_v2"})
    source = _PREFIX % {
        "count": len(names),
        "names": ",".join(f'"{n}"' for n in names),
        "declarations": "\n".join(f"extern char {n}[];" for n in names),
        "trampolines": ",".join(names),
    }
    assembly = "".join(
        f".globl {n}\n.type {n},@function\n"
        f"{n}: lock incq tracer_counts+{8 * i}(%rip)\njmp *tracer_targets+{8 * i}(%rip)\n"
        for i, n in enumerate(names)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tracer.c").write_text(source)
    (folder / "calls.S").write_text(f'.text\n{assembly}.section .note.GNU-stack,"",@progbits\n')
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            "libcuda.so.1",
            "tracer.c",
            "calls.S",
            "-ldl",
        ],
        cwd=folder,
        check=True,
    )
    return folder


def environment(tracer: Path, driver: Path, out: Path, idle: str = "") -> dict[str, str]:
    """Returns the variables of a traced run. In it the function `idle` does nothing and returns success."""
    variables = {"LD_LIBRARY_PATH": str(tracer), "TRACER_DRIVER": str(driver), "TRACER_OUT": str(out)}
    return variables | ({"TRACER_IDLE": idle} if idle else {})


def synchronising_calls(out: Path) -> int:
    """Returns the number of calls in a trace that wait for the GPU, with all versions (`_v2`, `_ptsz`) of a name."""
    counts: dict[str, int] = json.loads(out.read_text())
    bases = {
        f"{base}{suffix}" for base in SYNCHRONISING for suffix in ("", "_v2", "_ptsz", "_v2_ptsz", "_ptds", "_v2_ptds")
    }
    return sum(n for name, n in counts.items() if name in bases)

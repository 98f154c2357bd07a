"""Every way in which Python programs use files."""

import csv
import glob
import gzip
import io
import json
import mmap
import os
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path

import numpy as np


def show(label, *values):
    print(f"{label}:", *values)


def refused(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__, error.errno
    return "allowed"


def reading():
    show("text", open("data/lines.txt").read().split())
    with open("data/lines.txt", "rb") as file:
        file.seek(4)
        show("seek", file.read(3), file.tell(), file.seek(-6, io.SEEK_END), file.read())
    show("lines", [line.strip() for line in Path("data/lines.txt").open()])
    show("csv", list(csv.DictReader(open("data/deep/table.csv", newline=""))))
    show("walk", sorted((folder, sorted(names), sorted(files)) for folder, names, files in os.walk("data")))
    show("glob", sorted(glob.glob("data/**/*.csv", recursive=True)), sorted(map(str, Path("data").rglob("*.txt"))))
    status = os.stat("data/lines.txt")
    show("stat", status.st_size, stat.S_ISREG(status.st_mode), os.path.isdir("data"), os.path.exists("data/none"))
    with os.scandir("data") as entries:
        show("scandir", sorted((entry.name, entry.is_dir(), entry.stat().st_size > 0) for entry in entries))
    with open("data/lines.txt", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        show("mmap", mapped.find(b"two"), len(mapped))
    descriptor = os.open("data/lines.txt", os.O_RDONLY)
    show("descriptor", os.read(descriptor, 3), os.lseek(descriptor, 0, os.SEEK_END))
    os.close(descriptor)


def writing():
    os.makedirs("out/deep/er", exist_ok=True)
    with open("out/new.txt", "w") as file:
        print("first", file=file)
        file.write("second\n")
    with open("out/new.txt", "a") as file:
        show("append at", file.tell())
        file.write("third\n")
    with open("out/new.txt", "r+") as file:
        file.seek(6)
        file.write("SECOND")
        file.seek(0)
        show("r+", file.read().split())
        file.truncate(20)
    show("x", refused(lambda: open("out/new.txt", "x")))
    Path("out/deep/er/bytes.bin").write_bytes(bytes(range(256)) * 5000)
    show("size", os.path.getsize("out/deep/er/bytes.bin"))
    json.dump({"a": [1, 2]}, open("out/data.json", "w"))
    with gzip.open("out/packed.gz", "wb") as file:
        file.write(b"packed" * 100)
    show("gzip", len(gzip.open("out/packed.gz").read()))
    with zipfile.ZipFile("out/archive.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("inside.txt"), "in a zip")
    show("zip", zipfile.ZipFile("out/archive.zip").read("inside.txt"))
    os.remove("out/packed.gz")
    os.chmod("out/data.json", 0o600)
    show("mode", oct(os.stat("out/data.json").st_mode & 0o777))
    descriptor = os.open("out/low.txt", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"by descriptor")
    os.close(descriptor)
    with os.fdopen(os.open("out/low2.txt", os.O_RDWR | os.O_CREAT), "w") as file:
        file.write("by fdopen")
    show("low", open("out/low.txt").read(), open("out/low2.txt").read())


def moving():
    shutil.copy("data/lines.txt", "out/copied.txt")
    shutil.copy2("data/lines.txt", "out/copied2.txt")
    show("times", os.stat("out/copied2.txt").st_mtime_ns == os.stat("data/lines.txt").st_mtime_ns)
    os.rename("out/copied.txt", "out/renamed.txt")
    shutil.move("out/renamed.txt", "out/deep/moved.txt")
    shutil.copytree("data", "out/tree")
    shutil.rmtree("out/tree/deep")
    show("after", sorted(os.listdir("out")), sorted(os.listdir("out/tree")))
    with tempfile.NamedTemporaryFile("w", dir="out", delete=False, prefix="tmp") as file:
        file.write("x")
    os.replace(file.name, "out/atomic.txt")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "local").write_text("local")
        shutil.move(os.path.join(folder, "local"), "out/from_local")
    os.chdir("out/deep")
    show("chdir", os.path.basename(os.getcwd()), sorted(os.listdir()), open("../new.txt").readline())
    os.chdir("../..")


def arrays():
    numbers = np.arange(300_000, dtype=np.float64).reshape(3, -1)
    np.save("out/numbers.npy", numbers)
    np.savez("out/more.npz", a=numbers, b=numbers[:, ::2])
    numbers.tofile("out/raw.bin")
    show("load", np.array_equal(np.load("out/numbers.npy"), numbers), sorted(np.load("out/more.npz")))
    show("map", float(np.load("out/numbers.npy", mmap_mode="r")[2, 17]), float(np.memmap("out/raw.bin")[5]))
    show("fromfile", np.fromfile("out/raw.bin")[:3].tolist())
    show("loadtxt", np.loadtxt("data/deep/table.csv", delimiter=",", skiprows=1))
    written = np.memmap("out/mapped.bin", dtype=np.int32, mode="w+", shape=(10,))
    written[:] = np.arange(10)
    written.flush()
    del written


def rules():
    show("write to data", refused(lambda: open("data/lines.txt", "a")))
    show("listing", refused(lambda: os.listdir("..")))
    show("missing", refused(lambda: open("data/none")), refused(lambda: os.remove("out/none")))
    show("folder", refused(lambda: open("data")), refused(lambda: os.rmdir("out")))


for part in (reading, writing, moving, arrays):
    part()

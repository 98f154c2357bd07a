"""Functions that a program calls over and over again, and counts of what is left of a session, at either end."""

import collections
import gc
import os
import sys
import threading
import time


def add(a, b):
    return a + b


def describe(name, *, parts):
    return {"name": name, "parts": len(parts), "sum": sum(parts)}


def make(size):
    return list(range(size))


def extend(things, value):
    things.append(value)
    return len(things)


def append(things, value):
    """Changes an argument."""
    things.append(value)


def fail(number):
    raise LookupError(number, "as asked")


def count(stop):
    yield from range(stop)


def apply(function, value):
    return function(value) + 1


def attempt(function, value):
    """Calls the function; its LookupError stays here, and the error's first argument is returned."""
    try:
        return function(value)
    except LookupError as error:
        return error.args[0]


def consume(values):
    return sum(values)


def total(data):
    return float(data.sum())


def made_by(kind, value):
    """Uses an instance of a class that came with the call."""
    return kind(value).value


def inventory():
    """Counts everything that this process keeps for a session; also its memory in bytes."""
    # Threads that were lent to a thread of the other end go when they have been idle for some seconds.
    deadline = time.monotonic() + 60
    while _lent() and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(3):
        gc.collect()
    objects = gc.get_objects()
    ours = [each for each in objects if str(type(each).__module__).startswith("remotegpu_offload.")]
    kinds = collections.Counter(map(_kind, ours))
    found = {f"objects {kind}": number for kind, number in kinds.items()}
    for each in ours:
        match _kind(each):
            case "remotegpu_offload.wire.peer.Peer":
                found["waiting"] = len(each._waiting)
                found["logical threads"] = len(each.threads._logical)
                found["unsent"] = len(each._sender._outbox)
            case "remotegpu_offload.objects.codec.Codec":
                for name in ("exports", "held", "residents", "outgoing", "cache", "sent_types", "reducers"):
                    found[name] = len(getattr(each, name))
                found["pages known there"] = len(each.ledger._sizes)
                found["numbered"] = len(each._numbered)
                found["by identity"] = len(each.exports._by_identity)
                found["handles that died"] = len(each.held.dead)
            case "remotegpu_offload.functions.link.Link":
                found["raised"] = len(each._local.raised)
    sizes = {
        "tracked": len(objects),
        "allocated": sys.getallocatedblocks(),
        "resident": _resident(),
        "threads": threading.active_count(),
    }
    return found, sizes


def _kind(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _lent():
    return [each for each in threading.enumerate() if each.name.startswith("remotegpu thread")]


def _resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

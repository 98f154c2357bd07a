"""Builds a document of measurements: medians, ratios to raw TCP, and whether the aims are reached. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from remotegpu.cli.bench.matrix import Configuration

Figures = Mapping[str, float | None]

RTT: Final = "raw_tcp_rtt_us"
MESSAGE: Final = "raw_tcp_message_us"
PUT: Final = "raw_tcp_put_gbps"
GET: Final = "raw_tcp_get_gbps"

# All figures in the order of display, each with the raw TCP figure to compare with.
FIGURES: Final[dict[str, str | None]] = {
    "idle_sync_us": RTT,
    "rtt_us": RTT,
    "small_d2h_us": RTT,
    "event_query_us": RTT,
    "event_query_round_trips": None,
    "alloc_us": RTT,
    "alloc_round_trips": None,
    "launch_caller_us": MESSAGE,
    "launch_total_us": MESSAGE,
    "launch_client_cpu_us": MESSAGE,
    "launches_per_s": None,
    "launch_to_exec_us": RTT,
    "ten_launches_sync_us": RTT,
    "graph_caller_us": MESSAGE,
    "graph_beyond_frame_us": None,
    "graph_sync_us": RTT,
    "graph_eager_sync_us": RTT,
    "h2d_gbps": PUT,
    "d2h_gbps": GET,
    "pinned_h2d_gbps": PUT,
    "pinned_d2h_gbps": GET,
    "copy_mib": None,
    "init_ms": RTT,
    "init_round_trips": None,
    "module_first_round_trips": None,
    "module_again_round_trips": None,
    "module_again_bytes": None,
}
REFERENCES: Final = (RTT, MESSAGE, PUT, GET)


@dataclass(frozen=True, slots=True)
class Run:
    """One output of the benchmark program: the driver's figures, and raw TCP before and after them."""

    figures: Figures
    before: Figures
    after: Figures


@dataclass(frozen=True, slots=True)
class Aim:
    """An upper limit of a figure or its ratio to raw TCP, for ends on two CPUs (`split`) and on one (`same`)."""

    key: str
    of: Literal["ratio", "figure"]
    split: float
    same: float
    # Whether half a round trip of raw TCP is added to the limit.
    plus_one_way: bool = False


AIMS: Final = (
    Aim("idle_sync_us", "ratio", 1.2, 1.5),
    Aim("rtt_us", "ratio", 1.2, 1.5),
    Aim("launch_caller_us", "figure", 1, 1),
    Aim("launch_to_exec_us", "figure", 100, 100, plus_one_way=True),
    Aim("ten_launches_sync_us", "ratio", 1.3, 2),
    Aim("graph_beyond_frame_us", "figure", 2, 2),
    # Not 0: sometimes the client requests a slab of memory.
    Aim("alloc_round_trips", "figure", 0.01, 0.01),
    # Not 0: the first query of an event is a round trip. After it the worker reports the event's records.
    Aim("event_query_round_trips", "figure", 0.01, 0.01),
    Aim("h2d_gbps", "ratio", 1.15, 1.15),
    Aim("d2h_gbps", "ratio", 1.15, 1.15),
    Aim("pinned_d2h_gbps", "ratio", 1.15, 1.15),
    Aim("init_ms", "figure", 5, 5),
    Aim("init_round_trips", "figure", 3, 3),
    # The message has only the name of the image, which itself has a hundred thousand bytes.
    Aim("module_again_bytes", "figure", 200, 200),
)


def ratio(key: str, value: float | None, reference: str, reference_value: float | None) -> float | None:
    """Returns the time of a figure divided by the time of its reference; None if one is missing."""
    if value is None or not reference_value:
        return None
    time, reference_time = _time(key, value), _time(reference, reference_value)
    return None if time is None or reference_time is None else time / reference_time


def _time(key: str, value: float) -> float | None:
    """Returns a figure in microseconds; for a bandwidth, the time for a fixed number of bytes."""
    if key.endswith("_gbps"):
        return 1 / value if value else None
    return value * 1e3 if key.endswith("_ms") else value


def references_of(run: Run) -> dict[str, float | None]:
    return {key: _mean(run.before.get(key), run.after.get(key)) for key in REFERENCES}


def ratios_of(run: Run) -> dict[str, float | None]:
    references = references_of(run)
    return {
        key: ratio(key, run.figures.get(key), reference, references[reference])
        for key, reference in FIGURES.items()
        if reference is not None
    }


def summary(configuration: Configuration, runs: Sequence[Run], *, with_aims: bool) -> dict[str, Any]:
    """Returns the part of the document for one configuration."""
    figures = _medians([run.figures for run in runs], FIGURES)
    ratios = [ratios_of(run) for run in runs]
    result: dict[str, Any] = {
        "name": configuration.name,
        "place": configuration.place,
        "transport": configuration.transport,
        **asdict(configuration),
        "figures": figures,
        "references": _medians([references_of(run) for run in runs], REFERENCES),
        "references_before": _medians([run.before for run in runs], REFERENCES),
        "references_after": _medians([run.after for run in runs], REFERENCES),
        "ratios": _medians(ratios, ratios[0]),
        "ratio_ranges": {key: _range([each[key] for each in ratios]) for key in ratios[0]},
    }
    aimed = with_aims and configuration.carrier == "direct" and not configuration.tls and not configuration.delay_ms
    result["aims"] = [judged(aim, result) for aim in AIMS] if aimed else []
    return result


def judged(aim: Aim, result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an aim with the measured value, and whether it is reached (None: not measured)."""
    limit = aim.same if result["placement"] == "same" else aim.split
    if aim.plus_one_way:
        limit += (result["references"][RTT] or 0) / 2
    value = result["ratios" if aim.of == "ratio" else "figures"][aim.key]
    reached = None if value is None else value <= limit
    return {"key": aim.key, "of": aim.of, "at_most": limit, "value": value, "reached": reached}


def _medians(runs: Sequence[Figures], keys: Mapping[str, Any] | Sequence[str]) -> dict[str, float | None]:
    medians: dict[str, float | None] = {}
    for key in keys:
        values = [value for run in runs if (value := run.get(key)) is not None]
        medians[key] = statistics.median(values) if values else None
    return medians


def _range(values: Sequence[float | None]) -> list[float] | None:
    measured = [value for value in values if value is not None]
    return [min(measured), max(measured)] if measured else None


def _mean(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else (one + other) / 2

"""Plot what `remotegpu bench --json` wrote: for each configuration and figure, the ratio to raw TCP.

python tools/plots.py bench.json plot.svg
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

# The figures whose ratio says what crossing costs; `init_ms` and calls that need no round trip would hide the others.
PLOTTED = [
    "idle_sync_us", "rtt_us", "small_d2h_us", "event_query_us", "ten_launches_sync_us",
    "launch_total_us", "h2d_gbps", "d2h_gbps", "pinned_h2d_gbps", "pinned_d2h_gbps",
]  # fmt: skip


def ratios(document: Mapping[str, Any]) -> dict[str, list[tuple[str, float]]]:
    """Of each configuration that has raw TCP beside it: (figure, ratio), without what was not measured."""
    found = {
        result["name"]: [(key, value) for key in PLOTTED if (value := result["ratios"].get(key)) is not None]
        for result in document["configurations"]
        if result["placement"] is not None and result["transport"] != "no wire"
    }
    return {name: values for name, values in found.items() if values}


def caption(document: Mapping[str, Any]) -> str:
    machine, load = document["machine"], document["machine"]["load_average"][0]
    kind = "one quick run" if document["quick"] else f"medians of {document['runs']} runs"
    return f"{machine['cpus']} CPUs, {machine['cpu']}, load {load:.1f}, {document['measured_at'][:10]}, {kind}"


def plot(document: Mapping[str, Any], target: Path) -> None:
    shown = ratios(document)
    if not shown:
        raise ValueError("no configuration has a ratio to raw TCP: measure with `remotegpu bench --json`")
    # Text stays text, and the same document gives the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "remotegpu"})
    figure = Figure(figsize=(9, 0.32 * len(PLOTTED) * len(shown) ** 0.5 + 1.6), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(shown)
    for index, (name, values) in enumerate(shown.items()):
        places = [PLOTTED.index(key) + (index + 0.5) * height - 0.4 for key, _ in values]
        axes.barh(places, [value for _, value in values], height=height * 0.9, label=name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(PLOTTED)), PLOTTED)
    axes.invert_yaxis()
    axes.set_xlabel("time as a ratio to raw TCP in the same run (1: what the machine allows; less is better)")
    axes.set_title(caption(document), fontsize="medium")
    axes.legend(fontsize="small")
    figure.savefig(target, format="svg", metadata={"Date": None})


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()

"""The ledger of performance: the results of `remotegpu bench --all`, one JSON file for each run, in benchmarks/.

python tools/ledger.py record      measure everything, store it, and draw docs/figures/ledger.svg
                                   (further arguments are options of `remotegpu bench` and replace --all)
python tools/ledger.py check       measure three times, and fail if a figure is slower than in the last stored run
python tools/ledger.py draw        draw only

Times are compared only with a run on the same kind of machine: both as times, and as ratios to raw TCP of the same run.
A machine that is slower today has the same ratios, and a machine with faster TCP today has the same times.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LEDGER: Final = ROOT / "benchmarks"
PICTURE: Final = ROOT / "docs" / "figures" / "ledger.svg"
REPEATS: Final = 3
# A figure is slower if both its ratio and its time exceed the stored ones by this factor.
TOLERANCE: Final = 1.15
# The drawn figures: calls that cross the network in all configurations, and copies of both kinds and directions.
DRAWN: Final = ("idle_sync_us", "ten_launches_sync_us", "launch_caller_us", "pinned_h2d_gbps", "pinned_d2h_gbps")

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Loss:
    """A figure that exceeded the limit in every repeat, both as a time and as a ratio to raw TCP."""

    configuration: str
    figure: str
    before: float
    now: tuple[float, ...]

    def __str__(self) -> str:
        now = ", ".join(f"{ratio:.3g}" for ratio in self.now)
        return f"{self.configuration}: {self.figure}: {self.before:.3g} times raw TCP before, now {now}"


def kind(document: Document) -> tuple[str, int, str]:
    """Returns the kind of machine and appliance. Only runs of one kind are compared."""
    return document["machine"]["cpu"], document["machine"]["cpus"], document["appliance"]


def ratios(document: Document) -> dict[tuple[str, str], float]:
    """Returns ratios by configuration and figure. All are times, so less is better."""
    return {key: ratio for key, (ratio, _) in measured(document).items()}


def measured(document: Document) -> dict[tuple[str, str], tuple[float, float]]:
    """Returns each figure's ratio and time. For bandwidths the time is the reciprocal. Times may have any unit."""
    return {
        (result["name"], figure): (ratio, 1 / value if figure.endswith("_gbps") else value)
        for result in document["configurations"]
        for figure, ratio in result["ratios"].items()
        if ratio and (value := result["figures"][figure])
    }


def losses(stored: Document, repeats: Sequence[Document]) -> list[Loss]:
    """Returns the figures that exceed the stored run by more than 15 % in every repeat.

    Figures that a repeat lacks are not compared.
    """
    before, now = measured(stored), [measured(document) for document in repeats]
    common = [key for key in before if all(key in each for each in now)]
    return [
        Loss(*key, before[key][0], tuple(each[key][0] for each in now))
        for key in common
        if all(value > TOLERANCE * old for each in now for value, old in zip(each[key], before[key], strict=True))
    ]


def runs(folder: Path) -> list[Document]:
    """Returns all stored runs, oldest first."""
    documents = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return sorted(documents, key=lambda document: str(document["measured_at"]))


def last(documents: Sequence[Document], like: Document) -> Document | None:
    """Returns the newest stored run that can be compared with this one; None if there is none."""
    return next((each for each in reversed(documents) if kind(each) == kind(like)), None)


def store(document: Document, folder: Path) -> Path:
    """Stores a run in a file that is named by time and commit."""
    folder.mkdir(exist_ok=True)
    time = document["measured_at"][:16].replace(":", "")
    file = folder / f"{time}-{document['commit']}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    return file


def measure(*options: str) -> Document:
    program = Path(sys.executable).with_name("remotegpu")
    found = subprocess.run([program, "bench", "--json", *options], stdout=subprocess.PIPE, check=True)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, check=True)
    document: dict[str, Any] = json.loads(found.stdout)
    return document | {"commit": commit.stdout.decode().strip()}


def draw(documents: Sequence[Document], target: Path) -> None:
    """Draws a panel for each configuration: its ratios from run to run."""
    import matplotlib as mpl  # noqa: PLC0415 (`check` does not need it)
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    # Text stays text in the SVG, and the same runs give the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "remotegpu"})
    found = [ratios(document) for document in documents]
    names = sorted({name for each in found for name, figure in each if figure in DRAWN})
    figure = Figure(figsize=(9, 1.6 * -(-len(names) // 2) + 1.2), layout="constrained")
    all_axes = list(figure.subplots(-(-len(names) // 2), 2, sharex=True, squeeze=False).flat)
    labels = [f"{document['measured_at'][5:10]}\n{document['commit'][:7]}" for document in documents]
    for name, axes in zip(names, all_axes, strict=False):
        for key in DRAWN:
            axes.plot(range(len(found)), [each.get((name, key)) for each in found], marker="o", label=key)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="y", labelsize="x-small")
        axes.set_title(name, fontsize="small")
        axes.set_xticks(range(len(labels)), labels, fontsize="x-small")
    for unused in all_axes[len(names) :]:
        unused.set_axis_off()
    handles, texts = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=len(DRAWN), fontsize="x-small")
    figure.suptitle("time as a ratio to raw TCP in the same run (less is better)", fontsize="medium")
    figure.savefig(target, format="svg", metadata={"Date": None})


def check(documents: Sequence[Document]) -> Iterator[str]:
    """Measures, and yields a line for each failure."""
    repeats = [measure("--runs", "1") for _ in range(REPEATS)]
    stored = last(documents, repeats[0])
    if stored is None:
        cpu, cpus, _ = kind(repeats[0])
        yield f"benchmarks/ has no run on {cpus} CPUs of {cpu}: store one with `make bench-all`"
        return
    print(f"compared with {stored['commit']} of {stored['measured_at']}")
    yield from map(str, losses(stored, repeats))


def main() -> None:
    match sys.argv[1:]:
        case ["record", *options]:
            print(store(measure(*(options or ["--all"])), LEDGER).relative_to(ROOT))
            draw(runs(LEDGER), PICTURE)
        case ["check"]:
            if wrong := list(check(runs(LEDGER))):
                sys.exit("\n".join(wrong))
            print("nothing has become slower by more than 15 %")
        case ["draw"]:
            draw(runs(LEDGER), PICTURE)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()

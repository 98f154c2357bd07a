"""`make cost-torch`: unmodified programs train and generate on half of a null H100, and what a step of each costs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from null.counting import LONG, SHORT, cost_of_a_step, run

PROGRAMS = {
    "resnet50_training": "ResNet-50, fp32, batch 8: a training step",
    "gpt2_training": "GPT-2 124M, bf16, 4 x 512 tokens: a training step",
    "gpt2_generation": "GPT-2 124M, bf16, batch 2: a generated token",
}


def main() -> int:
    print("A null GPU takes every call and runs no kernel: the numbers that these programs compute are meaningless.")
    print("What is shown is that unmodified programs run to their end on a share, and what they send.\n")
    print(f"{'':52}{'calls':>8}{'round trips':>13}{'KB sent':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for program, title in PROGRAMS.items():
            short, long = (run(program, steps, Path(folder), "-p", "0.5") for steps in (SHORT, LONG))
            for done in (short, long):
                if done.code != 0:
                    print(f"{program} ended with {done.code}:\n{done.err}", file=sys.stderr)
                    return 1
            cost = cost_of_a_step(short, long)
            print(f"{title:52}{cost.calls:8.0f}{cost.round_trips:13.0f}{cost.kilobytes_sent:10.0f}", flush=True)
            print(f"  it printed (meaningless): {long.out.strip()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Counts what a step of vLLM costs on a share, by REMOTEGPU_STATS: `vllm_decode.py MODEL MAX_MODEL_LEN STEPS [eager]`.

The model has no weights, and on a null GPU its tokens mean nothing. The program prints for 1 and for 32
requests at a time how many tokens they got, and medians of STEPS steps after 20. Then it reads lines with a
number of requests and a pause in ms that is made before each step, and prints for each the median time of a step.
"""

import ctypes
import itertools
import json
import os
import pathlib
import statistics
import sys
import time

from vllm import LLM, SamplingParams

WARM = 20
COUNTED = ("calls", "round_trips", "bytes_sent", "bytes_received")
MARK = "cuDriverGetVersion"
driver = ctypes.CDLL("libcuda.so.1")


def counts():
    """Returns a report that holds a call of this function: one is written every tenth of a second."""
    file, version = pathlib.Path(os.environ["REMOTEGPU_STATS"]), ctypes.c_int()
    known = json.loads(file.read_text())["functions"].get(MARK, 0) if file.exists() else 0
    driver.cuDriverGetVersion(ctypes.byref(version))
    while True:
        try:
            found = json.loads(file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            found = {"functions": {}}
        if found["functions"].get(MARK, 0) > known:
            return found
        time.sleep(0.01)


def by_function(first, last, steps):
    """Round trips of each function in a step, in the mean."""
    known = first["round_trips_of"]
    made = {name: (count - known.get(name, 0)) / steps for name, count in last["round_trips_of"].items()}
    return {name: count for name, count in made.items() if count}


def add(engine, batch, steps, kind=""):
    asked = SamplingParams(temperature=0, max_tokens=WARM + steps + 10, ignore_eos=True, detokenize=False)
    for at in range(batch):
        prompt = {"prompt_token_ids": [1 + (at + word) % 900 for word in range(16)]}
        engine.add_request(f"{kind}{batch}-{at}", prompt, asked)


def measure(engine, batch, steps):
    add(engine, batch, steps)
    tokens, reports, seconds = {}, [counts()], []
    while engine.has_unfinished_requests():
        begun = time.monotonic()
        outputs = engine.step()
        seconds.append(time.monotonic() - begun)
        for output in outputs:
            tokens[output.request_id] = len(output.outputs[0].token_ids)
        reports.append(counts())
    steady = reports[WARM : WARM + steps + 1]
    pairs = list(itertools.pairwise(steady))
    medians = {name: statistics.median(after[name] - before[name] for before, after in pairs) for name in COUNTED}
    medians["ms"] = round(1000 * statistics.median(seconds[WARM : WARM + steps]), 2)
    return {
        "tokens": sorted(set(tokens.values())),
        **medians,
        "round_trips_of": by_function(steady[0], steady[-1], steps),
    }


def time_of_a_step(engine, batch, steps, pause):
    add(engine, batch, steps, "timed-")
    seconds = []
    while engine.has_unfinished_requests():
        time.sleep(pause)
        begun = time.monotonic()
        engine.step()
        seconds.append(time.monotonic() - begun)
    return 1000 * statistics.median(seconds[WARM : WARM + steps])


def main():
    folder, longest, steps, eager = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "eager" in sys.argv
    begun = time.monotonic()
    model = LLM(
        folder, load_format="dummy", max_model_len=longest, max_num_seqs=256, enforce_eager=eager,
        gpu_memory_utilization=0.8, compilation_config={"cudagraph_capture_sizes": [1, 32]},
    )  # fmt: skip
    found = {"start": time.monotonic() - begun, "before": counts()["round_trips"]}
    for batch in (1, 32):
        found[str(batch)] = measure(model.llm_engine, batch, steps)
    print(json.dumps(found), flush=True)
    for line in sys.stdin:
        batch, pause = map(int, line.split())
        print(json.dumps({"ms": time_of_a_step(model.llm_engine, batch, steps, pause / 1000)}), flush=True)


if __name__ == "__main__":
    main()

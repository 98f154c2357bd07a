"""pandas: reads and writes the client's files."""

import os

import pandas as pd

frame = pd.read_csv("data/people.csv", parse_dates=["born"])
frame["age"] = 2026 - frame.born.dt.year
print(frame.groupby("city").age.agg(["mean", "max"]))
os.makedirs("out", exist_ok=True)
frame.to_csv("out/people.csv", index=False)
frame.to_json("out/people.json", orient="records", date_format="iso")
frame.to_pickle("out/people.pkl")
print(pd.read_pickle("out/people.pkl").equals(frame), pd.read_csv("out/people.csv").shape)
print(pd.concat([pd.read_csv("data/people.csv", chunksize=2).get_chunk() for _ in range(2)]).to_string())

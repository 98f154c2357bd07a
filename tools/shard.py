"""Prints the name of the current turn's shard, or `none`. Prints the reason and the command to repeat it to stderr.

PYTHONPATH=tests python tools/shard.py [--left-out | --due | --tests NAME | --tree]

--due prints the shards that must run because of changes since their last pass (.ci/passed.toml). --tree prints the hash
of the current files.
"""

from __future__ import annotations

import os
import sys

from support import shards
from support.shards import Table, Turn


def say(table: Table, turn: Turn) -> None:
    if turn.shard is None:
        print(f"==> No shard, only core: {turn.why}", file=sys.stderr)
        print(shards.NONE)
        return
    number = table.number(turn.shard)
    print(f"==> Shard {number} of {len(table.shards)}, {turn.shard.name}: {turn.why}", file=sys.stderr)
    print(f"    REMOTEGPU_SHARD={number} make test-shard test-e2e   # repeats it", file=sys.stderr)
    print(turn.shard.name)


def left_out(table: Table, turn: Turn) -> None:
    print(f"==> What ran: core, and {f'shard {turn.shard.name}' if turn.shard else 'no shard'}. Left out of this run:")
    for shard in table.shards:
        if shard != turn.shard:
            never = f" (only by `make shard-{shard.name}`: {shard.by_hand})" if shard.by_hand else ""
            print(f"    shard {table.number(shard)}, {shard.name}: {shard.what}{never}")
    for each in table.by_hand:
        print(f"    make {each.target}: {each.what}")
    print("    make test-all runs core, every shard and all of these but those on a real GPU")


def main() -> int:
    try:
        table = shards.load()
        match sys.argv[1:]:
            case ["--tests", name]:
                print(*table.find(name).tests, sep="\n")
                return 0
            case ["--tree"]:
                print(shards.tree_hash())
                return 0
            case ["--due"]:
                passes = shards.load_passes(table)
                for each in shards.due(table, passes, shards.tree_hash()):
                    last = passes.get(each.name)
                    print(f"{each.name}: {f'passed at {last.commit} on {last.date}' if last else 'no pass is known'}")
                return 0
            case [] | ["--left-out"]:
                changed = shards.changed_files(shards.tree_hash())
                asked = os.environ.get("REMOTEGPU_SHARD", "")
                turn = shards.choose(table, shards.load_passes(table), changed, asked)
                left_out(table, turn) if sys.argv[1:] else say(table, turn)
                return 0
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except shards.ShardError as error:
        print(f"shard: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

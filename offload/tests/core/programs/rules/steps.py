"""Steps that are worth another machine."""

import logging

import numpy as np
import pandas as pd
from numba import njit
from scipy import linalg

log = logging.getLogger(__name__)


@njit
def collatz(limit):
    longest, best = 0, 0
    for start in range(1, limit):
        number, steps = start, 0
        while number != 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            steps += 1
        if steps > longest:
            longest, best = steps, start
    return best, longest


def search(limit):
    return collatz(limit)


def relax(grid, rounds, progress):
    """Jacobi steps in place."""
    for turn in range(rounds):
        grid[1:-1, 1:-1] = (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]) / 4
        progress(turn, float(grid.mean()))
    log.warning("relaxed %d times", rounds)


def factor(matrix):
    lower_upper, pivots = linalg.lu_factor(matrix, overwrite_a=True)
    return {"lu": lower_upper, "pivots": pivots.tolist()}


def summarise(table):
    table["share"] = table["amount"] / table["amount"].sum()
    print("rows", len(table))
    return table.groupby("kind", observed=True)["amount"].agg(["sum", "mean"])


def primes(limit):
    sieve = np.ones(limit, bool)
    sieve[:2] = False
    for number in range(2, limit):
        if sieve[number]:
            yield number
            sieve[number * number :: number] = False


def table(rows):
    return pd.DataFrame({"kind": pd.Categorical(["a", "b"] * (rows // 2)), "amount": np.arange(rows) * 1.5})


def divide(a, b):
    return a / b

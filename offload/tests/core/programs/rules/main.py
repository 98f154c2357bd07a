"""Numbers, tables, compiled loops and a class; the rules say what of it runs elsewhere."""

import copy
import pickle
import traceback

import numpy as np
import scipy.ndimage
import steps
from models import Counter

SCALE = 3


class Doubling(Counter):
    def add(self, *values):
        return super().add(*[2 * value for value in values])


def helper(x):
    return x * SCALE


def simulate(count, seed=0):
    draws = np.random.default_rng(seed).normal(size=count)
    return helper(float(np.round(draws.sum(), 9)))


def main():
    print(steps.search(3000))
    grid = np.zeros((60, 60))
    grid[0] = 100
    inner = grid[::2]
    steps.relax(grid, 3, lambda turn, mean: print("turn", turn, round(mean, 6)))
    print(np.round(grid[:4, 5], 6), round(float(inner.sum()), 6))
    steps.relax(grid[10:20, 10:30], 1, print)
    matrix = np.asfortranarray(np.random.default_rng(0).random((120, 120)))
    found = steps.factor(matrix)
    print(found["pivots"][:5], np.allclose(found["lu"], matrix))
    table = steps.table(10)
    print(steps.summarise(table))
    print(table)
    print(simulate(1000), simulate(1000, seed=1), steps.divide(1, 4))
    print(np.round(scipy.ndimage.gaussian_filter(np.eye(5), 1.0)[2], 6))
    for prime in steps.primes(40):
        print(prime, end=" ")
    print()
    counter = Counter(2).add("a", "b")
    print(len(counter), list(counter), counter.each(str.upper), isinstance(counter, Counter))
    other = copy.deepcopy(counter).add("c")
    print(len(counter), len(other), len(pickle.loads(pickle.dumps(other))))
    print(list(Doubling().add(1, 2)))
    try:
        steps.divide(1, 0)
    except ZeroDivisionError as error:
        print(error, traceback.extract_tb(error.__traceback__)[0].name)


if __name__ == "__main__":
    main()

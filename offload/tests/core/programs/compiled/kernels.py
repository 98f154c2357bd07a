from numba import njit


@njit(cache=True)
def total(values):
    result = 0.0
    for value in values:
        result += value * value
    return result

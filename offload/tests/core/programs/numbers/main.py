"""numpy and scipy: views, in-place changes, structured arrays, an optimiser that calls back."""

import numpy as np
from scipy import integrate, linalg, optimize, sparse


def rosenbrock(x):
    return float(np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


generator = np.random.default_rng(7)
matrix = generator.normal(size=(40, 40))
view = matrix[::2, 1::3]
view *= 2.0
np.add(matrix, 1.0, out=matrix)
print(repr(float(matrix.sum())), view.base is matrix)
table = np.zeros(4, dtype=[("name", "U8"), ("weight", "f8")])
table["weight"] += np.arange(4)
table["name"][1] = "one"
print(table.tolist())
print(repr(float(linalg.det(matrix[:5, :5]))), linalg.solve(np.eye(3) * 2, [2.0, 4.0, 6.0]).tolist())
found = optimize.minimize(rosenbrock, np.zeros(4), method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-8})
print(found.success, np.round(found.x, 4).tolist(), found.nfev)
print(repr(integrate.quad(np.sin, 0, np.pi)[0]), sparse.eye(5).tocsr().nnz)

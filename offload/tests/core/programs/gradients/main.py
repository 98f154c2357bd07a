"""JAX, which has no mode of its own: logistic regression, compiled, with the user's model in a module beside it."""

import jax
import jax.numpy as jnp
import numpy as np
from model import loss, predict

data = np.load("data/points.npz")
x, y = jnp.asarray(data["x"]), jnp.asarray(data["y"])
step = jax.jit(lambda w: w - 0.5 * jax.grad(loss)(w, x, y))
weights = jnp.zeros(x.shape[1])
for round_number in range(50):
    weights = step(weights)
    if round_number % 10 == 0:
        print(round_number, repr(float(loss(weights, x, y))))
print("accuracy", float(jnp.mean((predict(weights, x) > 0.5) == y)))
np.save("out/weights.npy", np.asarray(weights))

"""A jitted step of a small network in JAX: `jax_jitted.py [STEPS]`."""

import sys

import jax
import jax.numpy as jnp

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10


def loss(weights, x, y):
    for w in weights[:-1]:
        x = jax.nn.relu(x @ w)
    return jnp.mean((x @ weights[-1] - y) ** 2)


@jax.jit
def step(weights, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], value


keys = jax.random.split(jax.random.key(0), 5)
weights = [jax.random.normal(key, (256, 256)) * 0.05 for key in keys[:3]]
x, y = jax.random.normal(keys[3], (128, 256)), jax.random.normal(keys[4], (128, 256))
assert jax.devices()[0].platform == "gpu"
for _ in range(steps):
    weights, value = step(weights, x, y)
print(f"{steps} steps, loss {float(value):.4f}")

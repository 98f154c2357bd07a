import jax
import jax.numpy as jnp


def predict(weights, x):
    return jax.nn.sigmoid(x @ weights)


def loss(weights, x, y):
    p = jnp.clip(predict(weights, x), 1e-6, 1 - 1e-6)
    return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))

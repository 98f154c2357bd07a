"""A perceptron trained with JAX, jitted."""
# needs: jax
# machine code only

import json
import time

import jax
import jax.numpy as jnp

assert jax.devices()[0].platform == "gpu", "JAX has no GPU here"
keys = jax.random.split(jax.random.PRNGKey(8), 4)
weights = [jax.random.normal(keys[0], (64, 128)) / 8, jax.random.normal(keys[1], (128, 10)) / 12]
x, y = jax.random.normal(keys[2], (256, 64)), jax.random.randint(keys[3], (256,), 0, 10)


def loss_of(weights):
    scores = jnp.tanh(x @ weights[0]) @ weights[1]
    return -jax.nn.log_softmax(scores)[jnp.arange(256), y].mean()


@jax.jit
def step(weights):
    loss, slopes = jax.value_and_grad(loss_of)(weights)
    return [w - 0.5 * slope for w, slope in zip(weights, slopes, strict=True)], loss


step(weights)[1].block_until_ready()
begin, losses = time.monotonic(), []
for _ in range(50):
    weights, loss = step(weights)
    losses.append(float(loss).hex())
print(json.dumps({"losses": losses, "seconds": time.monotonic() - begin}))

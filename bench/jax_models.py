"""jax_models - the models of the examples and their training step in JAX: one jitted function a step, whose
parameters and moments are donated. The same work as torch_models.py; the loss is read on the host.
"""
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

tree_map = jax.tree_util.tree_map


def adamw(params, grads, m, v, t, lr, beta1, beta2, decay):
    """decay: one number for each parameter, in a tree like theirs."""
    m = tree_map(lambda a, g: beta1 * a + (1 - beta1) * g, m, grads)
    v = tree_map(lambda a, g: beta2 * a + (1 - beta2) * g * g, v, grads)
    c1, c2 = 1 - beta1 ** t, 1 - beta2 ** t

    def update(p, a, b, d):
        return p * (1 - lr * d) - lr / c1 * a / (jnp.sqrt(b) / jnp.sqrt(c2) + 1e-8)

    return tree_map(update, params, m, v, decay), m, v


def cross_entropy(logits, labels):
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def trainer(loss_of, params, decay, beta2, clip):
    """A function of no arguments that makes one step and returns its loss."""

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, m, v, t):
        loss, grads = jax.value_and_grad(loss_of)(params)
        if clip:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree_util.tree_leaves(grads)))
            grads = tree_map(lambda g: g * jnp.minimum(1.0, clip / (norm + 1e-6)), grads)
        params, m, v = adamw(params, grads, m, v, t, 1e-3, 0.9, beta2, decay)
        return loss, params, m, v

    state = [params, tree_map(jnp.zeros_like, params), tree_map(jnp.zeros_like, params), 0.0]

    def run():
        loss, state[0], state[1], state[2] = step(state[0], state[1], state[2], state[3] + 1)
        state[3] += 1
        return float(loss)

    return run


def layer_norm(x, weight):
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * weight


def gpt(s, _):
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 4 * s.layers + 4))

    def draw(*shape, std=0.02):
        return std * jax.random.normal(next(keys), shape, jnp.float32)

    d, to_residual = s.dim, 0.02 / math.sqrt(2 * s.layers)
    blocks = [{"norm1": jnp.ones(d), "qkv": draw(d, 3 * d), "out": draw(d, d, std=to_residual), "norm2": jnp.ones(d),
               "linear1": draw(d, 4 * d), "linear2": draw(4 * d, d, std=to_residual)} for _ in range(s.layers)]
    params = {"token": draw(s.vocabulary, d), "position": draw(s.ctx, d), "blocks": blocks, "norm": jnp.ones(d)}
    decay = tree_map(lambda w: 0.1 if w.ndim >= 2 else 0.0, params)
    text = jax.random.randint(next(keys), (s.batch, s.ctx + 1), 0, s.vocabulary)
    x, y = text[:, :-1], text[:, 1:]

    def loss_of(p):
        h = p["token"][x] + p["position"]
        for b in p["blocks"]:
            qkv = (layer_norm(h, b["norm1"]) @ b["qkv"]).reshape(s.batch, s.ctx, 3, s.heads, d // s.heads)
            a = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
            h = h + a.reshape(s.batch, s.ctx, d) @ b["out"]
            h = h + jax.nn.gelu(layer_norm(h, b["norm2"]) @ b["linear1"], approximate=False) @ b["linear2"]
        return cross_entropy(layer_norm(h, p["norm"]) @ p["token"].T, y)

    return trainer(loss_of, params, decay, 0.99, 1.0)


def mnist_cnn(s, _):
    keys = iter(jax.random.split(jax.random.PRNGKey(1), 8))

    def draw(*shape):
        fan_in = math.prod(shape[:-1])
        return jax.random.uniform(next(keys), shape, jnp.float32, -1, 1) / math.sqrt(fan_in)

    params = {"c1": draw(3, 3, 1, 32), "c1b": jnp.zeros(32), "n1": jnp.ones(32), "n1b": jnp.zeros(32),
              "c2": draw(3, 3, 32, 64), "c2b": jnp.zeros(64), "n2": jnp.ones(64), "n2b": jnp.zeros(64),
              "f1": draw(14 * 14 * 64, 128), "f1b": jnp.zeros(128), "f2": draw(128, 10), "f2b": jnp.zeros(10)}
    decay = tree_map(lambda _: 0.01, params)
    images = jax.random.normal(next(keys), (s.cnn_batch, 28, 28, 1), jnp.float32)
    labels = jax.random.randint(next(keys), (s.cnn_batch,), 0, 10)

    def norm(x, weight, bias):
        mean = x.mean((0, 1, 2))
        var = jnp.square(x - mean).mean((0, 1, 2))
        return (x - mean) * lax.rsqrt(var + 1e-5) * weight + bias

    def loss_of(p):
        h = images
        for i in ("1", "2"):
            h = lax.conv_general_dilated(h, p["c" + i], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            h = jax.nn.relu(norm(h + p["c" + i + "b"], p["n" + i], p["n" + i + "b"]))
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").reshape(s.cnn_batch, -1)
        return cross_entropy(jax.nn.relu(h @ p["f1"] + p["f1b"]) @ p["f2"] + p["f2b"], labels)

    return trainer(loss_of, params, decay, 0.999, 0)

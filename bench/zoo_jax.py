"""zoo_jax - the layers and operators of zoo_models for JAX, and a model's step: one jitted function, whose weights
and moments are donated. What a batch norm keeps for evaluation is not kept, which makes its steps a little less work.
"""
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

import zoo_models as zoo

tree_map = jax.tree_util.tree_map


class Layers:
    def __init__(self, tensors, training, key):
        self.p, self.training, self.key, self.used = tensors, training, key, 0

    relu, silu, exp, sigmoid = map(staticmethod, (jax.nn.relu, jax.nn.silu, jnp.exp, jax.nn.sigmoid))
    softplus, concat, transpose = map(staticmethod, (jax.nn.softplus, jnp.concatenate, jnp.swapaxes))
    gelu = staticmethod(functools.partial(jax.nn.gelu, approximate=False))
    expand = staticmethod(jnp.broadcast_to)

    def take(self):
        self.used += 1
        return str(self.used - 1)

    def get(self, name, part):
        return self.p.get(name + "." + part)

    def weight(self):
        return self.p[self.take() + ".weight"]

    def draw(self, how, *args):
        self.key, key = jax.random.split(self.key)
        return how(key, *args)

    def normal(self, x):
        return self.draw(jax.random.normal, x.shape)

    # ---- layers ----
    def plus_bias(self, n, y):
        b = self.get(n, "bias")
        return y if b is None else y + b

    def affine(self, n, x):
        return self.plus_bias(n, x @ self.get(n, "weight").T)

    def linear(self, x):
        return self.affine(self.take(), x)

    def conv(self, x, stride=1, pad=None, groups=1):
        n = self.take()
        w = self.get(n, "weight")
        pad = w.shape[-1] // 2 if pad is None else pad
        return self.plus_bias(n, lax.conv_general_dilated(
            x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "OIHW", "NHWC"),
            feature_group_count=groups))

    def conv_transpose(self, x, stride, pad=0, output_pad=0):
        n = self.take()
        w = self.get(n, "weight")
        before = w.shape[-1] - 1 - pad
        return self.plus_bias(n, lax.conv_general_dilated(
            x, jnp.flip(w, (2, 3)), (1, 1), [(before, before + output_pad)] * 2, lhs_dilation=(stride, stride),
            dimension_numbers=("NHWC", "IOHW", "NHWC")))

    def conv1d(self, x, dilation=1, past=0):
        n = self.take()
        return self.plus_bias(n, lax.conv_general_dilated(
            x, self.get(n, "weight"), (1,), [(past, 0)], rhs_dilation=(dilation,),
            dimension_numbers=("NHC", "OIH", "NHC")))

    def scaled(self, n, x, mean, var):
        return self.plus_bias(n, (x - mean) * lax.rsqrt(var + 1e-5) * self.get(n, "weight"))

    def batch_norm(self, x):
        n = self.take()
        axes = tuple(range(x.ndim - 1))
        if not self.training:
            return self.scaled(n, x, self.get(n, "running_mean"), self.get(n, "running_var"))
        mean = x.mean(axes)
        return self.scaled(n, x, mean, jnp.square(x - mean).mean(axes))

    def group_norm(self, x, groups):
        n = self.take()
        g = x.reshape(x.shape[:-1] + (groups, -1))
        mean = g.mean((1, 2, 4), keepdims=True)
        g = (g - mean) * lax.rsqrt(jnp.square(g - mean).mean((1, 2, 4), keepdims=True) + 1e-5)
        return self.plus_bias(n, g.reshape(x.shape) * self.get(n, "weight"))

    def norm(self, n, x):
        mean = x.mean(-1, keepdims=True)
        return self.scaled(n, x, mean, jnp.square(x - mean).mean(-1, keepdims=True))

    def layer_norm(self, x):
        return self.norm(self.take(), x)

    def rms_norm(self, x):
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * self.weight()

    def embedding(self, x):
        w = self.weight()
        return w[x], w

    def dropout(self, x, p):
        if not self.training or not p:
            return x
        return jnp.where(self.draw(jax.random.bernoulli, 1 - p, x.shape), x / (1 - p), 0)

    def recurrent(self, x, cell, bias, states):
        n = self.take()
        w = [self.p[f"{n}.{part}_l0"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        gates = (x @ w[0].T + w[2] + (w[3] if bias else 0)).swapaxes(0, 1)
        h = tuple(jnp.zeros((x.shape[0], x.shape[2])) for _ in range(states))
        return lax.scan(lambda s, g: cell(s, g, w), h, gates)[1].swapaxes(0, 1)

    def lstm(self, x):
        def cell(state, gates, w):
            h, c = state
            i, f, g, o = jnp.split(gates + h @ w[1].T, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return self.recurrent(x, cell, True, 2)

    def gru(self, x):
        def cell(state, gates, w):
            h, = state
            r, z, n = jnp.split(gates, 3, 1)
            hr, hz, hn = jnp.split(h @ w[1].T + w[3], 3, 1)
            z = jax.nn.sigmoid(z + hz)
            n = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
            h = n + z * (h - n)
            return (h,), h

        return self.recurrent(x, cell, False, 1)

    # ---- attention: [n, t, heads, d], as JAX has it ----
    def heads(self, x, heads):
        return x.reshape(x.shape[:2] + (heads, -1))

    def attention(self, q, k, v, causal=False, dropout=0.0, mask=None):
        if dropout and self.training:
            a = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(q.shape[-1]))
            y = jnp.einsum("nhqk,nkhd->nqhd", self.dropout(a, dropout), v)
        else:
            y = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal)
        return y.reshape(y.shape[:2] + (-1,))

    def rotary(self, x):
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1])[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def block_of(self, x, heads, attend, dropout=0.0):
        n = self.take()
        h = self.norm(n + ".norm1", x) @ self.get(n, "self_attn.in_proj_weight").T
        b = self.get(n, "self_attn.in_proj_bias")
        h = attend(*(self.heads(part, heads) for part in jnp.split(h if b is None else h + b, 3, -1)))
        x = x + self.dropout(self.affine(n + ".self_attn.out_proj", h), dropout)
        h = self.affine(n + ".linear2", self.gelu(self.affine(n + ".linear1", self.norm(n + ".norm2", x))))
        return x + self.dropout(h, dropout)

    def block(self, x, heads, causal=False, dropout=0.0):
        return self.block_of(x, heads, lambda q, k, v: self.attention(q, k, v, causal, dropout), dropout)

    def cached_block(self, x, heads, cache, at):
        def attend(q, k, v):
            self.new = tuple(lax.dynamic_update_slice(c, part, (0, at, 0, 0)) for c, part in zip(cache, (k, v)))
            return self.attention(q, *self.new, mask=(jnp.arange(zoo.CONTEXT) <= at)[None, None, None])

        y = self.block_of(x, heads, attend)
        return y, self.new

    # ---- shapes ----
    def row(self, x, at):
        return lax.dynamic_slice_in_dim(x, at, 1)

    def max_pool(self, x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def global_pool(self, x):
        return x.mean((1, 2))

    def flatten(self, x):
        return x.reshape(x.shape[0], -1)

    def image(self, x, h, w, c):
        return x.reshape(-1, h, w, c)

    def tokens(self, x):
        return x.reshape(x.shape[0], -1, x.shape[-1])

    def concat_channels(self, xs):
        return jnp.concatenate(xs, -1)

    def sequence(self, x):
        return x

    from_sequence = sequence


def adamw(params, grads, m, v, t):
    m = tree_map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
    v = tree_map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
    c1, c2 = 1 - 0.9 ** t, 1 - 0.999 ** t
    return tree_map(lambda p, a, b: p * (1 - 1e-5) - 1e-3 / c1 * a / (jnp.sqrt(b) / jnp.sqrt(c2) + 1e-8), params, m,
                    v), m, v


def answer(y):
    y = y.reshape(-1)
    return jnp.sum(y * jnp.arange(1, y.size + 1))


class Step:
    """As zoo_torch.Step."""

    def __init__(self, name, tensors):
        self.name = name
        tensors = {k: jnp.asarray(t) for k, t in tensors.items()}
        keys = sorted(t for t in tensors if t[0] == "x")
        self.inputs = [t.transpose(0, 2, 3, 1) if t.ndim == 4 else t for t in (tensors.pop(k) for k in keys)]
        self.buffers = {k: tensors.pop(k) for k in list(tensors) if k.endswith(("running_mean", "running_var"))}
        self.params, self.t = tensors, 0
        self.generates, self.infers = name in zoo.GENERATION, name in zoo.INFERENCE
        if self.generates:
            self.run = jax.jit(self.next, donate_argnums=3)
        elif self.infers:
            self.run = jax.jit(lambda p, *inputs: answer(zoo.INFERENCE[name](Layers(p, False, None), *inputs)))
        else:
            zeros = tree_map(jnp.zeros_like, self.params)
            self.state = [self.params, zeros, tree_map(jnp.zeros_like, zeros)]
            self.run = jax.jit(self.update, donate_argnums=(0, 1, 2))
            self.still = jax.jit(lambda p, inputs: self.loss(p, inputs, False, None))

    def loss(self, params, inputs, training, key):
        m, forward = Layers({**params, **self.buffers}, training, key), getattr(zoo, self.name)
        if self.name in zoo.OWN_LOSS:
            return forward(m, *inputs)
        y, target = forward(m, *inputs[:-1]), inputs[-1]
        if self.name in zoo.SQUARES:
            return jnp.mean(jnp.square(y - target))
        chosen = jnp.take_along_axis(y, target[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(y, -1) - chosen)

    def update(self, params, m, v, t, inputs):
        key = jax.random.PRNGKey(t) if self.name in zoo.RANDOM else None
        loss, grads = jax.value_and_grad(self.loss)(params, inputs, True, key)
        if self.name in zoo.CLIPPED:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree_util.tree_leaves(grads)))
            grads = tree_map(lambda g: g * jnp.minimum(1.0, 1 / (norm + 1e-6)), grads)
        return (loss,) + adamw(params, grads, m, v, t)

    def next(self, params, x, at, caches):
        y, caches = zoo.gpt_next(Layers(params, False, None), x, at, caches)
        return jnp.argmax(y), answer(y), caches

    def step(self):
        if self.infers:
            return float(self.run({**self.params, **self.buffers}, *self.inputs))
        if self.generates:
            shape, best, total = (1, zoo.CONTEXT, 6, 64), 0, 0.0
            caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(6)]
            for at in range(zoo.NEW_TOKENS):
                best, y, caches = self.run(self.params, jnp.full((1, 1), int(best)), at, caches)
                total += float(y) / zoo.NEW_TOKENS
            return total
        self.t += 1
        loss, *self.state = self.run(*self.state, self.t, self.inputs)
        return float(loss)

    def check(self):
        return float(self.still(self.state[0], self.inputs)) if self.name in zoo.RANDOM else self.step()

    def peak(self):
        if self.infers or self.generates:
            return 0
        a = self.run.lower(*self.state, self.t, self.inputs).compile().memory_analysis()
        return a.argument_size_in_bytes + a.output_size_in_bytes - a.alias_size_in_bytes + a.temp_size_in_bytes


def load(name, path, how, device, threads, precision):
    from safetensors.numpy import load_file
    return Step(name, load_file(path)), "JAX " + jax.__version__

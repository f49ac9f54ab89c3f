"""zoo_torch - the layers and operators of zoo_models for PyTorch, and a model's step, eager or compiled.

Everything is at its best on this machine: channels_last images, one product for q, k and v, fused AdamW, nn.LSTM's
own kernel in eager mode and a compiled cell in the other, frozen weights in inference.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

import zoo_models as zoo


@torch.compile
def lstm_cell(gates, weight, bias, h, c):
    i, f, g, o = (gates + F.linear(h, weight, bias)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@torch.compile
def gru_cell(gates, weight, bias, h):
    r, z, n = gates.chunk(3, 1)
    hr, hz, hn = F.linear(h, weight, bias).chunk(3, 1)
    z = torch.sigmoid(z + hz)
    n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return (n + z * (h - n),)


class Layers:
    relu, silu, gelu, exp, sigmoid, softplus = F.relu, F.silu, F.gelu, torch.exp, torch.sigmoid, F.softplus
    concat, transpose, normal = torch.cat, torch.transpose, torch.randn_like

    def __init__(self, tensors, compiled):
        self.p, self.compiled, self.training, self.used = tensors, compiled, True, 0

    def take(self):
        self.used += 1
        return str(self.used - 1)

    def get(self, name, part):
        return self.p.get(name + "." + part)

    def weight(self):
        return self.p[self.take() + ".weight"]

    # ---- layers ----
    def affine(self, n, x):
        return F.linear(x, self.get(n, "weight"), self.get(n, "bias"))

    def linear(self, x):
        return self.affine(self.take(), x)

    def conv(self, x, stride=1, pad=None, groups=1):
        n = self.take()
        w = self.get(n, "weight")
        pad = w.shape[-1] // 2 if pad is None else pad
        return F.conv2d(x, w, self.get(n, "bias"), stride, pad, 1, groups)

    def conv_transpose(self, x, stride, pad=0, output_pad=0):
        n = self.take()
        return F.conv_transpose2d(x, self.get(n, "weight"), self.get(n, "bias"), stride, pad, output_pad)

    def conv1d(self, x, dilation=1, past=0):
        n = self.take()
        return F.conv1d(F.pad(x, (past, 0)) if past else x, self.get(n, "weight"), self.get(n, "bias"), 1, 0, dilation)

    def batch_norm(self, x):
        n = self.take()
        return F.batch_norm(x, self.get(n, "running_mean"), self.get(n, "running_var"), self.get(n, "weight"),
                            self.get(n, "bias"), self.training, 0.1, 1e-5)

    def group_norm(self, x, groups):
        n = self.take()
        return F.group_norm(x, groups, self.get(n, "weight"), self.get(n, "bias"))

    def norm(self, n, x):
        return F.layer_norm(x, x.shape[-1:], self.get(n, "weight"), self.get(n, "bias"))

    def layer_norm(self, x):
        return self.norm(self.take(), x)

    def rms_norm(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight(), 1e-5)

    def embedding(self, x):
        w = self.weight()
        return F.embedding(x, w), w

    def dropout(self, x, p):
        return F.dropout(x, p, self.training)

    def cell_weights(self):
        n = self.take()
        return [self.p[f"{n}.{part}_l0"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

    def recurrent(self, x, how, cell, states):
        """nn.LSTM's or nn.GRU's own kernel; compiled, what a step does behind its product with the input."""
        w = self.cell_weights()
        state = tuple(x.new_zeros(x.shape[0], x.shape[2]) for _ in range(states))
        if not self.compiled:
            first = tuple(s[None] for s in state)
            return how(x, first if states > 1 else first[0], w, True, 1, 0.0, self.training, False, True)[0]
        gates, out = F.linear(x, w[0], w[2]), []
        for t in range(x.shape[1]):
            state = cell(gates[:, t], w[1], w[3], *state)
            out.append(state[0])
        return torch.stack(out, 1)

    def lstm(self, x):
        return self.recurrent(x, torch._VF.lstm, lstm_cell, 2)

    def gru(self, x):
        return self.recurrent(x, torch._VF.gru, gru_cell, 1)

    # ---- attention ----
    def heads(self, x, heads):
        return x.unflatten(2, (heads, -1)).transpose(1, 2)

    def attention(self, q, k, v, causal=False, dropout=0.0, mask=None):
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout if self.training else 0.0, causal)
        return y.transpose(1, 2).flatten(2)

    def rotary(self, x):
        half = x.shape[-1] // 2
        rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def block_of(self, x, heads, attend, dropout=0.0):
        n = self.take()
        h = self.norm(n + ".norm1", x)
        h = F.linear(h, self.get(n, "self_attn.in_proj_weight"), self.get(n, "self_attn.in_proj_bias"))
        h = attend(*(self.heads(part, heads) for part in h.chunk(3, -1)))
        x = x + self.dropout(self.affine(n + ".self_attn.out_proj", h), dropout)
        h = self.affine(n + ".linear2", F.gelu(self.affine(n + ".linear1", self.norm(n + ".norm2", x))))
        return x + self.dropout(h, dropout)

    def block(self, x, heads, causal=False, dropout=0.0):
        return self.block_of(x, heads, lambda q, k, v: self.attention(q, k, v, causal, dropout), dropout)

    def cached_block(self, x, heads, cache, at):
        """at: a number, up to which keys are looked at; compiled a tensor, and a mask hides what is behind."""
        def attend(q, k, v):
            if self.compiled:
                keys, values = (c.index_copy(2, at, part) for c, part in zip(cache, (k, v)))
                mask = (torch.arange(keys.shape[2], device=x.device) <= at)[None]
                self.new = (cache[0].copy_(keys), cache[1].copy_(values))
                return self.attention(q, *self.new, mask=mask)
            for c, part in zip(cache, (k, v)):
                c[:, :, at:at + 1] = part
            self.new = cache
            return self.attention(q, *(c[:, :, :at + 1] for c in cache))

        y = self.block_of(x, heads, attend)
        return y, self.new

    # ---- shapes ----
    def row(self, x, at):
        return x[at] if self.compiled else x[at:at + 1]

    def max_pool(self, x):
        return F.max_pool2d(x, 2)

    def global_pool(self, x):
        return x.mean((2, 3))

    def flatten(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)

    def image(self, x, h, w, c):
        return x.unflatten(1, (h, w, c)).permute(0, 3, 1, 2)

    def tokens(self, x):
        return x.permute(0, 2, 3, 1).flatten(1, 2)

    def concat_channels(self, xs):
        return torch.cat(xs, 1)

    def expand(self, x, shape):
        return x.expand(shape)

    def sequence(self, x):
        return x.transpose(1, 2)

    from_sequence = sequence


for _name in ("relu", "silu", "gelu", "exp", "sigmoid", "softplus", "concat", "transpose", "normal"):
    setattr(Layers, _name, staticmethod(getattr(Layers, _name)))


class Step:
    """A model of the zoo at work: step() makes one, check() gives the loss to compare, peak() its bytes."""

    def __init__(self, name, tensors, compiled, device, precision):
        self.mixed = precision == "bf16"
        self.name, self.compiled, self.device = name, compiled, device
        self.inference = name in zoo.INFERENCE or name in zoo.GENERATION
        for key, t in tensors.items():
            t = t.to(device)
            if t.dim() == 4:
                t = t.to(memory_format=torch.channels_last)
            buffer = key[0] == "x" or key.endswith(("running_mean", "running_var"))
            tensors[key] = t if buffer or self.inference else nn.Parameter(t)
        self.inputs = [tensors.pop(k) for k in sorted(t for t in tensors if t[0] == "x")]
        self.m = Layers(tensors, compiled)
        self.parameters = [t for t in tensors.values() if t.requires_grad]
        if self.inference:
            torch._inductor.config.freezing = True
            self.m.training = False
            forward = zoo.gpt_next if name in zoo.GENERATION else zoo.INFERENCE[name]
        else:
            self.opt = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.01, fused=True)
            forward = self.loss

        def run(*inputs):
            self.m.used = 0
            with torch.autocast(device, torch.bfloat16, enabled=self.mixed):
                return forward(self.m, *inputs)

        # 64 steps written out take minutes to compile: of recurrent networks the cell is.
        self.run = torch.compile(run) if compiled and name not in zoo.RECURRENT else run
        self.plain = run

    def loss(self, m, *inputs):
        forward = getattr(zoo, self.name)
        if self.name in zoo.OWN_LOSS:
            return forward(m, *inputs)
        y, target = forward(m, *inputs[:-1]), inputs[-1]
        if self.name in zoo.SQUARES:
            return F.mse_loss(y, target)
        return F.cross_entropy(y.reshape(-1, y.shape[-1]), target.reshape(-1))

    def generate(self):
        shape = (1, 6, zoo.CONTEXT, 64)
        caches = [(torch.zeros(shape, device=self.device), torch.zeros(shape, device=self.device)) for _ in range(6)]
        best, total = 0, 0.0
        for i in range(zoo.NEW_TOKENS):
            x = torch.full((1, 1), best, device=self.device)
            at = torch.full((1,), i, device=self.device) if self.compiled else i
            y, _ = self.run(x, at, caches)
            total += answer(y) / zoo.NEW_TOKENS
            best = int(y.argmax())
        return total

    def step(self):
        if self.inference:
            with torch.no_grad():
                return self.generate() if self.name in zoo.GENERATION else answer(self.run(*self.inputs))
        self.opt.zero_grad(set_to_none=True)
        loss = self.run(*self.inputs)
        loss.backward()
        if self.name in zoo.CLIPPED:
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.opt.step()
        return loss.item()

    def check(self):
        if self.name not in zoo.RANDOM:
            return self.step()
        self.m.training = False
        with torch.no_grad():
            loss = self.plain(*self.inputs).item()
        self.m.training = True
        return loss

    def peak(self):
        """Bytes that PyTorch's allocator holds at most during a step. On the CPU it does not say what it holds
        before: weights, and in training their gradients and moments, and the inputs."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.step()
            return torch.cuda.max_memory_allocated()
        held = sum(t.nbytes for t in self.m.p.values()) + sum(t.nbytes for t in self.inputs)
        held += 3 * sum(t.nbytes for t in self.parameters)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.step()
        now = most = held
        for e in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"),
                        key=lambda e: e.start_ns()):
            now += e.nbytes()
            most = max(most, now)
        return most


def answer(y):
    y = y.flatten()
    return float((y * torch.arange(1, len(y) + 1, device=y.device)).sum())


def load(name, path, how, device, threads, precision):
    from safetensors.torch import load_file
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    return Step(name, load_file(path), how == "compile", device, precision), "PyTorch " + torch.__version__

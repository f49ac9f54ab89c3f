#!/usr/bin/env python3
"""The model and the training of examples/gpt.c in eager PyTorch, to set losses and step times beside.

    python3 tests/bench/gpt_torch.py --data data/text/tinyshakespeare.txt --seed 1     trains; validation loss
    python3 tests/bench/gpt_torch.py --data ... --time                                 alternates with build/gpt

The first prints the mean loss over the last tenth of the text in windows that do not overlap, as build/gpt
does. The second runs both in turns, in eager mode, and prints the medians of the steps after the first ten
of each round; with --mode fused build/gpt runs in that mode, and --compile default, reduce-overhead or
max-autotune puts torch.compile on the other side.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

# A caching malloc: large tensors cost page faults without it.
for key, value in {"MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000000",
                   "MALLOC_TOP_PAD_": "268435456"}.items():
    if os.environ.get(key) != value:
        os.environ[key] = value
        os.environ["TN_BENCH_AGAIN"] = "1"
if os.environ.pop("TN_BENCH_AGAIN", None):
    os.execv(sys.executable, [sys.executable] + sys.argv)

p = argparse.ArgumentParser()
p.add_argument("--data", default="data/tales.txt")
p.add_argument("--layers", type=int, default=4)
p.add_argument("--heads", type=int, default=4)
p.add_argument("--dim", type=int, default=128)
p.add_argument("--ctx", type=int, default=64)
p.add_argument("--batch", type=int, default=12)
p.add_argument("--steps", type=int, default=2000)
p.add_argument("--lr", type=float, default=1e-3)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--log", help="one line a step, as build/gpt writes")
p.add_argument("--time", action="store_true")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--mode", default="eager")
p.add_argument("--program", default="build/gpt")
p.add_argument("--compile", choices=["default", "reduce-overhead", "max-autotune"])
args = p.parse_args()

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(args.seed)


class Block(nn.Module):
    """Pre-norm; no biases, as the GPT of examples/gpt.c."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, bias=False)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.norm2 = nn.LayerNorm(dim, bias=False)
        self.linear1 = nn.Linear(dim, 4 * dim, bias=False)
        self.linear2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (part.view(n, t, self.heads, d // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(d, dim=2))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(n, t, d))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.token = nn.Embedding(vocabulary, args.dim)
        self.position = nn.Parameter(torch.empty(args.ctx, args.dim))
        self.blocks = nn.ModuleList(Block(args.dim, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.dim, bias=False)
        for name, w in self.named_parameters():
            if w.dim() >= 2:
                to_residual = name.endswith(("out.weight", "linear2.weight"))
                nn.init.normal_(w, std=0.02 / math.sqrt(2 * args.layers) if to_residual else 0.02)

    def forward(self, index):
        x = self.token(index) + self.position[:index.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.T  # the output weights are those of the embedding


with open(args.data, "rb") as f:
    text = f.read()
vocabulary = sorted(set(text))
place = {byte: i for i, byte in enumerate(vocabulary)}
tokens = torch.tensor([place[byte] for byte in text])
split = len(text) * 9 // 10
train, held_out = tokens[:split], tokens[split:]

model = GPT(len(vocabulary))
matrices = [w for w in model.parameters() if w.dim() >= 2]
vectors = [w for w in model.parameters() if w.dim() < 2]
opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                        lr=args.lr, betas=(0.9, 0.99), fused=True)
if args.compile:
    model = torch.compile(model, mode=None if args.compile == "default" else args.compile)
WARMUP, FINAL = 100, 0.1


def learning_rate(step):
    if step < WARMUP:
        return args.lr * (step + 1) / WARMUP
    r = (step - WARMUP) / max(1, args.steps - WARMUP)
    return args.lr * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * r)) / 2)


def train_step(step):
    start = torch.randint(len(train) - args.ctx, (args.batch,))
    x = torch.stack([train[i:i + args.ctx] for i in start.tolist()])
    y = torch.stack([train[i + 1:i + 1 + args.ctx] for i in start.tolist()])
    for group in opt.param_groups:
        group["lr"] = learning_rate(step)
    opt.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss.item()


@torch.no_grad()
def validation_loss():
    total, count = 0.0, len(held_out) - 1
    whole = count // args.ctx * args.ctx
    x, y = (held_out[k:k + whole].view(-1, args.ctx) for k in (0, 1))
    pairs = list(zip(x.split(64), y.split(64)))
    if whole < count:
        pairs.append((held_out[None, whole:-1], held_out[None, whole + 1:]))
    for x, y in pairs:
        total += F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
    return total / count


def theirs(steps):
    times = []
    for step in range(steps):
        start = time.perf_counter()
        train_step(step)
        times.append((time.perf_counter() - start) * 1e3)
    return times[10:]


def ours(steps):
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as log:
        command = [args.program, "--mode", args.mode, "--steps", str(steps), "--sample", "0", "--log", log.name, "--quiet"]
        for option in ("data", "layers", "heads", "dim", "ctx", "batch", "threads"):
            command += [f"--{option}", str(getattr(args, option))]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line)["ms"] for line in log][10:]


if args.time:
    a, b, ratios = [], [], []
    for _ in range(args.rounds):
        mine, yours = ours(60), theirs(60)
        a += mine
        b += yours
        ratios.append(statistics.median(mine) / statistics.median(yours))
    print(f"gpt {args.layers} layers, dim {args.dim}, ctx {args.ctx}, batch {args.batch}, {args.threads} threads: "
          f"libtensor {args.mode} {statistics.median(a):.1f} ms, PyTorch {torch.__version__} {args.compile or 'eager'} "
          f"{statistics.median(b):.1f} ms, ratio {statistics.median(a) / statistics.median(b):.2f} "
          f"({', '.join(f'{r:.2f}' for r in ratios)} by round)")
    sys.exit(0)

log = open(args.log, "w") if args.log else None
begin = time.perf_counter()
for step in range(args.steps):
    start = time.perf_counter()
    loss = train_step(step)
    if log:
        print(json.dumps({"step": step + 1, "loss": loss, "ms": (time.perf_counter() - start) * 1e3}), file=log)
    if (step + 1) % max(1, args.steps // 10) == 0:
        print(f"{step + 1}/{args.steps}  loss {loss:.4f}  {(time.perf_counter() - begin) / (step + 1) * 1e3:.1f} ms/step",
              file=sys.stderr)
print(f"validation loss {validation_loss():.4f}")

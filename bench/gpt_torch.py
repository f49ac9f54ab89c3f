#!/usr/bin/env python3
"""Trains the model of examples/gpt.c in PyTorch as the example does, to set the validation loss beside.

    python3 bench/gpt_torch.py --data data/text/tinyshakespeare.txt --seed 1

It prints the mean loss over the last tenth of the text in windows that do not overlap, as build/gpt does.
For times of a step see zoo.py.
"""
import argparse
import json
import math
import sys
import time

import caching_malloc  # noqa: F401  first: it runs this program again

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
args = p.parse_args()

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_models import GPT, gpt_optimizer, gpt_step  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(args.seed)
with open(args.data, "rb") as f:
    text = f.read()
vocabulary = sorted(set(text))
place = {byte: i for i, byte in enumerate(vocabulary)}
tokens = torch.tensor([place[byte] for byte in text])
split = len(text) * 9 // 10
train, held_out = tokens[:split], tokens[split:]
model = GPT(len(vocabulary), args.layers, args.heads, args.dim, args.ctx)
opt = gpt_optimizer(model, args.lr)
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
    return gpt_step(model, opt, model, x, y)


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

#!/usr/bin/env python3
"""Sets a step of examples/mnist_cnn beside the same model's step in eager PyTorch, in one run.

    python3 tests/bench/models.py [--threads 2] [--rounds 5] [--batch 64] [--data data/digits]

Both train conv32-BN-ReLU-conv64-BN-ReLU-pool-fc128-fc10 with AdamW on images of their own; PyTorch in
channels_last with the fused AdamW and a caching malloc. Rounds alternate; medians of the steps after the
first ten of each round are printed.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import time

import caching_malloc  # noqa: F401  first: it runs this program again

p = argparse.ArgumentParser()
p.add_argument("--threads", type=int, default=2)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--steps", type=int, default=40)
p.add_argument("--batch", type=int, default=64)
p.add_argument("--data", default="data/digits")
args = p.parse_args()

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                      nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, 10)).to(memory_format=torch.channels_last)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
images = torch.randn(args.batch, 1, 28, 28).to(memory_format=torch.channels_last)
labels = torch.randint(0, 10, (args.batch,))


def theirs():
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        opt.step()
        loss.item()
        times.append((time.perf_counter() - start) * 1e3)
    return times[10:]


def ours():
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as log:
        subprocess.run(["build/mnist_cnn", "--data", args.data, "--mode", "eager", "--steps", str(args.steps), "--batch",
                        str(args.batch), "--threads", str(args.threads), "--log", log.name, "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
        return [json.loads(line)["ms"] for line in log][10:]


a, b = [], []
for _ in range(args.rounds):
    a += ours()
    b += theirs()
a, b = statistics.median(a), statistics.median(b)
print(f"mnist_cnn, batch {args.batch}, {args.threads} threads: libtensor eager {a:.1f} ms, "
      f"PyTorch {torch.__version__} eager {b:.1f} ms, ratio {a / b:.2f}")

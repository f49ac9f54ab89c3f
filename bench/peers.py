#!/usr/bin/env python3
"""Sets libtensor's eager operators beside PyTorch's eager ones: same shapes, same number of threads, one run.

    python3 bench/peers.py [--threads 2] [--shapes 4096x1024,65536x1024] [--rounds 9] [--only NAME,...]

Rounds alternate between the two, so that a machine whose speed drifts slows both; the medians are printed,
ours over theirs. PyTorch gets a caching malloc (glibc told never to trim or map), without which large
tensors cost it page faults (caching_malloc.py).
"""
import argparse
import os
import os
import statistics
import subprocess
import time

import caching_malloc  # noqa: F401  first: it runs this program again

p = argparse.ArgumentParser()
p.add_argument("--threads", type=int, default=2)
p.add_argument("--shapes", default="4096x1024,65536x1024")
p.add_argument("--rounds", type=int, default=9)
p.add_argument("--only", default="")
p.add_argument("--program", default="build/bench/eager_ops")
args = p.parse_args()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(1)

def heads(i, x):
    """Rows as windows of 256, channels as heads of 64, as in eager_ops.c."""
    return x.view(i.n // 256, 256, i.c // 64, 64).transpose(1, 2)


FORWARD = {
    "neg": lambda i: -i.x,
    "relu": lambda i: torch.relu(i.x), "exp": lambda i: torch.exp(i.x), "log": lambda i: torch.log(i.y),
    "sqrt": lambda i: torch.sqrt(i.y), "sin": lambda i: torch.sin(i.x), "tanh": lambda i: torch.tanh(i.x),
    "erf": lambda i: torch.erf(i.x), "sigmoid": lambda i: torch.sigmoid(i.x), "silu": lambda i: F.silu(i.x),
    "gelu": lambda i: F.gelu(i.x), "gelu_tanh": lambda i: F.gelu(i.x, approximate="tanh"),
    "softplus": lambda i: F.softplus(i.x), "add": lambda i: i.x + i.y, "mul": lambda i: i.x * i.y,
    "div": lambda i: i.x / i.y, "pow": lambda i: torch.pow(i.y, i.y), "maximum": lambda i: torch.maximum(i.x, i.y),
    "mul_scalar": lambda i: i.x * 1.5, "add_row": lambda i: i.x + i.w,
    "where": lambda i: torch.where(i.x > i.y, i.x, i.y), "transpose_copy": lambda i: i.x.t().contiguous(),
    "sum_all": lambda i: i.x.sum(), "sum_row": lambda i: i.x.sum(1), "sum_col": lambda i: i.x.sum(0),
    "max_row": lambda i: i.x.amax(1), "argmax": lambda i: i.x.argmax(1), "var_row": lambda i: i.x.var(1),
    "logsumexp": lambda i: torch.logsumexp(i.x, 1), "cumsum": lambda i: i.x.cumsum(1),
    "softmax": lambda i: F.softmax(i.x, 1), "log_softmax": lambda i: F.log_softmax(i.x, 1),
    "layer_norm": lambda i: F.layer_norm(i.x, (i.c,), i.w, i.b), "rms_norm": lambda i: F.rms_norm(i.x, (i.c,), i.w),
    "dropout": lambda i: F.dropout(i.x, 0.1), "cross_entropy": lambda i: F.cross_entropy(i.x, i.label),
    "embedding": lambda i: F.embedding(i.index, i.x), "gather": lambda i: i.x.gather(1, i.label[:, None]),
    "concat": lambda i: torch.cat([i.x, i.y], 1), "pad": lambda i: F.pad(i.x, (8, 8)),
    "attention": lambda i: F.scaled_dot_product_attention(*(heads(i, t) for t in (i.x, i.y, i.x))),
    "batch_norm": lambda i: F.batch_norm(i.x, None, None, i.w, i.b, True), "linear": lambda i: F.linear(i.x, i.square, i.b),
}
BACKWARD = {name + "_back": FORWARD[name] for name in
            ("relu", "gelu", "tanh", "mul", "add_row", "softmax", "layer_norm", "rms_norm", "batch_norm", "dropout",
             "embedding", "cross_entropy", "attention", "linear")}


class Inputs:
    def __init__(self, n, c):
        self.n, self.c = n, c
        self.x, self.y = torch.randn(n, c), torch.rand(n, c)
        self.w, self.b, self.square = torch.rand(c), torch.rand(c), torch.randn(c, c)
        self.label, self.index = torch.randint(0, c, (n,)), torch.randint(0, n, (n,))


def theirs(name, inputs, runs):
    times = []
    back = name in BACKWARD
    for t in (inputs.x, inputs.w, inputs.b, inputs.square):
        t.requires_grad_(back)
    for r in range(runs + 2):
        for t in (inputs.x, inputs.w, inputs.b, inputs.square):
            t.grad = None
        with torch.set_grad_enabled(back):
            start = time.perf_counter()
            y = (BACKWARD if back else FORWARD)[name](inputs)
            if back:
                (y if y.dim() == 0 else y.sum()).backward()
            took = time.perf_counter() - start
        del y
        if r >= 2:
            times.append(took * 1e6)
    return times


server = subprocess.Popen([args.program, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, TENSOR_THREADS=str(args.threads)))


def ours(name, n, c, runs):
    server.stdin.write(f"{name} {n} {c} {runs}\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    return None if "failed" in answer or not answer.strip() else [float(t) for t in answer.split()]


only = set(filter(None, args.only.split(",")))
print(f"PyTorch {torch.__version__}, {args.threads} threads, medians of {args.rounds} alternating rounds, microseconds")
for shape in args.shapes.split(","):
    n, c = (int(v) for v in shape.split("x"))
    inputs = Inputs(n, c)
    print(f"\n{shape}\n| operator | libtensor | PyTorch | ratio |\n|---|---|---|---|", flush=True)
    for name in list(FORWARD) + list(BACKWARD):
        if only and name not in only:
            continue
        a, b = [], []
        for _ in range(args.rounds):
            mine = ours(name, n, c, 1 if n * c > 1 << 24 else 5)
            if mine is None:
                break
            a += mine
            b += theirs(name, inputs, len(mine))
        if not a:
            print(f"| {name} | failed | | |", flush=True)
            continue
        a, b = statistics.median(a), statistics.median(b)
        print(f"| {name} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)
server.stdin.close()

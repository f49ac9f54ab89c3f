#!/usr/bin/env python3
"""gpu_torch - the cases of tests/gpu/timed.c in PyTorch: microseconds of forward and of backward, by events.

    python3 bench/gpu_torch.py [--compile] [CASE ..]

Each is given PyTorch's best: flash attention, cuDNN's choice by trial on channels-last images, cuBLASLt; TF32 off for
f32. With --compile what consists of several operators also goes through torch.compile. Rotating buffers are not needed:
operands are larger than the L2 cache, but for the small ones, where both sides read it.
"""
import statistics
import sys

import torch
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
BF, HALF, F32 = torch.bfloat16, torch.float16, torch.float32


def r(dtype, *shape, scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).to(dtype).requires_grad_()


def image(dtype, n, h, w, c, scale=1.0):
    x = (torch.randn(n, c, h, w, device="cuda") * scale).to(dtype).contiguous(memory_format=torch.channels_last)
    return x.requires_grad_()


def kernel(dtype, o, h, w, c, scale=1.0):
    return image(dtype, o, h, w, c, scale)


def qkv(dtype, b, h, t, d):
    return [r(dtype, b, h, t, d) for _ in range(3)]


def index(n, below):
    return torch.randint(0, below, (n,), device="cuda")


def attend(causal):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def norm(x, w, b):
    return F.layer_norm(x, w.shape, w, b)


CASES = {  # name: function, inputs, whether several operators
    "attention-128": (attend(False), lambda: qkv(BF, 4, 16, 2048, 128), 0),
    "attention-128-causal": (attend(True), lambda: qkv(BF, 4, 16, 2048, 128), 0),
    "attention-64": (attend(False), lambda: qkv(BF, 4, 16, 2048, 64), 0),
    "attention-64-causal": (attend(True), lambda: qkv(BF, 8, 12, 1024, 64), 0),
    "attention-64-f16": (attend(False), lambda: qkv(HALF, 8, 12, 1000, 64), 0),
    "attention-64-f32": (attend(True), lambda: qkv(F32, 8, 12, 1024, 64), 0),
    "conv-128-256": (lambda x, w: F.conv2d(x, w, padding=1), lambda: [image(BF, 64, 56, 56, 128), kernel(BF, 256, 3, 3, 128, .03)], 0),
    "conv-64-64": (lambda x, w: F.conv2d(x, w, padding=1), lambda: [image(BF, 256, 56, 56, 64), kernel(BF, 64, 3, 3, 64, .04)], 0),
    "conv-256-256": (lambda x, w: F.conv2d(x, w, padding=1), lambda: [image(BF, 256, 14, 14, 256), kernel(BF, 256, 3, 3, 256, .02)], 0),
    "conv-128-stride": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), lambda: [image(BF, 256, 56, 56, 128), kernel(BF, 128, 3, 3, 128, .03)], 0),
    "conv-1x1": (lambda x, w: F.conv2d(x, w), lambda: [image(BF, 256, 56, 56, 64), kernel(BF, 256, 1, 1, 64, .1)], 0),
    "conv-64-64-f32": (lambda x, w: F.conv2d(x, w, padding=1), lambda: [image(F32, 64, 56, 56, 64), kernel(F32, 64, 3, 3, 64, .04)], 0),
    "conv-depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=128), lambda: [image(BF, 128, 56, 56, 128), kernel(BF, 128, 3, 3, 1, .3)], 0),
    "conv-norm-relu": (lambda x, w, g, b: F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, True)),
                       lambda: [image(BF, 256, 28, 28, 128), kernel(BF, 128, 3, 3, 128, .03), r(BF, 128), r(BF, 128)], 1),
    "linear": (F.linear, lambda: [r(BF, 8192, 1024), r(BF, 4096, 1024, scale=.03), r(BF, 4096)], 0),
    "linear-gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: [r(BF, 8192, 768), r(BF, 3072, 768, scale=.04), r(BF, 3072)], 1),
    "linear-f32": (F.linear, lambda: [r(F32, 4096, 1024), r(F32, 4096, 1024, scale=.03), r(F32, 4096)], 0),
    "layer-norm-1024": (norm, lambda: [r(BF, 32768, 1024), r(BF, 1024), r(BF, 1024)], 1),
    "layer-norm-768-f32": (norm, lambda: [r(F32, 32768, 768), r(F32, 768), r(F32, 768)], 1),
    "layer-norm-gelu-4096": (lambda x, w, b: F.gelu(norm(x, w, b)), lambda: [r(BF, 8192, 4096), r(BF, 4096), r(BF, 4096)], 1),
    "batch-norm-relu": (lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)), lambda: [image(BF, 128, 56, 56, 128), r(BF, 128), r(BF, 128)], 1),
    "group-norm-silu": (lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), lambda: [image(BF, 32, 64, 64, 256), r(BF, 256), r(BF, 256)], 1),
    "softmax-4096": (lambda x: F.softmax(x, -1), lambda: [r(BF, 16384, 4096)], 0),
    "cross-entropy-50304": (lambda x, y: F.cross_entropy(x, y), lambda: [r(BF, 4096, 50304), index(4096, 50304)], 1),
    "embedding-65": (lambda w, i: F.embedding(i, w), lambda: [r(F32, 65, 768), index(8192, 65)], 0),
    "embedding-50304": (lambda w, i: F.embedding(i, w), lambda: [r(BF, 50304, 768), index(8192, 50304)], 0),
    "chain-64M": (lambda x, y: F.gelu(x + y) * torch.sigmoid(y), lambda: [r(BF, 8192, 8192), r(BF, 8192, 8192)], 1),
    "max-pool": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: [image(BF, 128, 112, 112, 64)], 0),
}


def timed(f, warm=3, rounds=7, times=5):
    for _ in range(warm):
        f()
    took = []
    for _ in range(rounds):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        for _ in range(times):
            f()
        b.record()
        torch.cuda.synchronize()
        took.append(a.elapsed_time(b) / times * 1e3)
    return statistics.median(took)


def measure(name, way):
    f, make, _ = CASES[name]
    if way == "compile":
        f = torch.compile(f)
    x = make()
    y = f(*x)
    g = torch.randn_like(y)
    wanted = [t for t in x if t.requires_grad]
    with torch.no_grad():
        forward = timed(lambda: f(*x)) if way == "eager" else None
    trained = timed(lambda: f(*x))
    backward = timed(lambda: torch.autograd.grad(y, wanted, g, retain_graph=True))
    print(f"{name:22} {way:8} forward {forward or trained:9.1f} us  backward {backward:9.1f} us", flush=True)


names = [a for a in sys.argv[1:] if a[0] != "-"] or list(CASES)
print(torch.__version__, torch.cuda.get_device_name(), flush=True)
x = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
y = torch.empty_like(x)
us = timed(lambda: y.copy_(x))
print(f"copy of 1 GiB: {2 * (1 << 30) / us * 1e-3:.0f} GB/s read and written", flush=True)
del x, y
for case in names:
    for way in ("eager", "compile") if "--compile" in sys.argv and CASES[case][2] else ("eager",):
        try:
            measure(case, way)
        except Exception as e:  # one that cannot be run leaves the others
            print(f"{case:22} {way:8} {type(e).__name__}: {str(e)[:100]}", flush=True)
        torch.cuda.empty_cache()

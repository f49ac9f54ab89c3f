"""Compares the cases of test_half with PyTorch, which knows nothing of this library:

    python3 tests/long/half_torch.py build/tests/test_half --cases 2000

PyTorch in f64 says what is right: what the library's own reference says must be that, and what each road has come to
must be finite where that is and within what the test allows. How often PyTorch's own 16 bits are not is counted.
"""
import collections
import json
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")
TYPE = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4e38}
REDUCTION = ("mean", "sum", "none")


def images(x, f):
    return f(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def group_norm(x, w, b, c):
    return F.group_norm(x.transpose(1, 2), c["groups"], w, b, 1e-5).transpose(1, 2)


def even(x):
    return x[..., : x.shape[-1] // 2 * 2]


def rotary(x, start, interleaved):
    d = x.shape[-1]
    at = start + torch.arange(x.shape[-2], dtype=torch.float64)[:, None]
    angle = (at * 10000.0 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)).to(x.dtype)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
    y = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    return torch.stack(y, -1).flatten(-2) if interleaved else torch.cat(y, -1)


# of operands, labels and the case
OPS = {
    "layer_norm": lambda x, l, c: F.layer_norm(x[0], x[1].shape, x[1], x[2], 1e-5),
    "rms_norm": lambda x, l, c: F.rms_norm(x[0], x[1].shape, x[1], 1e-5),
    "group_norm": lambda x, l, c: group_norm(*x, c),
    "batch_norm": lambda x, l, c: F.batch_norm(x[0], None, None, x[1], x[2], True, 0.1, 1e-5),
    "var": lambda x, l, c: x[0].var(0 if c["variant"] & 1 else -1),
    "sum": lambda x, l, c: x[0].sum(0 if c["variant"] & 1 else -1),
    "mean": lambda x, l, c: x[0].mean(0) if c["variant"] & 1 else x[0].mean(),
    "logsumexp": lambda x, l, c: x[0].logsumexp(-1),
    "softmax": lambda x, l, c: x[0].softmax(-1),
    "log_softmax": lambda x, l, c: x[0].log_softmax(-1),
    "cumsum": lambda x, l, c: x[0].cumsum(-1),
    "gelu_tanh": lambda x, l, c: F.gelu(x[0], approximate="tanh"),
    "gelu": lambda x, l, c: F.gelu(x[0]),
    "silu": lambda x, l, c: F.silu(x[0]),
    "mish": lambda x, l, c: F.mish(x[0]),
    "softplus": lambda x, l, c: F.softplus(x[0], threshold=1000 if x[0].dtype == torch.float64 else 20),
    "pow_scalar 3": lambda x, l, c: x[0] ** 3,
    "mul": lambda x, l, c: x[0] * x[1],
    "avg_pool2d": lambda x, l, c: images(x[0], lambda t: F.avg_pool2d(t, 2 + c["variant"] % 3, 1 + c["variant"] % 2)),
    "avg_pool2d padded": lambda x, l, c: images(
        x[0],
        lambda t: F.avg_pool2d(t, 3, 2, 1, ceil_mode=bool(c["variant"] & 1), count_include_pad=not c["variant"] & 2),
    ),
    "avg_pool2d of all": lambda x, l, c: images(x[0], lambda t: F.avg_pool2d(t, t.shape[2])),
    "global_avg_pool2d": lambda x, l, c: x[0].mean((1, 2)),
    "mse_loss": lambda x, l, c: F.mse_loss(x[0], x[1], reduction=REDUCTION[c["variant"] % 3]),
    "l1_loss": lambda x, l, c: F.l1_loss(x[0], x[1], reduction=REDUCTION[c["variant"] % 3]),
    "bce_with_logits": lambda x, l, c: F.binary_cross_entropy_with_logits(
        x[0], x[1], reduction=REDUCTION[c["variant"] % 3]
    ),
    "lerp": lambda x, l, c: torch.lerp(x[0], x[1], x[0]),
    "cross_entropy": lambda x, l, c: F.cross_entropy(x[0], l, reduction=REDUCTION[c["variant"] % 3]),
    "cross_entropy smoothed": lambda x, l, c: F.cross_entropy(x[0], l, label_smoothing=0.1),
    "nll_loss": lambda x, l, c: F.nll_loss(x[0], l, reduction=REDUCTION[c["variant"] % 3]),
    "attention, added mask": lambda x, l, c: F.scaled_dot_product_attention(x[0], x[1], x[2], attn_mask=x[3]),
    "embedding": lambda x, l, c: F.embedding(l, x[0]),
    "atan": lambda x, l, c: x[0].atan(),
    "hardswish": lambda x, l, c: F.hardswish(x[0]),
    "glu": lambda x, l, c: F.glu(even(x[0]), -1),
    "swiglu": lambda x, l, c: F.silu(x[0]) * x[1],
    "tril": lambda x, l, c: x[0].tril(c["variant"] - 6) * x[1].triu(c["variant"] - 8),
    "sort": lambda x, l, c: x[0].sort(dim=-1, descending=bool(c["variant"] & 1), stable=True).values,
    "rotary": lambda x, l, c: rotary(even(x[0]), c["variant"] * 100, c["variant"] & 1),
    "concat": lambda x, l, c: torch.cat([F.gelu(x[0]), x[1]], -1),
    "huber_loss": lambda x, l, c: F.huber_loss(x[0], x[1], REDUCTION[c["variant"] % 3], 0.5 + c["variant"]),
    "smooth_l1_loss": lambda x, l, c: F.smooth_l1_loss(x[0], x[1], reduction=REDUCTION[c["variant"] % 3]),
    "kl_div": lambda x, l, c: F.kl_div(x[0], x[1], log_target=True, reduction=REDUCTION[c["variant"] % 3]),
    "cosine_similarity": lambda x, l, c: F.cosine_similarity(x[0], x[1], -1),
    "triplet_margin_loss": lambda x, l, c: F.triplet_margin_loss(*x, reduction=REDUCTION[c["variant"] % 3]),
    "resize_nearest": lambda x, l, c: images(x[0], lambda t: F.interpolate(t, (3 + c["variant"], 9))),
    "resize_bilinear": lambda x, l, c: images(
        x[0],
        lambda t: F.interpolate(t, (3 + c["variant"], 9), mode="bilinear", align_corners=bool(c["variant"] & 1)),
    ),
}


def dtype(c, i):
    """Of operand i: weights, which have fewer axes than x, have their own."""
    weight = i and c["op"][:9] != "attention" and len(c["shapes"][i]) < len(c["shapes"][0])
    return c["weights"] if weight else c["dtype"]


def run(c, values, labels, weights, wide):
    """The result and the operands' gradients, in 16 bits or in f64."""
    x = [v.to(torch.float64 if wide else TYPE[dtype(c, i)], copy=True) for i, v in enumerate(values)]
    for t in x:
        t.requires_grad_()
    y = OPS[c["op"]](x, labels, c)
    sums = torch.float64 if wide else torch.float32
    (y.to(sums) * weights.reshape(y.shape).to(sums)).sum().backward()
    return [y.detach().double().flatten().numpy()] + [t.grad.double().flatten().numpy() for t in x]


def main(path):
    wrong = collections.Counter()
    theirs = collections.Counter()
    of = collections.Counter()
    n = elements = refused = 0
    with open(path, "rb") as f:
        while line := f.readline():
            c = json.loads(line)
            take = lambda n: torch.from_numpy(np.frombuffer(f.read(8 * n)).copy())
            values = [take(int(np.prod(s))).reshape(s) for s in c["shapes"]]
            labels = take(c["labels"]).long()
            weights = take(c["outputs"][0])
            outs = [[take(k).numpy() for _ in range(2 + c["roads"])] for k in c["outputs"]]
            exact = run(c, values, labels, weights, True)
            try:
                half = run(c, values, labels, weights, False)
            except (RuntimeError, NotImplementedError):
                half, refused = None, refused + 1
            n += 1
            for k, (want, (ref, allowed, *roads)) in enumerate(zip(exact, outs)):
                largest = LARGEST[dtype(c, max(0, k - 1))]
                sure = np.isfinite(want) & np.isfinite(allowed)
                inside = sure & (np.abs(want) + allowed <= largest)
                elements += int(sure.sum())

                def off(name, got, limit, at):
                    bad = at & ~(np.abs(got - want) <= limit)
                    if name == "PyTorch":
                        theirs[c["op"]] += bool(bad.any())
                    elif bad.any():
                        i = int(np.argmax(bad))
                        wrong[name] += 1
                        print(f"{name}: {c['op']} of {c['dtype']} {c['shapes'][0]}, {c['kind']}, variant {c['variant']}, "
                              f"seed {c['seed']}, output {k} [{i}]: {got[i]:.9g}, PyTorch in f64 {want[i]:.9g}, "
                              f"allowed {limit[i]:.3g}")

                off("reference", ref, 0.01 * allowed + 1e-300, sure & (np.abs(want) < 3e38))
                for r, got in zip(("fused", "eager", "no compiler"), roads):
                    off(r, got, allowed, inside)
                if half:
                    off("PyTorch", half[k], allowed, inside)
            of[c["op"]] += 1
    print(f"{n} cases, {elements} elements: wrong {dict(wrong) or 'none'}; refused by PyTorch in 16 bits: {refused}")
    print("outputs in which PyTorch's 16 bits are further off than is allowed here, by operator:")
    for op in sorted(of):
        print(f"  {op}: {theirs[op]} in {of[op]} cases")
    return bool(wrong)


with tempfile.TemporaryDirectory() as folder:
    pipe = os.path.join(folder, "cases")
    os.mkfifo(pipe)
    program = subprocess.Popen([*sys.argv[1:], "--write", pipe], stdout=subprocess.DEVNULL)
    status = main(pipe)
    sys.exit(program.wait() or status)

#!/usr/bin/env python3
"""Makes the golden values in this folder with PyTorch: python3 make_golden.py [folder]

Everything is computed on the CPU in float64 from float32 weights and inputs, so that the files hold what is
true to about 15 digits, and a test says itself how close it has to come. The files are .safetensors, written
here byte for byte the same on each run of one machine, on another but for last digits; their metadata say which version of PyTorch the numbers are from.

  optim.safetensors        six updates of three parameters by each optimizer and option
  cnn.safetensors          a small convolutional network: weights, batches, gradients, 20 losses
  transformer.safetensors  a transformer block with embedding and head: the same
  state.safetensors        a state_dict of layers, as PyTorch's users save it: lstm, gru, convolutions of rows and back
  layers.safetensors       what these layers make of inputs, and gradients
  ops.safetensors          single operators whose semantics are easy to get wrong
  special.safetensors      elementwise operators and reductions at zeros, infinities, NaN, ties, bounds
"""

import json
import math
import struct
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)

TYPES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def save(path, tensors, **meta):
    """Writes name -> tensor as .safetensors, largest elements first so that all are aligned."""
    arrays = {k: v.detach().contiguous().numpy() for k, v in tensors.items()}
    header = {"__metadata__": {"made_by": "torch " + torch.__version__.split("+")[0], **meta}}
    at = 0
    names = sorted(arrays, key=lambda k: (-arrays[k].dtype.itemsize, k))
    for name in names:
        a = arrays[name]
        header[name] = {"dtype": TYPES[str(a.dtype)], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            f.write(arrays[name].tobytes())


def draw(seed, *shape, low=-1.0, high=1.0):
    """float32 numbers that do not depend on PyTorch's generator."""
    return torch.from_numpy(np.random.RandomState(seed).uniform(low, high, shape).astype(np.float32))


# ---- optimizers ----

SHAPES = {"a": (7, 5), "b": (70, 3), "c": (1,)}
STEPS = 6

class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2; PyTorch has none."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (b1, b2), decay = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - lr * decay).sub_(lr * (b1 * m + (1 - b1) * p.grad).sign())
                m.mul_(b2).add_((1 - b2) * p.grad)


# name: (class, options, what the test does beside)
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1), {}),
    "sgd_decay": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.1), {}),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9), {}),
    "sgd_dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05), {}),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05), {}),
    "adam": (torch.optim.Adam, dict(lr=0.01), {}),
    "adam_decay": (torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1), {}),
    "adamw": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), {}),
    "adamw_no_decay": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.0), {}),
    "adamw_groups": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), {"groups": True}),
    "adamw_missing": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), {"missing": True}),
    "sgd_missing": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3), {"missing": True}),
    "adamw_clip": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), {"clip": 2.0}),
    "adamw_clip_missing": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.0), {"clip": 2.0, "missing": True}),
    "sgd_clip_loose": (torch.optim.SGD, dict(lr=0.1), {"clip": 1e3}),
    "adamw_schedule": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), {"schedule": True}),
    "adamw_accumulate": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), {"accumulate": 3}),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.01), {}),
    "rmsprop_momentum": (torch.optim.RMSprop, dict(lr=0.01, alpha=0.9, momentum=0.8, weight_decay=0.1), {}),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=0.01, eps=1e-3, centered=True), {"missing": True}),
    "rmsprop_both": (torch.optim.RMSprop, dict(lr=0.01, eps=1e-3, centered=True, momentum=0.9), {}),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.01), {}),
    "adagrad_decay": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.2, weight_decay=0.1), {"missing": True}),
    "lion": (Lion, dict(lr=0.01, betas=(0.9, 0.99), weight_decay=0.0), {}),
    "lion_decay": (Lion, dict(lr=0.01, betas=(0.8, 0.7), weight_decay=0.1), {"missing": True, "clip": 1.0}),
    "sgd_accumulate": (torch.optim.SGD, dict(lr=0.1, momentum=0.9), {"accumulate": 2, "missing": True, "clip": 0.5}),
}


def has_gradient(name, step):
    """With "missing": b has none in steps 1 and 2, c none in steps 0 and 4, as the test has it."""
    return not (name == "b" and step in (1, 2)) and not (name == "c" and step in (0, 4))


def make_optim():
    out = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        out["init." + name] = draw(i, *shape)
        out["gradient." + name] = draw(100 + i, STEPS, *shape)
    for case, (kind, options, extra) in OPTIMIZERS.items():
        p = {k: nn.Parameter(out["init." + k].double()) for k in SHAPES}
        lists = [{"params": [p["a"], p["c"]]}, {"params": [p["b"]]}]
        if extra.get("groups"):
            lists[0] |= {"lr": options["lr"] * 0.5, "weight_decay": 0.02}
        opt = kind(lists, **options)
        norms = []
        every = extra.get("accumulate", 1)
        for step in range(STEPS):
            if extra.get("schedule"):
                for g in opt.param_groups:
                    g["lr"] = 0.01 / (1 + step)
            for k, v in p.items():
                if extra.get("missing") and not has_gradient(k, step):
                    continue
                g = out["gradient." + k][step].double() / every
                v.grad = g.clone() if v.grad is None else v.grad + g
            if (step + 1) % every == 0:
                if "clip" in extra:
                    norms.append(nn.utils.clip_grad_norm_(p.values(), extra["clip"]))
                opt.step()
                opt.zero_grad(set_to_none=True)
            if step in (0, STEPS - 1):
                for k, v in p.items():
                    out[f"{case}.{step}.{k}"] = v.detach().clone()
        if norms:
            out[case + ".norms"] = torch.stack(norms)
    save(folder + "/optim.safetensors", out)


# ---- models ----

def train(model, batches, loss_of, lr, decay, steps=20):
    """Losses of `steps` AdamW steps over the batches in turn, and the gradients of the first."""
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    losses, gradients = [], {}
    for step in range(steps):
        loss = loss_of(model, *batches[step % len(batches)])
        opt.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {"gradient." + k: v.grad.clone() for k, v in model.named_parameters()}
        losses.append(loss.detach())
        opt.step()
    return torch.stack(losses), gradients


def reset(model, scale):
    """Weights of our own drawing, in order of name; norms and biases a little off their usual 1 and 0."""
    with torch.no_grad():
        for i, (name, v) in enumerate(sorted(model.named_parameters())):
            bound = scale / math.sqrt(max(1, v[0].numel())) if v.dim() > 1 else 0.1
            centre = 1.0 if "norm" in name.split(".")[-2] and name.endswith("weight") else 0.0
            v.copy_(centre + bound * draw(1000 + i, *v.shape))


def nhwc(x):
    return x.permute(0, 2, 3, 1).contiguous()


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        # Without biases: in front of a batch norm their gradient is 0, and Adam makes steps of its rounding.
        self.c1, self.norm1 = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.c2, self.norm2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(3 * 3 * 8, 5)

    def forward(self, x):
        h = F.relu(self.norm1(self.c1(x)))
        h = F.max_pool2d(F.relu(self.norm2(self.c2(h))), 2)
        return self.fc(nhwc(h).flatten(1))


def make_cnn():
    model = Cnn()
    reset(model, 1.5)
    out = {k: v.clone() for k, v in model.state_dict().items() if "num_batches" not in k}
    model = model.double()
    batches = []
    for i in range(4):
        x = draw(10 + i, 8, 2, 12, 12, low=-2, high=2)
        y = torch.from_numpy(np.random.RandomState(20 + i).randint(0, 5, 8))
        out[f"batch.{i}.x"], out[f"batch.{i}.y"] = nhwc(x), y
        batches.append((x.double(), y))
    out["losses"], gradients = train(model, batches, lambda m, x, y: F.cross_entropy(m(x), y), 1e-2, 0.05)
    out |= {k: nhwc(v) if v.dim() == 4 else v for k, v in gradients.items()}
    out |= {"after." + k: v for k, v in model.state_dict().items() if "running" in k}
    model.eval()
    out["after.logits"] = model(batches[0][0]).detach()
    save(folder + "/cnn.safetensors", out, format="pt")


VOCAB, DIM, HEADS, TIME = 29, 24, 3, 16


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(TIME, DIM)
        self.block = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu",
                                                batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x):
        mask = torch.full((TIME, TIME), -math.inf, dtype=torch.float64).triu(1)
        h = self.tok(x) + self.pos(torch.arange(TIME))
        return self.head(self.norm(self.block(h, src_mask=mask)))


def make_transformer():
    model = Transformer()
    reset(model, 1.0)
    out = {k: v.clone() for k, v in model.state_dict().items()}
    model = model.double()
    batches = []
    for i in range(4):
        text = torch.from_numpy(np.random.RandomState(30 + i).randint(0, VOCAB, (4, TIME + 1)))
        text[:, 1::2] = (text[:, 0:-1:2] * 7 + 3) % VOCAB  # half of it can be learned
        out[f"batch.{i}.x"], out[f"batch.{i}.y"] = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        batches.append((text[:, :-1], text[:, 1:]))
    out["losses"], gradients = train(
        model, batches, lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), 3e-3, 0.1)
    out |= gradients
    save(folder + "/transformer.safetensors", out, format="pt")


# ---- layers, loaded as they are ----


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(5, 3, bias=False, batch_first=True)
        self.row, self.back = nn.Conv1d(4, 6, 3, padding=1, groups=2), nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2)
        self.image = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)


def make_layers():
    model = Layers()
    with torch.no_grad():
        for i, (_, v) in enumerate(sorted(model.named_parameters())):
            v.copy_(draw(2000 + i, *v.shape))
    save(folder + "/state.safetensors", model.state_dict())
    model = model.double()
    out = {}

    def put(name, fn, **inputs):
        args = {k: v.double().requires_grad_() for k, v in inputs.items()}
        model.zero_grad()
        results = fn(**args)
        for i, y in enumerate(results):
            out[f"{name}.out.{i}"] = y
        sum((y * (1 + torch.arange(y.numel()).reshape(y.shape) % 7)).sum() for y in results).backward()
        for k, v in args.items():
            out[f"{name}.{k}"], out[f"{name}.gradient.{k}"] = inputs[k], v.grad
        for k, v in model.named_parameters():
            if v.grad is not None:
                out[f"gradient.{k}"] = v.grad.movedim(1, -1) if v.dim() > 2 else v.grad

    def lstm(x, h, c):
        y, (h, c) = model.lstm(x, (h, c))
        return y, h, c

    put("lstm", lstm, x=draw(90, 3, 6, 5), h=draw(91, 4, 3, 4), c=draw(92, 4, 3, 4))
    put("gru", lambda x: model.gru(x), x=draw(93, 3, 7, 5))
    put("row", lambda x: (model.row(x.mT).mT,), x=draw(94, 2, 5, 4))
    put("back", lambda x: (model.back(x.mT).mT,), x=draw(94, 2, 5, 4))
    put("image", lambda x: (nhwc(model.image(x.permute(0, 3, 1, 2))),), x=draw(95, 2, 3, 2, 4))
    out["sparse.weight"] = draw(98, 12, 3)
    for i in range(4):
        out[f"sparse.index.{i}"] = torch.from_numpy(np.random.RandomState(99 + i).randint(0, 12, 8))
        out[f"sparse.scale.{i}"] = draw(103 + i, 8, 3)
    for name, kind, lr in (("sparse_adam", torch.optim.SparseAdam, 0.05), ("sparse_sgd", torch.optim.SGD, 0.1)):
        table = nn.Embedding(12, 3, sparse=True, _weight=out["sparse.weight"].double())
        optim = kind(table.parameters(), lr=lr)
        for i in range(4):
            optim.zero_grad()
            (table(out[f"sparse.index.{i}"]) ** 2 * out[f"sparse.scale.{i}"]).sum().backward()
            optim.step()
            out[f"{name}.{i}"] = table.weight.detach().clone()
    save(folder + "/layers.safetensors", out)


# ---- single operators ----

ops = {}


def case(name, fn, **inputs):
    """Stores inputs, result and the gradients of sum(result * weight) with a fixed weight."""
    args = {}
    for k, v in inputs.items():
        ops[f"{name}.{k}"] = v
        args[k] = v.double().requires_grad_() if v.is_floating_point() else v
    y = fn(**args)
    ops[f"{name}.out"] = y.detach()
    if not y.is_floating_point():
        return
    w = draw(7, *y.shape)
    ops[f"{name}.weight"] = w
    (y * w.double()).sum().backward()
    for k, v in args.items():
        if v.is_floating_point() and v.grad is not None:
            ops[f"{name}.gradient.{k}"] = v.grad.clone()


def to_nchw(f):
    return lambda x, **more: nhwc(f(x.permute(0, 3, 1, 2), **more))


def make_ops():
    logits = draw(40, 6, 5, low=-4, high=4)
    labels = torch.tensor([0, 4, -100, 2, 2, -100])
    ce = F.cross_entropy
    case("cross_entropy", lambda x, y: ce(x, y), x=logits, y=labels)
    case("cross_entropy_sum", lambda x, y: ce(x, y, reduction="sum"), x=logits, y=labels)
    case("cross_entropy_none", lambda x, y: ce(x, y, reduction="none"), x=logits, y=labels)
    case("cross_entropy_smooth", lambda x, y: ce(x, y, label_smoothing=0.2), x=logits, y=labels)
    case("cross_entropy_ignore", lambda x, y: ce(x, y, ignore_index=2, label_smoothing=0.1), x=logits,
         y=labels.clamp(min=0))
    shares = draw(41, 6, 5, low=-4, high=4).softmax(1)
    case("cross_entropy_soft", lambda x, y: ce(x, y), x=logits, y=shares)
    case("cross_entropy_soft_smooth", lambda x, y: ce(x, y, label_smoothing=0.2), x=logits, y=shares)
    case("cross_entropy_ignored_all", lambda x, y: ce(x, y, reduction="sum"), x=logits, y=labels * 0 - 100)
    case("nll_loss", lambda x, y: F.nll_loss(x, y), x=logits, y=labels)
    target = draw(41, 6, 5)
    case("mse_loss", lambda x, y: F.mse_loss(x, y), x=logits, y=target)
    case("l1_loss", lambda x, y: F.l1_loss(x, y), x=torch.cat([logits[:5], target[5:]]), y=target)
    extreme = torch.tensor([[-200.0, 200.0, 0.0, 50.0, -1e-3]])
    case("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y), x=extreme,
         y=torch.tensor([[0.0, 1.0, 0.5, 0.0, 1.0]]))

    x = draw(42, 3, 4, 5, 6)
    case("group_norm", to_nchw(lambda x, w, b: F.group_norm(x, 3, w, b)), x=x, w=draw(43, 6), b=draw(44, 6))
    case("layer_norm_2", lambda x, w, b: F.layer_norm(x, (5, 6), w, b, 1e-3), x=x, w=draw(45, 5, 6), b=draw(46, 5, 6))
    case("rms_norm", lambda x, w: F.rms_norm(x, (6,), w, 1e-5), x=x, w=draw(45, 6))
    case("batch_norm", to_nchw(lambda x, w, b: F.batch_norm(x, None, None, w, b, True)), x=x, w=draw(43, 6),
         b=draw(44, 6))

    image = draw(47, 2, 7, 6, 3)
    case("max_pool_ceil", to_nchw(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)), x=image)
    case("max_pool_ties", to_nchw(lambda x: F.max_pool2d(x, 2, 1)), x=(image * 2).round())
    case("avg_pool", to_nchw(lambda x: F.avg_pool2d(x, 3, 2, 1)), x=image)
    case("avg_pool_ceil", to_nchw(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)), x=image)
    case("avg_pool_ceil_2", to_nchw(lambda x: F.avg_pool2d(x, 2, 2, 0, ceil_mode=True)), x=image)
    case("avg_pool_exclude", to_nchw(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
         x=image)

    w = draw(48, 4, 3, 3, 3)  # OHWI here, OIHW there
    conv = lambda **o: to_nchw(lambda x, w, b: F.conv2d(x, w.permute(0, 3, 1, 2), b, **o))
    case("conv", conv(stride=2, padding=1), x=image, w=w, b=draw(49, 4))
    case("conv_dilated", conv(dilation=2, padding=2), x=image, w=w, b=draw(49, 4))
    case("conv_groups", conv(groups=2, padding=1), x=draw(50, 2, 7, 6, 6), w=w, b=draw(49, 4))
    case("conv_depthwise", conv(groups=3), x=image, w=draw(51, 3, 3, 3, 1), b=draw(52, 3))

    row = draw(75, 2, 9, 4)
    conv1 = lambda **o: (lambda x, w, b: F.conv1d(x.mT, w.permute(0, 2, 1), b, **o).mT)
    case("conv1d", conv1(stride=2, padding=1), x=row, w=draw(76, 6, 3, 4), b=draw(77, 6))
    case("conv1d_groups", conv1(dilation=3, groups=2), x=row, w=draw(76, 6, 3, 2), b=draw(77, 6))
    back = lambda **o: to_nchw(lambda x, w, b: F.conv_transpose2d(x, w.permute(0, 3, 1, 2), b, **o))
    case("transpose2d", back(stride=2, padding=1, output_padding=1), x=image, w=draw(78, 3, 3, 3, 5), b=draw(79, 5))
    case("transpose2d_groups", back(stride=3, dilation=2, groups=2), x=draw(50, 2, 3, 4, 6), w=draw(80, 6, 2, 3, 2),
         b=draw(49, 4))
    case("transpose1d", lambda x, w, b: F.conv_transpose1d(x.mT, w.permute(0, 2, 1), b, 2, 1).mT, x=row,
         w=draw(81, 4, 4, 3), b=draw(82, 3))
    for name, size in (("up", (14, 18)), ("odd", (10, 4)), ("down", (1, 3))):
        resize = lambda mode, **o: to_nchw(lambda x: F.interpolate(x, size, mode=mode, **o))
        case("nearest_" + name, resize("nearest"), x=image)
        case("bilinear_" + name, resize("bilinear"), x=image)
        case("corners_" + name, resize("bilinear", align_corners=True), x=image)

    for correction in (0, 1, 2):
        case(f"var_{correction}", lambda x: x.var((1, 3), correction=correction), x=x)
    case("std", lambda x: x.std(1, correction=1), x=x)
    case("std_constant", lambda x: x.std(1, correction=1), x=torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.5, 3.0]]))
    case("logsumexp", lambda x: x.logsumexp(1), x=torch.tensor([[-math.inf, -1e4, 0.0], [1e4, 1e4, -math.inf]]))
    case("prod_zeros", lambda x: x.prod(1), x=torch.tensor([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]]))
    case("cumsum", lambda x: x.cumsum(1), x=draw(53, 3, 9))
    ties = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-1.0, 0.0, -0.0, -2.0]])
    case("amax_ties", lambda x: x.amax(1), x=ties)
    case("amin_ties", lambda x: x.amin(), x=ties)
    case("argmax_ties", lambda x: x.argmax(1), x=ties)
    case("argmin_nan", lambda x: x.argmin(1), x=torch.tensor([[1.0, -2.0, math.nan], [1.0, -2.0, -2.0]]))

    nan, inf = math.nan, math.inf
    mixed = torch.tensor([[3.0, nan, -1.0, 3.0, inf, 0.0, -0.0, -inf], [1.0, 1.0, 1.0, nan, 2.0, nan, 1.0, 0.0]])
    for name, down in (("up", False), ("down", True)):
        case("argsort_" + name, lambda x: x.sort(dim=1, descending=down, stable=True)[1], x=mixed)
        case("sort_" + name, lambda x: x.sort(dim=0, descending=down, stable=True)[0], x=draw(96, 9, 4))
    case("topk", lambda x: x.topk(4, 1)[0], x=draw(97, 3, 9))
    case("topk_smallest", lambda x: x.topk(2, 0, largest=False)[0], x=draw(97, 6, 3))
    a = torch.tensor([1.0, 2.0, 2.0, -1.0, nan, 1.0, inf, -inf, 0.0])
    b = torch.tensor([2.0, 1.0, 2.0, -1.0, 1.0, nan, inf, inf, -0.0])
    case("maximum", torch.maximum, input=a, other=b)
    case("minimum", torch.minimum, input=a, other=b)
    base = torch.tensor([2.0, 0.0, 0.0, 0.0, -2.0, -2.0, -2.0, 1.0, inf, 0.5, -0.0, nan])
    exponent = torch.tensor([3.0, 0.0, 2.0, -1.0, 2.0, 3.0, 0.5, nan, -1.0, inf, -3.0, 0.0])
    case("pow", torch.pow, input=base, exponent=exponent)
    for e in (2.0, 3.0, 0.5, -0.5, -1.0, 0.0, 1.0, 2.5):
        case(f"pow_scalar_{e}", lambda x: x.pow(e), x=torch.tensor([0.5, 2.0, 0.0, -3.0, 1.0, inf]))
    kinks = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, nan, 0.5, -0.5, 3.5])
    case("relu", torch.relu, input=kinks)
    # Ours keep NaN where sign and the gradients of abs and elu give a number for it, and clamp's gradient at its
    # bounds is 1, as it was in PyTorch until lately.
    case("abs", torch.abs, input=kinks.nan_to_num())
    case("clamp", lambda x: x.clamp(-1, 1), x=kinks.nan_to_num() * 0.75)
    case("sign", torch.sign, input=kinks.nan_to_num())
    case("round", torch.round, input=torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997]))
    case("elu", lambda x: F.elu(x, 1.5), x=kinks.nan_to_num())
    case("leaky_relu", lambda x: F.leaky_relu(x, 0.1), x=kinks)
    far = torch.tensor([-100.0, -20.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0, 100.0])
    for name, f in (("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")), ("silu", F.silu),
                    ("mish", F.mish), ("softplus", lambda x: F.softplus(x, threshold=1e9)),
                    ("sigmoid", torch.sigmoid), ("tanh", torch.tanh), ("log_sigmoid", None)):
        if f:
            case(name, lambda x: f(x), x=far)
    case("softmax", lambda x: x.softmax(1), x=torch.tensor([[1e4, 0.0, -1e4], [-inf, 0.0, 1.0], [3.0, 3.0, 3.0]]))
    case("log_softmax", lambda x: x.log_softmax(0), x=torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 1.0]]))
    case("where", lambda c, x, y: torch.where(c, x, y), c=torch.tensor([True, False, True]),
         x=torch.tensor([1.0, nan, 2.0]), y=torch.tensor([nan, 5.0, nan]))
    case("embedding", lambda i, w: F.embedding(i, w), i=torch.tensor([[0, 2], [2, 2]]), w=draw(54, 4, 3))
    case("gather", lambda x, i: x.gather(1, i), x=draw(55, 3, 4), i=torch.tensor([[0, 0, 3], [1, 2, 1], [3, 3, 3]]))
    case("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), x=draw(55, 3, 4),
         i=torch.tensor([[0, 0, 3], [1, 2, 1], [3, 3, 3]]), y=draw(56, 3, 3))
    case("atan", torch.atan, input=torch.tensor([-1e30, -3.0, -1.0, -1e-3, 0.0, 0.5, 1.0, 1.5, inf]))
    case("hardswish", F.hardswish, input=torch.tensor([-4.0, -3.0, -2.9, 0.0, 1.0, 3.0, 3.5]))
    case("prelu", lambda x, w: F.prelu(x, w[0]), x=kinks.nan_to_num(), w=torch.tensor([0.3]))
    case("prelu_channels", to_nchw(lambda x, w: F.prelu(x, w)), x=image, w=draw(64, 3))
    case("glu", lambda x: F.glu(x, 1), x=draw(65, 3, 4, 2))
    case("swiglu", lambda x, y: F.silu(x) * y, x=far, y=draw(66, 9))
    for k in (-2, 0, 1):
        case(f"tril_{k}", lambda x: x.tril(k), x=draw(67, 2, 3, 5))
        case(f"triu_{k}", lambda x: x.triu(k), x=draw(67, 2, 3, 5))
    apart = torch.tensor([-3.0, -0.5, 0.0, 0.25, 0.5, 1e-3, 9.0, inf])
    case("huber", lambda x, y: F.huber_loss(x, y, delta=0.5, reduction="sum"), x=apart, y=torch.zeros(8))
    case("smooth_l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), x=apart[:7], y=torch.zeros(7))
    shares = torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
    case("kl_div", lambda x, y: F.kl_div(x, y.detach(), reduction="batchmean"), x=draw(68, 2, 3), y=shares)
    case("kl_div_mean", lambda x, y: F.kl_div(x, y), x=draw(68, 2, 3), y=shares + 0.1)
    case("kl_div_log", lambda x, y: F.kl_div(x, y, log_target=True, reduction="sum"), x=draw(68, 2, 3),
         y=draw(69, 2, 3))
    near = draw(70, 4, 6)
    near[1], near[2] = 0, 1e-9
    case("cosine", lambda x, y: F.cosine_similarity(x, y, 1), x=near, y=draw(71, 4, 6))
    case("cosine_broadcast", lambda x, y: F.cosine_similarity(x, y, 0, 0.5), x=draw(70, 4, 6) * 0.3, y=draw(71, 4, 1))
    sides = dict(a=draw(72, 5, 6), p=draw(73, 5, 6), n=draw(74, 5, 6))
    case("triplet", lambda a, p, n: F.triplet_margin_loss(a, p, n), **sides)
    case("triplet_swap", lambda a, p, n: F.triplet_margin_loss(a, p, n, 0.7, swap=True, reduction="none"), **sides)
    q, k, v = draw(57, 2, 3, 5, 4), draw(58, 2, 3, 7, 4), draw(59, 2, 3, 7, 6)
    sdpa = F.scaled_dot_product_attention
    case("attention", lambda q, k, v: sdpa(q, k, v), q=q, k=k, v=v)
    case("attention_causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), q=draw(60, 2, 7, 4), k=k[:, 0], v=v[:, 0])
    few = dict(q=draw(83, 2, 6, 5, 8), k=draw(84, 2, 2, 7, 8), v=draw(85, 2, 2, 7, 8))
    case("attention_grouped", lambda q, k, v: sdpa(q, k, v, enable_gqa=True), **few)
    case("einsum", lambda x, y: torch.einsum("bhtd,bshd->bhts", x, y), x=draw(86, 2, 3, 4, 5), y=draw(87, 2, 6, 3, 5))
    case("einsum_implicit", lambda x, y: torch.einsum("ca,bc", x, y), x=draw(86, 3, 4), y=draw(87, 5, 3))
    case("einsum_three", lambda x, y, z: torch.einsum("ij,j,kj->ki", x, y, z), x=draw(86, 3, 4), y=draw(87, 4),
         z=draw(88, 2, 4))

    def rotary(x, start, base, interleaved):
        """As in the code of LLaMA (in pairs) and of Hugging Face (in halves)."""
        t, d = x.shape[-2:]
        angle = torch.outer(torch.arange(start, start + t).double(), base ** (-torch.arange(0, d, 2).double() / d))
        c, s = angle.cos(), angle.sin()
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        turned = [a * c - b * s, b * c + a * s]
        return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)

    case("rotary", lambda x: rotary(x, 9, 10000.0, False), x=draw(89, 2, 3, 5, 8))
    case("rotary_pairs", lambda x: rotary(x, 0, 500.0, True), x=draw(89, 3, 5, 6))
    mask = torch.arange(35).reshape(5, 7) % 3 != 0
    case("attention_mask", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m, scale=0.3), q=q, k=k, v=v, m=mask)
    # A query that sees nothing; of a size that has kernels of our own.
    seen = torch.arange(108).reshape(9, 12) % 3 != 0
    seen[7] = False
    wide, added = dict(q=draw(61, 9, 32), k=draw(62, 12, 32), v=draw(63, 12, 32)), torch.zeros(9, 12).masked_fill(~seen, -inf)
    case("attention_blind", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), **wide, m=seen)
    case("attention_blind_added", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), **wide, m=added)
    case("attention_blind_fixed", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m.detach()), **wide, m=added)
    save(folder + "/ops.safetensors", ops)


# ---- elementwise operators where there is little to round ----


def make_special():
    """float32 results and gradients of elementwise operators, and of reductions of rows, at values where they are
    easy to get wrong. Here in float32, so that what overflows does."""
    out = {}
    inf, nan, top = math.inf, math.nan, 3.4028235e38
    values = [0.0, 1e-45, 1e-38, 1e-20, 0.5, 1, 1.5, 2, 3, 8.5, 17, 30, 89, 104, 1e10, 1e20, top, inf]
    x = torch.tensor([nan] + [s * v for v in values for s in (1, -1)], dtype=torch.float32)
    few = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1e-20, 0.5, 1, -1, 2, -2, 3, 2.5, 1e20, -1e20, top, -top])
    a, b = (v.flatten() for v in torch.meshgrid(few, few, indexing="ij"))
    rows = [[nan, 1, 0, 2], [nan, nan, 0, 0], [nan, inf, 1, 2], [inf, 1, 2, 3], [-inf, 1, 2, 3], [inf, -inf, 0, 1]]
    rows += [[-inf] * 4, [inf] * 4, [0] * 4, [2] * 4, [0, 0, 1, 2], [0, 1, 2, 3], [1e-24, 2e-24, 3e-24, 4e-24]]
    rows += [[1e20, 2e20, 3e20, 1e20], [4096, 4100, 4104, 4096], [88, 89, 90, 91], [3, 3, 1, 3], [1e20, 1e20, 1, 1]]

    def put(name, fn, *args):
        args = [v.clone().requires_grad_() for v in args]
        y = fn(*args)
        got = torch.autograd.grad(y, args, torch.ones_like(y), allow_unused=True)
        out[name] = y
        for i, g in enumerate(got):
            out["%s.%d" % (name, i)] = g if g is not None else torch.zeros_like(args[i])

    out["x"], out["a"], out["b"], out["rows"] = x, a, b, torch.tensor(rows, dtype=torch.float32)
    one = {name: getattr(torch, name) for name in (
        "neg abs exp log log1p expm1 sqrt rsqrt reciprocal square sin cos tanh erf sigmoid relu floor ceil round trunc"
        " sign").split()}
    one.update(ndtr=torch.special.ndtr, silu=F.silu, gelu=F.gelu, mish=F.mish, elu=F.elu, softplus=F.softplus)
    one["gelu_tanh"] = lambda v: F.gelu(v, approximate="tanh")
    one["leaky_relu"] = lambda v: F.leaky_relu(v, 0.25)
    one["clamp"] = lambda v: v.clamp(-1, 2)
    one["clamp_low"] = lambda v: v.clamp(min=-1)
    one["clamp_high"] = lambda v: v.clamp(max=2)
    for e in (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
        one["pow_%g" % e] = lambda v, e=e: v.pow(e)
    for name, fn in one.items():
        put(name, fn, x)
    for name in "add sub mul div pow maximum minimum".split():
        put(name, getattr(torch, name), a, b)
    put("where", lambda v, w: torch.where(v > 0, v, w), a, b)
    for name in "sum mean prod amax amin logsumexp var std".split():
        put(name + "_row", lambda v, f=getattr(torch, name): f(v, 1), out["rows"])
    put("std_0_row", lambda v: v.std(1, correction=0), out["rows"])
    save(folder + "/special.safetensors", out)


# In the order of TN_F32 .. TN_BOOL.
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8,
          torch.bool]


def make_promotion():
    """Result dtypes as numbers, -1 where PyTorch refuses: of all pairs of tensors, of tensors with a 0-d one (name.0d),
    of single tensors, of tensors with C-like numbers."""
    promotion = {}
    one = lambda d, *shape: torch.ones(shape, dtype=d)

    def dtype_of(f):
        try:
            return DTYPES.index(f().dtype)
        except RuntimeError:
            return -1

    def pairs(name, f, shape, second):
        promotion[name] = torch.tensor([[dtype_of(lambda: f(one(a, *shape), one(b, *second))) for b in DTYPES]
                                        for a in DTYPES], dtype=torch.int32)

    for name in ["add", "sub", "mul", "div", "maximum", "minimum", "pow", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
                 "logical_or", "logical_xor"]:
        pairs(name, getattr(torch, name), (2,), (2,))
        pairs(name + ".0d", getattr(torch, name), (2,), ())
    pairs("matmul", torch.matmul, (2, 2), (2, 2))
    pairs("where", lambda x, y: torch.where(one(torch.bool, 2), x, y), (2,), (2,))
    single = lambda f: torch.tensor([dtype_of(lambda: f(one(a, 2))) for a in DTYPES], dtype=torch.int32)
    for name in ["exp", "square", "sign", "neg", "relu", "logical_not", "isnan", "sum", "prod", "argmax", "any", "all"]:
        promotion[name] = single(getattr(torch, name))
    promotion["max"] = single(lambda x: x.max())
    promotion["cumsum"] = single(lambda x: x.cumsum(0))
    promotion["clamp"] = single(lambda x: x.clamp(0, 1))
    promotion["clamp_float"] = single(lambda x: x.clamp(0.5, 1.5))
    promotion["add_int"] = single(lambda x: x + 2)
    promotion["add_float"] = single(lambda x: x + 2.5)
    promotion["div_int"] = single(lambda x: x / 2)
    promotion["gt_int"] = single(lambda x: x > 2)
    return promotion


folder = sys.argv[1] if len(sys.argv) > 1 else sys.path[0]
make_optim()
make_cnn()
make_transformer()
make_layers()
make_ops()
make_special()
save(folder + "/promotion.safetensors", make_promotion())

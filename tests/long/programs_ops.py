"""What programs_torch.py puts together: each operator as PyTorch has it and as this library does, with operands that fit."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
import numpy as np
import torch
import torch.nn.functional as F

import libtensor as lt

FLOAT = (torch.float32, torch.float64)
NP = {torch.float32: "f4", torch.float64: "f8", torch.int32: "i4", torch.int64: "i8", torch.uint8: "u1", torch.bool: "?"}


class Value:
    """t: PyTorch's; wide: the same with floating values in f64; leaf: numpy, of what goes in; deep: rounding may show."""
    def __init__(self, t, wide, leaf=None, made=None, deep=False):
        self.t, self.wide, self.leaf, self.made, self.deep = t, wide, leaf, made, deep


leaves = []  # of the program that is being made


def const(r, shape, dt):
    g = np.random.default_rng(r.randrange(1 << 30))
    if dt == torch.bool:
        a = g.random(shape) < .6
    elif dt in FLOAT:
        a = (g.standard_normal(shape) * r.choice([1, 1, .3, 3]) + r.choice([0, 0, 0, 2])).astype(NP[dt])
        if r.random() < .15:  # equal elements
            a = np.round(a)
    else:
        a = g.integers(0 if dt == torch.uint8 else -5, 9, shape).astype(NP[dt])
    return leaf(a)


def ints(r, shape, n, dt):
    return leaf(np.random.default_rng(r.randrange(1 << 30)).integers(0, n, shape).astype(NP[dt]))


def leaf(a):
    a = np.asarray(a)
    t = torch.from_numpy(a.copy())
    w = t.double() if isf(t) else t.clone()
    if isf(t):
        t.requires_grad_()
        w = w.detach().requires_grad_()
    v = Value(t, w, leaf=a)
    leaves.append(v)
    return v


class Skip(Exception):
    pass


def isf(t):
    return t.dtype in FLOAT


def nchw(x):
    return x.permute(0, 3, 1, 2)


def nhwc(x):
    return x.permute(0, 2, 3, 1)


# Each takes the random generator and a function that picks a value by a predicate, and gives the operands, PyTorch's function
# of them and this library's. Constants are made in there.
GENS = []


def gen(weight=1):
    def add(f):
        GENS.extend([f] * weight)
        return f
    return add


UNARY = dict(neg=torch.neg, abs=torch.abs, exp=lambda x: torch.exp(x), log=lambda x: torch.log(x), log1p=torch.log1p, expm1=torch.expm1,
             sqrt=torch.sqrt, rsqrt=torch.rsqrt, reciprocal=torch.reciprocal, square=torch.square, sin=torch.sin, cos=torch.cos,
             atan=torch.atan, tanh=torch.tanh, erf=torch.erf, ndtr=torch.special.ndtr, sigmoid=torch.sigmoid, relu=torch.relu,
             silu=F.silu, gelu=F.gelu, gelu_tanh=lambda x: F.gelu(x, approximate="tanh"), softplus=lambda x: F.softplus(x, threshold=1000),
             mish=F.mish, hardswish=F.hardswish, sign=torch.sign, floor=torch.floor, ceil=torch.ceil, round=torch.round, trunc=torch.trunc,
             isnan=torch.isnan, isfinite=torch.isfinite, logical_not=torch.logical_not)

@gen(5)
def unary(r, pick):
    n = r.choice(list(UNARY))
    x = pick(lambda t: isf(t) or n in ("neg", "abs", "sign", "square", "relu", "isnan", "isfinite", "logical_not", "exp", "sqrt", "sigmoid"))
    if n in ("floor", "ceil", "round", "trunc") and x.deep:
        raise Skip
    if x.t.dtype in (torch.bool, torch.uint8) and n in ("neg", "abs", "square", "relu", "sign"):
        raise Skip
    return n, [x], UNARY[n], lambda a: lt.op(n, a)

@gen(3)
def unary_numbers(r, pick):
    n = r.choice(["leaky_relu", "elu", "clamp", "pow_scalar", "softmax", "log_softmax", "cumsum"])
    x = pick(lambda t: isf(t) and t.dim() > 0)
    v = round(r.uniform(-1.5, 2), 2)
    if n == "leaky_relu":
        return n, [x], lambda a: F.leaky_relu(a, v), lambda a: lt.leaky_relu(a, v)
    if n == "elu":
        v = abs(v) + .1
        return n, [x], lambda a: F.elu(a, v), lambda a: lt.elu(a, v)
    if n == "clamp":
        lo, hi = v, v + abs(round(r.uniform(0.1, 2), 2))
        if r.random() < .3:
            return n, [x], lambda a: a.clamp(min=lo), lambda a: lt.clamp(a, lo, math.nan)
        return n, [x], lambda a: a.clamp(lo, hi), lambda a: lt.clamp(a, lo, hi)
    if n == "pow_scalar":
        e = r.choice([2, 3, .5, -.5, -1, 1.7, 0, 1, 4, -2])
        return n, [x], lambda a: a.pow(e), lambda a: lt.pow_scalar(a, e)
    ax = r.randrange(-x.t.dim(), x.t.dim())
    return n, [x], lambda a: getattr(torch, n)(a, ax), lambda a: lt.op(n, a, ax)


BIN = dict(add=torch.add, sub=torch.sub, mul=torch.mul, div=torch.div, maximum=torch.maximum, minimum=torch.minimum, pow=torch.pow,
           eq=torch.eq, ne=torch.ne, lt=torch.lt, le=torch.le, gt=torch.gt, ge=torch.ge, logical_and=torch.logical_and,
           logical_or=torch.logical_or, logical_xor=torch.logical_xor)


def broadcasts(a, b):
    try:
        return math.prod(torch.broadcast_shapes(a.shape, b.shape)) <= 4000
    except RuntimeError:
        return False

@gen(8)
def binary(r, pick):
    n = r.choice(list(BIN)[:7] * 3 + list(BIN)[7:])
    x = pick(lambda t: True)
    y = pick(lambda t: broadcasts(x.t, t))
    if n == "pow":
        if not isf(x.t) or not isf(y.t):
            raise Skip
        return n, [x, y], lambda a, b: torch.pow(a.abs() + .5, torch.tanh(b)), lambda a, b: lt.pow(lt.abs(a) + .5, lt.tanh(b))
    if n in ("eq", "ne", "lt", "le", "gt", "ge") and (x.deep or y.deep) and (isf(x.t) or isf(y.t)):
        raise Skip
    both = x.t.dtype == torch.bool and y.t.dtype == torch.bool
    if both and n in ("sub", "div"):
        raise Skip
    return n, [x, y], BIN[n], lambda a, b: lt.op(n, a, b)

@gen(4)
def scalar(r, pick):
    n = r.choice(["add", "sub", "rsub", "mul", "div", "rdiv", "maximum", "minimum", "eq", "lt", "gt"])
    x = pick(lambda t: t.dtype != torch.bool)
    whole = r.random() < .4
    v = r.randrange(-3, 5) if whole else round(r.uniform(-3, 3), 2)
    if n in ("eq", "lt", "gt") and x.deep:
        raise Skip
    if n in ("div",) and v == 0:
        raise Skip
    if x.t.dtype == torch.uint8 and v < 0:
        raise Skip
    f = {"add": lambda a: a + v, "sub": lambda a: a - v, "rsub": lambda a: v - a, "mul": lambda a: a * v, "div": lambda a: a / v,
         "rdiv": lambda a: v / a, "maximum": lambda a: torch.maximum(a, torch.tensor(v, dtype=a.dtype if isf(a) or whole else torch.float32)),
         "minimum": lambda a: torch.minimum(a, torch.tensor(v, dtype=a.dtype if isf(a) or whole else torch.float32)), "eq": lambda a: a == v, "lt": lambda a: a < v,
         "gt": lambda a: a > v}[n]
    return n + "_scalar", [x], f, lambda a: lt.op(n + "_scalar", a, v)

@gen(1)
def where(r, pick):
    c, x = pick(lambda t: t.dtype == torch.bool), pick(isf)
    y = pick(lambda t: isf(t) and broadcasts(x.t, t))
    if not broadcasts(c.t, torch.empty(torch.broadcast_shapes(x.t.shape, y.t.shape))):
        raise Skip
    return "where", [c, x, y], torch.where, lt.where

@gen(1)
def lerp(r, pick):
    x = pick(isf)
    y = pick(lambda t: t.dtype == x.t.dtype and broadcasts(x.t, t))
    w = pick(lambda t: t.dtype == x.t.dtype and broadcasts(t, torch.empty(torch.broadcast_shapes(x.t.shape, y.t.shape))))
    return "lerp", [x, y, w], lambda a, b, c: a + c * (b - a), lt.lerp

@gen(4)
def reduce(r, pick):
    n = r.choice(["sum", "mean", "prod", "max", "min", "var", "std", "logsumexp", "any", "all"])
    x = pick(lambda t: (isf(t) or n in ("sum", "any", "all", "max", "min", "prod")) and t.dim() > 0 and t.numel() > 0)
    if x.t.dtype == torch.bool and n in ("max", "min", "prod") or x.t.dtype == torch.uint8 and n in ("any", "all"):
        raise Skip
    axes = sorted(r.sample(range(x.t.dim()), r.randint(1, x.t.dim())))
    k = r.random() < .5
    given = [a - x.t.dim() if r.random() < .5 else a for a in axes]
    if n in ("var", "std"):
        cor = r.choice([0, 1])
        if math.prod(x.t.shape[a] for a in axes) <= cor:
            raise Skip
        return n, [x], lambda a: getattr(torch, n)(a, axes, correction=cor, keepdim=k), lambda a: lt.op(n, a, given, k, cor)
    if n == "prod":
        def f(a):
            for ax in reversed(axes):
                a = a.prod(ax, keepdim=True)
            return a if k else a.reshape([d for i, d in enumerate(a.shape) if i not in axes])
        return n, [x], f, lambda a: lt.prod(a, given, k)
    f = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp,
         "any": torch.any, "all": torch.all}[n]
    return n, [x], lambda a: f(a, axes, keepdim=k), lambda a: lt.op(n, a, given, k)

@gen(2)
def order(r, pick):
    n = r.choice(["argmax", "argmin", "sort", "argsort", "topk"])
    x = pick(lambda t: isf(t) and t.dim() > 0 and t.numel() > 0)
    if x.deep and n != "sort" and n != "topk":
        raise Skip
    ax = r.randrange(-x.t.dim(), x.t.dim())
    k, d = r.random() < .5, r.random() < .5
    if n in ("argmax", "argmin"):
        return n, [x], lambda a: getattr(torch, n)(a, ax, keepdim=k), lambda a: lt.op(n, a, ax, k)
    if n == "sort":
        return n, [x], lambda a: a.sort(ax, descending=d, stable=True).values, lambda a: lt.sort(a, ax, d)[0]
    if n == "argsort":
        return n, [x], lambda a: a.argsort(ax, descending=d, stable=True), lambda a: lt.argsort(a, ax, d)
    c = r.randint(1, x.t.shape[ax])
    if len(x.t.unique()) < x.t.numel():  # which of equals PyTorch takes is not said
        raise Skip
    return n, [x], lambda a: a.topk(c, ax, largest=not d).values, lambda a: lt.topk(a, c, ax, d)[0]

@gen(8)
def view(r, pick):
    n = r.choice(["reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "expand", "slice", "narrow", "select", "flip", "pad",
                  "contiguous", "tril", "triu"])
    x = pick(lambda t: t.dim() > 0 and t.numel() > 0)
    t, d = x.t, x.t.dim()
    ax = r.randrange(-d, d)
    if n == "reshape":
        m, s = t.numel(), []
        while m > 1 and len(s) < 3:
            f = r.choice([k for k in range(1, m + 1) if m % k == 0])
            s.append(f)
            m //= f
        s.append(m)
        r.shuffle(s)
        g = list(s)
        if r.random() < .5:
            g[r.randrange(len(g))] = -1
        return n, [x], lambda a: a.reshape(s), lambda a: lt.reshape(a, g)
    if n == "flatten":
        k = r.randrange(d)
        return n, [x], lambda a: a.flatten(k), lambda a: lt.flatten(a, k)
    if n == "squeeze":
        x = pick(lambda t: 1 in t.shape)
        ax = r.choice([i for i, e in enumerate(x.t.shape) if e == 1])
        return n, [x], lambda a: a.squeeze(ax), lambda a: lt.squeeze(a, ax)
    if n == "unsqueeze":
        if d > 4:
            raise Skip
        ax = r.randrange(-d - 1, d + 1)
        return n, [x], lambda a: a.unsqueeze(ax), lambda a: lt.unsqueeze(a, ax)
    if n == "permute":
        o = r.sample(range(d), d)
        return n, [x], lambda a: a.permute(o), lambda a: lt.permute(a, o)
    if n == "transpose":
        b = r.randrange(-d, d)
        return n, [x], lambda a: a.transpose(ax, b), lambda a: lt.transpose(a, ax, b)
    if n == "expand":
        x = pick(lambda t: 1 in t.shape and t.numel() < 500)
        s = [r.randint(1, 3) if e == 1 else e for e in x.t.shape]
        if r.random() < .4 and len(s) < 4:
            s = [r.randint(1, 3)] + s
        return n, [x], lambda a: a.expand(s), lambda a: lt.expand(a, s)
    e = t.shape[ax]
    if n == "slice":
        step = r.choice([1, 1, 2, 3, -1, -2])
        if step < 0:
            st, en = r.randrange(e), None
            idx = list(range(st, -1, step))
            return n, [x], lambda a: a.index_select(ax, torch.tensor(idx)), lambda a: lt.slice(a, ax, st, -e - 1, step)
        st, en = r.randrange(-e, e), r.randint(-e, e + 2)
        idx = list(range(e))[st:en:step]
        if not idx:
            raise Skip
        return n, [x], lambda a: a.index_select(ax, torch.tensor(idx)), lambda a: lt.slice(a, ax, st, en, step)
    if n == "narrow":
        st = r.randrange(e)
        le = r.randint(1, e - st)
        return n, [x], lambda a: a.narrow(ax, st, le), lambda a: lt.narrow(a, ax, st, le)
    if n == "select":
        i = r.randrange(-e, e)
        return n, [x], lambda a: a.select(ax, i), lambda a: lt.select(a, ax, i)
    if n == "flip":
        axes = r.sample(range(d), r.randint(1, d))
        return n, [x], lambda a: a.flip(axes), lambda a: lt.flip(a, axes)
    if n == "pad":
        if not isf(t):
            raise Skip
        b, f, v = r.randint(0, 2), r.randint(0, 2), round(r.uniform(-1, 1), 1)
        p = [0, 0] * (d - 1 - ax % d) + [b, f]
        return n, [x], lambda a: F.pad(a, p, value=v), lambda a: lt.pad(a, ax, b, f, v)
    if n in ("tril", "triu"):
        if d < 2:
            raise Skip
        k = r.randint(-3, 3)
        return n, [x], lambda a: getattr(torch, n)(a, k), lambda a: lt.op(n, a, k)
    return n, [x], lambda a: a.contiguous(), lambda a: lt.contiguous(a)

@gen(2)
def join(r, pick):
    n = r.choice(["concat", "stack"])
    x = pick(lambda t: t.dim() > 0 and t.numel() < 800)
    ax = r.randrange(x.t.dim())
    like = lambda t: t.dim() == x.t.dim() and t.dtype == x.t.dtype and all(
        a == b or (n == "concat" and i == ax) for i, (a, b) in enumerate(zip(t.shape, x.t.shape)))
    xs = [x] + [pick(like) for _ in range(r.randint(0, 2))]
    f = torch.cat if n == "concat" else torch.stack
    return n, xs, lambda *a: f(a, ax), lambda *a: lt.op(n, list(a), ax)

@gen(2)
def split(r, pick):
    x = pick(lambda t: t.dim() > 0)
    ax = r.randrange(x.t.dim())
    n = r.choice([k for k in (1, 2, 3, 4) if x.t.shape[ax] % k == 0])
    i = r.randrange(n)
    return "split", [x], lambda a: a.chunk(n, ax)[i] if n > 1 else a + 0 if isf(a) else a.clone(), lambda a: split_of(a, n, ax)[i]


def split_of(a, n, ax):
    k = a.shape[ax] // n
    return [lt.slice(a, ax, i * k, (i + 1) * k, 1) for i in range(n)]

@gen(4)
def product(r, pick):
    x = pick(lambda t: isf(t) and t.dim() > 0)
    if r.random() < .5:
        y = pick(lambda t: t.dtype == x.t.dtype and t.dim() > 0 and t.shape[-2 if t.dim() > 1 else -1] == x.t.shape[-1])
        return "matmul", [x, y], torch.matmul, lt.matmul
    k, o = x.t.shape[-1], r.randint(1, 5)
    w, b = const(r, (o, k), x.t.dtype), const(r, (o,), x.t.dtype)
    if r.random() < .3:
        return "affine", [x, w], F.linear, lambda a, b: lt.affine(a, b, None)
    return "affine", [x, w, b], F.linear, lt.affine

@gen(2)
def einsum(r, pick):
    x = pick(lambda t: isf(t) and 1 <= t.dim() <= 3)
    y = pick(lambda t: t.dtype == x.t.dtype and 1 <= t.dim() <= 3)
    names, size = "", {}
    a = "".join("ijk"[:x.t.dim()])
    size = dict(zip(a, x.t.shape))
    b = ""
    for e in y.t.shape:
        same = [c for c in size if size[c] == e and c not in b]
        c = r.choice(same) if same and r.random() < .6 else next(c for c in "lmnopq" if c not in size)
        size[c] = e
        b += c
    if math.prod(size.values()) > 20000:
        raise Skip
    out = [c for c in size if r.random() < .6]
    r.shuffle(out)
    if math.prod(size[c] for c in out) > 2000:
        raise Skip
    eq = a + "," + b + "->" + "".join(out)
    return "einsum " + eq, [x, y], lambda p, q: torch.einsum(eq, p, q), lambda p, q: lt.einsum(eq, [p, q])

@gen(3)
def conv(r, pick):
    n = r.choice(["conv2d", "conv1d", "conv_transpose2d", "conv_transpose1d"])
    two, turned = n.endswith("2d"), "transpose" in n
    x = pick(lambda t: isf(t) and t.dim() == (4 if two else 3) and t.shape[-1] <= 8 and t.numel() > 0)
    c = x.t.shape[-1]
    g = r.choice([k for k in range(1, c + 1) if c % k == 0])
    s, p, d = r.randint(1, 3), r.randint(0, 2), r.randint(1, 2)
    opad = r.randrange(s) if turned else 0
    k = [r.randint(1, 3) for _ in range(2 if two else 1)]
    per = r.randint(1, 3)
    o = per * g
    w = const(r, (c, *k, per) if turned else (o, *k, c // g), x.t.dtype)
    b = const(r, (o,), x.t.dtype)
    f = getattr(F, n)
    fwd = (lambda a: a.permute(0, 3, 1, 2) if two else a.permute(0, 2, 1))
    back = (lambda a: a.permute(0, 2, 3, 1) if two else a.permute(0, 2, 1))
    more = dict(output_padding=opad) if turned else {}
    if opad >= max(s, d) and opad:
        raise Skip
    given = dict(stride=s, pad=p, dilation=d, groups=g)
    if turned:
        given["output_pad"] = opad
    def torch_f(a, w, b=None):
        return back(f(fwd(a), fwd(w), b, stride=s, padding=p, dilation=d, groups=g, **more))
    if r.random() < .3:
        return n, [x, w], torch_f, lambda a, w: lt.op(n, a, w, None, **given)
    return n, [x, w, b], torch_f, lambda a, w, b: lt.op(n, a, w, b, **given)

@gen(2)
def pool(r, pick):
    n = r.choice(["max_pool2d", "avg_pool2d", "global_avg_pool2d", "resize_nearest", "resize_bilinear"])
    x = pick(lambda t: isf(t) and t.dim() == 4 and t.numel() > 0)
    if n == "global_avg_pool2d":
        return n, [x], lambda a: a.mean((1, 2)), lt.global_avg_pool2d
    if n.startswith("resize"):
        h, w, al = r.randint(1, 6), r.randint(1, 6), r.random() < .5
        if n == "resize_nearest":
            return n, [x], lambda a: nhwc(F.interpolate(nchw(a), (h, w))), lambda a: lt.resize_nearest(a, h, w)
        return n, [x], lambda a: nhwc(F.interpolate(nchw(a), (h, w), mode="bilinear", align_corners=al)), lambda a: lt.resize_bilinear(a, h, w, al)
    k, s = r.randint(1, 3), r.randint(1, 3)
    p, ce, ex = r.randint(0, k // 2), r.random() < .5, r.random() < .5
    if n == "max_pool2d":
        return n, [x], lambda a: nhwc(F.max_pool2d(nchw(a), k, s, p, ceil_mode=ce)), lambda a: lt.max_pool2d(a, k, stride=s, pad=p, ceil_mode=ce)
    return n, [x], lambda a: nhwc(F.avg_pool2d(nchw(a), k, s, p, ceil_mode=ce, count_include_pad=not ex)), lambda a: lt.avg_pool2d(
        a, k, stride=s, pad=p, ceil_mode=ce, exclude_pad=ex)

@gen(3)
def index(r, pick):
    n = r.choice(["gather", "scatter_add", "index_select", "embedding", "one_hot"])
    it = r.choice([torch.int32, torch.int64])
    if n == "one_hot":
        c = r.randint(2, 5)
        i = ints(r, (r.randint(1, 4), r.randint(1, 4)), c, it)
        return n, [i], lambda a: F.one_hot(a.long(), c).float(), lambda a: lt.one_hot(a, c)
    x = pick(lambda t: isf(t) and t.dim() > 0 and t.numel() > 0 and t.dim() < 4)
    ax = r.randrange(x.t.dim())
    e = x.t.shape[ax]
    if n == "index_select":
        i = ints(r, (r.randint(1, 6),), e, it)
        return n, [x, i], lambda a, i: a.index_select(ax, i), lambda a, i: lt.index_select(a, ax, i)
    if n == "embedding":
        if x.t.dim() != 2:
            raise Skip
        i = ints(r, (r.randint(1, 4), r.randint(1, 4)), x.t.shape[0], it)
        return n, [x, i], lambda a, i: F.embedding(i.long(), a), lt.embedding
    s = list(x.t.shape)
    s[ax] = r.randint(1, 5)
    i = ints(r, s, e, it)
    if n == "gather":
        return n, [x, i], lambda a, i: a.gather(ax, i.long()), lambda a, i: lt.gather(a, ax, i)
    v = const(r, s, x.t.dtype)
    return n, [x, i, v], lambda a, i, v: a.scatter_add(ax, i.long(), v), lambda a, i, v: lt.scatter_add(a, ax, i, v)

@gen(3)
def norm(r, pick):
    n = r.choice(["layer_norm", "rms_norm", "group_norm", "batch_norm", "prelu", "glu", "swiglu"])
    x = pick(lambda t: isf(t) and t.dim() >= 2 and t.shape[-1] > 1 and t.numel() / t.shape[-1] > 1)
    c, dt = x.t.shape[-1], x.t.dtype
    w, b = const(r, (c,), dt), const(r, (c,), dt)
    if n == "layer_norm":
        return n, [x, w, b], lambda a, w, b: F.layer_norm(a, (c,), w, b, 1e-5), lt.layer_norm
    if n == "rms_norm":
        return n, [x, w], lambda a, w: F.rms_norm(a, (c,), w, 1e-5), lt.rms_norm
    if n == "batch_norm":
        return n, [x, w, b], lambda a, w, b: F.batch_norm(a.reshape(-1, c), None, None, w, b, True).reshape(a.shape), lambda a, w, b: lt.batch_norm(a, w, b, None, None)
    if n == "group_norm":
        if x.t.dim() < 3:
            raise Skip
        g = r.choice([k for k in range(1, c + 1) if c % k == 0])
        if x.t[0].numel() // g < 2:
            raise Skip
        return n, [x, w, b], lambda a, w, b: F.group_norm(a.movedim(-1, 1), g, w, b).movedim(1, -1), lambda a, w, b: lt.group_norm(a, g, w, b)
    if n == "prelu":
        return n, [x, w], lambda a, w: torch.where(a > 0, a, w * a), lt.prelu
    if n == "glu":
        ax = r.choice([i for i, e in enumerate(x.t.shape) if e % 2 == 0] or [None])
        if ax is None:
            raise Skip
        return n, [x], lambda a: F.glu(a, ax), lambda a: lt.glu(a, ax)
    y = pick(lambda t: t.shape == x.t.shape and t.dtype == dt)
    return n, [x, y], lambda a, b: F.silu(a) * b, lt.swiglu


RED = ["mean", "sum", "none"]

@gen(3)
def loss(r, pick):
    n = r.choice(["cross_entropy", "nll_loss", "mse_loss", "l1_loss", "bce_with_logits", "huber_loss", "smooth_l1_loss", "kl_div",
                  "cosine_similarity", "triplet_margin_loss", "cross_entropy_shares"])
    x = pick(lambda t: isf(t) and t.dim() >= 1 and t.shape[-1] > 1 and t.numel() > 0)
    red = r.randrange(3)
    c, dt = x.t.shape[-1], x.t.dtype
    if n in ("cross_entropy", "nll_loss"):
        l = ints(r, x.t.shape[:-1], c, torch.int64)
        ig = r.choice([None, 0, 1])
        sm = r.choice([0, .1]) if n == "cross_entropy" else 0
        given = dict(reduction=red)
        if ig is not None:
            given.update(use_ignore_index=True, ignore_index=ig)
            if (l.t == ig).all():
                raise Skip
        if sm:
            given["label_smoothing"] = sm
        more = dict(label_smoothing=sm) if sm else {}
        f = getattr(F, n)
        return n, [x, l], lambda a, l: f(a.reshape(-1, c), l.reshape(-1), ignore_index=-100 if ig is None else ig, reduction=RED[red], **more).reshape(
            l.shape if red == 2 else ()), lambda a, l: lt.op(n, a, l, **given)
    if n == "cross_entropy_shares":
        y = const(r, x.t.shape, dt)
        return n, [x, y], lambda a, b: F.cross_entropy(a.reshape(-1, c), b.softmax(-1).reshape(-1, c), reduction=RED[red]).reshape(
            a.shape[:-1] if red == 2 else ()), lambda a, b: lt.cross_entropy(a, lt.softmax(b, -1), reduction=red)
    y = pick(lambda t: t.shape == x.t.shape and t.dtype == dt) if r.random() < .5 else const(r, x.t.shape, dt)
    d = round(r.uniform(.2, 2), 1)
    if n in ("mse_loss", "l1_loss"):
        return n, [x, y], lambda a, b: getattr(F, n)(a, b, reduction=RED[red]), lambda a, b: lt.op(n, a, b, reduction=red)
    if n == "bce_with_logits":
        return n, [x, y], lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction=RED[red]), lambda a, b: lt.bce_with_logits(a, b, reduction=red)
    if n == "huber_loss":
        return n, [x, y], lambda a, b: F.huber_loss(a, b, RED[red], d), lambda a, b: lt.huber_loss(a, b, reduction=red, delta=d)
    if n == "smooth_l1_loss":
        return n, [x, y], lambda a, b: F.smooth_l1_loss(a, b, reduction=RED[red], beta=d), lambda a, b: lt.smooth_l1_loss(a, b, reduction=red, delta=d)
    if n == "kl_div":
        k = r.choice([0, 1, 2, 3])
        log = r.random() < .5
        return n, [x, y], lambda a, b: F.kl_div(a, b if log else b.softmax(-1), log_target=log, reduction=(RED + ["batchmean"])[k]), lambda a, b: lt.kl_div(
            a, b if log else lt.softmax(b, -1), reduction=k, log_target=log)
    if n == "cosine_similarity":
        ax = r.randrange(x.t.dim())
        return n, [x, y], lambda a, b: F.cosine_similarity(a, b, ax), lambda a, b: lt.cosine_similarity(a, b, ax, 0)
    z = const(r, x.t.shape, dt)
    sw = r.random() < .5
    return n, [x, y, z], lambda a, b, c: F.triplet_margin_loss(a, b, c, d, swap=sw, reduction=RED[red]), lambda a, b, c: lt.triplet_margin_loss(
        a, b, c, margin=d, swap=sw, reduction=red)

@gen(2)
def attend(r, pick):
    b, h, t, k, d = r.randint(1, 2), r.choice([1, 2, 4]), r.randint(1, 6), r.randint(1, 6), r.choice([2, 4, 8])
    kv = r.choice([x for x in (1, 2, 4) if h % x == 0])
    dt = r.choice(FLOAT)
    q, key, v = const(r, (b, h, t, d), dt), const(r, (b, kv, k, d), dt), const(r, (b, kv, k, d), dt)
    kind = r.choice(["none", "causal", "bool", "add"])
    sc = r.choice([None, .3])
    m = None
    ops = [q, key, v]
    if kind == "bool":
        m = const(r, (t, k), torch.bool)
    if kind == "add":
        m = const(r, (h, t, k), dt)
    if m:
        ops.append(m)
    def f(q, key, v, *m):
        key, v = key.repeat_interleave(h // kv, 1), v.repeat_interleave(h // kv, 1)
        s = q @ key.transpose(-1, -2) * (sc or d ** -.5)
        if kind == "causal":
            s = s.masked_fill(~torch.ones(t, k, dtype=torch.bool).tril(), -math.inf)
        if kind == "bool":
            s = s.masked_fill(~m[0], -math.inf)
        if kind == "add":
            s = s + m[0]
        dead = torch.isinf(s).all(-1, keepdim=True)
        return torch.where(dead, torch.zeros((), dtype=s.dtype), torch.where(dead, torch.zeros((), dtype=s.dtype), s).softmax(-1)) @ v
    given = dict(causal=kind == "causal")
    if sc:
        given["scale"] = sc
    return "sdpa " + kind, ops, f, lambda q, k, v, *m: lt.scaled_dot_product_attention(q, k, v, **given, **({"mask": m[0]} if m else {}))

@gen(1)
def recurrent(r, pick):
    n = r.choice(["lstm", "gru"])
    g = 4 if n == "lstm" else 3
    x = pick(lambda t: isf(t) and t.dim() == 3 and t.shape[-1] % g == 0 and t.shape[0] < 6 and t.numel() > 0)
    h, dt, t_, nb = x.t.shape[-1] // g, x.t.dtype, x.t.shape[0], x.t.shape[1]
    w, b, h0, c0 = const(r, (g * h, h), dt), const(r, (g * h,), dt), const(r, (nb, h), dt), const(r, (nb, h), dt)
    def lstm(a, w, b, h, c):
        out = [h]
        for s in a:
            i, f, gg, o = (s + h @ w.T + b).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * gg.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
        return torch.stack(out + [c])
    def gru(a, w, b, h):
        out = [h]
        for s in a:
            rr, z, nn = s.chunk(3, -1)
            R, Z, N = (h @ w.T + b).chunk(3, -1)
            z = (z + Z).sigmoid()
            nn = (nn + (rr + R).sigmoid() * N).tanh()
            h = nn + z * (h - nn)
            out.append(h)
        return torch.stack(out)
    return (n, [x, w, b, h0, c0], lstm, lt.lstm) if n == "lstm" else (n, [x, w, b, h0], gru, lt.gru)

@gen(1)
def rotary(r, pick):
    x = pick(lambda t: isf(t) and t.dim() >= 2 and t.shape[-1] % 2 == 0 and t.numel() > 0)
    start, inter, d = r.randint(0, 50), r.random() < .5, x.t.shape[-1]
    def f(a):
        at = start + torch.arange(a.shape[-2], dtype=torch.float64)[:, None]
        ang = (at * 10000.0 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)).to(a.dtype)
        p, q = (a[..., ::2], a[..., 1::2]) if inter else (a[..., :d // 2], a[..., d // 2:])
        y = p * ang.cos() - q * ang.sin(), q * ang.cos() + p * ang.sin()
        return torch.stack(y, -1).flatten(-2) if inter else torch.cat(y, -1)
    return "rotary", [x], f, lambda a: lt.rotary(a, start, interleaved=inter)

@gen(2)
def cast(r, pick):
    x = pick(lambda t: True)
    to = r.choice([torch.float32, torch.float64] + ([torch.int64, torch.int32] if not x.deep and x.t.abs().max() < 100 else []) if x.t.numel() else FLOAT)
    if x.t.dtype == torch.bool and not to.is_floating_point:
        raise Skip
    return "cast", [x], lambda a: a.to(to), lambda a: lt.cast(a, NP[to]), lambda a: a.double() if to in FLOAT else a.to(to)

@gen(1)
def detach(r, pick):
    return "detach", [pick(isf)], lambda a: a.detach(), lt.detach

"""Random programs beside PyTorch, which knows nothing of this library: operators of all kinds one behind the other, of mixed
dtypes, through views and indices, with several losses, and the gradients of all that went in.

    LIBTENSOR=build/libtensor.so python3 tests/long/programs_torch.py [--programs N] [--seed S] [--one SEED] [--eager 0|1]

A program is made by running it in PyTorch, twice: as it is, and with every floating value in f64. What the second gives is
right, and how far the first is from it says how much rounding may cost. It is then run here in one step, fused or eager, and
every value and every gradient is compared. Start reading with program.
"""

import argparse
import random
import sys
import warnings

import numpy as np
import torch

from programs_ops import FLOAT, GENS, NP, Skip, Value, const, isf, leaves, lt

warnings.simplefilter("ignore")
torch.set_num_threads(1)
everything = []  # of the program that is being compared

SHAPES = [(), (1,), (5,), (8,), (3, 4), (4, 3), (1, 6), (6, 1), (2, 3, 4), (3, 2, 12), (2, 5, 6, 4), (1, 7, 7, 3), (2, 4, 4, 8), (4, 16), (17, 3)]


def program(seed, most):
    r = random.Random(seed)
    leaves.clear()
    lines, values = [], []
    floats = r.choice([[torch.float32], [torch.float64], [torch.float32, torch.float64]])
    for _ in range(r.randint(3, 6)):
        values.append(const(r, r.choice(SHAPES), r.choice(floats * 4 + [torch.int64, torch.int32, torch.bool, torch.uint8])))
    values.append(const(r, r.choice(SHAPES[4:]), r.choice(floats)))

    def pick(ok):
        some = [v for v in values if ok(v.t)]
        if not some:
            raise Skip
        return r.choice(some[-6:] if r.random() < 0.6 else some)

    tries = 0
    while len(lines) < most and tries < 400:
        tries += 1
        before = len(leaves)
        try:
            name, xs, f, ours, *more = r.choice(GENS)(r, pick)
            out = f(*[x.t for x in xs])
            wide = (more[0] if more else f)(*[x.wide for x in xs])
            wide = wide.double() if isf(wide) else wide
        except (Skip, RuntimeError, ValueError, IndexError, TypeError, StopIteration):
            del leaves[before:]
            continue
        if (
            out.dtype not in NP
            or out.numel() == 0
            or out.numel() > 5000
            or out.dim() > 5
            or (isf(out) and not (torch.isfinite(out).all() and out.abs().max() < 1e4))
        ):
            del leaves[before:]
            continue
        v = Value(out, wide, made=(name, xs, ours), deep=True if isf(out) else any(x.deep for x in xs))
        lines.append(v)
        values.append(v)
    return r, lines, list(leaves)


def run_torch(r, lines, ls):
    """The losses, weighted sums of some of the values; gradients of both."""
    cand = [v for v in lines if isf(v.t) and v.t.requires_grad]
    if not cand:
        return None
    losses, k = [], r.choice([1, 1, 2])
    for _ in range(k):
        some = r.sample(cand, min(len(cand), r.randint(1, 3)))
        losses.append([(v, np.random.default_rng(r.randrange(1 << 30)).standard_normal(tuple(v.t.shape)).astype("f4")) for v in some])
    for which in ("t", "wide"):
        total = sum((getattr(v, which).double() * torch.from_numpy(np.asarray(w)).double()).sum() for l in losses for v, w in l)
        try:
            total.backward()
        except RuntimeError:
            return None
    return losses


def run_ours(s, lines, ls, losses, reads, seed):
    with s.step():
        have, params = {}, []
        for i, v in enumerate(ls):
            have[v] = s.param("p%d_%d" % (seed, i), v.leaf) if isf(v.t) else s.tensor(v.leaf)
        for v in lines:
            name, xs, ours = v.made
            have[v] = ours(*[have[x] for x in xs])
        for l in losses:
            loss = None
            for v, w in l:
                p = lt.sum(lt.cast(have[v], "f8") * lt.cast(s.tensor(np.asarray(w)), "f8"))
                loss = p if loss is None else loss + p
            s.backward(loss)
        got, dtypes = {v: have[v].numpy() for v in reads}, {v: have[v].dtype for v in lines}
        grads = {}
        for v in ls:
            if isf(v.t) and v.t.grad is not None:
                grads[v] = have[v].gradient().numpy()
    return {v: (dtypes[v], got.get(v)) for v in lines}, grads


def close(got, t, wide, exact):
    single = any(v.t.dtype == torch.float32 for v in everything)
    got, t, wide = np.asarray(got, "f8"), t.detach().double().numpy(), wide.detach().double().numpy()
    if got.shape != wide.shape:
        return "shape %s, wanted %s" % (got.shape, wide.shape)
    scale = np.abs(wide).max() if wide.size else 0
    noise = np.abs(t - wide).max() if wide.size else 0
    allowed = 0 if exact else 30 * noise + (3e-5 * scale + 1e-6 if single else 1e-9 * scale + 1e-11)
    got, wide, t = np.atleast_1d(got), np.atleast_1d(wide), np.atleast_1d(t)
    err = np.abs(got - wide)
    err[np.isnan(got) != np.isnan(wide)] = np.inf
    err[np.isnan(got) & np.isnan(wide)] = 0
    if (err > allowed).any():
        i = np.unravel_index(np.argmax(err), err.shape)
        return "at %s got %.9g, wanted %.9g (PyTorch as is %.9g), allowed %.3g" % (i, got[i], wide[i], t[i], allowed)
    return None


def text(lines, ls):
    names = {v: "p%d" % i for i, v in enumerate(ls)}
    out = ["%s = %s%s" % (n, str(v.t.dtype)[6:], list(v.t.shape)) for v, n in names.items()]
    for i, v in enumerate(lines):
        names[v] = "v%d" % i
        out.append("v%d = %s(%s) : %s%s" % (i, v.made[0], ", ".join(names[x] for x in v.made[1]), str(v.t.dtype)[6:], list(v.t.shape)))
    return out, names


def check(seed, s, most, verbose):
    r, lines, ls = program(seed, most)
    if not lines:
        return None
    losses = run_torch(r, lines, ls)
    if losses is None:
        return None
    if any(v.t.grad is not None and not torch.isfinite(v.t.grad).all() for v in ls if isf(v.t)):
        return None
    everything[:] = lines + ls
    reads = lines if r.random() < 0.3 else r.sample(lines, min(len(lines), 3))
    if verbose:
        print("\n".join(text(lines, ls)[0]))
        for l in losses:
            print("loss of", [text(lines, ls)[1][v] for v, w in l], "read", [text(lines, ls)[1][v] for v in reads])
    bad = []
    try:
        got, grads = run_ours(s, lines, ls, losses, reads, seed)
    except lt.Error as e:
        return ["error: " + str(e).split("\n")[0]]
    names = text(lines, ls)[1]
    for v in lines:
        dt, x = got[v]
        if dt != np.dtype(NP[v.t.dtype]):
            bad.append(
                "dtype of %s: %s, PyTorch %s"
                % (names[v] + " " + v.made[0] + str([str(x.t.dtype)[6:] + str(list(x.t.shape)) for x in v.made[1]]), dt, v.t.dtype)
            )
        elif x is not None:
            b = close(x, v.t, v.wide, not isf(v.t))
            if b:
                bad.append("value %s %s: %s" % (names[v], v.made[0], b))
    for v, g in grads.items():
        b = close(g, v.t.grad, v.wide.grad, False)
        if b:
            bad.append("gradient of %s: %s" % (names[v], b))
    return bad


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--programs", type=int, default=200)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--one", type=int)
    a.add_argument("--lines", type=int, default=10)
    a.add_argument("--eager", type=int, default=0)
    a = a.parse_args()
    n = wrong = 0
    s = None
    for seed in [a.one] if a.one is not None else range(a.seed, a.seed + a.programs):
        if s is None or n % 20 == 0:
            if s:
                s.close()
            s = lt.open(device="cpu", mode="eager" if a.eager else "fused", seed=1)
        bad = check(seed, s, a.lines, a.one is not None)
        if bad is None:
            continue
        n += 1
        if bad:
            wrong += 1
            print("program %d:\n  %s" % (seed, "\n  ".join(bad[:4])))
            sys.stdout.flush()
    print("%d programs, %d wrong" % (n, wrong))
    return wrong > 0


sys.exit(main())

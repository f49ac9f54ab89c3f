#!/usr/bin/env python3
"""zoo - whole training steps of models of many kinds beside PyTorch and JAX, in one run.

    python3 bench/zoo.py [MODEL ..] [--rivals eager,compile,jax] [--rounds 5] [--threads 2] [--device cpu] [--json FILE]

Each model is described in bench/zoo for libtensor and in zoo_models.py for the others. libtensor draws weights and
inputs; every other program reads them and has to say the same loss, before its first update and after some, or the
run fails. Then they take turns, round after round, each a process of its own that waits for its turn, and each at
its best (zoo_torch.py, zoo_jax.py; a malloc that keeps what it has freed). A row has

  fused .. jax  medians of a step in milliseconds          x best   the fastest rival over fused: above 1 we are faster
  floor         what build/zoo --profile says a step's launches would take at the machine's own speed
  x floor       fused over that                            MB       peak of our memory, fused; PyTorch's, the less of two
  cold, warm    seconds from a program's start to the end of its first step, with no compiled kernels and with all

and '!' where the step is less than 1.3 times as fast as the best rival and above 1.1 floors, or slower than our own
eager mode. What is not installed is named and left out. --models-of FILE prints the table of a JSON file again.
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import caching_malloc  # noqa: F401  first: it runs this program again

STARTED = time.time()
p = argparse.ArgumentParser()
p.add_argument("models", nargs="*", help="all but gpt_large and resnet50, which want a GPU")
p.add_argument("--build", default="build")
p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
p.add_argument("--threads", type=int, default=2)
p.add_argument("--precision", default="f32", choices=["f32", "tf32", "bf16"],
               help="of products of f32, ours and theirs; bf16: mixed precision, PyTorch's autocast")
p.add_argument("--rounds", type=int, default=5, help="0: check the losses alone")
p.add_argument("--seconds", type=float, default=0.5, help="of a turn, about")
p.add_argument("--rivals", default="eager,compile,jax")
p.add_argument("--json", help="rows of other models that the file has already stay in it")
p.add_argument("--models-of", metavar="FILE", help="print the table of such a file")
p.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
args = p.parse_args()

WAYS = ("fused", "own eager", "eager", "compile", "jax")
# Losses are f32 sums in other orders; Adam's first updates are the signs of gradients, some of which are rounding alone.
CLOSE, LATER = (2e-4, 2e-2) if args.precision == "f32" else (2e-2, 2e-1)


def worker(how, model, path):
    """Answers as build/zoo --serve does: "check N", "steps N", "peak"."""
    if how == "jax":
        os.environ["JAX_PLATFORMS"] = args.device
        import jax
        jax.config.update("jax_compilation_cache_dir", os.path.join(tempfile.gettempdir(), "zoo-jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        jax.config.update("jax_default_matmul_precision", {"f32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}[args.precision])
        import zoo_jax as framework
    else:
        import torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.precision != "f32"
        import zoo_torch as framework
    step, version = framework.load(model, path, how, args.device, args.threads, args.precision)
    print(json.dumps(version), flush=True)
    for line in sys.stdin:
        what, *count = line.split()
        if what == "peak":
            answers = [step.peak()]
        else:
            answers = []
            for _ in range(int(count[0])):
                start = time.perf_counter()
                value = step.check() if what == "check" else step.step()
                answers.append(value if what == "check" else (time.perf_counter() - start) * 1e3)
        print(json.dumps(answers), flush=True)


class Program:
    """One who takes turns. Its first answer but for our own programs is its version."""

    def __init__(self, name, command, env=None):
        cores = sorted(os.sched_getaffinity(0))[:args.threads] if args.device == "cpu" else None
        self.name, self.log, self.started = name, tempfile.TemporaryFile("w+"), time.time()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, **(env or {})},
                                        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None)

    def read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, what):
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1] if lines else f"ended with status {self.process.returncode}"


def ours(model, mode, cache, save=None):
    command = [f"{args.build}/zoo", model, "--mode", mode, "--threads", str(args.threads), "--serve"]
    return Program("fused" if mode == "fused" else "own eager", command + (["--save", save] if save else []),
                   {"TENSOR_CACHE": cache, "TENSOR_DEVICE": args.device, "TENSOR_PRECISION": args.precision})


def theirs(how, model, path):
    return Program(how, [sys.executable, __file__, "--worker", how, model, path, "--device", args.device, "--threads",
                         str(args.threads), "--precision", args.precision])


def agree(model, mine, other, name):
    for i, (a, b) in enumerate(zip(mine, other)):
        off = abs(a - b) / max(abs(a), 1e-3)
        if not off <= (LATER if i else CLOSE):
            sys.exit(f"zoo: {model}: {name} has loss {b:.7g} before update {i + 1}, libtensor {a:.7g}")


def first_check(program, count=1):
    """Its first losses, and the seconds from its start to the end of the first step; None: it failed."""
    losses = program.ask("check 1")
    seconds = time.time() - program.started
    if losses and count > 1:
        losses += program.ask(f"check {count - 1}") or []
    return losses, seconds


def turn(program, steps):
    """The times of a turn's steps; the first two, when caches and threads are another's, do not count."""
    times = program.ask(f"steps {steps + 2}")
    return times[2:] if times else []


def measure(model, folder, versions):
    cache, path = os.path.join(folder, "cache"), os.path.join(folder, "weights.safetensors")
    row, programs, times = {"ms": {}, "peak": {}}, [], {}
    os.mkdir(cache)
    for mode in ("fused", "eager"):
        program = ours(model, mode, cache, path if mode == "fused" else None)
        losses, seconds = first_check(program, 3)
        if not losses:
            sys.exit(f"zoo: {model}, {mode}: {program.end()}")
        if mode == "fused":
            mine, row["cold"] = losses, seconds
            again = ours(model, mode, cache)
            agree(model, mine, first_check(again)[0], "the same again")
            row["warm"] = time.time() - again.started
            again.end()
        agree(model, mine, losses, program.name)
        programs.append(program)
    for how in filter(None, args.rivals.split(",")):
        program = theirs(how, model, path)
        version = program.read()
        losses, seconds = first_check(program, 3)
        if not losses:
            print(f"{how} {model}: left out: {program.end()}")
            continue
        versions[how] = version
        agree(model, mine, losses, how)
        row.setdefault("first", {})[how] = seconds
        programs.append(program)
    steps = {}
    for program in programs * 2:  # the second time tells how long a step takes
        once = turn(program, 1)
        steps[program.name] = max(1, min(200, int(args.seconds * 1e3 / once[0]))) if once else 0
    for _ in range(args.rounds):
        for program in programs:
            times.setdefault(program.name, []).extend(turn(program, steps[program.name]))
    for program in programs:
        if times.get(program.name):
            row["ms"][program.name] = statistics.median(times[program.name])
        row["peak"][program.name] = program.ask("peak")[0]
    row["floor"] = programs[0].ask("floor")[0] if args.rounds else math.nan
    for program in programs:
        program.end()
    return row


def best_rival(row):
    return min((ms for who, ms in row["ms"].items() if who not in WAYS[:2]), default=math.nan)


def print_row(model, row):
    ms = row["ms"]
    times = "".join(f"{ms[w]:8.2f}" if w in ms else "       -" for w in WAYS)
    peaks = [row["peak"][w] for w in ("eager", "compile") if row["peak"].get(w)]
    fused, best = ms["fused"], best_rival(row)
    slow = (best < 1.3 * fused and fused > 1.1 * row["floor"]) or fused > 1.02 * ms["own eager"]
    print(f"{model:14s}{times}{best / fused:6.2f}{'!' if slow else ' '}{row['floor']:8.2f}{fused / row['floor']:5.2f}"
          f"{row['peak']['fused'] / 1e6:6.0f}{min(peaks) / 1e6 if peaks else math.nan:6.0f}{row['cold']:5.1f}{row['warm']:5.1f}",
          flush=True)


def print_head():
    print(f"{'':14s}" + "".join(f"{w:>8s}" for w in ("fused", "eager", "PyTorch", "compile", "JAX")) +
          f"{'x best':>7s}{'floor':>8s}{'x':>5s}{'MB':>6s}{'PyT.':>6s}{'cold':>5s}{'warm':>5s}")


def print_mean(rows):
    ratios = [best_rival(r) / r["ms"]["fused"] for r in rows if best_rival(r) > 0]
    if len(ratios) > 1:
        print(f"geometric mean of {len(ratios)}: {math.exp(statistics.fmean(map(math.log, ratios))):.3f} times the best rival")


def main():
    known = subprocess.run([f"{args.build}/zoo", "--list"], capture_output=True, text=True, check=True).stdout.split()
    wrong = [m for m in args.models if m not in known]
    if wrong:
        sys.exit(f"zoo: no model {wrong[0]}; there are {' '.join(known)}")
    rows, versions = {}, {}
    if args.json and os.path.exists(args.json):
        with open(args.json) as f:
            rows, versions = json.load(f).values()
    if args.rounds:
        print_head()
    for model in args.models or [m for m in known if m not in ("gpt_large", "resnet50")]:
        folder = tempfile.mkdtemp(prefix="zoo-")
        try:
            row = measure(model, folder, versions)
        finally:
            shutil.rmtree(folder)
        if args.rounds:
            rows[model] = row
            print_row(model, row)
            if args.json:
                with open(args.json, "w") as f:
                    json.dump({"rows": rows, "versions": versions}, f, indent=1)
        else:
            print(f"{model}: the losses agree")
    print_mean(list(rows.values()))
    print("; ".join(sorted(set(versions.values()))), flush=True)


if args.worker:
    worker(*args.worker)
elif args.models_of:
    with open(args.models_of) as file:
        table = json.load(file)["rows"]
    print_head()
    for name, line in table.items():
        print_row(name, line)
    print_mean(list(table.values()))
else:
    main()

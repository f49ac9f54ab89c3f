#!/usr/bin/env python3
"""Sets whole training steps of the examples beside those of PyTorch and JAX, in one run.

    python3 bench/rivals.py [--device cpu] [--threads 2] [--rounds 5] [--rivals eager,default,jax] [--json FILE]

Every rival is a process of its own that waits for its turn, at its best: PyTorch in channels_last with the
fused AdamW, eager and with torch.compile (default, reduce-overhead, max-autotune), JAX jitted with donated
buffers; a caching malloc for all (caching_malloc.py). Rounds alternate between libtensor and all the rivals;
the medians of the steps after the warm-up are printed, ours over theirs, with the memory a step needs at its
peak where both can say it. What is not installed is named and left out.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import caching_malloc  # noqa: F401  first: it runs this program again

RIVALS = ("eager", "default", "reduce-overhead", "max-autotune", "jax")
p = argparse.ArgumentParser()
p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
p.add_argument("--threads", type=int, default=2)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--steps", type=int, default=40, help="of a round, after ten that are not counted")
p.add_argument("--models", default="mnist_cnn,gpt")
p.add_argument("--rivals", default=",".join(RIVALS))
p.add_argument("--modes", default="eager,fused", help="of libtensor")
p.add_argument("--layers", type=int, default=4)
p.add_argument("--heads", type=int, default=4)
p.add_argument("--dim", type=int, default=128)
p.add_argument("--ctx", type=int, default=64)
p.add_argument("--batch", type=int, default=12)
p.add_argument("--cnn-batch", type=int, default=64)
p.add_argument("--text", default="data/tales.txt", help="what build/gpt reads")
p.add_argument("--build", default="build")
p.add_argument("--tf32", action="store_true", help="products of f32 by TF32, ours and theirs; else neither")
p.add_argument("--json")
p.add_argument("--worker", help=argparse.SUPPRESS)
args = p.parse_args()

with open(args.text, "rb") as f:
    args.vocabulary = len(set(f.read()))
args.torch_device = args.device
WARMUP = 10


def torch_peak(step):
    """Bytes that PyTorch's allocator holds at most during a step. On the CPU it does not say what it holds
    before: that is what the step's closure does, its parameters, their gradients and moments."""
    import torch
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated()
    cells = [c.cell_contents for c in step.__closure__]
    model = next(c for c in cells if isinstance(c, torch.nn.Module))
    held = sum(4 * w.nbytes for w in model.parameters()) + sum(c.nbytes for c in cells if isinstance(c, torch.Tensor))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    now = most = held
    for e in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"),
                    key=lambda e: e.start_ns()):
        now += e.nbytes()
        most = max(most, now)
    return most


def worker():
    """Answers each line "MODEL STEPS" with the times of its steps, and "MODEL peak" with bytes."""
    if args.worker == "jax":
        os.environ["JAX_PLATFORMS"] = args.device
        import jax_models as models
        import jax
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if args.tf32 else "highest")
        version, mode = "JAX " + jax.__version__, None
    else:
        import torch
        import torch_models as models
        torch.set_num_threads(args.threads)
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
        version, mode = "PyTorch " + torch.__version__, None if args.worker == "eager" else args.worker
    print(json.dumps(version), flush=True)
    made = {}
    for line in sys.stdin:
        name, what = line.split()
        if name not in made:
            made[name] = getattr(models, name)(args, mode)
            for _ in range(WARMUP * 2):
                made[name]()
        if what == "peak":
            print(json.dumps(0 if args.worker == "jax" else torch_peak(made[name])), flush=True)
            continue
        times = []
        for _ in range(int(what)):
            start = time.perf_counter()
            made[name]()
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(times), flush=True)


class Rival:
    def __init__(self, name):
        command = [sys.executable, __file__, "--worker", name]
        for key in ("device", "threads", "layers", "heads", "dim", "ctx", "batch", "cnn_batch", "text"):
            command += ["--" + key.replace("_", "-"), str(getattr(args, key))]
        command += ["--tf32"] if args.tf32 else []
        cores = sorted(os.sched_getaffinity(0))[:args.threads] if args.device == "cpu" else None
        self.name, self.log = name, tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None)
        self.version = self.read()

    def read(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, model, what):
        try:
            self.process.stdin.write(f"{model} {what}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.read()

    def why(self):
        self.process.wait()
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()
        return lines[-1] if lines else f"ended with status {self.process.returncode}"


def write_digits(folder):
    """Images of noise in the IDX format: what they show makes no difference to a step's time."""
    for part, n in (("train", 4096), ("t10k", 64)):
        with open(f"{folder}/{part}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">IIII", 2051, n, 28, 28) + os.urandom(n * 28 * 28))
        with open(f"{folder}/{part}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">II", 2049, n) + bytes(b % 10 for b in os.urandom(n)))


def ours(model, mode, steps):
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as log:
        command = [f"{args.build}/{model}", "--device", args.device, "--mode", mode, "--steps", str(steps + WARMUP),
                   "--threads", str(args.threads), "--log", log.name, "--quiet"]
        if model == "gpt":
            command += ["--sample", "0", "--data", args.text]
            for option in ("layers", "heads", "dim", "ctx", "batch"):
                command += [f"--{option}", str(getattr(args, option))]
        else:
            command += ["--data", DIGITS, "--batch", str(args.cnn_batch)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "TENSOR_PRECISION": "tf32" if args.tf32 else "f32"})
        return [json.loads(line)["ms"] for line in log][WARMUP:]


def our_peaks(model):
    """Bytes that libtensor's allocator holds at most, by mode; fused_vs_eager knows the usual sizes alone."""
    usual = all(getattr(args, k) == p.get_default(k) for k in ("layers", "heads", "dim", "ctx", "batch", "cnn_batch"))
    if not usual:
        return {}
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        subprocess.run([f"{args.build}/fused_vs_eager", "--case", model, "--rounds", "1", "--device", args.device, "--json",
                        out.name], check=True, stdout=subprocess.DEVNULL)
        row = json.load(out)["models"][0]
        return {"eager": row["eager_peak_bytes"], "fused": row["fused_peak_bytes"]}


def main():
    rivals = []
    for name in args.rivals.split(","):
        rival = Rival(name)
        if rival.version is None:
            print(f"{name}: left out: {rival.why()}")
        else:
            rivals.append(rival)
    modes = args.modes.split(",")
    result = {"device": args.device, "threads": args.threads, "rounds": args.rounds, "tf32": args.tf32,
              "versions": {r.name: r.version for r in rivals}, "models": {}}
    for model in args.models.split(","):
        times = {("libtensor", m): [] for m in modes}
        alive = []
        for r in rivals:
            times[r.version, r.name] = []
            if r.ask(model, 1) is None:
                print(f"{r.name} {model}: left out: {r.why()}")
            else:
                alive.append(r)
        for _ in range(args.rounds):
            for mode in modes:
                times["libtensor", mode] += ours(model, mode, args.steps)
            for r in alive:
                times[r.version, r.name] += r.ask(model, args.steps) or []
        median = {k: statistics.median(v) for k, v in times.items() if v}
        mine = median["libtensor", modes[-1]]
        print(f"\n{model}, {args.device}, {args.threads} threads{', TF32' if args.tf32 else ''}, medians of {args.rounds} alternating rounds\n"
              f"| | ms a step | libtensor {modes[-1]} over it | peak MB of a step |\n|---|---|---|---|")
        rows, peaks = [], our_peaks(model)
        for (who, how), ms in median.items():
            if who == "libtensor":
                peak = peaks.get(how)
            else:
                peak = next(r.ask(model, "peak") for r in alive if r.name == how)
            rows.append({"who": who, "how": how, "ms": ms, "ratio": mine / ms, "peak_bytes": peak})
            print(f"| {who} {how} | {ms:.2f} | {mine / ms:.2f} | {peak / 1e6:.1f} |" if peak else
                  f"| {who} {how} | {ms:.2f} | {mine / ms:.2f} | |", flush=True)
        result["models"][model] = rows
    if args.json:
        with open(args.json, "w") as out:
            json.dump(result, out, indent=1)


if args.worker:
    worker()
else:
    with tempfile.TemporaryDirectory() as DIGITS:
        write_digits(DIGITS)
        main()

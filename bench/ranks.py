#!/usr/bin/env python3
"""ranks.py - two ranks of one thread beside one, of this library by MPI and of PyTorch by DistributedDataParallel.

    make build/bench/handover && python3 bench/ranks.py [--rounds 2] [--steps 40]

The models are those of the examples, each rank has the example's batch, and the rivals take turns. A row has the
milliseconds of a step, the median of a run without its first quarter, the best of the rounds; and how many times as many
samples a second two ranks take as one. "Apart" are two processes that know nothing of each other: what the machine's
second processor is worth where nothing is sent. A host may give a guest's two processors one cache or two, and change that
from minute to minute: bench/handover.c tells by the time that a line of memory takes from one to the other, and rounds of
either kind have tables of their own. The batch norms of libtensor's network are over all ranks', DDP's are each rank's.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

ONE_CACHE_NS = 120  # below
MODELS = {"gpt": ["--sample", "0"], "mnist_cnn": []}


def worker(model, steps):
    """One process of PyTorch's, alone or started by torchrun: prints the times of its steps."""
    import torch
    import torch_models
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    sizes = SimpleNamespace(vocabulary=64, layers=4, heads=4, dim=128, ctx=64, batch=12, cnn_batch=64, torch_device="cpu")
    step = getattr(torch_models, model)(sizes, None, DistributedDataParallel if ranks > 1 else None)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(times), flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


def run(command, env=None):
    return subprocess.run(command, check=True, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True).stdout


def ours(model, ranks, steps):
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.NamedTemporaryFile("r") as log:
        run((["mpirun", "-np", str(ranks)] if ranks > 1 else []) +
            [f"build/{model}", "--threads", "1", "--steps", str(steps), "--quiet", "--log", log.name] + MODELS[model], env)
        return [json.loads(line)["ms"] for line in log]


def apart(model, steps):
    with tempfile.NamedTemporaryFile("r") as a, tempfile.NamedTemporaryFile("r") as b:
        running = [subprocess.Popen([f"build/{model}", "--threads", "1", "--steps", str(steps), "--quiet", "--log", log.name] +
                                    MODELS[model], stdout=subprocess.DEVNULL) for log in (a, b)]
        for process in running:
            process.wait()
        return [json.loads(line)["ms"] for log in (a, b) for line in list(log)[steps // 4:]]


def torchs(model, ranks, steps):
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    out = run([sys.executable, *launch, __file__, "--worker", model, "--steps", str(steps)], {"OMP_NUM_THREADS": "1"})
    return json.loads(out.strip().splitlines()[-1])


def table(caches, best):
    print(f"Processors of {caches}, a line from one to the other in {min(best['ns']):.0f} to {max(best['ns']):.0f} ns:\n")
    print("| model | | 1 rank | 2 ranks | samples a second |\n|---|---|---|---|---|")
    for model in MODELS:
        for name in ("libtensor", "PyTorch"):
            one, two = best[model, name, 1], best[model, name, 2]
            if name == "libtensor":
                print(f"| {model} | libtensor, apart | {one:.1f} ms | {best[model]:.1f} ms | {2 * one / best[model]:.2f} times |")
            print(f"| {model} | {name} | {one:.1f} ms | {two:.1f} ms | {2 * one / two:.2f} times |")
    print()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--worker")
    a = parser.parse_args()
    if a.worker:
        return worker(a.worker, a.steps)
    bests = {}
    for _ in range(a.rounds):
        ns = float(run(["build/bench/handover"]).split()[0])
        best = bests.setdefault("one cache" if ns < ONE_CACHE_NS else "two caches", {"ns": []})
        best["ns"].append(ns)
        for model in MODELS:
            ms = statistics.median(apart(model, a.steps))
            best[model] = min(ms, best.get(model, ms))
            for name, of in (("libtensor", ours), ("PyTorch", torchs)):
                for ranks in (1, 2):
                    ms = statistics.median(of(model, ranks, a.steps)[a.steps // 4:])
                    best[model, name, ranks] = min(ms, best.get((model, name, ranks), ms))
    for caches, best in bests.items():
        table(caches, best)


if __name__ == "__main__":
    main()

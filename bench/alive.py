#!/usr/bin/env python3
"""alive - what is alive when most is, of the plans that a program has dumped.

    TENSOR_DUMP=FOLDER build/zoo llama --steps 1
    python3 bench/alive.py FOLDER [KERNEL ..]

Of the plan with the most nodes: the kernels at which most is alive, and for the worst of them, or for those that are
named by number, each value with its bytes, the kernels it lives from and to, where it lies, and the line that makes it.
What lies in the memory of gradients to come is counted too; of a value that lives piece by piece, all of it is.
"""
import glob
import re
import sys


def load(folder):
    texts = [open(path).read() for path in glob.glob(folder + "/plan-*.txt")]
    if not texts:
        sys.exit(f"alive: no plans in {folder}; TENSOR_DUMP={folder} makes some")
    text = max(texts, key=lambda t: int(re.match(r"plan \d+: (\d+) nodes", t)[1]))
    kernels = re.findall(r"^ +\d+ \S+ +[\d.]+ MB .*", text.split("  recorded\n")[0], re.M)
    names = dict(re.findall(r"^ +(\d+) = (.*)", text, re.M))
    laid = re.findall(r"^ +(\d+): kernels (\d+) to (\d+), (\d+) bytes( at .*)", text.split("  laid out\n")[1], re.M)
    return text.split("\n")[0], kernels, [(int(n), int(a), int(b), where, names.get(slot, "scratch")) for slot, a, b, n, where in laid]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    head, kernels, values = load(sys.argv[1])
    alive = {k: sum(v[0] for v in values if v[1] <= k <= v[2]) for k in range(1, len(kernels) + 1)}
    worst = sorted(alive, key=alive.get, reverse=True)
    print(head)
    print("most:", ", ".join(f"{alive[k] / 1e6:.3f} MB at {k}" for k in worst[:8]))
    for k in map(int, sys.argv[2:]) if sys.argv[2:] else worst[:1]:
        print(kernels[k - 1].strip())
        for size, first, last, where, name in sorted((v for v in values if v[1] <= k <= v[2]), reverse=True):
            print(f"  {size / 1e6:9.3f} MB  {first:4d} to {last:4d}  {name}{where}")


main()

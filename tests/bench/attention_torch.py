#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention at the sizes of attention_cpu.c: attention_torch.py [T ...], two threads."""
import sys
import time

import torch
import torch.nn.functional as F

ROUNDS = 9


def median_ms(f):
    f()
    took = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        f()
        took.append((time.perf_counter() - begin) * 1e3)
    return sorted(took)[ROUNDS // 2]


def main():
    torch.set_num_threads(2)
    for t in [int(a) for a in sys.argv[1:]] or [64, 256, 1024]:
        batch, heads, d = (12, 4, 32) if t <= 64 else (2, 8, 64) if t <= 1024 else (1, 8 if t < 4096 else 2, 64)
        for causal in (False, True):
            q, k, v = (torch.randn(batch, heads, t, d, requires_grad=True) for _ in range(3))

            def both():
                torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum(), (q, k, v))

            with torch.no_grad():
                forward = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
            print(f"B{batch} H{heads} T{t:<5} d{d} {'causal' if causal else 'full':6}  torch  {forward:9.3f} {median_ms(both):9.3f} ms")


main()

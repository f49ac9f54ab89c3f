"""torch_models - the models of the examples and their training step, in PyTorch at its best on this machine.

gpt() and mnist_cnn() give a function that makes one training step on data of its own and returns the loss,
so that every rival is asked for the same work: forward, backward, clipping where the example clips, AdamW,
and the loss read on the host.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm; no biases, as the GPT of examples/gpt_model.h."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, bias=False)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.norm2 = nn.LayerNorm(dim, bias=False)
        self.linear1 = nn.Linear(dim, 4 * dim, bias=False)
        self.linear2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (part.view(n, t, self.heads, d // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(d, dim=2))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(n, t, d))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, layers, heads, dim, ctx):
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.empty(ctx, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim, bias=False)
        for name, w in self.named_parameters():
            if w.dim() >= 2:
                to_residual = name.endswith(("out.weight", "linear2.weight"))
                nn.init.normal_(w, std=0.02 / math.sqrt(2 * layers) if to_residual else 0.02)

    def forward(self, index):
        x = self.token(index) + self.position[:index.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.T  # the output weights are those of the embedding


def gpt_optimizer(model, lr):
    matrices = [w for w in model.parameters() if w.dim() >= 2]
    vectors = [w for w in model.parameters() if w.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                             lr=lr, betas=(0.9, 0.99), fused=True)


def gpt_step(model, opt, compiled, x, y):
    """One update from windows x and the tokens y that follow; the loss."""
    opt.zero_grad(set_to_none=True)
    loss = F.cross_entropy(compiled(x).flatten(0, 1), y.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss.item()


def gpt(s, mode, wrap=None):
    """s: the sizes (layers, heads, dim, ctx, batch, vocabulary); mode: None, or one of torch.compile's; wrap: None, or
    what is to be made of the model, as DistributedDataParallel."""
    model = GPT(s.vocabulary, s.layers, s.heads, s.dim, s.ctx).to(s.torch_device)
    opt = gpt_optimizer(model, 1e-3)
    compiled = torch.compile(model, mode=mode) if mode else wrap(model) if wrap else model
    text = torch.randint(0, s.vocabulary, (s.batch, s.ctx + 1), device=s.torch_device)
    x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return lambda: gpt_step(model, opt, compiled, x, y)


def mnist_cnn(s, mode, wrap=None):
    model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                          nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = model.to(s.torch_device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    compiled = torch.compile(model, mode=mode) if mode else wrap(model) if wrap else model
    images = torch.randn(s.cnn_batch, 1, 28, 28, device=s.torch_device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (s.cnn_batch,), device=s.torch_device)

    def step():
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        opt.step()
        return loss.item()

    return step

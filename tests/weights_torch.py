"""The other half of test_nn_weights.c's round_trips: weights_torch.py FOLDER

Loads FOLDER/here.safetensors, which the library has written, into a model of torch.nn, strictly; computes what it makes
of FOLDER/image and FOLDER/word; draws other weights, saves them as PyTorch's users do, with metadata and without, and
computes again. Both results go to FOLDER/there, as f64.
"""

import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

folder = sys.argv[1] + "/"
torch.manual_seed(7)


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.c2 = nn.Conv2d(6, 4, 3, padding=1, groups=2, bias=False)
        self.fc, self.head = nn.Linear(64, 4), nn.Linear(8, 4)
        self.table = nn.Embedding(11, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, image, word):
        h = self.c2(torch.relu(self.bn(self.c1(image))))
        h = self.fc(nn.functional.max_pool2d(h, 2).flatten(1))
        t, _ = self.lstm(self.gru(self.table(word))[0])
        t, _ = self.attn(t, t, t, need_weights=False)
        return torch.cat([h, self.head(t).flatten(0, 1)])


image = torch.from_numpy(np.fromfile(folder + "image", np.float32).reshape(3, 8, 8, 3)).permute(0, 3, 1, 2)
word = torch.from_numpy(np.fromfile(folder + "word", np.int64).reshape(3, 5))


def results(model):
    with torch.no_grad():
        return model.double().eval()(image.double(), word).numpy()


model = Everything()
model.load_state_dict(load_file(folder + "here.safetensors"))
first = results(model)

other = Everything()
with torch.no_grad():
    for p in other.parameters():
        p.copy_(torch.randn(p.shape) * 0.3)
    for _ in range(3):
        other.train()(torch.randn(4, 3, 8, 8), word)
save_file(other.state_dict(), folder + "with.safetensors", metadata={"format": "pt"})
save_file(other.state_dict(), folder + "without.safetensors")
np.stack([first, results(other)]).tofile(folder + "there")

"""What skorch saves: the parts by `save_params`, the Checkpoint callback, and the whole
net pickled.
"""

from __future__ import annotations

import pickle

import numpy
import torch
from recorder import Case
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint
from torch import nn
from zoo import Net


def fitted(case: Case) -> None:
    x = torch.randn(12, 3, 8, 8).numpy()
    y = numpy.arange(12) % 3
    net = NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        max_epochs=2,
        batch_size=4,
        train_split=None,
        verbose=0,
        callbacks=[Checkpoint(dirname=str(case.path("saved")), monitor=None)],
    )
    net.initialize()
    case.watch("net", net.module_)
    net.partial_fit(x, y)  # fit would make another module
    case.wrote(case.path("saved") / "params.pt", {"": ("model", "net", "")})
    case.wrote(case.path("saved") / "optimizer.pt", {"": "optimizer"})
    path = case.path("params.safetensors")
    net.save_params(f_params=str(path), use_safetensors=True)
    case.wrote(path, {"": ("model", "net", "")})
    whole = case.path("net.pkl")
    whole.write_bytes(pickle.dumps(net))
    case.wrote(
        whole, {}, refusal="ckpt finds no model"
    )  # its weights are bytes of torch.save inside of it


CASES = (fitted,)

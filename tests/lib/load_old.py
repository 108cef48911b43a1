"""Loads a file with an old torch and prints what it found, one line a tensor: run by
tests/formats/test_old_torch.py.

    /usr/bin/python3 load_old.py FILE

Works with every torch from 1.6 on, and needs nothing else.
"""

import hashlib
import sys

import torch


def leaves(thing, path=()):
    if isinstance(thing, torch.Tensor):
        yield path, thing
    elif isinstance(thing, dict):
        for key, part in thing.items():
            yield from leaves(part, (*path, str(key)))
    elif isinstance(thing, (list, tuple)):
        for index, part in enumerate(thing):
            yield from leaves(part, (*path, str(index)))


storages = {}
for path, tensor in leaves(torch.load(sys.argv[1])):
    storage = storages.setdefault(
        tensor.storage().data_ptr() if tensor.numel() else None, len(storages)
    )
    flat = tensor.detach().contiguous().reshape(-1)
    data = (
        flat.numpy().tobytes()
        if tensor.dtype is not torch.bfloat16
        else flat.view(torch.int16).numpy().tobytes()
    )
    digest = hashlib.sha256(data).hexdigest()[:16]
    print(
        ".".join(path),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        storage,
        digest,
    )

"""GGUF files of gguf-py, the Python package of llama.cpp: floats under names of
llama.cpp, and in several files.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from recorder import Case
from torch import nn


class Named(nn.Module):
    """Parameters under the names of llama.cpp, which are in the file as they
    are here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(30, 64)
        self.blk = nn.ModuleList(
            nn.ModuleDict({"attn_q": nn.Linear(64, 64), "attn_norm": nn.LayerNorm(64)})
            for _ in range(3)
        )
        self.output = nn.Linear(64, 30, bias=False)


def write(path: Path, model: nn.Module, **options: object) -> None:
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_name("Tiny")
    writer.add_token_list([f"token {number}" for number in range(1_000)])
    for name, row in model.state_dict().items():
        writer.add_tensor(name, row.cpu().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def floats(case: Case) -> None:
    model = case.watch("net", Named())
    write(case.path("model.gguf"), model)
    case.wrote(case.path("model.gguf"), {"": ("model", "net", "")}, optimizers=False)


def half(case: Case) -> None:
    model = case.watch("net", Named().to(torch.float16))
    write(case.path("model.gguf"), model)
    case.wrote(case.path("model.gguf"), {"": ("model", "net", "")}, optimizers=False)


def split(case: Case) -> None:
    model = case.watch("net", Named())
    write(case.path("model.gguf"), model, split_max_tensors=4)
    for path in sorted(case.folder.glob("model-*.gguf")):
        case.wrote(path, {"": ("model", "net", "")}, optimizers=False)


def big_endian(case: Case) -> None:
    model = case.watch("net", Named())
    write(case.path("model.gguf"), model, endianess=gguf.GGUFEndian.BIG)
    case.wrote(case.path("model.gguf"), {"": ("model", "net", "")}, optimizers=False)


CASES = (floats, half, split, big_endian)

"""Distributed checkpoints in safetensors: `HuggingFaceStorageWriter(save_distributed=True)` of torch.

Each rank writes files of its own. The metadata of each says where its parts begin in the whole tensors, and nothing
says how large the whole is (torch/distributed/checkpoint/hf_storage.py, _hf_utils.py).
"""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "dcp-hf"
SUFFIXES: tuple[str, ...] = ()
_MODULE = "torch.distributed.checkpoint"
TRAITS = Traits(
    "DCP in safetensors",
    f"{_MODULE}.load(state, storage_reader={_MODULE}.HuggingFaceStorageReader({{path}}))",
    keeps_order=False,
    keeps_ties=False,
    fills_a_state=True,
)
WRITER = ""
VERIFIER = "ckpt.formats.dcp_hf.verify"

SHARDING = "DCP_SHARDING_INFO"
VERSION = "DCP_VERSION"

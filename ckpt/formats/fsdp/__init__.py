"""Files of torch.save, one for each rank of a sharded run, whose DTensors are pieces of the tensors of one checkpoint.

verl writes `model_world_size_8_rank_3.pt`, accelerate `pytorch_model_fsdp_rank3.bin`, others `*.rank_3.pth`.
"""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "fsdp-ranks"
SUFFIXES: tuple[str, ...] = ()
TRAITS = Traits("FSDP ranks", is_pickle=True, keeps_devices=True, has_checksums=True, is_set=True)
WRITER = ""
VERIFIER = "ckpt.formats.fsdp.verify"

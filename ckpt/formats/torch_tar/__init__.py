"""torch.save of torch 0.1: a tar archive of `storages`, `tensors` and `pickle`."""

from __future__ import annotations

from ckpt.checkpoint import Traits

NAME = "torch-tar"
SUFFIXES: tuple[str, ...] = (".pth", ".pt", ".tar")
TRAITS = Traits("PyTorch 0.1 tar", "torch.load({path}, {options})", is_pickle=True, keeps_devices=True)
WRITER = ""
VERIFIER = ""
MEMBERS = ("storages", "tensors", "pickle")

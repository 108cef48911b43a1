"""Loading a written file with torch and comparing it with its source."""

from __future__ import annotations

import warnings
from typing import Any

from ckpt.elements.blocks import elements
from ckpt.ext.live import require_torch
from ckpt.formats import open
from ckpt.formats.save import check_bytes
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import UsageError, WriteError
from ckpt.model.names import Path
from ckpt.model.tensors import TensorRef
from ckpt.model.text import show
from ckpt.tree.find import tied_aliases


def check_by_torch(path: str, planned: Checkpoint) -> str | None:
    """Load a written file with torch and compare every tensor with its source.

    torch never loads a file that needs weights_only=False, nor one whose loader runs
    its pickles. Every byte of such a file is compared by our own reader instead, which
    the answer says: "crc". Raises WriteError when they differ, UsageError without
    torch.
    """
    torch = require_torch()
    with open(path) as written:
        # Loading such a file could run what it names.
        if written.weights_only or written.traits.fills_a_state:
            check_bytes(path, planned)
            return "crc"
        others = tied_aliases(written)
        loaded = _load_by_torch(torch, path, written)
        for entry in planned.tensors:
            ref = entry.tensor
            name = others.get(entry.name, entry.name)
            # Names of safetensors have dots; a pickle is a tree.
            path_there = entry.path if written.traits.is_pickle else (name,)
            tensor = _object_at(loaded, path_there)
            kinds = (torch.Tensor, torch.storage.TypedStorage, torch.UntypedStorage)
            if not isinstance(tensor, kinds):
                raise _difference_error(entry.name)
            # Other layouts and tensors on meta have no bytes of their own to compare.
            if isinstance(ref, TensorRef) and ref.storage.place is not None:
                if tuple(tensor.shape) != ref.shape:
                    raise _difference_error(entry.name)
                if str(tensor.dtype) != f"torch.{ref.dtype.name}":
                    raise _difference_error(entry.name)
                if _tensor_bytes(torch, tensor) != b"".join(elements(ref)):
                    raise _difference_error(entry.name)
    return None


def _load_by_torch(torch: Any, path: str, written: Checkpoint) -> Any:
    if not written.traits.is_pickle:
        from safetensors.torch import load_file

        return load_file(path)
    if written.not_loadable:
        raise UsageError(
            f"--verify torch: {written.not_loadable}", hint="--verify crc loads nothing"
        )
    options: dict[str, Any] = {"encoding": written.encoding} if written.encoding else {}
    with warnings.catch_warnings():
        # A warning of torch about its own formats says nothing about the file.
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, map_location="cpu", weights_only=True, **options)
        except Exception as error:  # whatever torch raises, the file is not kept
            raise WriteError(
                f"torch does not load the written file: {show(str(error), 200)}"
            ) from None


def _object_at(loaded: Any, path: Path) -> Any:
    """The object at a path of a loaded object: an item of a container, or an
    attribute.
    """
    item = loaded
    for key in path:
        try:
            item = item[key]
        # An attribute of an object that is no container.
        except (TypeError, KeyError, IndexError, AttributeError):
            item = getattr(item, "__dict__", {}).get(key)
    return item


def _tensor_bytes(torch: Any, tensor: Any) -> bytes:
    """The elements of a tensor in the order of its shape. Read from the storage,
    because some dtypes have no view.
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    begin = plain.storage_offset() * plain.element_size()
    whole = torch.empty(0, dtype=torch.uint8, device=plain.device).set_(
        plain.untyped_storage()
    )
    return bytes(
        whole[begin : begin + plain.numel() * plain.element_size()].numpy().tobytes()
    )


def _difference_error(name: str) -> WriteError:
    return WriteError(
        f"torch loads {show(name, 80)} with other content than the source; the file "
        "was not kept"
    )

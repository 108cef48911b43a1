"""A universal checkpoint: `zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt`, one file for each state of each parameter.

Layout: deepspeed/checkpoint/ds_to_universal.py. From ZeRO-3 the files hold flat tensors, else `{"param": tensor}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt.checkpoint import Notice
from ckpt.dtypes import contiguous
from ckpt.errors import UnreadableError
from ckpt.formats.deepspeed.partitions import Partitions
from ckpt.formats.deepspeed.states import ModelState, fields, is_flat
from ckpt.limits import Limits
from ckpt.nodes import Node, tensor_of
from ckpt.tensors import TensorRef, tensor_ref
from ckpt.text import and_more, plural, show
from ckpt.tree.view import look

if TYPE_CHECKING:
    from ckpt.formats.deepspeed.reader import Files

WEIGHTS = "fp32"
_OPTIMIZER = "zero/optimizer_state.pt"


class Universal(Partitions):
    """The states of all parameters, whole already. Raises UnreadableError where a shape contradicts its tensor."""

    def __init__(self, files: Files, models: dict[int, ModelState], limits: Limits) -> None:
        super().__init__(models, {}, limits)
        ranks = self._main.rest.get("dp_world_size")
        self.saved_by = ranks if type(ranks) is int else None
        self._states: dict[str, dict[str, Node]] = {}
        """Parameter -> state -> tensor or number."""
        self._common: dict[str, Node] = {}
        for file in files.plan.universal or ():
            opened = files.open(file)
            if opened is None:
                continue
            if file == _OPTIMIZER:
                self._common = fields(opened.root)
                continue
            parts = file.removesuffix(".pt").split("/")
            if len(parts) == 3:
                root = opened.root
                node = fields(root).get("param", root) if look(root).kind == "mapping" else root
                self._states.setdefault(parts[1], {})[parts[2]] = self._shaped(node, parts[1], file)
        held = {name for name, states in self._states.items() if tensor_of(states.get(WEIGHTS)) is not None}
        lost = [name for name in self.names if name not in held]
        self.lost = frozenset({*lost, *self._lost_frozen})
        further = [name for name in self._states if name in held and not self._is_whole_buffer(name)]
        self.names = tuple(dict.fromkeys((*self.names, *further)))
        self.notices = [row for row in self.notices if not set(row.tensors) - self._lost_frozen]
        if lost:
            names = and_more([show(name, 60) for name in lost], 3)
            text = f"{plural(len(lost), 'parameter')} of {len(self.names):,} have no fp32 weights: {names}"
            self.notices.append(Notice("incomplete", text, tuple(lost)))
        files.notices += self.notices

    def _shaped(self, node: Node, name: str, file: str) -> Node:
        """A flat tensor in the shape of its parameter; any other tensor, or a number, as it is."""
        tensor = tensor_of(node)
        shape = self._shapes.get(name)
        if type(tensor) is not TensorRef or shape is None or not tensor.shape or tensor.shape == shape:
            return node if tensor is None else tensor
        numel = self._cuts[name].numel
        if not is_flat(tensor):
            return tensor  # tensor parallel ranks were merged, and the shapes are those of one rank
        if tensor.numel != numel:
            raise UnreadableError(
                f"{show(file, 120)} holds {tensor.numel:,} elements, its parameter has {numel:,}"
            )
        return tensor_ref(tensor.storage, tensor.dtype, shape, contiguous(shape), tensor.offset)

    @property
    def stage(self) -> int:
        stage = look(self._common.get("zero_stage")).value
        return stage if type(stage) is int and 0 <= stage <= 3 else super().stage

    @property
    def has_optimizer(self) -> bool:
        return any(set(states) - {WEIGHTS} for states in self._states.values())

    @property
    def rest(self) -> dict[str, Node]:
        gone = (
            "param_groups",
            "zero_stage",
            "optimizer_state_dict",
            "fp32_flat_groups",
            "base_optimizer_state",
        )
        return {name: node for name, node in self._common.items() if name not in gone}

    def weights(self, prefix: str) -> dict[str, Node]:
        made = super().weights(prefix)
        for name, states in self._states.items():
            # The folder has buffers too, all as fp32: the module has them as they were.
            if tensor_of(states.get(WEIGHTS)) is not None and not self._is_whole_buffer(name):
                made[name] = states[WEIGHTS]
        return made

    def _is_whole_buffer(self, name: str) -> bool:
        return name in (self._main.buffers or ()) and name in (self._main.module or {})

    def _state_rows(self, prefix: str) -> dict[str, dict[str, Node]]:
        rows = {
            name: {key: node for key, node in states.items() if key != WEIGHTS}
            for name, states in self._states.items()
        }
        return {name: row for name, row in rows.items() if row}

    def _base_groups(self) -> tuple[Node, ...]:
        held = look(self._common.get("param_groups"))
        return tuple(held.children) if held.kind == "sequence" else ()

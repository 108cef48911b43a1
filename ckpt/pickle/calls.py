"""Tensor references -> the calls that torch writes for them: the other direction of
`rebuild`.

Calls: torch/_tensor.py `_reduce_ex_internal`, torch/nn/parameter.py, as torch 2.13
writes them.

What loading a rewritten file would call or import is told here too.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.model.checkpoint import Checkpoint
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, is_tuple
from ckpt.model.rows import NamedTuple
from ckpt.model.tensors import Storage, TensorRef
from ckpt.pickle.judge.imports import judge_imports, names_and_calls
from ckpt.pickle.judge.names import is_own
from ckpt.tree.literals import call_text


def is_typed(storage: Storage) -> bool:
    """Tell whether torch saves the storage under the class of its elements, not as
    bytes.
    """
    dtype = storage.dtype
    # torch 2 saves complex32 as bytes, although it still reads the class that 1.x
    # wrote.
    return dtype is not None and dtype.storage is not None and dtype.name != "complex32"


def storage_class(storage: Storage) -> Global:
    """The class under which torch saves a storage."""
    if (
        storage.dtype is not None
        and storage.dtype.storage is not None
        and is_typed(storage)
    ):
        return Global("torch", storage.dtype.storage)
    return Global("torch.storage", "UntypedStorage")


def rebuild_call(ref: TensorRef) -> Opaque:
    """`_rebuild_tensor_v2` or `_v3` of a tensor, inside `_rebuild_parameter` for a
    Parameter.
    """
    requires_grad = bool(ref.requires_grad)
    # torch makes them anew for each tensor.
    shape, stride = ((*ref.shape,), (*ref.stride,))
    # A tensor on meta has no storage: torch keeps its dtype, shape and strides.
    if ref.storage.place is None:
        args: tuple[Node, ...] = (
            Global("torch", ref.dtype.name),
            shape,
            stride,
            requires_grad,
        )
        call = _make_call("_rebuild_meta_tensor_no_storage", args, ref)
    else:
        persistent = PersistentId(None, 0)
        persistent.meaning = ref.storage
        args = (
            persistent,
            ref.offset,
            shape,
            stride,
            requires_grad and not ref.is_parameter,
            ordered_dict(),
        )
        # `_v3` names the dtype, for an untyped storage does not say it.
        typed = is_typed(ref.storage)
        if not typed:
            args = (*args, Global("torch", ref.dtype.name))
        if ref.conj or ref.neg:
            bits = Dict()
            for name, is_set in (("conj", ref.conj), ("neg", ref.neg)):
                if is_set:
                    bits.set([name], [True])
            args = (*args, bits)
        call = _make_call(
            "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3", args, ref
        )
    if ref.is_parameter:
        return _make_call(
            "_rebuild_parameter", (call, requires_grad, ordered_dict()), ref
        )
    return call


DEVICE_ARGUMENT = {
    "torch._utils._rebuild_wrapper_subclass": 6,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": 2,
    "torch._utils._rebuild_device_tensor_from_numpy": 2,
    "torch._utils._rebuild_xla_tensor": 2,
    "torch._utils._rebuild_mlc_tensor": 2,
}
"""Rebuild calls that carry a device beside their storages, and the position of that
argument.
"""


def with_device(call: Opaque, moved: Callable[[Node], Node]) -> tuple[Node, ...]:
    """The arguments of a call, with its device, if it has one, replaced by `moved`."""
    func, args = call.func, call.args
    if type(func) is not Global:
        return args
    if func.name in ("_rebuild_from_type", "_rebuild_from_type_v2") and len(args) > 2:
        inner = args[0]
        position = (
            DEVICE_ARGUMENT.get(inner.qualified) if type(inner) is Global else None
        )
        inner_args = args[2]
        if position is not None and is_tuple(inner_args):
            return (
                *args[:2],
                _replace_argument(inner_args, position, moved),
                *args[3:],
            )
    position = DEVICE_ARGUMENT.get(func.qualified)
    return args if position is None else _replace_argument(args, position, moved)


def _replace_argument(
    args: tuple[Node, ...], position: int, moved: Callable[[Node], Node]
) -> tuple[Node, ...]:
    if len(args) <= position:
        return args
    return (*args[:position], moved(args[position]), *args[position + 1 :])


def device_call(tag: str) -> Opaque:
    """The pickled form of `torch.device(tag)`."""
    kind, _, index = tag.partition(":")
    args: tuple[Node, ...] = (kind, int(index)) if index else (kind,)
    return Opaque("reduce", Global("torch", "device"), args, None, 0)


def ordered_dict() -> Opaque:
    """An empty OrderedDict."""
    return Opaque("reduce", Global("collections", "OrderedDict"), (), None, 0)


def _make_call(name: str, args: tuple[Node, ...], meaning: TensorRef) -> Opaque:
    call = Opaque("reduce", Global("torch._utils", name), args, None, 0)
    call.meaning = meaning
    return call


class Code(NamedTuple):
    """The effects of loading a file beyond what ckpt knows, as text.

    `runs`: calls of Python itself, or of functions that run what they are given.
    `calls`: other unknown calls. `imports`: unknown names. `sets`: attributes that a
    class does not write.
    """

    runs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


def code_of(
    source: Checkpoint, result: Checkpoint, *, keeps_program: bool = False
) -> Code:
    """Return the effects of loading the pickle of `result`, which was made from
    `source`, and with `keeps_program` of the program beside it.

    An edit adds no names of its own. A result that takes values of another file is
    looked through, whatever either imports: what is harmless in each of them may be a
    call together.
    """
    strange = [row for row in source.imports if row.group != "known"]
    is_joined = result.is_edited and any(
        origin not in source.sources for origin in result.sources
    )
    program = _effects_of_program(result) if keeps_program else Code()
    if not strange and not is_joined:
        return program
    rows: list[_Effect] = []
    if not result.is_edited:
        for row in strange:
            effect = _Effect(row.module, row.name, row.group, row.calls, row.attributes)
            rows.append(effect)
    else:
        # An edit may join what was harmless apart, so the new tree is judged.
        names, calls = names_and_calls(result.root)
        late = [call for call in calls if len(call.states) > 1]
        judged = judge_imports(names, calls, [result.root], late).items()
        for name, judgement in judged:
            texts = tuple(map(call_text, judgement.calls[:1]))
            effect = _Effect(
                name.module, name.name, judgement.group, texts, judgement.attributes
            )
            rows.append(effect)
    # Dicts without values: sets that keep their order.
    runs = dict.fromkeys(program.runs)
    other_calls = dict.fromkeys(program.calls)
    imports: dict[str, None] = {}
    sets: dict[str, None] = {}
    for effect in rows:
        text = effect.calls[0] if effect.calls else effect.dotted_name
        if effect.group == "called":
            # Calls of Python itself run what they are given.
            kind = runs if is_own(effect.module) else other_calls
            kind[text] = None
        elif effect.group == "odd":
            # The lists of a folder are written anew.
            if not source.traits.is_folder:
                for attribute in effect.attributes:
                    sets[f"{effect.dotted_name}.{attribute}"] = None
        elif effect.group == "unknown":
            # A program of its own imports nothing.
            if not result.traits.names_are_code:
                imports[text] = None
    return Code(tuple(runs), tuple(other_calls), tuple(imports), tuple(sets))


_RUN, _CALLED = "DANGER: loading this file runs ", "torch.jit.load runs "
_UNKNOWN = ", which ckpt does not know."


def _effects_of_program(checkpoint: Checkpoint) -> Code:
    """Return what the reader told of the code that a load of TorchScript runs."""
    dangers = checkpoint.account.messages(("code-inside",))
    unknown = checkpoint.account.messages(("unknown-operator",))
    return Code(
        tuple(text.removeprefix(_RUN).removesuffix(".") for text in dangers),
        tuple(text.removeprefix(_CALLED).removesuffix(_UNKNOWN) for text in unknown),
    )


class _Effect(NamedTuple):
    """A name that loading imports, with the calls of it as text, and the attributes
    that are set on its objects.
    """

    module: str
    name: str
    group: str
    calls: tuple[str, ...]
    attributes: tuple[str, ...]

    @property
    def dotted_name(self) -> str:
        return f"{self.module}.{self.name}"

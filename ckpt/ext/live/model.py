"""The record of a live model: its tensors, its parameters in order, its modules, and
modules in plain lists.

It calls no collective and does not change the model.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any

from ckpt.evidence.record import LooseModule, ModelRecord, OptimizerRecord, TensorRecord
from ckpt.ext.live import require_torch
from ckpt.ext.live.script import training_call
from ckpt.ext.live.state import State, is_fsdp, state_of
from ckpt.model.errors import UsageError
from ckpt.model.names import nearest_names
from ckpt.model.text import show
from ckpt.tree.find import REGISTERED

_WRAPPERS = frozenset(
    (
        "DataParallel",
        "DistributedDataParallel",
        "OptimizedModule",
        "FullyShardedDataParallel",
    )
)
"""Classes of torch that wrap a model."""
NAME = "the model"
"""The path of a live model in errors."""
_DEPTH = 8
"""The depth to which nested containers are searched for modules."""
_STATE_KEYS = 50


def refuse_other(model: Any) -> None:
    """Raise UsageError for what is no torch.nn.Module."""
    if not isinstance(model, require_torch().nn.Module):
        raise UsageError(f"{type(model).__name__} is no torch.nn.Module", path=NAME)


def unwrap_model(model: Any) -> tuple[Any, tuple[str, ...]]:
    """The model inside its wrappers, and their classes, the outermost first."""
    classes: list[str] = []
    while _class_name(model).startswith("torch.") and type(model).__name__ in _WRAPPERS:
        classes.append(_class_name(model))
        # torch.compile keeps the model in another attribute than the other wrappers.
        if type(model).__name__ == "OptimizedModule":
            model = model._orig_mod
        else:
            model = model.module
    return model, tuple(classes)


def describe(
    model: Any,
    optimizers: Sequence[Any] = (),
    *,
    state: State | None = None,
    gradients: bool = False,
) -> ModelRecord:
    """The record of a model. `state` is the result of `state_of`. Gradients are read
    only with `gradients`.
    """
    torch = require_torch()
    ignored = _ignored_parameters(model)
    inner, wrappers = unwrap_model(model)
    state = state_of(inner) if state is None else state
    tensors = {
        name: value
        for name, value in state.values.items()
        if isinstance(value, torch.Tensor)
    }
    # A hook may have renamed, copied or left out what it saves: match by the tensor
    # itself, else by its name. Reversed, so that the first name of a tied tensor
    # counts.
    held = {id(value): name for name, value in reversed(tensors.items())}
    own = {
        state.name_of(name): p
        for name, p in inner.named_parameters(remove_duplicate=False)
    }
    parameters = {
        id(parameter): held.get(id(parameter), state.name_of(name))
        for name, parameter in inner.named_parameters()
    }
    # A copy that a hook saved has no gradient and no owner: the model's own tensor of
    # that name and shape stands for it.
    for name, tensor in tensors.items():
        twin = own.get(name)
        if (
            id(tensor) not in parameters
            and twin is not None
            and twin.shape == tensor.shape
        ):
            tensors[name] = twin
    # A parameter that a hook left out belongs to the model, under its first name.
    for name, parameter in own.items():
        if parameters.get(id(parameter)) == name:
            tensors.setdefault(name, parameter)
    norms: dict[int, float] = {}
    if gradients:
        owned = {id(t): t for t in tensors.values() if id(t) in parameters}
        norms = _gradient_norms(torch, owned)
    is_sharded = any(map(is_fsdp, model.modules()))
    records: dict[str, TensorRecord] = {}
    for name, tensor in tensors.items():
        # A Parameter that no module registers is saved by a hook.
        is_parameter = id(tensor) in parameters or isinstance(
            tensor, torch.nn.Parameter
        )
        records[name] = TensorRecord(
            "parameter" if is_parameter else "buffer",
            str(tensor.device),
            bool(tensor.requires_grad),
            norms.get(id(tensor)),
            is_sharded or hasattr(tensor, "to_local"),
        )
    is_lazy = torch.nn.parameter.is_lazy
    return ModelRecord(
        "snapshot" if gradients else "model",
        records,
        tuple(parameters.values()),
        {
            state.name_of(name): _class_name(module)
            for name, module in inner.named_modules()
        },
        frozenset(map(state.name_of, ignored)),
        wrappers,
        tuple(
            _optimizer_record(torch, optimizer, parameters) for optimizer in optimizers
        ),
        tuple(loose_modules(inner)),
        training=bool(inner.training),
        torch=str(torch.__version__),
        plain_tensors=tuple(_plain_tensors(inner)),
        twice=tuple(_twice_registered(inner)),
        # A lazy parameter has no shape before its module has run.
        shapes={
            name: tuple(tensor.shape)
            for name, tensor in tensors.items()
            if not is_lazy(tensor)
        },
    )


def _class_name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _ignored_parameters(model: Any) -> set[str]:
    """The names of the parameters that DDP ignores."""
    while type(model).__name__ == "OptimizedModule":
        model = model._orig_mod
    if "DistributedDataParallel" not in _class_name(model):
        return set()
    return set(getattr(model, "parameters_to_ignore", ()))


def _gradient_norms(torch: Any, parameters: dict[int, Any]) -> dict[int, float]:
    """The norm of each gradient, by the id of its parameter, in one transfer per
    device.
    """
    waiting: dict[Any, list[tuple[int, Any, Any]]] = {}
    with torch.no_grad():
        for marker, parameter in parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            # A DTensor's gradient: the part of this rank, without a collective.
            if hasattr(gradient, "to_local"):
                gradient = gradient.to_local()
            # An Embedding with `sparse=True` has a gradient of some rows.
            if gradient.layout is not torch.strided:
                if gradient.is_sparse:
                    gradient = gradient.coalesce().values()
                else:
                    gradient = gradient.to_dense()
            # The squares of narrow floats would underflow, and a small gradient would
            # count as zero. MPS has no float64.
            wide = None if gradient.device.type == "mps" else torch.float64
            if gradient.is_complex():
                gradient = torch.view_as_real(gradient.resolve_conj())
            norm = None
            if gradient.numel():
                norm = torch.linalg.vector_norm(gradient, dtype=wide)
            waiting.setdefault(gradient.device, []).append((marker, norm, gradient))
        # The norms of one device are stacked there, and come over at once.
        norms: dict[int, float] = {}
        for rows in waiting.values():
            computed = [norm for _, norm, _ in rows if norm is not None]
            numbers: list[float] = []
            if computed and computed[0].device.type != "meta":
                numbers = torch.stack(computed).tolist()
            values = iter(numbers)
            for marker, norm, gradient in rows:
                value = 0.0 if norm is None else next(values, 0.0)
                has_elements = norm is not None and gradient.device.type != "meta"
                if value == 0.0 and has_elements and bool(gradient.any()):
                    value = float(gradient.abs().max())  # too small to square
                norms[marker] = value
    return norms


def _optimizer_record(
    torch: Any, optimizer: Any, names: dict[int, str]
) -> OptimizerRecord:
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise UsageError(
            f"{_class_name(optimizer)} is not an optimizer: it has no param_groups"
        )
    # One row for each parameter, in the order of the groups.
    members = [(group, parameter) for group in groups for parameter in group["params"]]
    states = [optimizer.state.get(parameter) or {} for _, parameter in members]
    field_names: dict[str, None] = {}
    for state in states:
        field_names.update(dict.fromkeys(map(str, list(state)[:_STATE_KEYS])))
    fields = tuple(field_names)
    # SGD without a momentum keeps no state, whatever has a gradient: a missing state
    # says nothing there.
    has_momentum_only = set(fields) <= {"momentum_buffer"}
    return OptimizerRecord(
        _class_name(optimizer),
        tuple(names.get(id(parameter)) for _, parameter in members),
        tuple(bool(state) for state in states),
        tuple(_step_numbers(torch, [state.get("step") for state in states])),
        fields,
        tuple(
            not has_momentum_only or bool(group.get("momentum", True))
            for group, _ in members
        ),
    )


def _step_numbers(torch: Any, counters: list[Any]) -> Iterator[float | None]:
    """Step counters as numbers, in one transfer per device."""
    by_device: dict[Any, list[Any]] = {}
    for step in counters:
        if (
            isinstance(step, torch.Tensor)
            and step.numel() == 1
            and step.device.type != "meta"
        ):
            by_device.setdefault(step.device, []).append(step)
    numbers: dict[int, float] = {}
    for steps in by_device.values():
        flat = [step.detach().reshape(()).float() for step in steps]
        values = torch.stack(flat).tolist()
        numbers.update(zip(map(id, steps), values, strict=True))
    for step in counters:
        is_number = isinstance(step, (int, float)) and not isinstance(step, bool)
        yield numbers.get(id(step), float(step) if is_number else None)


# --- modules in plain containers ------------------------------------------------------


def loose_modules(model: Any) -> Iterator[LooseModule]:
    """The modules and Parameters in plain containers of a model's modules, which torch
    does not search.
    """
    torch = require_torch()
    modules = {id(module): name for name, module in model.named_modules()}
    parameters = {id(parameter) for _, parameter in model.named_parameters()}
    seen: set[int] = set()
    for name, module in list(model.named_modules()):
        if _is_of_torch(module):
            continue  # its lists are torch's own: the flat weights of an LSTM
        for attribute, value in vars(module).items():
            if attribute in REGISTERED or not isinstance(value, _CONTAINERS):
                continue
            start = f"{name}.{attribute}" if name else attribute
            for place, item in _items_below(value, start, 0):
                if id(item) in seen:
                    continue
                if isinstance(item, torch.nn.Module):
                    seen.add(id(item))
                    row = _loose_module(item, place, modules, parameters)
                    if row is not None:
                        yield row
                elif (
                    isinstance(item, torch.nn.Parameter) and id(item) not in parameters
                ):
                    seen.add(id(item))
                    yield LooseModule(place, "parameter", _class_name(item), 1, None)


def _is_of_torch(module: Any) -> bool:
    """Tell whether a module is a layer of torch, quantized ones among them, which keeps
    tensors and lists of its own.
    """
    return type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))


def _plain_tensors(model: Any) -> Iterator[str]:
    """The tensors that are plain attributes of a model's modules. state_dict() and
    .to() do not see them.
    """
    torch = require_torch()
    for name, module in model.named_modules():
        # Modules of torch keep tensors of their own as attributes.
        if not _is_of_torch(module):
            for attribute, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    yield f"{name}.{attribute}" if name else attribute


def _twice_registered(model: Any) -> Iterator[tuple[str, str]]:
    """The modules that are registered under two names."""
    seen: dict[int, str] = {}
    again: set[str] = set()
    # `named_modules` gives each module once unless it is asked for all.
    for name, module in model.named_modules(remove_duplicate=False):
        first = seen.setdefault(id(module), name)
        if first != name:
            # Not the modules inside a repeated one.
            if name.rpartition(".")[0] not in again:
                yield name, first
            again.add(name)


def _loose_module(
    item: Any, place: str, modules: dict[int, str], parameters: set[int]
) -> LooseModule | None:
    """Return a module in a plain container, or None if it has no parameters and no
    buffers.
    """
    names = (modules[id(child)] for child in item.modules() if id(child) in modules)
    inside = next(names, None)
    lost = sum(id(parameter) not in parameters for parameter in item.parameters())
    has_parameters = any(True for _ in item.parameters())
    has_buffers = any(True for _ in item.buffers())
    if not has_parameters and not has_buffers:
        return None  # an activation
    return LooseModule(
        place, "module", _class_name(item), lost, None if lost else inside
    )


_CONTAINERS = (list, tuple, set, frozenset, dict, deque)


def _items_below(container: Any, place: str, depth: int) -> Iterable[tuple[str, Any]]:
    """The items of a container and of the containers inside it, each with the Python
    text of its place.
    """
    # A list may hold itself.
    if depth > _DEPTH:
        return
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for key, item in list(pairs):
        # A set has no index: its text is the one of an item.
        if isinstance(container, (set, frozenset)):
            inner = f"{place}{{{key}}}"
        else:
            inner = f"{place}[{key!r}]"
        if isinstance(item, _CONTAINERS):
            yield from _items_below(item, inner, depth + 1)
        else:
            yield inner, item


def record(spec: str, arguments: Sequence[str] = ()) -> ModelRecord:
    """The record of the model that a callable makes on the meta device. Raises
    UsageError.
    """
    return describe(build(spec, arguments, device="meta"))


def build(
    spec: str, arguments: Sequence[str] = (), *, device: str, option: str = "--model"
) -> Any:
    """The nn.Module that `FILE.py:FACTORY` makes, with `name=value` arguments. `option`
    is the one that gave it.

    FACTORY is one name, and FILE a Python file: no name of a checkpoint is both. Output
    of the user's code goes to stderr. Its errors become a UsageError.
    """
    torch = require_torch()
    file, _, name = spec.rpartition(":")
    given = f"{option} {show(spec, 80)}"
    if not file.endswith(".py") or not name.isidentifier():
        raise UsageError(f"{given}: expected FILE.py:FACTORY")
    if not os.path.isfile(file):
        raise UsageError(f"{given}: {show(file, 80)} is no file")
    _refuse_training(given, file)
    # Output of the user's code must not mix with JSON on stdout.
    with redirect_stdout(sys.stderr):
        keywords = _parse_keywords(arguments)
        module = _import_file(given, file)
        factory: Any = getattr(module, name, None)
        if factory is None:
            near = nearest_names(name, vars(module), 1)
            raise UsageError(
                f"{given}: {show(file, 60)} has no {show(name, 60)}",
                hint=f"did you mean {show(near[0], 60)}?" if near else None,
            )
        # A module of that name is a model that the file has made itself.
        if isinstance(factory, torch.nn.Module):
            return factory
        if not callable(factory):
            raise UsageError(
                f"{given}: '{type(factory).__name__}' object is not callable"
            )
        model = _call_factory(torch, given, factory, keywords, device)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"{given}: returned a {type(model).__name__}, not a torch.nn.Module"
        )
    return model


def _call_factory(
    torch: Any, given: str, factory: Any, arguments: dict[str, Any], device: str
) -> Any:
    try:
        with torch.device(device):
            return factory(**arguments)
    except BaseException as error:
        _let_through(error)
        # The model reads values: `torch.linspace(...).tolist()`. torch 2.0 calls the
        # device Meta there.
        if device == "meta" and "meta" in str(error).lower():
            return _call_factory(torch, given, factory, arguments, "cpu")
        raise _factory_error(given, error) from error


def _parse_keywords(arguments: Sequence[str]) -> dict[str, Any]:
    """`width=64` as a keyword. The value is a Python literal if it reads as one, else
    text. Raises UsageError.
    """
    from ast import literal_eval

    keywords: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {show(argument, 80)}: expected NAME=VALUE")
        try:
            keywords[name] = literal_eval(text)
        # An unquoted word, such as `resnet50`, is a text.
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            keywords[name] = text
    return keywords


_GUARD = 'put what the script runs below if __name__ == "__main__":'


def _refuse_training(given: str, file: str) -> None:
    """Raise UsageError for a script that would train when it is imported: it would
    write over the checkpoints that it is asked about.
    """
    with open(file, "rb") as stream:
        call = training_call(stream.read())
    if call is not None:
        raise UsageError(
            f"{given}: importing the script would train: {show(call.text, 60)} in line "
            f"{call.line}",
            hint=_GUARD,
        )


def _import_file(given: str, file: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        # As with `python file.py`, modules beside the file can be imported.
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
        name = os.path.splitext(os.path.basename(file))[0]
        # A module of this name may be imported already, by ckpt or by the file itself.
        name = f"_{name}_of_model" if name in sys.modules else name
        spec = spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None  # the ending is .py
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except SystemExit as error:  # argparse at the top of a training script
        raise UsageError(
            f"{given}: the script ends when it is imported", hint=_GUARD
        ) from error
    except BaseException as error:
        _let_through(error)
        raise _factory_error(given, error) from error


def _let_through(error: BaseException) -> None:
    """Raise again what is not a failure of the user's code: an interrupt, a signal."""
    if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith(
        "ckpt."
    ):
        raise error


def _factory_error(given: str, error: BaseException) -> UsageError:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UsageError(
        f"{given}: {show(what.partition(chr(10))[0], 200)}",
        hint="CKPT_DEBUG=1 shows where",
    )

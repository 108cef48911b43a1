"""The way to open a checkpoint in Python: one expression for this file, ready to paste.

A file with unknown names gets a reason instead of an expression, never
`weights_only=False`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.bytes.far import is_url
from ckpt.bytes.location import is_lasting
from ckpt.evidence.sections import Section
from ckpt.evidence.wrappers import wrapped_names
from ckpt.model.checkpoint import Checkpoint, Refusal
from ckpt.model.names import NamedKey, Path
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import STAND_INS, and_more, pasted_path, show, show_literal
from ckpt.pickle.judge.names import PACKAGES, is_own
from ckpt.tree.view import look


class Load(NamedTuple):
    """The expression (`torch.load(...)["model"]`), or None with the `reason`. `note` is
    a comment beside it.
    """

    expression: str | None
    note: str | None = None
    reason: str | None = None
    model: str | None = None
    """The line that opens a folder as the model that its config.json names."""


NEEDED = "weights_only=True refuses {}"
"""The note of a file that weights_only refuses, with the reasons."""

_OF_RANKS = "only the program that wrote it puts its parts together"

_REGISTERS = {
    "torchao": ("torchao.",),
    "torch.distributed.tensor": (
        "torch.distributed.tensor.",
        "torch.distributed.device_mesh.",
        "torch.distributed._mesh_layout.",
    ),
    "torch._dynamo": (
        "torch._dynamo.",
        "torch.nested.",
        "a rebuild of a type by a function",
    ),
}
"""Packages whose import adds classes to those that weights_only allows -> how the
refusals begin that it ends.
"""


_NO_LOADER = "the format names no function that loads it"


def load_of(checkpoint: Checkpoint, models: Sequence[Section]) -> Load:
    """Return the way to open the checkpoint, down to its model when there is only one.

    Of a folder it opens the files with its models.
    """
    if checkpoint.members:
        return _of_folder(checkpoint, models)
    if checkpoint.not_loadable:
        return Load(None, reason=checkpoint.not_loadable)
    template = checkpoint.traits.load
    if checkpoint.traits.names_are_code:
        strange = _code_reason(checkpoint) or _strange_reason(checkpoint)
        expression = template.format(
            path=string_literal(local_path(checkpoint.path)), options=""
        )
        return Load(None, reason=strange) if strange is not None else Load(expression)
    if checkpoint.traits.is_foreign and checkpoint.traits.is_archive:
        return _load_of_package(checkpoint, models)
    if checkpoint.traits.is_foreign:
        return _load_of_pickle(checkpoint, models)
    strange = _strange_reason(checkpoint)
    if strange is not None:
        return Load(None, reason=strange)
    if any(row.name == "ShardedTensor" for row in checkpoint.imports):
        return Load(
            None,
            reason=(
                "torch loads a ShardedTensor in a process group of as many ranks only"
            ),
        )
    outdated = _outdated_reason(checkpoint)
    if outdated is not None:
        return Load(None, reason=outdated)
    if checkpoint.traits.fills_a_state:
        # DCP loads into a state dict that is there: nobody else knows the model.
        fill = f"import torch.distributed.checkpoint; {_state_text(models)}"
        if checkpoint.traits.is_pickle:
            fill += "; torch runs the pickle in .metadata"
        path = string_literal(local_path(checkpoint.path))
        return Load(template.format(path=path), fill)
    if checkpoint.traits.is_set and not template:
        return Load(None, reason=checkpoint.traits.no_load or _OF_RANKS)
    if not template:
        # A format of another distribution need not name one.
        return Load(None, reason=checkpoint.traits.no_load or _NO_LOADER)
    return _load_by_template(checkpoint, models)


def _state_text(models: Sequence[Section]) -> str:
    """Say which dict is filled: with the names under which the models were saved, for
    torch looks for `model.fc.weight` in the files, and not for `fc.weight`.
    """
    keys = [[string_literal(str(step)) for step in model.path] for model in models]
    if len(models) == 1 and keys[0]:
        nested = "your model's state dict"
        for key in reversed(keys[0]):
            nested = f"{{{key}: {nested}}}"
        return f"state is {nested}"
    if len(models) > 1 and all(len(row) == 1 for row in keys):
        listed = and_more([f"{key}: …" for (key,) in keys], 4)
        return f"state is {{{listed}}}, with your models' state dicts"
    return "state is your model's state dict"


def _load_by_template(checkpoint: Checkpoint, models: Sequence[Section]) -> Load:
    """Return the way to open a checkpoint by the function that its format names."""
    template = checkpoint.traits.load
    refused = checkpoint.weights_only
    # Without it every storage goes to the device that it was saved on.
    options = ['map_location="cpu"']
    if refused:
        options.append("weights_only=False")
    if checkpoint.encoding:
        options.append(f'encoding="{checkpoint.encoding}"')
    note = None
    if refused:
        note = NEEDED.format(refusals_text(refused) + _until_imported(refused))
        packages = dict.fromkeys(_top_package(row.module) for row in checkpoint.imports)
        needed = [package for package in packages if package in PACKAGES]
        if needed:
            note += f"; needs {and_more(needed, 3)}"
    if checkpoint.traits.is_archive:
        return _load_of_member(checkpoint, models, ", ".join(options), note)
    if checkpoint.traits.is_set:
        return _of_set(checkpoint, ", ".join(options), note)
    # Its loader finds the others by the first.
    if checkpoint.parts and checkpoint.traits.has_own_metadata:
        folder = local_path(checkpoint.path).rpartition("/")[0]
        # A file of no folder has no slash in front; an absolute path gets it back.
        first = f"{folder}/{checkpoint.parts[0]}".lstrip("/")
        if local_path(checkpoint.path).startswith("/"):
            first = f"/{first}"
        return Load(template.format(path=string_literal(first)), note)
    if checkpoint.parts:
        return Load(_shards_expression(checkpoint, ", ".join(options)), note)
    path = string_literal(local_path(checkpoint.path))
    if checkpoint.traits.is_pickle and checkpoint.path.endswith(".safetensors"):
        # By that ending torch 2.13 reads safetensors.
        path = f'open({path}, "rb")'
    expression = template.format(path=path, options=", ".join(options))
    if checkpoint.traits.is_pickle:
        expression += _model_path(checkpoint, models)
    return Load(expression, note)


def _of_folder(checkpoint: Checkpoint, models: Sequence[Section]) -> Load:
    """Return the way to open the weights of a folder.

    Other files, such as the arguments of a trainer, are not opened for them.
    """
    if checkpoint.traits.is_set:
        return Load(None, reason=_OF_RANKS)
    loads: dict[str, Load] = {}
    roots = [member for member in checkpoint.members if not member.key]
    keys = {(member.key,) for member in checkpoint.members}
    for member in checkpoint.members:
        # An optimizer beside the model, both at the root.
        if not member.key and len(roots) > 1 and not member.is_model:
            continue
        depth = 1 if member.key else 0
        if member.key:
            inside = [part for part in models if part.path[:1] == (member.key,)]
        else:
            inside = [part for part in models if part.path[:1] not in keys]
        if inside or (member.is_model and not models):
            relative = [part._replace(path=part.path[depth:]) for part in inside]
            loads[member.key] = load_of(member.checkpoint, relative)
    failed = next((load for load in loads.values() if load.expression is None), None)
    if failed is not None or not loads:
        return failed or Load(
            None, reason="no file of this folder is a model's weights alone"
        )
    if len(loads) == 1:
        (load,) = loads.values()
        # The names of a wrapper fit no model of transformers.
        is_wrapped = any(wrapped_names(part.names()) for part in models)
        # A line of transformers would hide what the note says.
        if load.note or is_wrapped:
            return load
        # Here: a file alone has no config.
        from ckpt.evidence.pretrained import foreign_code

        key = foreign_code(checkpoint)
        if key is not None:
            named = show(key, 60)
            return load._replace(
                note=f"the weights alone: a config names code, or other files ({named})"
            )
        return load._replace(model=_pretrained_line(checkpoint))
    if checkpoint.traits.fills_a_state:
        return Load(
            None, reason="each of its models is a distributed checkpoint of its own"
        )
    pairs = ", ".join(
        f"{string_literal(key)}: {load.expression}" for key, load in loads.items()
    )
    notes = dict.fromkeys(load.note for load in loads.values() if load.note)
    return Load(f"{{{pairs}}}", "; ".join(notes) or None)


def _pretrained_line(checkpoint: Checkpoint) -> str | None:
    """Return the line that opens a folder as the model that its config.json names, or
    as an adapter; or None.
    """
    from ckpt.evidence.pretrained import base_of_adapter, merged_parts, pretrained_line

    path = string_literal(local_path(checkpoint.path))
    base = base_of_adapter(checkpoint)
    if base is not None:
        shapes = {entry.name: entry.tensor.shape for entry in checkpoint.tensors}
        # No PEFT of today has such layers.
        if merged_parts(shapes):
            return None
        line = f"peft.PeftModel.from_pretrained(base, {path})"
        return f"{line}  # base is {string_literal(base)}" if base else line
    return pretrained_line(checkpoint, path)


def _code_reason(checkpoint: Checkpoint) -> str | None:
    """Return the reason why code in a file speaks against loading it, or None."""
    codes = {notice.code for notice in checkpoint.account.notices}
    if "code-inside" in codes:
        return "loading it runs the code that it holds"
    if "unknown-import" in codes:
        return "loading it imports modules that ckpt does not know"
    if "unknown-operator" in codes:
        return "loading it runs operators that ckpt does not know"
    return None


def _strange_reason(checkpoint: Checkpoint) -> str | None:
    """Return the reason why no expression is given, or None.

    It is a name that only the author's code has, or that loading calls.
    """
    # The worst first: what runs, what may run, what is missing, what is odd.
    called = [row for row in checkpoint.imports if row.group == "called"]
    runs = next((row for row in called if is_own(row.module)), None)
    if runs is not None:
        what = ""
        if runs.attributes:
            what = f" with the attribute {show(runs.attributes[0], 60)}"
        return f"loading this file runs {runs.module}.{runs.name}{what}"
    for row in called:
        if not row.is_enum or _top_package(row.module) in PACKAGES:
            return f"loading this file calls the unknown {row.module}.{row.name}"
    for row in checkpoint.imports:
        if row.group in ("known", "odd") or row.is_script:
            continue
        if _top_package(row.module) not in PACKAGES:
            # torch has layers that ckpt does not list, so not all are of an author.
            if is_own(row.module):
                return f"needs {row.module}.{row.name}, which ckpt does not know"
            return f"needs {row.module}.{row.name} from the author's code"
    odd = next((row for row in checkpoint.imports if row.group == "odd"), None)
    if odd is not None:
        name = show(odd.attributes[0], 60)
        return (
            f"do not load it as it is: {odd.module}.{odd.name} does not write its "
            f"attribute {name}"
        )
    return None


_RNN = frozenset(f"torch.nn.modules.rnn.{name}" for name in ("RNN", "LSTM", "GRU"))


def _outdated_reason(checkpoint: Checkpoint) -> str | None:
    """Return the reason why the torch of today cannot load a file of torch 1.0 to 1.13,
    or None.

    The torch of today knows every name in the file.
    """
    for row in checkpoint.imports:
        if (row.module, row.name) == ("torch._utils", "_rebuild_sparse_csr_tensor"):
            return f"torch 2 has no {row.module}.{row.name} any more"
    for part in checkpoint.containers:
        # A state dict has the same keys, but no class of torch.optim.
        is_optimizer = part.type.startswith("torch.optim.")
        missing = None
        if is_optimizer and "param_groups" in part.keys:
            missing = "defaults"
        elif part.type in _RNN and _names_weights(part.node):
            missing = "_flat_weights"
        if missing is not None and missing not in part.keys:
            place = f" ({part.name})" if part.name else ""
            return (
                f"torch 2 cannot load this {part.type}{place}, which has no {missing}"
            )
    return None


def _names_weights(module: Node) -> bool:
    """Tell whether a recurrent module lists its weights by name.

    Then `__setstate__` does not collect them.
    """
    listed = look(module).attributes.get("_all_weights")
    first = listed[0] if type(listed) is list and listed else None
    return type(first) is list and bool(first) and isinstance(first[0], str)


def _top_package(module: str) -> str:
    return module.partition(".")[0]


def _until_imported(refused: tuple[Refusal, ...]) -> str:
    """The package whose import ends all refusals, since it registers its classes."""
    for package, reasons in _REGISTERS.items():
        # Every refusal must go: one that stays refuses the file anyway.
        if all(row.reason.startswith(reasons) for row in refused):
            return f" until {package} is imported"
    return ""


def refusals_text(refused: tuple[Refusal, ...]) -> str:
    """The first reason with its place, and the number of further reasons."""
    reasons = [
        f"{row.reason} at {row.where[0] or 'the root'}" if row.where else row.reason
        for row in refused
    ]
    return and_more(reasons, 1)


def look_at(path: str, *options: str) -> str | None:
    """Return the command that shows more of a file, ready to paste.

    None when the next command cannot open the path again.
    """
    name = pasted_path(path)
    if not name or not is_lasting(path):
        return None
    return " ".join(["ckpt", "inspect", name, *options])


_SUBSCRIPTED = frozenset(("dict", "OrderedDict", "list", "tuple"))


def _model_path(checkpoint: Checkpoint, models: Sequence[Section]) -> str:
    """The subscripts that lead to the only model, or nothing."""
    if len(models) != 1:
        return ""
    path = models[0].path
    steps = path_subscripts(path)
    if steps is None:
        return ""
    # An object above the model would need its attributes, and those are not checked.
    types = {row.path: row.type for row in checkpoint.containers}
    for depth in range(len(path)):
        if types.get(path[:depth]) not in _SUBSCRIPTED:
            return ""
    return f"{steps}.state_dict()" if models[0].is_module else steps


def _load_of_pickle(checkpoint: Checkpoint, models: Sequence[Section]) -> Load:
    """Return the way to open a plain pickle.

    Nothing limits what it imports, so all that it names must be known.
    """
    unknown = [
        f"{row.module}.{row.name}"
        for row in checkpoint.imports
        if row.group == "unknown"
    ]
    if any(row.group in ("called", "odd") for row in checkpoint.imports):
        return Load(
            None,
            reason=_strange_reason(checkpoint)
            or "loading this file calls unknown code",
        )
    if unknown:
        return Load(
            None,
            reason=(
                f"loading this file imports {and_more(unknown, 2)}, which ckpt does "
                "not know"
            ),
        )
    template = checkpoint.traits.load
    options = f', encoding="{checkpoint.encoding}"' if checkpoint.encoding else ""
    expression = template.format(
        path=string_literal(local_path(checkpoint.path)), options=options
    )
    modules = sorted(set(re.findall(r"(\w+)\.\w+\(", template)))
    note = f"only if you trust its author; import {', '.join(modules)}"
    return Load(expression + _model_path(checkpoint, models), note)


def _load_of_package(checkpoint: Checkpoint, models: Sequence[Section]) -> Load:
    """The pickle of a package that holds the model: PackageImporter takes its folder
    and its name.
    """
    strange = _code_reason(checkpoint) or _strange_reason(checkpoint)
    if strange is not None:
        return Load(None, reason=strange)
    members = {part.removesuffix(".pkl"): part for part in checkpoint.parts}
    paths = [row.path for row in models] or [(key,) for key in members]
    if len(paths) != 1 or paths[0][0] not in members:
        return Load(None, reason=f"it holds {len(paths)} models")
    package, _, resource = members[str(paths[0][0])].rpartition("/")
    template = checkpoint.traits.load
    names = f"{string_literal(package.replace('/', '.'))}, {string_literal(resource)}"
    expression = template.format(
        path=string_literal(local_path(checkpoint.path)), part=names
    )
    inner = _model_path(checkpoint, models).removeprefix(
        path_subscripts(paths[0][:1]) or ""
    )
    return Load(
        expression + inner, "import torch.package; runs its pickle without limits"
    )


def _load_of_member(
    checkpoint: Checkpoint, models: Sequence[Section], options: str, note: str | None
) -> Load:
    """The member of an archive that holds the model. `import` stands in the note: torch
    does not bring it along.
    """
    template = checkpoint.traits.load
    members = {
        part.rpartition("/")[2].rpartition(".")[0]: part for part in checkpoint.parts
    }
    paths = [row.path for row in models] or [(key,) for key in members]
    if len(paths) != 1 or paths[0][0] not in members:
        return Load(None, reason=f"it holds {len(paths)} models")
    expression = template.format(
        path=string_literal(local_path(checkpoint.path)),
        part=string_literal(members[str(paths[0][0])]),
        options=options,
    )
    steps = _model_path(checkpoint, models)
    needs = f"import {template.partition('(')[2].partition('.')[0]}"
    inner = steps.removeprefix(path_subscripts(paths[0][:1]) or "")
    return Load(expression + inner, f"{needs}; {note}" if note else needs)


_FROM = {
    "get_fp32_state_dict_from_zero_checkpoint": (
        "from deepspeed.utils.zero_to_fp32 import "
        "get_fp32_state_dict_from_zero_checkpoint"
    )
}
"""A function of another package that loads a folder -> what imports it."""


def _of_set(checkpoint: Checkpoint, options: str, note: str | None) -> Load:
    """The function that opens the folder. One of another package unpickles every file
    without weights_only.
    """
    template = checkpoint.traits.load
    expression = template.format(
        path=string_literal(local_path(checkpoint.path)), options=options
    )
    for name, line in _FROM.items():
        if name in template:
            return Load(expression, f"{line}; it unpickles every file")
    return Load(expression, note)


def _shards_expression(checkpoint: Checkpoint, options: str) -> str:
    folder = local_path(checkpoint.path)
    # The path may be that of the index: the shards lie beside it.
    if folder.endswith(".json"):
        folder = folder.rpartition("/")[0]
    where = f"{folder.rstrip('/')}/" if folder else ""
    template = checkpoint.traits.load
    if len(checkpoint.parts) == 1:
        return template.format(
            path=string_literal(where + checkpoint.parts[0]), options=options
        )
    path = f"{string_literal(where)} + shard" if where else "shard"
    names = _names_of(checkpoint.parts)
    return (
        f"{{k: v for shard in {names} for k, v in "
        f"{template.format(path=path, options=options)}.items()}}"
    )


_SPELLED = 8
"""The names of more shards than this are counted, where they have a number each."""


def _names_of(parts: Sequence[str]) -> str:
    """The names of shards as a list in Python."""
    import re  # here: few checkpoints have so many shards

    usual = re.fullmatch(r"([\w.-]*?)([0-9]+)(-of-[0-9]+[\w.-]*)", parts[0], re.ASCII)
    if len(parts) > _SPELLED and usual is not None:
        head, digits, tail = usual.groups()
        first, width = int(digits), len(digits)
        numbers = range(first, first + len(parts))
        # A gap or another order in the numbers: the names are listed then.
        if [f"{head}{number:0{width}}{tail}" for number in numbers] == list(parts):
            return (
                f'[f"{head}{{n:0{width}}}{tail}" for n in range({numbers.start}, '
                f"{numbers.stop})]"
            )
    return f"[{', '.join(map(string_literal, parts))}]"


def path_subscripts(path: Path) -> str | None:
    """Return a path as Python subscripts (`["model"]`), or None when a key cannot be
    written as one.
    """
    if any(isinstance(key, NamedKey) for key in path):
        # A key that is no text or number has no literal to paste.
        return None
    # Attributes of a module are no items: `model["_modules"]` does not exist.
    if "_parameters" in path or "_modules" in path or "_buffers" in path:
        return None
    return "".join(
        f"[{string_literal(key) if isinstance(key, str) else key}]" for key in path
    )


def local_path(path: str) -> str:
    """A path; of a URL the name of its copy in the working folder, because torch opens
    no URLs.
    """
    return path.rstrip("/").rpartition("/")[2] if is_url(path) else path


def _readable_char(char: str) -> str:
    """A character as it is, or its escape in Python where it could be mistaken."""
    if char.isascii():
        return char
    if char not in STAND_INS and show_literal(char) == char:
        return char
    return ascii(char)[1:-1]


def string_literal(text: str) -> str:
    """A string as Python source, in double quotes unless it contains them; only what
    can be read is not escaped.

    Nor is it where an encoding without it prints the escape of Python; characters with
    a stand-in are escaped always.
    """
    quoted = repr(text)
    if not text.isascii():
        quoted = "".join(map(_readable_char, quoted))
    if quoted.startswith("'") and '"' not in quoted:
        return f'"{quoted[1:-1]}"'
    return quoted

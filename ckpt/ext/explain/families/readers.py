"""Errors of readers that do not know the format of a whole file: other loaders, older
versions, other systems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    keys_text,
    load_statements,
)
from ckpt.ext.explain.families.imports import rows_of
from ckpt.ext.explain.families.programs import lost_spaces
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, places_text, show

_AGENTS = "Stable-Baselines"
_NUMPY_2 = ("numpy._core",)
_PATHS = "pathlib"


def _is_program(case: Case) -> bool:
    return case.survey.checkpoint.traits.names_are_code


_AS_DICT = re.compile(
    r"forward_magic_method[\s\S]{0,300}?NotImplementedError"
    r"|'RecursiveScriptModule' object is not subscriptable"
)
"""The words of torch where a program of TorchScript is asked for a key."""


def _answer_program(message: Message, case: Case) -> Iterator[Statement]:
    """Answer torch.jit.load, which takes programs alone."""
    # torch.load opens a program of TorchScript by torch.jit.load, and gives a module in
    # the place of a dict.
    if _is_program(case) and _AS_DICT.search(message.text):
        yield Statement(
            "This file is a TorchScript program, and the program asked it for a key, "
            "as a checkpoint has one. It has none: give the checkpoint of the training "
            "that was exported. The program itself loads so:",
            (),
            case.survey.load.expression,
        )
        return
    if _is_program(case):
        yield Statement(
            "This file is a TorchScript program, which torch.jit.load takes:",
            (),
            case.survey.load.expression,
        )
        return
    yield Statement(
        f"{_whole_text(case)} It is no TorchScript program: {_content_text(case)}."
    )
    yield from load_statements(case, "It loads in Python so:")
    yield Statement(
        "torch.jit.load, libtorch, DJL and other C++ programs take what torch.jit.save "
        "wrote: load the weights into the model in Python, then write it so:",
        (),
        'torch.jit.script(model).save("model.pt")',
    )


_OPERATOR = re.compile(
    r"Unknown builtin op: ([\w.]{1,200})::([\w.]{1,200}?)\.?(?:\s|$)"
)
_TYPE = re.compile(
    r"Unknown type name '(?:__torch__\.torch\.classes\.([\w]{1,200})\.)?([\w.]{1,400})'"
)
_OF_TORCH = ("aten", "prim", "quantized", "prims", "inductor", "sparse")
_LIBRARIES = {
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "image": "torchvision",
    "torch_scatter": "torch_scatter",
    "torch_sparse": "torch_sparse",
    "torch_cluster": "torch_cluster",
    "torch_spline_conv": "torch_spline_conv",
    "tensorrt": "torch_tensorrt",
    "fbgemm": "fbgemm_gpu",
    "detectron2": "detectron2",
    "torchao": "torchao",
    "torchtext": "torchtext",
}
"""Namespaces of operators -> the package whose import registers them."""


def _answer_operator(message: Message, case: Case) -> Iterator[Statement]:
    """Answer torch.jit.load, which lacks an operator or a class of the program."""
    if not _is_program(case):
        yield Statement(
            f"This file is no TorchScript program: {_content_text(case)}. Another file "
            "was loaded."
        )
        yield from load_statements(case)
        return
    found = _OPERATOR.search(message.text)
    kind = _TYPE.search(message.text)
    if found is not None:
        # The namespace tells the library: `torchvision::nms`.
        name, space = f"{found[1]}::{found[2]}", found[1]
    elif kind is not None:
        # A type without a namespace is one of torch's own.
        name, space = kind[2], kind[1] or "aten"
    else:
        return
    # A library has a namespace of its own, so only another torch has the operator.
    if space in _OF_TORCH:
        yield Statement(
            f"{show(name, 120)} is of torch itself: a newer torch wrote the program, "
            "and yours lacks it. With the torch that wrote it, or a newer one, it "
            "loads so:",
            (),
            case.survey.load.expression,
        )
        return
    # The import of a package registers its operators, which torch.jit.load then finds.
    package = _LIBRARIES.get(space)
    how = (
        f"import {package}"
        if package is not None
        else (
            'torch.ops.load_library("….so"), or the import of the package that defines '
            "it"
        )
    )
    yield Statement(
        f"{show(name, 120)} is of a library, and not of torch. Load the library first: "
        f"{how}. A program in C++ links it. Then it loads so:",
        (),
        case.survey.load.expression,
    )


def _whole_text(case: Case) -> str:
    if case.verified is None:
        return ""
    return (
        "This file is whole."
        if not case.damage
        else "This file is damaged: ckpt verify says where."
    )


def _content_text(case: Case) -> str:
    """The content of a file in a few words."""
    survey = case.survey
    if case.has_module:
        return "it holds a pickled module"
    if not survey.checkpoint.traits.is_pickle:
        return f"its format is {survey.checkpoint.traits.label}"
    models = [section.name for section in survey.candidates]
    if len(models) == 1 and not models[0]:
        return "it holds a state dict, as torch.save writes one"
    return f"it holds a dict of {keys_text(case)}, as torch.save writes one"


def _older_torch(message: Message, case: Case) -> Iterator[Statement]:
    """Answer torch before 1.6, which reads the legacy format alone."""
    del message
    label = case.survey.checkpoint.traits.label
    if _is_program(case):
        yield Statement(
            "This file is a TorchScript program:", (), case.survey.load.expression
        )
        yield Statement(
            "Where an old torch refuses it, the torch that wrote it or a newer one "
            "reads it."
        )
        return
    # The legacy format alone stores views.
    if case.survey.checkpoint.traits.has_views:
        yield Statement(f"This file is {label}, which torch 1.5 and older read.")
        return
    if not case.survey.checkpoint.traits.is_pickle:
        yield Statement(
            f"This file is {label}, and the message is about the zip format of torch: "
            "another file was loaded."
        )
        return
    yield Statement(
        (
            f"{_whole_text(case)} It is a {label}, the format of torch 1.6 and newer."
        ).strip()
    )
    # torch 1.5 and older read the legacy format alone.
    way = case.written(("convert", "--format", "torch-legacy"), ".legacy", ".pth")
    if way.command is not None:
        yield Statement(
            "A copy in the format that older versions read:", (), way.command
        )
    else:
        # If --format torch-legacy refuses the file, a plain copy comes first.
        yield from _plain_copy_statements(
            case, "A copy with plain values, which --format torch-legacy can then take:"
        )


def _answer_mmap(message: Message, case: Case) -> Iterator[Statement]:
    del message
    label = case.survey.checkpoint.traits.label
    if _is_program(case):
        yield Statement(
            "This file is a TorchScript program. torch.load hands it to "
            "torch.jit.load, and takes no mmap=True then:",
            (),
            case.survey.load.expression,
        )
        return
    # Beside programs the zip format of torch alone has the trait in_place.
    if case.survey.checkpoint.traits.in_place:
        yield Statement(
            f"This file is a {label}, which mmap=True takes. Another file was loaded."
        )
        return
    begin = f"The format of this file is {label}, and mmap=True takes the zip format of"
    if not case.survey.checkpoint.traits.is_pickle:
        yield Statement(f"{begin} torch 1.6 and newer: another file was loaded.")
        return
    yield Statement(f"{begin} torch 1.6 and newer.")
    yield from command_statements("A copy in it:", case.plan(("convert",)))


def _newer_torch(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a torch that lacks a function by which a newer one rebuilds tensors."""
    # Python writes `Can't get attribute '_rebuild_device_tensor_from_numpy' on …`.
    name = next(
        (word for word in message.text.split("'") if word.startswith("_rebuild")), ""
    )
    rows = [row for row in case.survey.checkpoint.imports if row.name == name]
    for row in rows:
        at = f" at {places_text(row.where)}" if row.where else ""
        yield Statement(
            f"The file calls {row.module}.{name}{at}, which a newer torch writes and "
            "yours lacks."
        )
    if not rows:
        yield Statement(
            f"The file does not name {show(name, 80)}: another file was loaded.",
            refutes=True,
        )
    yield from _plain_copy_statements(
        case, "Read it with a newer torch, or make a copy without such calls:"
    )


def _answer_protocol(message: Message, case: Case) -> Iterator[Statement]:
    del message
    yield from _plain_copy_statements(
        case,
        (
            "A newer Python wrote the pickle of this file. ckpt writes pickles of "
            "protocol 2, which each Python reads:"
        ),
    )


def _answer_numpy(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a numpy of another version than the one that wrote the arrays of a
    file.
    """
    del message
    rows = [
        row
        # numpy 2 renamed numpy.core to numpy._core, and pickles name the one of their
        # writer.
        for module in ("numpy._core", "numpy.core", "numpy.random")
        for row in rows_of(case.survey.checkpoint, module)
    ]
    # An archive of Stable-Baselines3 keeps its spaces as pickles inside of JSON.
    if not rows and case.survey.checkpoint.traits.label.startswith(_AGENTS):
        yield from lost_spaces(case)
        return
    if not rows:
        yield Statement(
            "The file names nothing of numpy: another file was loaded.", refutes=True
        )
        return
    is_new = any(row.module.startswith(_NUMPY_2) for row in rows)
    places = list(dict.fromkeys(place for row in rows for place in row.where))
    where = f" at {places_text(places)}" if places else ""
    by = "numpy 2 wrote" if is_new else "numpy wrote"
    yield Statement(
        (
            f"{by} scalars or arrays{where}. numpy 1.26 and newer read them, older "
            "versions do not."
        )
        if is_new
        else f"{by} scalars or arrays{where}."
    )
    yield from _plain_copy_statements(
        case, "Or make a copy with plain numbers and tensors in their place:"
    )


def _answer_system(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a path of another operating system."""
    # The system that reads is the other one: `cannot instantiate 'PosixPath' on your
    # …`.
    kind = "PosixPath" if "PosixPath" in message.text else "WindowsPath"
    rows = [
        row
        for row in case.survey.checkpoint.imports
        if row.module.startswith(_PATHS) and "Path" in row.name
    ]
    if not rows:
        yield Statement(
            "The file holds no path of pathlib: another file was loaded.", refutes=True
        )
        return
    named = and_more(list(dict.fromkeys(f"{row.module}.{row.name}" for row in rows)), 3)
    places = list(dict.fromkeys(place for row in rows for place in row.where))
    at = f" at {places_text(places)}" if places else ""
    system = "Windows" if kind == "PosixPath" else "Linux and macOS"
    yield Statement(f"The file holds {named}{at}. {system} cannot make a {kind}.")
    yield from _plain_copy_statements(
        case, "A copy with texts in its place loads everywhere:"
    )


def _plain_copy_statements(case: Case, text: str) -> Iterator[Statement]:
    way = case.plan(("plain",))
    if way.command is None:
        way = case.plan(("convert",))
    if way.command is not None:
        yield from command_statements(text, way)
    elif way.reason is not None:
        yield Statement(f"No command makes such a copy: {way.reason}.")


def _answer_upgrade(message: Message, case: Case) -> Iterator[Statement]:
    """Answer transformers, which takes pickles from torch 2.6 on alone."""
    del message
    if not case.survey.checkpoint.traits.is_pickle:
        yield Statement(
            f"This file is {case.survey.checkpoint.traits.label}, which needs no newer "
            "torch. Another file was loaded.",
            refutes=True,
        )
        return
    yield Statement(
        "transformers takes a pickle from torch 2.6 on alone. safetensors runs "
        "nothing, and every torch takes it."
    )
    # safetensors keeps tensors alone, so a file with more than weights has no such way.
    way = case.written(("convert",), "", ".safetensors")
    if way.command is not None:
        yield Statement("The weights as safetensors:", (), way.command)
        return
    weights = case.plan(("weights",))
    if weights.command is not None:
        yield Statement(
            "Take the weights out of it, and convert the result to safetensors:",
            (),
            weights.command,
        )


def _answer_checkpointer(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a checkpointer of torchtune, which takes files of another library."""
    del message
    keys = {value.name for value in case.survey.checkpoint.values}
    # config.json beside the weights is read into `config`.
    is_of_transformers = "config.model_type" in keys
    if is_of_transformers:
        yield Statement(
            "This is a model of transformers, in shards: FullModelHFCheckpointer of "
            "torchtune reads it, with the names of all its files. The others want one "
            "file, in the names of torchtune or of Meta."
        )
        return
    yield Statement(
        "torchtune has a checkpointer for each set of names: FullModelHFCheckpointer "
        "for models of transformers, FullModelMetaCheckpointer for consolidated.*.pth "
        "of Meta, FullModelTorchTuneCheckpointer for its own."
    )
    yield from load_statements(case)


FAMILIES = (
    Family(
        "checkpointer",
        (r"only support reading from a single TorchTune checkpoint file",),
        answer_from_statements(_answer_checkpointer),
        needs_open=True,
    ),
    Family(
        "program",
        (
            r"failed locating file constants\.pkl",
            r"failed locating file code/",
            r"(?:version|code/__torch__\.py): file not found",
            r"Cannot use ``weights_only=True`` with TorchScript archives",
            r"Check failed: wenet::FileExists\(model_path\)",
            _AS_DICT.pattern,
        ),
        answer_from_statements(_answer_program),
    ),
    Family(
        "operator",
        (
            r"Unknown builtin op: [\w.]{1,200}::[\w.]{1,200}",
            r"Unknown type name '[\w.]{1,400}'(?=:)",
        ),
        answer_from_statements(_answer_operator),
        needs_open=True,
    ),
    Family(
        "older-torch",
        (
            (
                r"Attempted to read a PyTorch file with version \d{1,4}, but the "
                r"maximum supported version"
            ),
            r"is a zip archive \(did you mean to use torch\.jit\.load\(\)\?\)",
            r"Your PyTorch installation may be too old",
        ),
        answer_from_statements(_older_torch),
    ),
    Family(
        "mmap",
        (r"mmap can only be used with files saved with",),
        answer_from_statements(_answer_mmap),
    ),
    Family(
        "newer-torch",
        (r"Can't get attribute '_rebuild_\w{1,100}' on <module 'torch",),
        answer_from_statements(_newer_torch),
    ),
    Family(
        "protocol",
        (r"unsupported pickle protocol: \d",),
        answer_from_statements(_answer_protocol),
    ),
    Family(
        "numpy",
        (
            r"No module named '?numpy\._core",
            r"is not a known BitGenerator module",
            r"__(?:randomstate|generator|bit_generator)_ctor\(\) takes ",
        ),
        answer_from_statements(_answer_numpy),
    ),
    Family(
        "system",
        (r"cannot instantiate '(?:Posix|Windows)Path' on your system",),
        answer_from_statements(_answer_system),
    ),
    Family(
        "upgrade",
        (
            r"serious vulnerability issue in `?torch\.load`?",
            r"require users to upgrade torch to at least v2\.6",
        ),
        answer_from_statements(_answer_upgrade),
    ),
)

"""Errors of programs that ask an object for an attribute that it does not have: a
dict that stands in the place of a model, an object of an older class.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator

from ckpt.evidence.loading import load_of, string_literal
from ckpt.evidence.wrappers import WRAPPERS
from ckpt.ext.explain.case import (
    ONE_TENSOR,
    Case,
    Statement,
    command_statements,
    keys_text,
    load_statements,
    root_keys,
)
from ckpt.ext.explain.families.frames import (
    empty_part,
    taken_keys,
)
from ckpt.ext.explain.families.servers import SEEKS, of_object_for_path
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.ext.explain.origins import name_origin, origin_opening
from ckpt.model.nodes import Global, Node, Opaque, tensor_of
from ckpt.model.text import and_more, be_verb, counted_noun, show
from ckpt.tree.find import REGISTERED, children_of
from ckpt.tree.view import attribute_nodes, attributes, look

# Read `'collections.OrderedDict' object has no attribute 'eval'`: group 1 is the class,
# group 2 the attribute.
_ATTRIBUTE = re.compile(r"'([\w.]{1,200})' object has no attribute '(\w{1,200})'")
# The attributes that programs ask of a model. A dict that lacks one of them stands in
# the place of a module.
_OF_MODULES = (
    "eval",
    "train",
    "to",
    "cuda",
    "cpu",
    "forward",
    "parameters",
    "named_parameters",
    "state_dict",
    "modules",
    "module",
    "half",
    "float",
    "predict",
    "fuse",
    "children",
    "load_state_dict",
    "training",
    "zero_grad",
    "requires_grad_",
    "apply",
    "named_modules",
    "named_children",
    "named_buffers",
    "buffers",
    "add_module",
    "register_buffer",
    "register_forward_hook",
    "register_module",
    "get_submodule",
    "double",
    "bfloat16",
    "compile",
    "save_pretrained",
    "generate",
)
_OF_STATE_DICTS = ("_metadata",)
"""The attributes that only state dicts have."""
# Read the call of a dict as a model: `TypeError: 'dict' object is not callable`.
_FORWARD = re.compile(
    r"'(?:collections\.)?(?:Ordered[Dd]ict|dict)' object is not callable"
)


def _answer_attribute(message: Message, case: Case) -> Iterator[Statement]:
    """Answer an object that lacks an attribute: a dict in the place of a model, or a
    module that an older version pickled.
    """
    # An object that is no dict and has no seek was handed to torch.load in the place of
    # a path.
    seeks = SEEKS.search(message.text)
    if seeks is not None and not seeks[1].endswith(("dict", "OrderedDict")):
        yield from of_object_for_path(seeks, case)
        return
    found = _ATTRIBUTE.search(message.text)
    # Other classes come from the family `older-module`, which shares this answer.
    if found is not None and found[1].rpartition(".")[2] not in ("dict", "OrderedDict"):
        cls, name = found[1].rpartition(".")[2], found[2]
        # A program that took a module for its state dict asks it for a method of dicts:
        # `'Segmenter' object has no attribute 'keys'`.
        if hasattr(dict, name) or name in _OF_STATE_DICTS:
            yield from _module_as_dict(cls, name, case)
        else:
            yield from _older_module(cls, name, case)
        return
    # The dict around a pickled module was asked for the methods of the module.
    if case.has_module:
        yield from _module_in_dict(case)
        return
    models = case.survey.candidates
    # A training checkpoint has its weights below a key, or an optimizer beside them.
    # Else the whole file is the state dict.
    paths = [model.name for model in models if model.name]
    if paths or case.optimizers:
        places = and_more([show(path, 80) for path in paths], 3)
        where = f", and the weights are in {places}" if paths else ""
        yield Statement(
            f"This file is a training checkpoint, a dict of {keys_text(case)}{where}. "
            "It holds no module."
        )
    elif look(case.survey.checkpoint.root).kind == "tensor":
        yield Statement(ONE_TENSOR)
        yield from load_statements(case)
        return
    else:
        count = counted_noun(len(case.survey.tensors), "tensor")
        yield Statement(
            f"This file is a state dict of {count}: the weights by their names, and no "
            "module."
        )
    yield from _build_statements(case)


def _module_as_dict(cls: str, name: str, case: Case) -> Iterator[Statement]:
    """Answer a program that took a pickled object for a state dict."""
    objects = list(_objects_of_class(case, cls))
    if not objects:
        return
    places = [show(place, 120) or "the root" for place, _ in objects]
    path = objects[0][0]
    text = (
        f"The file holds an object of {show(cls, 80)} at {and_more(places, 3)}, and "
        f"the program took it for a dict: {show(name, 80)} is a method of dicts."
    )
    # A dot in the place means several keys, which one subscript does not reach.
    if "." not in path:
        where = f"torch.load(…){literal_key(path)}" if path else "torch.load(…)"
        text += (
            f" With the code of the class its state dict is {where}.state_dict(), on a "
            "file whose author you trust."
        )
    yield Statement(text)
    yield from command_statements(
        "Without the code, this takes the weights out as a state dict:",
        case.plan(("slim",)),
    )


def _module_in_dict(case: Case) -> Iterator[Statement]:
    """Say where the pickled modules of a file are: at its root, or under keys."""
    modules = [section for section in case.survey.sections if section.is_module]
    places = [show(section.name, 80) for section in modules if section.path]
    # A section without a path is a module at the root: torch.load gives the module
    # itself then, and no dict.
    if not places or len(places) < len(modules):
        yield Statement(
            "This file holds a whole pickled module. Is it the file that was loaded?"
        )
        yield from load_statements(case)
        return
    keys = "".join(literal_key(str(key)) for key in modules[0].path)
    yield Statement(
        f"torch.load of this file gives a dict of {keys_text(case)}, and no module: "
        f"the pickled {'module is' if len(places) == 1 else 'modules are'} in "
        f"{and_more(places, 3)}. Take torch.load(…){keys} before it is used as one."
    )
    yield from load_statements(case)


def _build_statements(case: Case) -> Iterator[Statement]:
    models = case.survey.candidates
    load = case.survey.load
    text = "Build the model with the code that trained it, and load the weights into it"
    # With several models in a file the line of the file goes down to none of them.
    if len(models) > 1 and models[0].name:
        load = load_of(case.survey.checkpoint, models[:1])
        text += f", here those of {show(models[0].name, 80)}"
    if load.expression is None:
        yield from load_statements(case)
        return
    yield Statement(f"{text}:", (), f"model.load_state_dict({load.expression})")


def _older_module(cls: str, attribute: str, case: Case) -> Iterator[Statement]:
    """Answer a module that lacks an attribute, which its class got after the file was
    saved.
    """
    objects = list(_objects_of_class(case, cls))
    if not objects:
        return
    # Unpickling runs no __init__, so an attribute that the class has got since is
    # missing in the file too, as `approximate` of GELU.
    lacking = [name for name, node in objects if attribute not in attributes(node)]
    if lacking and attribute in WRAPPERS:
        yield _not_wrapped(cls, attribute, lacking[0])
        yield from load_statements(case)
        return
    bound = [name for name, node in objects if _is_bound(node, attribute)]
    if bound:
        yield Statement(
            f"{show(attribute, 80)} of {show(cls, 80)} in this file is a method that "
            "a program had bound to the object. pickle writes it as "
            f"getattr(object, {attribute!r}), and a load asks for that before the "
            "object has its values: it works only where the class itself has such a "
            "method, as in the versions of the run that saved. Such a whole model does "
            "not survive a new version. Build the model with its program, and load the "
            "weights alone:",
            (),
            case.plan(("slim",)).command,
        )
        return
    if not lacking:
        yield Statement(
            f"Each {show(cls, 80)} of this file has {show(attribute, 80)}. Is it the "
            "file that was loaded?"
        )
        return
    yield Statement(
        f"This file holds pickled objects of {show(cls, 80)} without "
        f"{show(attribute, 80)}: "
        f"{and_more([show(name, 120) or '(the root)' for name in lacking], 4)}. Its "
        "class got the attribute in a later version than the one that wrote the file."
    )
    optimizers = {section.name for section in case.optimizers}
    if len(lacking) == 1 and lacking[0] in optimizers and "." not in lacking[0]:
        yield from _older_optimizer(lacking[0], case)
        return
    way = case.plan(("weights",))
    if way.command is not None:
        yield Statement(
            (
                "Build the model anew with your version, and load the weights alone, "
                "which do not change:"
            ),
            (),
            way.command,
        )


def _is_bound(call: Opaque, attribute: str) -> bool:
    """Tell whether a value of an object is one of its methods, which pickle writes as a
    call of getattr.
    """
    node = dict(attribute_nodes(call)).get(attribute)
    return (
        isinstance(node, Opaque)
        and isinstance(node.func, Global)
        and node.func.name == "getattr"
    )


def _not_wrapped(cls: str, attribute: str, name: str) -> Statement:
    """Say that a pickled model has no wrapper, where a program takes one off."""
    # A dot in the place means several keys, which one subscript does not reach.
    where = (
        "torch.load(…)"
        if "." in name or not name
        else f"torch.load(…){literal_key(name)}"
    )
    place = f" at {show(name, 80)}" if name else ""
    return Statement(
        f"The program takes {attribute} of a model, which the wrapper of "
        f"{WRAPPERS[attribute]} has. This file holds a {show(cls, 80)} itself{place}: "
        f"it was saved without {WRAPPERS[attribute]}, as with one GPU. Leave "
        f".{attribute} out: {where} is the model."
    )


def _older_optimizer(name: str, case: Case) -> Iterator[Statement]:
    """Print the lines that put the state of a pickled optimizer into a new one."""
    way = case.plan(("convert", "--plain"))
    if way.command is None:
        return
    yield Statement(
        "A run saves optimizer.state_dict(), and no optimizer. This writes the object "
        "as a dict:",
        (),
        way.command,
    )
    path = string_literal(shlex.split(way.command)[-1])
    yield Statement(
        "Its keys are the parameters themselves, and a state dict has their numbers. "
        "An optimizer of the same kind, which was built over the parameters in the "
        "same order, takes it so:",
        (),
        f'saved = torch.load({path}, map_location="cpu"){literal_key(name)}; '
        'numbers = {p: n for n, p in enumerate(p for g in saved["param_groups"] for p '
        'in g["params"])}; optimizer.load_state_dict({"state": {numbers[p]: s for p, s '
        'in saved["state"].items()}, "param_groups": [{**g, "params": [numbers[p] for '
        'p in g["params"]]} for g in saved["param_groups"]]})',
    )


def _objects_of_class(case: Case, cls: str) -> Iterator[tuple[str, Opaque]]:
    """The objects of a class in the pickle, with their places."""
    seen: set[int] = set()
    left: list[tuple[str, Node]] = [("", case.survey.checkpoint.root)]
    while left:
        name, node = left.pop()
        # Objects may refer to each other in a circle, and below a tensor is nothing to
        # find.
        if id(node) in seen or tensor_of(node) is not None:
            continue
        seen.add(id(node))
        if isinstance(node, Opaque) and look(node).type.rpartition(".")[2] == cls:
            yield name, node
        for key, child in children_of(node):
            if not isinstance(child, (str, int, float, bool, type(None))):
                # A name in torch has no `_modules` in it: the tables of a module are
                # left out of the place.
                is_table = str(key) in REGISTERED
                left.append(
                    (name if is_table else f"{name}.{key}" if name else str(key), child)
                )


ATTRIBUTE = _ATTRIBUTE


def of_attribute(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer an object that lacks an attribute: a dict with a key of that name, or
    None, which the file holds.
    """
    # Read `'NoneType' object has no attribute 'bpe'`: the None may be a value of the
    # file.
    if found[1] == "NoneType":
        empty = list(empty_part(taken_keys(found.string, found.start()), case))
        yield from empty or _of_nothing(found[2], case)
        return
    if found[1].rpartition(".")[2].lower() not in ("dict", "ordereddict"):
        return
    name = found[2]
    places = [
        row for row in case.survey.checkpoint.containers if name in map(str, row.keys)
    ]
    if not places:
        yield from _of_no_class(name, case)
        return
    path = ".".join(map(str, (*places[0].path, name)))
    yield Statement(
        f"This file holds dicts, which have keys and no attributes: {show(name, 80)} "
        f"is one of them, at {show(path, 120)}. Ask for it as {literal_key(name)}, or "
        "build the module and load its weights into it."
    )
    yield from load_statements(case, "The file loads so:")


def _of_no_class(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file gives a dict, where a program took it for an object of a
    class.
    """
    load = case.survey.load.expression or ""
    keys = root_keys(case)
    if not load.startswith("torch.load(") or not keys or hasattr(dict, name):
        return
    weights = (
        "the weights by their names"
        if all(not section.path for section in case.survey.candidates)
        and case.survey.candidates
        else f"of {keys_text(case)}"
    )
    if name in _OF_TENSORS and case.survey.candidates:
        yield from _of_no_tensor(name, case)
        return
    yield Statement(
        f"torch.load of this file gives a dict, {weights}, and a dict has no "
        f"{show(name, 80)}: the program takes it for an object of a class, which it "
        f"must build first.{_whole_beside_text(case)}"
    )
    yield from load_statements(case)


_OF_TENSORS = frozenset(
    [
        "detach",
        "numpy",
        "size",
        "shape",
        "dim",
        "ndim",
        "nelement",
        "numel",
        "transpose",
        "permute",
        "t",
        "clone",
        "copy_",
        "item",
        "is_cuda",
        "dtype",
        "reshape",
        "view",
        "unsqueeze",
        "squeeze",
        "contiguous",
        "element_size",
    ]
)
"""Attributes of tensors that no module has."""


def _of_no_tensor(name: str, case: Case) -> Iterator[Statement]:
    """Say that a program goes through the keys of the file as if each had a tensor."""
    parts = [section.name for section in case.survey.candidates if section.name]
    if not parts:
        yield Statement(
            "torch.load of this file gives a dict, the weights by their names, and the "
            f"program asks the dict itself for {show(name, 60)}, which a tensor has: "
            "it wants one tensor, and this is the state dict of a model."
        )
        return
    yield Statement(
        f"{show(name, 60)} is of a tensor: the program goes through what torch.load "
        "gives, and takes each value for one. At the root of this file stand "
        f"{keys_text(case)}, and {and_more([show(part, 60) for part in parts], 3)} "
        f"{'has' if len(parts) == 1 else 'have'} the weights. So it took the whole "
        "checkpoint for a state dict: hand it that part."
    )
    if len(parts) == 1:
        yield from command_statements("In a file of their own:", case.plan(("slim",)))
    yield from load_statements(case)


_OF_STATE = re.compile(r"(?i)[_.-]?(?:state_?dict|weights|params)")


def _whole_beside_text(case: Case) -> str:
    """The sentence on a file beside this one that has its name without the word for a
    state dict, or an empty text.
    """
    folder, own = os.path.split(case.survey.path)
    bare = _OF_STATE.sub("", own)
    if bare == own or case.is_folder:
        return ""
    stem = os.path.splitext(bare)[0]
    for name in (bare, stem):
        if name and os.path.isfile(os.path.join(folder, name)):
            return (
                f" Beside it stands {show(name, 80)}, which has the name of this file "
                "without the word for a state dict: perhaps the whole model, pickled, "
                "which such a program takes."
            )
    return ""


def _of_nothing(name: str, case: Case) -> Iterator[Statement]:
    """Answer None that was asked for an attribute, where the file holds None and has
    that setting elsewhere.
    """
    empty = [
        value.name
        for value in case.survey.checkpoint.values
        if len(value.path) == 1 and value.type == "None" and value.same_as is None
    ]
    places = [
        value.name
        for value in case.survey.checkpoint.values
        if len(value.path) > 1 and str(value.path[-1]) == name and value.type != "None"
    ]
    if not empty or not places:
        return
    origin = name_origin(case.survey) or ""
    shown = and_more([show(word, 60) for word in empty], 3)
    stands = (
        f"{show(name, 60)} stands at "
        f"{and_more([show(place, 80) for place in places], 2)}"
    )
    yield Statement(
        f"{shown} {be_verb(empty)} None in this file, and "
        f"{stands}. A program that reads it from what is None has another form of the "
        "file in mind."
    )
    if "args" in empty and "fairseq" in origin:
        yield Statement(
            f"{origin_opening(origin)} {origin}. Newer versions of fairseq write their "
            "settings under cfg and leave args None, and an older one reads args "
            "alone: install the version that wrote it or a newer one, or build the "
            "model yourself and load the weights alone."
        )
    yield from load_statements(case)


def literal_key(name: str) -> str:
    """A key as a subscript of Python."""
    return f'["{name}"]'


FAMILIES = (
    Family(
        "attribute",
        (
            r"'(?:collections\.)?(?:Ordered[Dd]ict|dict)' object has no attribute '(?:"
            + "|".join(_OF_MODULES)
            + r")'",
            _FORWARD.pattern,
        ),
        answer_from_statements(_answer_attribute),
    ),
    Family(
        "older-module",
        (
            (
                # Objects of these classes lack attributes in any program, and no
                # pickled module is the cause.
                r"'(?!NoneType|Namespace|Tensor|DataFrame|Series|Response"
                r"|Dataset)[A-Z]\w{1,100}' object has no attribute '\w{1,200}'"
            ),
        ),
        answer_from_statements(_answer_attribute),
        is_weak=True,
    ),
)

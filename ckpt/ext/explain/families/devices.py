"""Errors about devices: a GPU that is not there or is full, and tensors on two devices
at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import (
    Case,
    Statement,
    command_statements,
    finding_statements,
    load_statements,
    trust_text,
    without_values,
)
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, be_verb, counted_noun, show, size_text

# Read `on CUDA device 1` (groups 1 and 2), and `tagged with cuda:1` (group 3).
_DEVICE = re.compile(
    r"(?:on (?:a )?(CUDA|\w{2,12}) device(?: (\d{1,4}))?|tagged with ([\w:]{1,40}))"
)
# The frames of an optimizer's step: torch's functions, and the files of other
# optimizers, as `core_optimiser.py", line 570, in step`.
_STEP = re.compile(
    r"state_steps|fused_adam|optimi[sz]er\.step|_single_tensor_|_multi_tensor_|exp_avg"
    r"|momentum_buffer|addcdiv"
    r"|_foreach_|optimi[sz]er\w{0,40}(?:[\\/]\w{1,60})?\.py\W{1,4}line \d{1,6}, in "
    r"\w{0,40}step\b"
    r"|[\\/]optim[\\/]\w{1,60}\.py\b"
)
_NEAR = 6_000
"""Characters before an error in which its traceback stands."""
_OPTIMIZER = "optimizer.step"
_GOES_ON = "resume"
_RESUMES = re.compile(r"(?i)\bresum(?:e[sd]?|ing)\b|--resume|\bcontinu(?:e|ing) train")
_LOADING = re.compile(
    r"torch\.load\(|torch/serialization\.py|load_state_dict|restore_location"
    r"|load_checkpoint"
)
_LOAD = "torch.load"


def _take_device(message: Message, text: str, start: int) -> Message:
    device = _DEVICE.search(text, start)
    if device is None:
        return message
    number = f":{device[2]}" if device[2] else ""
    return message._replace(device=device[3] or f"{device[1].lower()}{number}")


def _answer_device(message: Message, case: Case) -> Iterator[Statement]:
    survey = case.survey
    # A row has the number of the storages of a device, and their bytes.
    devices: dict[str, list[int]] = {}
    for storage in survey.checkpoint.storages:
        row = devices.setdefault(storage.device or "cpu", [0, 0])
        row[0] += 1
        row[1] += storage.nbytes
    # Tensors on meta have no bytes, and those on the CPU load anywhere.
    others = {tag: row for tag, row in devices.items() if tag not in ("cpu", "meta")}
    if not others:
        yield Statement(
            "No tensor of this file is saved on a GPU: it is not the file that was "
            "loaded, or not the reason.",
            refutes=True,
        )
        return
    for tag, (count, nbytes) in others.items():
        yield Statement(
            f"{counted_noun(count, 'storage')} with {size_text(nbytes)} "
            f"{be_verb(count)} saved on {show(tag, 40)}."
        )
    # Only a traceback with a load in it proves that the load filled the memory.
    if message.kind == "memory":
        yield Statement(
            "A load without map_location puts them there, in every process."
            if _LOAD in message.names
            else "If the memory ran out while this file was loaded, that is the "
            "reason: a load without map_location puts them there, in every process. "
            "Memory that runs out in a step of the training has other reasons."
        )
    if (
        message.device is not None
        and ":" in message.device
        and message.device not in others
    ):
        yield Statement(
            f"None is saved on {show(message.device, 40)}, which the message names."
        )
    way = case.plan(("rehome",))
    # Nothing moves an exported program, and the finding says what is left.
    if way.command is None:
        yield from finding_statements(case.found("cuda"))
    yield from command_statements("A file without devices loads on any machine:", way)
    if survey.checkpoint.weights_only:
        yield from command_statements(
            (
                "weights_only=True, the default since torch 2.6, refuses that one too. "
                "A plain one it takes:"
            ),
            case.plan(("convert", "--plain", "--to", "cpu")),
        )
    expression = survey.load.expression
    # A line without map_location would put the tensors there again.
    if expression is not None and 'map_location="cpu"' in expression:
        trust = trust_text(survey.load)
        yield Statement(f"Or load this one so{trust}:", (), expression)


def _take_memory(message: Message, text: str, start: int) -> Message:
    """The message, with the word of a load where the traceback is of one."""
    near = text[max(0, start - _NEAR) : start + _NEAR]
    return message._replace(names=(_LOAD,)) if _LOADING.search(near) else message


def _take_replicas(message: Message, text: str, start: int) -> Message:
    """The message, with the word of an optimizer's step where the traceback is
    of one.
    """
    near = text[max(0, start - _NEAR) : start + _NEAR]
    if _STEP.search(near):
        return message._replace(names=(_OPTIMIZER,))
    # Without a traceback the words of who asks may say that a run goes on.
    return message._replace(names=(_GOES_ON,)) if _RESUMES.search(near) else message


def _answer_replicas(message: Message, case: Case) -> Iterator[Statement]:
    """Say what of the file can be on another device: constants in code, modules in
    lists, the state of an optimizer.
    """
    # Only a program of TorchScript has code, which may name a device.
    devices = case.survey.checkpoint.code_devices
    if devices:
        named = ", ".join(dict.fromkeys(show(row.device, 40) for row in devices))
        places = tuple(
            show(row.file, 120) + ("" if row.line is None else f":{row.line}")
            for row in devices
        )
        yield Statement(
            f"The code of this program names {named} as a constant, which neither "
            "map_location nor .to() changes. Trace the model on the device where it is "
            "used, or script it.",
            tuple(dict.fromkeys(places)),
        )
        return
    if has_tensors_in_groups(message, case):
        yield from _tensors_of_groups(case)
        return
    if _OPTIMIZER in message.names and case.optimizers:
        yield Statement(
            "The step of an optimizer stopped, so its state is on another device than "
            "the parameters. Move the model to its device first, build the optimizer "
            "from it, and then load the state: load_state_dict moves it."
        )
        return
    if _GOES_ON in message.names and case.optimizers and not is_replicated(message):
        labels = [show(section.name, 60) or "the root" for section in case.optimizers]
        yield Statement(
            f"The text speaks of a run that goes on, and this file has the state of an "
            f"optimizer ({and_more(labels, 3)}). If its step stopped, the model was "
            "moved after the optimizer had been built or loaded, so the state stayed "
            "on the other device. Move the model to its device first, build the "
            "optimizer from it, and then load the state: load_state_dict moves it."
        )
        return
    # .to() does not reach a module in a plain list, which explains the error by itself.
    yield from finding_statements(case.found("list-modules"))
    if case.found("list-modules") or case.survey.checkpoint.traits.names_are_code:
        return
    known = (
        "Every module of this file is registered."
        if case.has_module
        else "A state dict does not show modules in lists."
    )
    yield Statement(
        f"{known} Check the live model:", (), "ckpt lint --model FILE.py:FACTORY"
    )


_LEFT = (
    "for group in optimizer.param_groups: group.update((key, "
    'value.to(group["params"][0].device))'
    " for key, value in group.items() if torch.is_tensor(value))"
)
"""The line that moves tensors of the groups of an optimizer, which its load_state_dict
leaves where they are.
"""


def _tensors_of_groups(case: Case) -> Iterator[Statement]:
    """Name the tensors in the groups of an optimizer: load_state_dict moves its state
    alone.

    Source: torch/optim/optimizer.py `Optimizer.load_state_dict`, whose `update_group`
    casts nothing.
    """
    for section in case.optimizers:
        # Behind the path of the section an entry has param_groups or state.
        depth = len(section.path)
        keys = [
            str(entry.path[-1])
            for entry in section.entries
            if entry.path[depth : depth + 1] == ("param_groups",)
        ]
        if not keys:
            continue
        label = show(section.name, 80) or "the optimizer"
        named = and_more([show(key, 60) for key in dict.fromkeys(keys)], 6)
        yield Statement(
            f"The groups of {label} hold tensors: {named}. load_state_dict moves the "
            "state of each parameter to the parameter's device, and leaves what lies "
            "in the groups where torch.load put it. Move it after load_state_dict:",
            (),
            _LEFT,
        )


def has_tensors_in_groups(message: Message, case: Case) -> bool:
    """Tell whether the step of an optimizer may have stopped, and its groups hold
    tensors.
    """
    is_step = _OPTIMIZER in message.names or (
        # Optimizers of other packages have frames of their own.
        _GOES_ON in message.names and not is_replicated(message)
    )
    return is_step and any(True for _ in _tensors_of_groups(case))


def is_replicated(message: Message) -> bool:
    """Tell whether the message names two GPUs, as under DataParallel."""
    return (
        len(set(re.findall(r"cuda:\d+", message.text))) > 1
        # Read torch's `but device 1 does not equal 0`.
        or "does not equal" in message.text
    )


def _answer_meta(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a copy from the device meta, where tensors have no values: the file has
    some there, or the model has.
    """
    del message
    if case.valueless:
        yield from without_values(case)
        return
    yield Statement(
        "No tensor of this file is on the device meta: the model is. It was built "
        "without values (low_cpu_mem_usage, device_map, init_empty_weights), and no "
        "load has given it some. What this file lacks must be made by model.to_empty() "
        "and initialized."
    )
    load = case.survey.load
    # A copy into a tensor on meta has no effect: assign=True, since torch 2.1, replaces
    # the tensor.
    if load.expression is not None:
        yield Statement(
            "This load puts the tensors of the file in the place of the model's:",
            (),
            f"model.load_state_dict({load.expression}, assign=True)",
        )


# Read `Invalid device string: 'cuda1'` and `start of device string: gpu`.
_NAMED = re.compile(r"device string: '?([\w:.,/ -]{1,60})")
_NUMBERED = re.compile(r"([a-z]{2,12})[ _:.-]{0,3}(\d{1,3})", re.IGNORECASE)


def _device_name(message: Message, case: Case) -> Iterator[Statement]:
    """Answer the name of a device that torch does not know: the call is the cause, and
    no file.
    """
    found = _NAMED.search(message.text)
    name = "" if found is None else found[1].strip()
    numbered = _NUMBERED.fullmatch(name)
    meant = (
        ""
        if numbered is None
        else f" For {show(name, 60)} write {numbered[1].lower()}:{int(numbered[2])}."
    )
    yield Statement(
        "The message is about the name of a device, and no file is its cause. A "
        f"device is cpu, cuda, or cuda:1 with a number.{meant}"
    )
    yield from finding_statements(case.found("cuda"))
    yield from load_statements(case)


# Read `Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor)`:
# the device is a part of the type, and the numbers are of one type.
_SIDES = re.compile(
    r"Input type \(torch\.(?:(\w{1,20})\.)?(\w{1,40})\) and (weight|bias) type "
    r"\(torch\.(?:(\w{1,20})\.)?\2\)"
)


def _answer_sides(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a layer whose input is on another device than its weights."""
    found = _SIDES.search(message.text)
    if found is None:
        return
    inputs, weights = found[1] or "cpu", found[4] or "cpu"
    text = (
        f"Both are {show(found[2], 40)}, and the devices differ: the input is on "
        f"{show(inputs, 40)}, the {found[3]} of the layer on {show(weights, 40)}."
    )
    if weights != "cpu":
        yield Statement(
            f"{text} Move the input: input.to(next(model.parameters()).device)."
        )
        return
    yield Statement(
        f"{text} Move the model: model.to(input.device). A layer that stays behind is "
        "in a plain Python list, or was made in forward."
    )
    yield from finding_statements(case.found("list-modules"))


def _answer_cpu_build(message: Message, case: Case) -> Iterator[Statement]:
    """Answer a torch without CUDA that is asked for a GPU: by the program, or by a
    program in the file.
    """
    del message
    yield Statement(
        "This torch is built for the CPU alone, and something asked it for a GPU."
    )
    checkpoint = case.survey.checkpoint
    found = case.found("cuda", "device-in-code")
    # torch.load says in other words that a tensor of a file is on a GPU; the loader of
    # an exported program makes its tensors there, and stops with these.
    if checkpoint.traits.names_are_code or checkpoint.code_devices:
        yield from finding_statements(found)
        return
    yield Statement(
        'The program did: .cuda(), .to("cuda"), device="cuda" or '
        'map_location="cuda". Write "cpu" there, or install a torch with CUDA.'
    )
    yield from finding_statements(found)


FAMILIES = (
    Family(
        "cpu-build",
        (
            r"Torch not compiled with \w{2,12} enabled",
            r"PyTorch is not linked with support for \w{2,12} devices",
        ),
        answer_from_statements(_answer_cpu_build),
        needs_open=True,
    ),
    Family(
        "sides",
        (_SIDES.pattern,),
        answer_from_statements(_answer_sides),
        needs_open=True,
    ),
    Family(
        "device",
        (
            r"Attempting to deserialize object on ",
            r"invalid device ordinal",
            (
                # A torch that was built without the backend says so when it makes a
                # tensor there.
                r"Could not run 'aten::empty(?:_strided"
                r"|\.memory_format)?' with arguments from the '(?:CUDA|HIP|MPS"
                r"|XPU)' backend"
            ),
            r"don't know how to restore data location of ",
        ),
        answer_from_statements(_answer_device),
        _take_device,
        needs_open=True,
    ),
    Family(
        "memory",
        (r"(?:CUDA|HIP|MPS backend) out of memory|OutOfMemoryError",),
        answer_from_statements(_answer_device),
        _take_memory,
        needs_open=True,
    ),
    Family(
        "replicas",
        (
            r"Expected all tensors to be on the same device",
            (
                r"(?:tensors?|they) (?:are|is|to be) (?:not )?(?:all )?(?:at"
                r"|on) the same (?:device|GPU)"
            ),
            r"to have the same device as tensor for argument",
            r"module must have its parameters and buffers on device",
            r"but found at least two devices",
        ),
        answer_from_statements(_answer_replicas),
        _take_replicas,
        needs_open=True,
    ),
    Family(
        "device-name",
        (r"Invalid device string: ", r"device type at start of device string: "),
        answer_from_statements(_device_name),
        needs_open=True,
    ),
    Family(
        "meta",
        (r"Cannot copy out of meta tensor; no data",),
        answer_from_statements(_answer_meta),
        needs_open=True,
    ),
)

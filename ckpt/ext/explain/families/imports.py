"""Errors about what loading imports: names that weights_only refuses, and code that is
not here or is of another version.
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
)
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import LONGEST_LINE, Message
from ckpt.model.checkpoint import Checkpoint, Import
from ckpt.model.text import and_more, counted_noun, places_text, show, show_names

# The groups: a name that weights_only refuses, a module that lacks, and an attribute
# that lacks (3) with its module (4).
_GLOBAL = re.compile(
    r"(?:Unsupported (?:global: GLOBAL|class)|load unsupported GLOBAL"
    r"|unrecognized function) ([\w.]{1,500})"
    r"|No module named '?([\w.]{1,500})'?"
    r"|Can't get attribute '([\w.]{1,500})' on <module '([\w.]{1,500})'"
)
_ATTRIBUTE = re.compile(
    r"Can't get attribute '[\w.]{1,500}' on <module '([\w.]{1,500})'"
)
_MODULE = re.compile(r"No module named '?([\w.]{1,500})'?")
"""A shell eats the quotes of a message that stands in single quotes."""
_FLAT = re.compile(
    r"No module named '([\w.]{1,500})'; '([\w.]{1,500})' is not a package"
)
"""The words of Python where a module is there, and a part of it is asked for."""
_VERSION = re.compile(r"(?:^|[._-])version$")
_OF_YOLO = {"models.yolo", "models.common", "models.experimental"}
"""Modules of YOLOv5 and YOLOv7, which their files name."""
_INSIDE = ("pickles-inside", "code-inside")
"""Findings about pickles that an archive holds as text. What they name is not among the
imports of the file.
"""
_AGENT = "Stable-Baselines3"
_FILES = 8
"""Files of a folder for which a command is printed."""
_VERSIONS = 4
"""Versions that a file records, of which so many are named."""


def _take_globals(message: Message, text: str, start: int) -> Message:
    # Only the names near the error are taken, since a long log may name other modules.
    near = text[max(0, start - LONGEST_LINE) : start + LONGEST_LINE]
    return message._replace(names=tuple(dict.fromkeys(_global_names(near))))


def _global_names(text: str) -> Iterator[str]:
    for match in _GLOBAL.finditer(text):
        if match[3]:
            yield f"{match[4]}.{match[3]}"
        else:
            # The full stop of a sentence may follow the name.
            yield match[1].rstrip(".") if match[1] else match[2]


def rows_of(checkpoint: Checkpoint, name: str) -> list[Import]:
    """The imports of a file that are a name, or that lie in a module of that name."""
    # NumPy 2 renamed its core, and torch names what it met in one of both.
    wanted = name.replace("numpy._core", "numpy.core")
    modules = [
        (row, row.module.replace("numpy._core", "numpy.core"))
        for row in checkpoint.imports
    ]
    return [
        row
        for row, module in modules
        if f"{module}.{row.name}" == wanted
        or module == wanted
        or module.startswith(f"{wanted}.")
    ]


_DIGITS = re.compile(r"_(?=[a-f]{0,12}\d)[0-9a-f]{6,40}$")
"""The digits at the end of a name that a program has made up."""


def _is_made(module: str, case: Case) -> bool:
    """Tell whether a module has one class of its own name, with digits at its end."""
    rows = rows_of(case.survey.checkpoint, module)
    return _DIGITS.search(module) is not None and {row.name for row in rows} == {module}


def _by_saved_name(name: str, case: Case) -> str:
    """The name of a message as the file has it: the script that is `__main__` in one
    process is `__mp_main__` in those that it starts.
    """
    last = name.removeprefix("__mp_main__.")
    own = f"__main__.{last}"
    return own if last != name and rows_of(case.survey.checkpoint, own) else name


def _answer_imports(message: Message, case: Case) -> Iterator[Statement]:
    survey = case.survey
    names = tuple(_by_saved_name(name, case) for name in message.names)
    message = message._replace(names=names)
    if survey.checkpoint.traits.names_are_code and any(
        name.startswith("__torch__") for name in message.names
    ):
        yield from load_statements(
            case,
            "This file is a TorchScript program, whose classes lie in the file itself. "
            "torch.load of an old torch looks for them as modules; torch.jit.load "
            "takes it:",
        )
        return
    here = False
    is_refuted = not _needs_code(case) and not any(
        rows_of(survey.checkpoint, name) for name in message.names
    )
    inside = case.found(*_INSIDE)
    for name in message.names:
        rows = rows_of(survey.checkpoint, name)
        here = here or bool(rows)
        for row in rows:
            at = f" at {places_text(row.where)}" if row.where else ""
            runs = (
                f" Loading calls {show_names(row.calls, 2)}."
                if row.group == "called" and row.calls
                else ""
            )
            yield Statement(
                f"The file names {show(f'{row.module}.{row.name}', 120)}{at}.{runs}"
            )
        # Pickles inside of an archive may name it, and are not among the imports.
        if not rows and not inside:
            text = f"The file does not name {show(name, 120)}."
            if name.rpartition(".")[0]:
                text = _of_namesake(name, case) or text
            yield Statement(text, refutes=is_refuted)
    for finding in inside:
        if finding.code == "pickles-inside":
            yield Statement(f"In this archive {finding.message}")
        else:
            yield from finding_statements([finding])
    if message.kind == "code" and not here and _of_another_unpickler(message):
        yield Statement(
            "dill writes such a name: it is the script that saved. A file of dill "
            "loads with torch.load(…, pickle_module=dill), in a script that defines "
            "what the other one did. torch.save without pickle_module writes none."
        )
    elif message.kind == "code":
        # The module is there and lacks a name, so the versions of both sides count.
        yield from _another_version(message, case)
    # None: no pickle is loaded. Empty: weights_only refuses nothing.
    refusals = survey.checkpoint.weights_only
    if refusals is None and survey.checkpoint.imports:
        what = "weights" if survey.tensors else "plain values"
        yield from command_statements(
            f"The {what} without the code:", case.plan(("weights",))
        )
        return
    if not refusals:
        why = (
            "weights_only=True loads this file"
            if refusals == ()
            else "No pickle is loaded from this file"
        )
        yield Statement(f"{why}.", (), survey.load.expression)
        return
    others = len(refusals) - len(message.names)
    if others > 0 and here:
        text = and_more([show(row.reason, 120) for row in refusals], 6)
        yield Statement(
            f"weights_only=True refuses {counted_noun(len(refusals), 'thing')} in this "
            f"file: {text}."
        )
    # In a folder only the files that are refused need a copy.
    files = dict.fromkeys(row.file for row in refusals if row.file)
    if files:
        yield from _of_files(case, list(files))
        return
    way = case.plan(("plain",))
    if way.command is not None:
        in_script = _of_loss_scaler(message, case)
        if in_script is not None:
            yield in_script
            return
        text = "This file then loads with weights_only=True"
        if message.kind == "code" and case.has_module:
            text = (
                "For the weights without the class, this file then loads "
                "with weights_only=True"
            )
        # The command may keep the weights alone, where the rest cannot be made plain.
        if way.keeps == "weights" and not text.startswith("For the weights"):
            text = "The weights alone"
        yield Statement(f"{text}:", (), way.command)
    elif way.reason is not None:
        yield Statement(f"No command makes it loadable: {way.reason}.")


_SCALERS = re.compile(r"^deepspeed\.runtime\.fp16\.loss_scaler\.(\w{1,40})$")


def _of_loss_scaler(message: Message, case: Case) -> Statement | None:
    """Say how a run of DeepSpeed goes on from a file with its own scaler, which a plain
    copy would lose, or return None.
    """
    classes = [found[1] for name in message.names if (found := _SCALERS.match(name))]
    refusals = case.survey.checkpoint.weights_only
    if not classes or len(classes) < len(message.names) or refusals is None:
        return None
    if len(refusals) > len(classes):
        return None
    listed = ", ".join(classes)
    return Statement(
        "DeepSpeed takes the object itself when a run goes on, so a plain copy is of "
        "no use to it. Newer versions of DeepSpeed and of the programs around it allow "
        "the class. In an older one, for a file whose author you trust, this stands in "
        "the script before the load:",
        (),
        f"from deepspeed.runtime.fp16.loss_scaler import {listed}; "
        f"torch.serialization.add_safe_globals([{listed}])",
    )


def _needs_code(case: Case) -> bool:
    """Tell whether a load of the file asks for code that torch does not bring."""
    refusals = case.survey.checkpoint.weights_only
    return bool(case.survey.checkpoint.imports) if refusals is None else bool(refusals)


def _of_files(case: Case, files: list[str]) -> Iterator[Statement]:
    """The command for each file of a folder that weights_only refuses. The others stay
    as they are.
    """
    for file in files[:_FILES]:
        way = case.plan(("plain", file))
        if way.command is not None:
            yield Statement(
                (
                    f"{show(file, 120)} is the file that is refused. A copy that loads "
                    "with weights_only=True, to be put in its place:"
                ),
                (),
                way.command,
            )
        elif way.reason is not None:
            yield Statement(
                f"No command makes {show(file, 120)} loadable: {way.reason}."
            )
    if all(file.rpartition("/")[2].startswith("rng_state") for file in files):
        yield Statement(
            "It holds the states of random generators alone. Without it a Trainer "
            "resumes too, and draws other numbers."
        )


def _another_version(message: Message, case: Case) -> Iterator[Statement]:
    """Say which version of the package wrote the file, where the module is there and
    lacks the name.
    """
    # Classes of these repositories come first, for no package installs them.
    modules = {row.module for row in case.survey.checkpoint.imports}
    if modules & _OF_YOLO:
        lacking = _ATTRIBUTE.search(message.text)
        kind = _kind_of_yolo(case)
        if lacking is not None and lacking[1] in _OF_YOLO and kind is not None:
            yield Statement(
                f"The program has a module {show(lacking[1], 60)} of its own, which "
                "lacks this class. YOLOv5, YOLOv7 and what was made of them all have "
                f"a module of this name, and by its classes this file is of {kind}. "
                f"Run it in the repository of {kind}, or take a file of the program "
                "that loads it."
            )
            return
        yield Statement(
            "The class is of the repository of YOLOv5 or YOLOv7, which no package "
            "installs: run the program in a clone of it, or put the clone on sys.path."
        )
        return
    # StyleGAN names dnnlib.tflib in files for TensorFlow, and torch_utils for torch.
    if any(module.startswith("dnnlib.tflib") for module in modules):
        yield Statement(
            "These are networks of StyleGAN for TensorFlow, and torch has no class for "
            "them. legacy.py of NVIDIA's stylegan2-ada-pytorch or stylegan3 writes "
            "them as networks of torch: python legacy.py --source=FILE --dest=OUT."
        )
        return
    if any(module.startswith("torch_utils.persistence") for module in modules):
        yield Statement(
            "The file is of NVIDIA's StyleGAN for torch, whose classes lie in its "
            "repository: run the program in a clone of it (dnnlib and torch_utils), or "
            "put the clone on sys.path."
        )
        return
    found = _ATTRIBUTE.search(message.text)
    # This is tested before _MODULE, whose pattern fits the same message.
    flat = _FLAT.search(message.text)
    if flat is not None:
        yield from _of_older_layout(flat[1], flat[2], case)
        return
    lacking = _MODULE.search(message.text)
    if (
        found is None
        and lacking is not None
        and rows_of(case.survey.checkpoint, lacking[1])
    ):
        # Python names a part only where it has found the package.
        if "." in lacking[1]:
            yield _of_lacking_part(lacking[1], case)
            return
        if _is_made(lacking[1], case):
            yield Statement(
                f"The module has the name of its only class, {show(lacking[1], 120)}, "
                "with digits at its end. As a rule such a class was made while the "
                "program ran (jittable() of torch_geometric), and no package has it. "
                "Build the model anew with its program, and load the weights into it."
            )
            return
        yield Statement(
            f"The program loads it where {show(lacking[1], 120)} can be imported: in "
            "an environment with the package, or with the root of the repository that "
            "has it on PYTHONPATH."
        )
        return
    # __mp_main__ is the script in a process that multiprocessing has started.
    if found is None or found[1] in ("__main__", "__mp_main__"):
        # The file says where the class was, if it names the same one elsewhere.
        named_elsewhere = any(
            not rows_of(case.survey.checkpoint, name) and _of_namesake(name, case)
            for name in message.names
        )
        is_here = any(rows_of(case.survey.checkpoint, name) for name in message.names)
        if found is not None and not named_elsewhere and not is_here:
            yield Statement(
                "So another file was loaded: look at the path that the program opens. "
                "A class of __main__ lay in the script that saved."
            )
        elif found is not None and not named_elsewhere:
            yield Statement(
                "The class lay in the script that saved the file. Import it into the "
                "script that loads before torch.load, by the same name."
            )
        return
    package = found[1].partition(".")[0]
    yield Statement(
        f"The module {show(found[1], 120)} is installed and lacks this name: another "
        f"version of {show(package, 60)} wrote the file."
    )
    # Versions of other packages are shown, and are no reason for a command.
    versions = recorded_versions(case)
    texts = [f"{show(name, 60)} = {show(text, 60)}" for name, text in versions]
    if texts and any(_is_version_of(package, name) for name, _ in versions):
        command = _install_command(package, versions)
        yield Statement(
            f"The file says {and_more(texts, _VERSIONS)}. Install the version of "
            f"{show(package, 60)} that wrote it, or a newer "
            f"one{'.' if command is None else ':'}",
            (),
            command,
        )
    elif texts:
        yield Statement(
            f"The file does not say which version of {show(package, 60)} that is. It "
            f"says {and_more(texts, _VERSIONS)}."
        )
    if case.survey.checkpoint.traits.label == _AGENT:
        yield Statement(
            "load of Stable-Baselines3 takes other objects in the place of those that "
            "it cannot"
            ' unpickle (custom_objects={"lr_schedule": …}). An agent that only '
            "predicts needs"
            " its weights, its spaces and its policy alone."
        )


# The first row that fits is taken, so the newer YOLOv5 stands before the older.
_KINDS_OF_YOLO = (
    ("YOLOv7", frozenset(("MP", "SPPCSPC", "IDetect", "IAuxDetect", "ReOrg", "IBin"))),
    ("YOLOv5 7.0 or newer", frozenset(("DetectionModel", "SegmentationModel"))),
    ("YOLOv5", frozenset(("C3", "SPPF", "Focus", "BottleneckCSP"))),
)
"""Classes that one of the YOLOs alone has in models.common and models.yolo."""


def _kind_of_yolo(case: Case) -> str | None:
    """The YOLO that has the classes that a file names, or None."""
    names = {
        row.name for row in case.survey.checkpoint.imports if row.module in _OF_YOLO
    }
    return next((kind for kind, own in _KINDS_OF_YOLO if own & names), None)


def _of_namesake(name: str, case: Case) -> str | None:
    """The sentence that the file names a class as the one of the message, in another
    module, or None.

    A class in the script itself is of __main__ in the run that saved, and of the module
    where the script is imported.
    """
    last = name.rpartition(".")[2]
    for row in case.survey.checkpoint.imports:
        if row.name == last and row.group == "unknown":
            at = f" at {places_text(row.where)}" if row.where else ""
            return (
                f"The file names {show(f'{row.module}.{row.name}', 120)}{at}, and not "
                f"{show(name, 120)}: the message is about another save."
            )
    return None


def _of_lacking_part(name: str, case: Case) -> Statement:
    """Answer a part of a package: Python names the package itself where it is not
    there.
    """
    package, _, part = name.rpartition(".")
    top = package.partition(".")[0]
    text = (
        f"Python found {show(package, 120)}, and no {show(part, 60)} in it, for it "
        f"names {show(top, 60)} alone where that is not installed: the file was "
        f"written with another version of {show(top, 60)}, which had this part, or "
        "another folder of this name stands before it on sys.path. Install the "
        "version that the run had"
    )
    versions = [
        f"{show(row, 60)} = {show(said, 60)}"
        for row, said in recorded_versions(case)
        if _is_version_of(top, row)
    ]
    if versions:
        return Statement(f"{text} (the file says {and_more(versions, _VERSIONS)}).")
    follows = ", or take the weights without the code" if case.has_module else ""
    return Statement(f"{text}{follows}.")


def _of_another_unpickler(message: Message) -> bool:
    """Tell whether what lacks is `__main__` itself, looked for in another module."""
    found = _LOOKED_UP.search(message.text)
    return found is not None and found[1] in ("__main__", "__mp_main__")


_LOOKED_UP = re.compile(r"Can't get attribute '([\w.]{1,200})'")


def _of_older_layout(name: str, module: str, case: Case) -> Iterator[Statement]:
    """Answer a package that is installed, and has a module where the file has a package
    of modules.
    """
    package = module.partition(".")[0]
    yield Statement(
        f"{show(module, 120)} is installed, as one module, and the file names "
        f"{show(name, 120)}, a part of it: another version of {show(package, 60)} "
        "wrote the file. Most likely a newer one, for packages grow so; a file of your "
        "own by this name hides the package, too."
    )
    versions = [
        (row, text)
        for row, text in recorded_versions(case)
        if _is_version_of(package, row)
    ]
    if versions:
        texts = [f"{show(row, 60)} = {show(text, 60)}" for row, text in versions]
        command = _install_command(package, versions)
        yield Statement(
            f"The file says {and_more(texts, _VERSIONS)}. Install the version of "
            f"{show(package, 60)} that wrote it, or a newer "
            f"one{'.' if command is None else ':'}",
            (),
            command,
        )


def _is_version_of(package: str, name: str) -> bool:
    """Tell whether a value of a file is the version of a package: by its name, or by no
    name at all.
    """
    key = name.rpartition(".")[2].lower().strip("_")
    return key == "version" or re.sub(r"[_-]?version$", "", key) == package.lower()


def _install_command(package: str, versions: list[tuple[str, str]]) -> str | None:
    """The command that installs the version that the file records under the plain name
    `version`.
    """
    names = ("version", f"{package}_version", "__version__")
    is_known = any(name.rpartition(".")[2] in names for name, _ in versions)
    # The name goes into a command, so it has to be one plain word.
    return f"pip install -U {package}" if is_known and package.isidentifier() else None


def recorded_versions(case: Case) -> list[tuple[str, str]]:
    """The versions that a file records: the name of the value, and its text."""
    found = []
    for value in case.survey.checkpoint.values:
        key = str(value.path[-1]) if value.path else ""
        if isinstance(value.node, str) and value.node and _VERSION.search(key.lower()):
            found.append((value.name, value.node))
    return found


FAMILIES = (
    Family(
        "globals",
        (
            r"Unsupported (?:global: GLOBAL|class) [\w.]{1,500}",
            (
                r"Trying to (?:load unsupported GLOBAL"
                r"|call reduce for unrecognized function) [\w.]{1,500}"
            ),
            r"Weights only load failed",
            r"`weights_only=False` \(the current default value\)",
        ),
        answer_from_statements(_answer_imports),
        _take_globals,
    ),
    # Names in numpy._core and names with _rebuild_ have pages of their own.
    Family(
        "code",
        (
            r"No module named '?(?!'?numpy\._core)[\w.]{1,500}'?",
            (
                r"Can't get attribute '(?!_rebuild_)[\w.]{1,500}' on <module "
                r"'[\w.]{1,500}'"
            ),
        ),
        answer_from_statements(_answer_imports),
        _take_globals,
    ),
)

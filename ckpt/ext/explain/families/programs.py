"""Errors of programs that read settings or code from a checkpoint beside its weights:
fairseq, Stable-Baselines, Lightning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from ckpt.evidence.loading import string_literal
from ckpt.ext.explain.case import (
    Case,
    Statement,
    finding_statements,
    keys_text,
    load_statements,
    root_keys,
)
from ckpt.ext.explain.family import Family, answer_from_statements
from ckpt.ext.explain.message import Message
from ckpt.model.text import and_more, show


def _answer_fairseq(message: Message, case: Case) -> Iterator[Statement]:
    """Answer fairseq, which finds no task: which settings does the file have, and under
    which key?
    """
    keys = root_keys(case)
    # fairseq writes its settings under args, and newer versions write them under cfg.
    if not {"args", "cfg"}.intersection(keys):
        yield Statement(
            (
                "This is no checkpoint of fairseq, which records its settings as args "
                f"or cfg: its keys are {keys_text(case)}."
            )
            if keys
            else (
                "This is no checkpoint of fairseq, which records its settings as args "
                "or cfg: it holds weights alone."
            )
        )
        yield from load_statements(case)
        return
    tasks = [
        show(str(node), 80)
        for name, node in case.finds_value(("_name", "task"))
        # A value called task elsewhere is not that of the run.
        if name in ("cfg.task._name", "args.task", "cfg.task")
    ]
    # fairseq writes `Could not infer task type from …` where it does not know the task.
    if "infer task" in message.text:
        text = (
            f"The task of this file is {tasks[0]}."
            if tasks
            else "This file names no task."
        )
        yield Statement(
            f"{text} fairseq knows a task once the code that registers it was "
            "imported: give the folder of the project that defines it (--user-dir), or "
            "take the version of fairseq that has it."
        )
    # An older fairseq takes args, and stops at `'NoneType' object has no attribute
    # 'task'`.
    elif "cfg" in keys and tasks:
        yield Statement(
            f"This file has its settings under cfg (task {tasks[0]}), and args is "
            "None, as fairseq 0.12 and its repository write them. An older fairseq "
            "reads args alone: install a newer one."
        )
    elif tasks:
        yield Statement(
            f"This file has its settings under args (task {tasks[0]}): another file "
            "was loaded."
        )
    else:
        yield Statement(
            "This file records no task, under args or under cfg: fairseq cannot build "
            "the model from it. Build it with your own settings, and load the weights "
            "alone."
        )
    yield from load_statements(case)


_UNREAD = re.compile(r"Could not deserialize object (\w{1,100})")
_SCHEDULES = (
    "lr_schedule",
    "clip_range",
    "clip_range_vf",
    "learning_rate",
    "exploration_schedule",
)
_PYTHON = re.compile(r"- Python: ([\d.]{1,20})|Python: ([\d.]{1,20})")


def _answer_agent(message: Message, case: Case) -> Iterator[Statement]:
    """Answer Stable-Baselines3, which cannot read what its archive holds as pickles of
    code.
    """
    label = case.survey.checkpoint.traits.label
    if not label.startswith("Stable-Baselines"):
        yield Statement(
            f"This file is {label}, and no archive of Stable-Baselines3: another file "
            "was loaded."
        )
        yield from load_statements(case)
        return
    if "paces do not match" in message.text:
        yield from _other_spaces(message, case)
        return
    if "observation_space and action_space were not given" in message.text:
        yield from lost_spaces(case)
        return
    found = _UNREAD.search(message.text)
    name = found[1] if found is not None else "lr_schedule"
    # system_info is a text with a line such as `- Python: 3.8.10`.
    written = next(
        (
            match[1] or match[2]
            for _, node in case.finds_value(("system_info",))
            if (match := _PYTHON.search(str(node))) is not None
        ),
        None,
    )
    by = (
        f" of Python {written}, which wrote it"
        if written is not None
        else " of the Python that wrote it"
    )
    yield Statement(
        f"The archive holds {show(name, 80)} as pickled code{by}. Another Python "
        "cannot read such code. The weights are not touched by it."
    )
    yield from finding_statements(case.at_least("error"))
    # A schedule is a function, which Stable-Baselines3 pickles by its bytecode.
    if name in _SCHEDULES:
        yield Statement(
            (
                "A schedule is for training alone. So the load replaces it, by the "
                "class of the algorithm that saved (here PPO):"
            ),
            (),
            f"PPO.load({case.path_literal}, "
            f'custom_objects={{"learning_rate": 0.0, "lr_schedule": lambda _: 0.0,'
            ' "clip_range": lambda _: 0.0})',
        )
    else:
        yield Statement(
            f"Make {show(name, 80)} anew, and hand it over: "
            f"custom_objects={{{string_literal(name)}: …}} of load. To use it as it "
            "is, load in that Python."
        )


_SPACES = re.compile(
    r"(Observation|Action) spaces do not match: (.{1,2000}?) != (.{1,2000})"
)
_SIZES = re.compile(r"\((\d{1,9}(?:, ?\d{1,9})*),?\)")
"""The sizes of a Box as Gym writes it."""
_VERSION_OF_NUMPY = re.compile(r"Numpy: ([\d.]{1,20})")


def _other_spaces(message: Message, case: Case) -> Iterator[Statement]:
    """Answer Stable-Baselines3, whose environment has other spaces than the one that
    the agent was trained in.
    """
    # Stable-Baselines3 writes `Observation spaces do not match: Box(…) != Box(…)`.
    found = _SPACES.search(message.text)
    if found is None:
        return
    kind = found[1].lower()
    yield Statement(
        f"The first {kind} space is that of the archive, with which the agent was "
        f"trained ({show(found[2], 200)}), and the second is that of your environment."
    )
    sides = [_SIZES.findall(text) for text in (found[2], found[3])]
    sizes = [
        tuple(int(size) for size in texts[0].split(","))
        for texts in sides
        # A space of several parts has several sizes, and no order of axes explains it.
        if len(texts) == 1
    ]
    # The last size of the environment stands first in the archive: channels last and
    # channels first.
    if len(sizes) == 2 and sizes[0] == (*sizes[1][-1:], *sizes[1][:-1]):
        yield Statement(
            "The archive has the channels of images first. Stable-Baselines3 puts them "
            "there when it trains, by a wrapper that your environment lacks here:",
            (),
            "from stable_baselines3.common.vec_env import DummyVecEnv, "
            "VecTransposeImage; env = VecTransposeImage(DummyVecEnv([lambda: env]))",
        )
    else:
        yield Statement(
            "Make the environment with the same wrappers, version and settings as for "
            "the training (frames that are stacked, features of time, sizes of "
            "images): the layers of the agent have the sizes of its own space, and "
            "none can be changed."
        )
    yield from load_statements(case, "The weights alone:")


def lost_spaces(case: Case) -> Iterator[Statement]:
    """Answer Stable-Baselines3, which could not read the spaces of an archive."""
    held = [
        name
        for name in ("observation_space", "action_space")
        if any(
            row.path[:2] == ("data", name) for row in case.survey.checkpoint.containers
        )
        or any(row.path[:2] == ("data", name) for row in case.survey.checkpoint.values)
    ]
    version = next(
        (
            match[1]
            for _, node in case.finds_value(("system_info",))
            if (match := _VERSION_OF_NUMPY.search(str(node))) is not None
        ),
        None,
    )
    if held:
        by = f", by NumPy {version}" if version is not None else ""
        yield Statement(
            f"The archive has {and_more(held, 2)}, as pickles{by}. The load leaves out "
            "what it cannot read, with a warning (Could not deserialize object): "
            "another version of NumPy, Gym or Python wrote it. The weights are not "
            "touched by it."
        )
    else:
        yield Statement("The archive records no spaces of its environment.")
    yield Statement(
        "Hand over the spaces of your own environment, by the class of the algorithm "
        "that saved (here PPO):",
        (),
        f"PPO.load({case.path_literal}, env=env, "
        'custom_objects={"observation_space": env.observation_space, '
        '"action_space": env.action_space})',
    )


_AGENTS = (
    ({"actor", "critic", "actor_target"}, "TD3 or DDPG"),
    ({"actor", "critic", "critic_target"}, "SAC or TQC"),
    ({"action_net", "value_net"}, "PPO, A2C or their kin"),
    ({"quantile_net", "quantile_net_target"}, "QR-DQN"),
    ({"q_net", "q_net_target"}, "DQN"),
)
"""The first words of the names in a policy of Stable-Baselines3 -> the algorithms that
have them.
"""


def of_another_agent(message: Message, names: Iterable[str]) -> Statement | None:
    """Say that an agent of Stable-Baselines3 is loaded by the class of another
    algorithm, or return None.
    """
    words = _first_words(names)
    here = _algorithm(words)
    # The model has the names that it lacks, and those that it has a place for.
    asked = _first_words(message.missing)
    there = _algorithm(asked | words.difference(_first_words(message.unexpected)))
    if here is None or there is None or here == there or not asked:
        return None
    return Statement(
        f"This is an agent of {here}, and the program loads it as one of {there} "
        "(Stable-Baselines3): the class decides which networks are built. Load it by "
        "the class that trained it."
    )


def _first_words(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _algorithm(words: Collection[str]) -> str | None:
    """The algorithms whose policy has networks of these names, or None."""
    return next((text for parts, text in _AGENTS if parts.issubset(words)), None)


_OF_LITE = re.compile(
    r"model version must be between (\d{1,3}) and (\d{1,3})\s{0,4}But the model "
    r"version is (\d{1,3})"
)


def _answer_mobile(message: Message, case: Case) -> Iterator[Statement]:
    """Answer the interpreter of phones, which wants its own form of a program."""
    path = case.survey.path
    # Only TorchScript can become a program for phones, so weights go into a model
    # first.
    if not case.survey.checkpoint.traits.names_are_code:
        yield Statement(
            f"This file is {case.survey.checkpoint.traits.label}, and no program of "
            "TorchScript: load the weights into the model in Python, and write it so:",
            (),
            'torch.jit.script(model)._save_for_lite_interpreter("model.ptl")',
        )
        yield from load_statements(case, "It loads in Python so:")
        return
    # Without versions the message is about the form of the archive, and not about its
    # age.
    found = _OF_LITE.search(message.text)
    if found is None:
        yield Statement(
            "This file is a TorchScript program. The interpreter of phones wants one "
            "that was written for it:",
            (),
            f"torch.jit.load({string_literal(path)}, map_location="
            '"cpu")._save_for_lite_interpreter("model.ptl")',
        )
        return
    least, most, own = (int(text) for text in found.groups())
    # torch writes an older bytecode of a newer one, and not the other way round.
    if own > most:
        yield Statement(
            f"The program has bytecode of version {own}, and the app reads {least} to "
            f"{most}: a newer torch wrote it than the app has. Take a newer runtime "
            "(pytorch_android_lite, LibTorch-Lite), or write an older version:",
            (),
            "from torch.jit.mobile import _backport_for_mobile; _backport_for_mobile("
            f'{string_literal(path)}, "model.v{most}.ptl", to_version={most})',
        )
    else:
        yield Statement(
            f"The program has bytecode of version {own}, and the app reads {least} to "
            f"{most}: write it anew with the torch of the app."
        )


_LOADED = re.compile(
    r"'(?:collections\.)?(?:OrderedDict|dict)' object has no attribute '(?:seek|read"
    r"|tell)'"
)


_ON_INSTANCE = re.compile(
    r"The classmethod `(\w{1,200})\.load_from_checkpoint` cannot be called on an "
    r"instance"
)


def _loaded_twice(message: Message, case: Case) -> Iterator[Statement]:
    """Answer torch.load, which got what another load had given."""
    # Lightning refuses the call, which would return a new model and leave the instance
    # as it was.
    if "cannot be called on an instance" in message.text:
        found = _ON_INSTANCE.search(message.text)
        name = "Model" if found is None else found[1]
        yield Statement(
            (
                "load_from_checkpoint is a method of the class: it builds a new model "
                "and returns it, so the instance would stay as it was:"
            ),
            (),
            f"model = {name}.load_from_checkpoint({case.path_literal})",
        )
        yield from load_statements(case, "Or, for load_state_dict of the instance:")
        return
    yield Statement(
        "A program loads the file itself, and got a dict that was loaded already: hand "
        "over the path. load_from_checkpoint of Lightning is a method of the class, "
        "takes the path, and returns the model."
    )
    yield from load_statements(case, "For a model that is built already:")


def _answer_settings(message: Message, case: Case) -> Iterator[Statement]:
    """Answer Lightning, whose module takes other arguments than a checkpoint
    records.
    """
    del message
    names = [
        str(value.path[1])
        for value in case.survey.checkpoint.values
        if len(value.path) > 1 and str(value.path[0]) in ("hyper_parameters", "hparams")
    ]
    listed = and_more([show(name, 60) for name in dict.fromkeys(names)], 12)
    yield Statement(
        (
            f"The file records these arguments of the module: {listed}. Its __init__ "
            "must take them, by their names or as hparams."
        )
        if names
        else (
            "The file records no argument of the module: its __init__ is called "
            "without any."
        )
    )
    yield from load_statements(
        case, "Or build the module yourself, and load the weights alone:"
    )


def _answer_compiled(message: Message, case: Case) -> Iterator[Statement]:
    """Answer the loader of AOTInductor, which finds no compiled code in a package."""
    label = case.survey.checkpoint.traits.label
    if "PT2" not in label:
        yield Statement(
            f"This file is {label}, and no package of AOTInductor: it holds no "
            "compiled code."
        )
        yield from load_statements(case)
        return
    paths = [value.path for value in case.survey.checkpoint.values]
    compiled = {
        str(path[1]).partition("/")[0]
        for path in paths
        # A package has its compiled code in a folder per model below data/aotinductor.
        if len(path) > 1 and path[0] == "aotinductor"
    }
    if compiled:
        names = and_more([show(name, 80) for name in sorted(compiled)], 4)
        # The loader names the model that it looked for, in quotes.
        is_asked = any(f"'{name}'" in message.text for name in compiled)
        end = (
            "is it the file that was loaded?"
            if is_asked
            else "the loader was asked for a model of another name."
        )
        yield Statement(f"This archive holds compiled code, of {names}: {end}")
        yield from load_statements(case)
        return
    yield Statement(
        "This archive holds a program of torch.export (an ExportedProgram, which "
        "torch.export.save writes) and no compiled code. AOTIModelPackageLoader and "
        "load_package take what AOTInductor has compiled. Compile it on a machine with "
        "the device and the libraries of the target:",
        (),
        f"torch._inductor.aoti_compile_and_package(torch.export.load({case.path_literal}))",
    )
    yield from load_statements(case, "In Python it loads without that:")


FAMILIES = (
    Family(
        "compiled",
        (
            r"Failed to find a generated cpp file or so file for model ",
            r"No (?:compiled )?\.?so file(?:s)? found in (?:the )?(?:package|archive)",
        ),
        answer_from_statements(_answer_compiled),
        needs_open=True,
    ),
    Family(
        "fairseq",
        (
            r"'NoneType' object has no attribute 'task'",
            r"Could not infer task type from ",
        ),
        answer_from_statements(_answer_fairseq),
        needs_open=True,
    ),
    Family(
        "agent",
        (
            r"Could not deserialize object \w{1,100}\. Consider using `custom_objects`",
            r"assert callable\(value_schedule\)",
            r"observation_space and action_space were not given",
            r"(?:Observation|Action) spaces do not match: .{1,2000} != ",
        ),
        answer_from_statements(_answer_agent),
        needs_open=True,
    ),
    Family(
        "mobile",
        (
            r"Lite Interpreter vers?ion number does not match",
            r"is not generated from the api _save_for_lite_interpreter",
            _OF_LITE.pattern,
        ),
        answer_from_statements(_answer_mobile),
        needs_open=True,
    ),
    Family(
        "loaded",
        (_LOADED.pattern, _ON_INSTANCE.pattern),
        answer_from_statements(_loaded_twice),
        needs_open=True,
    ),
    Family(
        "settings",
        (
            (
                r"Checkpoint contains hyperparameters but \w{1,200}'s __init__ is "
                r"missing the argument"
            ),
        ),
        answer_from_statements(_answer_settings),
        needs_open=True,
    ),
)

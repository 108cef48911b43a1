"""Paths that a program did not find: another path than the file's, a file that a folder
lacks, or a path that a checkpoint records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator

from ckpt.bytes.far import is_url
from ckpt.bytes.location import locate, read_file
from ckpt.evidence.loading import string_literal
from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.families.averages import AVERAGES, of_no_averages
from ckpt.model.errors import CkptError
from ckpt.model.limits import Budget, Limits, parse_json
from ckpt.model.text import and_more, be_verb, counted_noun, pasted_path, show

NOT_FOUND = re.compile(
    r"(?:No such file or directory|Not a directory): (?:Posix"
    r"|Windows)?(?:Path\()?['\"]([^'\"\n]{1,2000})['\"]"
    r"|(?:Model|Checkpoint|Config|Weights?|Pre-?trained \w{1,20}) (?:file "
    r"|path )?(?:not found|does not exist)(?: at| in)?:? ['\"]?([^\s'\"]{1,2000})"
    r"|(?:Checkpoint|Model|Config|Weights?) (?:file "
    r"|path )?(?:at )?['\"]?([^\s'\"]{1,2000}?)['\"]? (?:was )?(?:not found"
    r"|does not exist)\b"
    r"|Not found: ['\"]([^'\"\n]{1,2000})['\"]: No such file"
    r"|(?:FileNotFoundError|OSError|IOError"
    r"|AssertionError): ['\"]?([^\s'\"]{1,2000})['\"]? (?:can not be found"
    r"|is not a checkpoint file|not exists?\b|does not exist|is not a file)"
)
"""The words of programs that find no file, with the path in one of the groups."""
_IS_PATH = re.compile(r"[\\/]|\.[A-Za-z][\w-]{0,14}$")
"""A separator or an ending, which a path has and the name of a model or of a layer has
not.
"""
_NUMBER = re.compile(r"\d+")
_OF_RANKS = re.compile(r"(?:random_states|rng_state|rng)_?\d|(?:^|_)rank_?\d")
"""The names of files that each process of a run writes for itself."""
_OF_VERL = re.compile(r"model_world_size_(\d{1,6})_rank_\d{1,6}\.pt$")
_STEPS = ("last_epoch", "global_step", "step", "iteration")


COUNTED = re.compile(
    r"Number of found checkpoints does not match the number of registered "
    r"objects:\s{1,20}Found checkpoints: (\d{1,6})\s{1,20}Registered objects: (\d{1,6})"
)
"""The warning of accelerate, which loads none of its custom objects where their counts
differ.
"""
_CUSTOM = re.compile(r"custom_checkpoint_\d{1,6}\.pkl")


def of_counted(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer accelerate, which counts other files of custom objects than a program has
    registered.
    """
    if not case.is_folder or is_url(case.survey.path):
        return
    counted, registered = int(found[1]), int(found[2])
    names = [
        name for name in locate(case.survey.path).names() if "custom_checkpoint" in name
    ]
    # accelerate itself writes only names such as `custom_checkpoint_0.pkl`.
    own = [name for name in names if _CUSTOM.fullmatch(name)]
    others = [name for name in names if name not in own]
    held = and_more([show(name, 80) for name in own], 4)
    # The counts of the message prove that the strays alone make the difference.
    if others and len(names) == counted and len(own) == registered:
        strays = and_more([show(name, 80) for name in others], 4)
        yield Statement(
            f"accelerate counts each name with custom_checkpoint in it, and {strays} "
            f"is one: {counted:,} names, for {registered:,} registered. It then skips "
            f"all of them, so {held} was not loaded, although it is here. Move "
            f"{strays} out of this folder, and load again."
        )
    # A folder that has as many files as the message counts is the one that was loaded.
    elif own and counted in (len(own), len(names)):
        yield Statement(
            f"This folder has the states of {counted_noun(len(own), 'custom object')} "
            f"({held}), and the program registered {registered:,}. accelerate then "
            "loads none of them: schedulers and other objects begin anew. Register as "
            "many as the run that saved (register_for_checkpointing), in its order, "
            "before load_state."
        )
    elif not names:
        yield Statement(
            (
                "This folder has no file of a custom object (custom_checkpoint_0.pkl): "
                "another folder was loaded."
            )
            if counted
            else (
                "This folder has no file of a custom object (custom_checkpoint_0.pkl), "
                f"and the program registered {registered:,}: they begin anew."
            )
        )
    else:
        yield Statement(
            f"The message counts {counted:,} files of custom objects, and this folder "
            f"has {len(names):,} ({and_more([show(name, 80) for name in names], 4)}): "
            "another folder was loaded."
        )
    yield from load_statements(case)


def path_in(found: re.Match[str]) -> str:
    """The path that a match of NOT_FOUND names."""
    # The mark at the end is that of the sentence, and no part of the path.
    return next(text for text in found.groups() if text is not None).rstrip(".,;:!")


def of_path(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a path that is not there, by what the file or the folder is."""
    path = path_in(found)
    parts = [part for part in re.split(r"[\\/]+", path) if part not in ("", ".")]
    # A text such as `Model not found: bert-base` names a model, and no path.
    if not parts or not _IS_PATH.search(path):
        return
    own = (
        os.path.basename(os.path.abspath(case.survey.path))
        if not is_url(case.survey.path)
        else ""
    )
    # The only checkpoint of a folder stands for the folder that the user named.
    is_folder = case.is_folder and os.path.isdir(case.survey.path)
    shown = show(path, 200)
    name = parts[-1]
    recorded = list(recorded_path(path, case))
    rank = _of_another_rank(parts, case)
    # A rank goes first: the answers below look for the last part of the path alone,
    # without the folder of its rank.
    if rank is not None:
        yield rank
    # The file of the user stands as a folder in the path: `model.pth/config.json`.
    elif not is_folder and own in parts[:-1]:
        yield from _is_a_file(shown, own, case)
    elif not is_folder and own == name:
        yield Statement(
            f"The program found nothing at {shown}, and a file of this name is "
            f"here.{_relative_path_note(path)} Give the whole path of this file."
            f"{_nodes_note(found.string)}"
        )
    elif recorded:
        yield from recorded
    # The path leads into the folder, or is a bare name below it.
    elif is_folder and (own in parts[:-1] or not parts[:-1]):
        yield from _answer_lacking_file(name, shown, case, found.string)
    elif is_folder and own == name:
        yield Statement(
            f"The program found nothing at {shown}, and a folder of this name is "
            f"here.{_relative_path_note(path)} Give the whole path of this folder."
        )
    else:
        yield from _answer_other_path(path, shown, case)
    yield from load_statements(case)


_RANK = re.compile(r"(?:mp_rank|tp_rank|rank)_?\d{1,6}(?:_\d{1,6}){0,2}")
"""The name of the folder of one rank."""


_ABOVE = 3
"""Folders in which ranks are looked for: the checkpoint's own, and above it."""


def _ranks_in(folder: str) -> list[str]:
    """The folders of ranks in a folder."""
    if not os.path.isdir(folder):
        return []
    names = [name.rstrip("/") for name in locate(folder).names()]
    return sorted(name for name in names if _RANK.fullmatch(name))


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _of_another_rank(parts: list[str], case: Case) -> Statement | None:
    """Say that the folder of one rank lacks, where another one is here, or that it has
    the file by another name.
    """
    # Megatron names the folders of ranks `mp_rank_00` or `mp_rank_00_001`.
    wanted = next((part for part in parts if _RANK.fullmatch(part)), None)
    if wanted is None or is_url(case.survey.path):
        return None
    if ".metadata" in case.survey.checkpoint.parts or any(
        part.endswith(".distcp") for part in case.survey.checkpoint.parts
    ):
        return Statement(
            "This folder is a distributed checkpoint (torch_dist of Megatron), which "
            f"has no folder of a rank such as {show(wanted, 60)}: the program reads "
            "the older form. Save with --ckpt-format torch, or load with the program "
            "that wrote it and save anew in the form that is asked for."
        )
    root = os.path.abspath(case.survey.path)
    # The user may have named one rank, so the folder of all is looked for above it.
    for _ in range(_ABOVE):
        if _ranks_in(root):
            break
        root = os.path.dirname(root)
    here = _ranks_in(root)
    if not here:
        return None
    shown = and_more([show(name, 60) for name in here], 4)
    if wanted not in here:
        return Statement(
            f"{show(wanted, 60)} is not in {show(os.path.basename(root), 80)}, and "
            f"{shown} {be_verb(here)}: each rank holds its own "
            "part of the weights, and no other has it. Copy it from the node that "
            "wrote it."
        )
    names = sorted(locate(os.path.join(root, wanted)).names())
    if parts[-1] in names or not names or parts[-1] == wanted:
        return None
    held = and_more([show(name, 60) for name in names], 4)
    # One file of the same kind is the same file under the name of another version.
    is_alike = len(names) == 1 and _ending(names[0]) == _ending(parts[-1])
    return Statement(
        f"{show(wanted, 60)} is here, and {show(parts[-1], 60)} is not in it: it holds "
        f"{held}."
        + (
            f" A newer or an older version of the program names it otherwise: give it "
            f"the name {show(parts[-1], 60)} in each rank, or take that version."
            if is_alike
            else ""
        )
    )


def _relative_path_note(path: str) -> str:
    """Say where a relative path begins."""
    # A colon in second place is that of a drive of Windows.
    is_relative = not path.startswith(("/", "\\", "~")) and path[1:2] != ":"
    return (
        " A relative path begins in the folder in which the program runs."
        if is_relative
        else ""
    )


def _damage_statements(case: Case) -> Iterator[Statement]:
    """The damage of the file, if there is any."""
    yield from case.damage


def _is_a_file(shown: str, own: str, case: Case) -> Iterator[Statement]:
    yield Statement(
        f"The program looked for {shown}, as if {show(own, 80)} were a folder: it "
        "wants the folder in which this file lies, and got the file. Give it the"
        " folder, or hand the file over by the argument for a file. "
        f"{_whole_text(case)}".rstrip()
    )
    yield from _damage_statements(case)


def _whole_text(case: Case) -> str:
    """Say that the file is whole, where ckpt has read all of it."""
    if case.verified is None or case.damage:
        return ""
    return f"This {'folder' if case.is_folder else 'file'} is whole."


def recorded_path(path: str, case: Case) -> Iterator[Statement]:
    """Say where a path stands in the file, or the folder that it is in."""
    texts = [
        (value.name, value.node)
        for value in case.survey.checkpoint.values
        if isinstance(value.node, str)
        and len(value.node) > 1
        # A value without a separator is no folder, but for `.` and `..`.
        and (re.search(r"[\\/]|^\.+$", value.node) or value.node == path)
    ]
    # The whole path is a surer sign than the folder that it is in.
    whole = next((row for row in texts if row[1] == path), None)
    if whole is not None:
        yield _recorded_statement(path, "This path", whole[0])
        return
    for name, text in texts:
        if _is_below(path, text.rstrip("/\\")):
            what = f"The folder of this path, {show(text, 120)},"
            yield _recorded_statement(path, what, name)
            return


def _recorded_statement(path: str, what: str, name: str) -> Statement:
    """Say at which name of a file a path stands, and how a program gets another one."""
    line = (
        f"{what} stands in this file at {show(name, 80)}: most likely the program "
        "takes it from there, where it was at the training."
    )
    last = name.rpartition(".")[2]
    # fairseq records the folder of its data under these names.
    if name in ("args.data", "cfg.task.data", "cfg.model.data"):
        return Statement(
            f"{line} fairseq takes another one by "
            f'arg_overrides={{"{last}": "…"}} of load_model_ensemble_and_task, with '
            f"the folder that holds {show(_base_name(path), 80)}."
        )
    return Statement(
        f"{line} Give the program its own {show(last, 60)}, or put "
        f"{show(_base_name(path), 80)} there."
    )


def _is_below(path: str, folder: str) -> bool:
    """Tell whether a path is in a folder, which is more than one part of a path, or
    holds the path's file itself.
    """
    if not folder.strip("./\\") or not path.startswith((f"{folder}/", f"{folder}\\")):
        return False
    rest = path[len(folder) + 1 :]
    # A folder such as `/data` is above many paths by chance, so it counts only for a
    # file right in it.
    return not re.search(r"[\\/]", rest) or len(re.findall(r"[^\\/]+", folder)) > 1


def _base_name(path: str) -> str:
    return re.split(r"[\\/]+", path)[-1]


_OF_NODES = re.compile(
    r"(?i)\[rank\d|fsdp|deepspeed|torchrun|torch\.distributed|\bsrun\b|\bnodes?\b"
)


def _nodes_note(text: str) -> str:
    """Say what a path is on the other nodes, where an error is of several processes."""
    if not _OF_NODES.search(text):
        return ""
    return (
        " On several nodes each must see the folder under this path: what the first "
        "node wrote on its own disk is not on the others."
    )


def _answer_lacking_file(
    name: str, shown: str, case: Case, text: str
) -> Iterator[Statement]:
    """Answer a folder that lacks a file, or that has it under another number."""
    held = case.survey.checkpoint.parts
    if name in held:
        yield Statement(
            f"{show(name, 80)} is in this folder, so {shown} is another "
            f"place.{_relative_path_note(shown)} Give the whole path of this folder."
            f"{_nodes_note(text)}"
        )
        return
    # A folder may hold files that are no parts of the checkpoint, such as a config.
    if not is_url(case.survey.path) and os.path.exists(
        os.path.join(case.survey.path, name)
    ):
        yield Statement(
            f"{show(name, 80)} is in this folder: it was not there yet, or the path is "
            "another one."
        )
        return
    alike = [
        other
        for other in held
        # Names that differ by a number alone are those of other ranks, shards or steps.
        if other != name and _NUMBER.sub("#", other) == _NUMBER.sub("#", name)
    ]
    # accelerate and Trainer write random states per process, as `random_states_0.pkl`
    # and `rng_state_0.pth`.
    if alike and _OF_RANKS.search(name):
        yield Statement(
            f"{show(name, 80)} is not in this folder, and "
            f"{and_more([show(other, 80) for other in alike], 4)} "
            f"{be_verb(alike)}: each process of a run writes its "
            "own, and no other did. The save was called in the main process alone, or "
            "the run had fewer of them. Weights and optimizer are not in such a file: "
            "resume with as many processes, or copy the file of process 0 to the name "
            "that lacks; its random numbers are then those of process 0. Call "
            "save_state in all processes."
        )
        return
    if alike:
        yield Statement(
            f"{show(name, 80)} is not in this folder, and "
            f"{and_more([show(other, 80) for other in alike], 4)} "
            f"{be_verb(alike)}."
        )
        return
    another = _in_another_format(name, held)
    if another is not None and not is_url(case.survey.path):
        yield _other_format(name, another, case.survey.path)
        return
    others = and_more([show(other, 80) for other in held], 8)
    text = (
        (
            f"{show(name, 80)} is not among the files of this folder, and these are: "
            f"{others}."
        )
        if others
        else f"{show(name, 80)} is not in this folder."
    )
    yield Statement(text)
    yield from _use_of(name, case)


_LISTED = re.compile(
    r"['\"]([^'\"\n]{1,1000}\.(?:pt|pth|bin|ckpt|safetensors|distcp))['\"]"
)
ABSENT_FILES = re.compile(
    r"(?i)\b(?:missing|not found|absent|do not exist|could not find)\b[^\n'\"]{0,80}"
    rf"{_LISTED.pattern}, ?['\"]"
)
"""The words of programs that list files which they do not find."""
_NUMBERED = re.compile(r"(?:rank|shard|part)[_-]?(\d{1,6})")
_LEAST_LISTED = 2
"""Files that a message lists: one alone is a path that was not found."""


def of_absent_files(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Answer a program that lists the files which it does not find."""
    text, folder = found.string[found.start() :], case.survey.path
    # A folder with one checkpoint is read as that file. The message has its name.
    if not is_url(folder) and os.path.isfile(folder):
        around = os.path.dirname(os.path.abspath(folder))
        parents = [
            re.split(r"[\\/]", match[1])[:-1] for match in _LISTED.finditer(text)
        ]
        if any(parts[-1:] == [os.path.basename(around)] for parts in parents):
            folder = around
    row = _listed_in_folder(text, folder)
    if row is not None:
        yield row


def _listed_in_folder(text: str, folder: str) -> Statement | None:
    """Say which files that a message lists a folder lacks, and which ranks its files
    are of, or return None.
    """
    said = [re.split(r"[\\/]", match[1])[-1] for match in _LISTED.finditer(text)]
    named = list(dict.fromkeys(said))
    if len(named) < _LEAST_LISTED or is_url(folder) or not os.path.isdir(folder):
        return None
    listed = sorted(locate(folder).names())
    names = {name for name in listed if not name.endswith("/")}
    # A checkpoint of DeepSpeed has its files in a folder for each step.
    for inner in [name for name in listed if name.endswith("/")][:_MOST_FOLDERS]:
        names.update(locate(os.path.join(folder, inner)).names())
    absent = [name for name in named if name not in names]
    if not absent:
        return Statement(
            f"The {counted_noun(len(named), 'file')} of the message are in this "
            "folder: the program looked in another one, or before they were there."
        )
    kinds = {_NUMBERED.sub("", name) for name in absent}
    alike = sorted(name for name in names if _NUMBERED.sub("", name) in kinds)
    # Without a file of their kind it may be another folder than that of the message.
    if not alike:
        return None
    here = sorted(int(found[1]) for name in alike if (found := _NUMBERED.search(name)))
    numbers = f" (the numbers {here[0]} to {here[-1]})" if len(here) > 1 else ""
    verb = be_verb(absent)
    text = (
        f"{counted_noun(len(absent), 'file')} of the message {verb} not in this "
        f"folder, which has {len(alike):,} of their kind{numbers}. "
    )
    if "rank" in absent[0]:
        text += (
            "Each rank writes its own file, and a run on several machines writes those "
            "of each machine to its own disk: bring all of them into one folder, or "
            "save to a disk that all machines share. Without them nothing brings these "
            "parts back."
        )
    else:
        text += "Copy the others to it: the parts belong together."
    return Statement(text, tuple(absent))


def lacking_in_folder(text: str, folder: str) -> Statement | None:
    """Say that a folder of several files lacks the one that a program looked for in it,
    or return None.
    """
    found = None
    # The last error of a text is the one that stopped the program.
    for match in NOT_FOUND.finditer(text):
        found = match
    if found is None or is_url(folder) or not os.path.isdir(folder):
        return None
    parts = [
        part for part in re.split(r"[\\/]+", path_in(found)) if part not in ("", ".")
    ]
    own = os.path.basename(os.path.abspath(folder))
    if own not in parts[:-1]:
        return None
    place = folder
    # The path is followed below the last part with the name of the folder.
    for part in parts[len(parts) - parts[::-1].index(own) : -1]:
        if not os.path.isdir(os.path.join(place, part)):
            return None
        place = os.path.join(place, part)
    names = sorted(locate(place).names())
    if parts[-1] in (name.rstrip("/") for name in names):
        return None
    where = (
        "this folder" if place == folder else show(os.path.relpath(place, folder), 80)
    )
    below = _places_below(parts[-1], place, names)
    if below:
        shown = and_more([show(name, 80) for name in below], 3)
        return Statement(
            f"{show(parts[-1], 80)} is not right in {where}. It is below it, at "
            f"{shown}: the program was given a folder too high, or took one level off "
            "the path that it was given, as where it wants the path of a file in that "
            "folder (lerobot: --config_path=…/pretrained_model/train_config.json). "
            "Give it the path with that folder."
        )
    text = (
        f"{show(parts[-1], 80)} is not in {where}, whose files are "
        f"{and_more([show(name, 60) for name in names], 8)}."
    )
    ranks = [found for name in names if (found := _OF_VERL.match(name))]
    # The number of processes stands in the names of verl's files.
    if parts[-1] == "fsdp_config.json" and ranks:
        text += (
            " verl writes it since 2025, and this save is older. Write it: "
            f'{{"FSDP_version": 1, "world_size": {ranks[0][1]}}} (FSDP_version is 2 '
            "where the run used FSDP2). Or merge with the version that saved."
        )
    elif len(names) == 1 and _ending(names[0]) == _ending(parts[-1]):
        text += (
            f" Another version of the program writes {show(names[0], 60)} in its "
            "place: give it the name that is asked for, or take that version."
        )
    elif _is_of_end(parts[-1], names):
        text += (
            " A run writes it when its training ends, so this one goes on or was "
            "stopped. Let it go on to its end (nnU-Net: the same command with -c), or "
            "name one of those that are here to the program that reads (nnU-Net: "
            "-chk model_best)."
        )
    elif parts[-1] == ".metadata" and any(name.endswith(".distcp") for name in names):
        text += (
            " Rank 0 writes it last, into the folder of its own machine. Without it "
            "the save did not end, or these files were written on another node: copy "
            "the files of all nodes into one folder, or let all nodes save to a disk "
            "that they share. Each node must see the whole folder to load it."
        )
    elif other := _in_another_format(parts[-1], names):
        return _other_format(parts[-1], other, place)
    elif several := _of_the_same_kind(parts[-1], names):
        shown = and_more([show(name, 80) for name in several], 4)
        text += (
            f" The run that saved wrote several of this kind ({shown}), as CycleGAN "
            "does for its two directions (A and B): name the one that is meant to the "
            "program (CycleGAN: --model test --model_suffix _A), or copy it to "
            f"{show(parts[-1], 80)}."
        )
    else:
        text += (
            " Copy it from where the model was published or saved, or give the "
            "program the version of the model that goes with it."
        )
    return Statement(text)


_FORMATS = frozenset(("bin", "safetensors", "pt", "pth", "ckpt"))
"""The endings of files of weights that programs have for one and the same model."""
_OF_RUNS = re.compile(r"(?i)optim|sched|scaler|rng|random|train(?:er|ing)_|args")
"""Words in the names of files that hold other things of a run than weights."""


def _in_another_format(name: str, names: Collection[str]) -> str | None:
    """The one file that has a name with the ending of another format, or None."""
    stem, _, ending = name.rpartition(".")
    if ending not in _FORMATS or _OF_RUNS.search(stem):
        return None
    found = [
        other
        for other in names
        if other != name
        and other.rpartition(".")[0] == stem
        and other.rpartition(".")[2] in _FORMATS
    ]
    return found[0] if len(found) == 1 else None


def _other_format(name: str, other: str, folder: str) -> Statement:
    """Say that the weights are there in another format, with the command that writes
    the one that is asked for.
    """
    paths = [pasted_path(os.path.join(folder, file)) for file in (other, name)]
    command = None if None in paths else f"ckpt convert {paths[0]} -o {paths[1]}"
    return Statement(
        f"{show(name, 80)} is not here, and {show(other, 80)} is: by its name the same "
        "weights in another format. The run saved in the one, and the program that "
        "loads asks for the other, as versions before or after the change do. A file "
        "of that name from elsewhere, as the model that the run began with, would not "
        "be the trained one. With the ending that it asks for:",
        (),
        command,
    )


def _of_the_same_kind(name: str, names: list[str]) -> list[str]:
    """The files with the name of another one and a letter at its end: `net_G_A.pth` for
    `net_G.pth`.
    """
    stem, ending = os.path.splitext(name)
    form = re.compile(rf"{re.escape(stem)}_[A-Za-z]{re.escape(ending)}")
    found = [row for row in names if form.fullmatch(row)]
    return found if len(found) > 1 else []


_MOST_FOLDERS = 64
"""Folders of a folder in which a file is looked for."""
_MOST_CONFIGS = 8
"""Files of a folder in which versions are looked for."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp", ".gguf")
_VERSION = re.compile(r"^(\w{2,60})_version$|^(version)$")


def _places_below(name: str, folder: str, names: list[str]) -> list[str]:
    """The places of a file of this name in the folders right below a folder."""
    inner = [row for row in names if row.endswith("/")][:_MOST_FOLDERS]
    return [
        f"{row}{name}"
        for row in inner
        if name in locate(os.path.join(folder, row)).names()
    ]


def written_by(folder: str) -> Statement | None:
    """Say which versions of programs the JSON files right in a folder record, or return
    None.
    """
    if is_url(folder) or not os.path.isdir(folder):
        return None
    every = sorted(locate(folder).names())
    if any(name.endswith(_WEIGHTS) for name in every):
        return None
    names = [name for name in every if name.endswith(".json")]
    told = [
        f"{show(name, 60)} says {show(key, 60)} = {show(text, 60)}"
        for name in names[:_MOST_CONFIGS]
        for key, text in _versions_in(os.path.join(folder, name))
    ]
    if not told:
        return None
    return Statement(
        f"{and_more(told, 4)}. A program of another version may know the settings of "
        "the folder by other names, or not at all: load it with the version that "
        "wrote it, and save it anew there."
    )


def _versions_in(path: str) -> list[tuple[str, str]]:
    """The versions of programs that a JSON file has at its root, and none where it
    cannot be read.
    """
    try:
        limits = Limits()
        data = read_file(locate(path), limits, "the JSON file")
        root = parse_json(data, "the JSON file", Budget(limits))
    except CkptError:
        return []
    rows = root.items() if isinstance(root, dict) else ()
    return [
        (key, text)
        for key, text in rows
        if isinstance(text, str) and _VERSION.search(key) and text
    ]


_OF_END = re.compile(r"(?i)(?:^|[_.-])(?:final|last|end)(?:[_.-]|$)")
_ON_THE_WAY = re.compile(
    r"(?i)(?:^|[_.-])(?:best|latest|checkpoint|epoch|ep|step)[\d_.-]"
)


def _is_of_end(name: str, names: list[str]) -> bool:
    """Tell whether a file is one that a run writes at its end, in a folder with those
    that it writes on its way.
    """
    ending = _ending(name)
    return bool(_OF_END.search(name)) and any(
        _ON_THE_WAY.search(other) and _ending(other) == ending for other in names
    )


_NAMED = re.compile(r"(?i)no file named ([^\n]{1,400})")
_FILE = re.compile(r"[\w-]{1,100}(?:\.[\w-]{1,40}){1,3}")


def lacking_names(text: str, folder: str) -> Statement | None:
    """Say that a folder has none of the files that a loader names, although folders
    below it may, or return None.
    """
    found = _NAMED.search(text)
    if found is None or is_url(folder) or not os.path.isdir(folder):
        return None
    # transformers writes `no file named model.safetensors, or pytorch_model.bin, found
    # …`.
    wanted = _FILE.findall(found[1].partition(" found ")[0])
    names = sorted(locate(folder).names())
    if not wanted or any(name in names for name in wanted):
        return None
    below = [
        f"{name}{inner}"
        for name in names
        if name.endswith("/")
        for inner in locate(os.path.join(folder, name)).names()
        if inner in wanted
    ]
    text = (
        "None of the files that the loader names is in this folder itself, whose "
        f"files are {and_more([show(name, 60) for name in names], 8)}."
    )
    if below:
        text += (
            f" {and_more([show(name, 80) for name in below], 3)} is of a part of the "
            "model, and not in its place: the weights of the model were not saved "
            "here, or were left out when it was copied."
        )
    return Statement(text)


def _use_of(name: str, case: Case) -> Iterator[Statement]:
    """Say what a file is for, and what the folder has in its place."""
    if name == "trainer_state.json":
        steps = case.finds_value(_STEPS)
        said = next(
            (
                row
                for word in _STEPS
                for row in steps
                if row[0].rpartition(".")[2] == word
            ),
            None,
        )
        where = (
            f" The step is {said[1]} ({show(said[0], 80)})." if said is not None else ""
        )
        yield Statement(
            "Trainer keeps the step, the epoch and the best metric in it, and resumes "
            f"from no folder without it.{where} Copy it from where the run wrote it, "
            "or begin a new run from these weights (from_pretrained of this folder)."
        )
    elif name in ("optimizer.pt", "scheduler.pt", "optimizer.bin", "scheduler.bin"):
        yield Statement(
            "A run is resumed from it. The weights are whole without it: begin a new "
            "run from them, or take a checkpoint that was saved with its optimizer."
        )
    elif name.endswith(".json") or name.startswith(
        ("tokenizer", "vocab", "merges", "spiece")
    ):
        yield Statement(
            "It holds settings or a vocabulary, which no command makes from weights: "
            "copy it from the model that the training began with."
        )


_CONTACTS = "-contact-regression.pt"
"""The end of the file in which fair-esm keeps the head for contacts of a model."""


def _of_contacts(name: str, case: Case) -> Iterator[Statement]:
    """Say that fair-esm looks for the head for contacts beside a model, which only the
    prediction of contacts needs.
    """
    own = os.path.basename(case.survey.path)
    if not name.endswith(_CONTACTS) or not own.endswith(".pt"):
        return
    wanted = own.removesuffix(".pt") + _CONTACTS
    yield Statement(
        f"fair-esm loads {show(name, 100)} beside the model: the weights of its head "
        "for contacts, a small file of its own, which was published with the model. "
        f"Put it beside this file, as {show(wanted, 100)}. Embeddings and logits do "
        "not need it, only predicted contacts. Without it, if you trust the author of "
        "this file:",
        (),
        "model, alphabet = esm.pretrained.load_model_and_alphabet_core("
        f"{string_literal(own.removesuffix('.pt'))}, "
        f"torch.load({case.path_literal}, "
        'map_location="cpu", weights_only=False), None)',
    )


def _answer_other_path(path: str, shown: str, case: Case) -> Iterator[Statement]:
    contacts = list(_of_contacts(os.path.basename(path), case))
    if contacts:
        yield from contacts
        return
    what = "folder" if case.is_folder else "file"
    yield Statement(
        f"The program opens another path than this {what}: nothing is at "
        f"{shown}.{_relative_path_note(path)} {_whole_text(case)} Put the file that it "
        "asks for there, or give the program the path of yours, where an option takes "
        "one.".replace("  ", " ")
    )
    if AVERAGES.search(os.path.basename(path)):
        yield from of_no_averages(case)
    yield from _damage_statements(case)


_LONGEST_POINTER = 1_000
"""Bytes of a text that names a file, and holds no more."""
_NAME = re.compile(r"[\w][\w.=-]{0,200}")


def of_pointer(path: str) -> Statement | None:
    """Say that a text file is no checkpoint, and names one that lies beside it, or
    return None: last_checkpoint of detectron2, latest of DeepSpeed.
    """
    if not path or is_url(path):
        return None
    try:
        if os.path.getsize(path) > _LONGEST_POINTER or not os.path.isfile(path):
            return None
        data = read_file(locate(path), Limits(), "the text file")
        text = data.decode().strip()
    except (CkptError, OSError, UnicodeDecodeError):
        return None
    name = os.path.basename(text)
    # One word alone may name a file. Anything else is a text of its own.
    if not _NAME.fullmatch(name) or "\n" in text:
        return None
    beside = os.path.join(os.path.dirname(path), name)
    if not os.path.exists(beside) or os.path.samefile(beside, path):
        return None
    words = pasted_path(beside)
    return Statement(
        f"This is a text file, and no checkpoint: it holds the name {show(name, 80)}, "
        "which tells a program that resumes what its last save is (last_checkpoint of "
        "detectron2 and fastreid, latest of DeepSpeed). torch.load takes the file that "
        "it names:",
        (),
        None if words is None else f"ckpt inspect {words}",
    )

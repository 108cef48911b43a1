"""The answer that a checkpoint gives to an error of PyTorch: names, shapes and places, and commands that work on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from ckpt.errors import CkptError
from ckpt.evidence.loading import literal
from ckpt.evidence.mapping import Match, match
from ckpt.evidence.matching import Match as Held
from ckpt.evidence.matching import groups_of
from ckpt.evidence.numbering import Numbering, Numbers, named, numbering
from ckpt.evidence.optimizers import optimizer
from ckpt.evidence.sections import Section
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.findings import CATALOGUE, Code, Plan
from ckpt.jobs.explain.message import Message
from ckpt.jobs.inspect.inspect import inspect
from ckpt.jobs.inspect.unused import UNUSED
from ckpt.names import Globs
from ckpt.rows import NamedTuple
from ckpt.text import Json, and_more, listed, pasted_path, plural, show, size_text


class Statement(NamedTuple):
    """A fact in one sentence, with the names that it is about, and the command or the line of Python that follows."""

    text: str
    names: tuple[str, ...] = ()
    command: str | None = None


class Shapes(NamedTuple):
    """A tensor whose shapes differ. `file` is its shape in the file, or None if the file does not hold it."""

    name: str
    file: tuple[int, ...] | None
    model: tuple[int, ...]


class Answer(NamedTuple):
    """The answer of a checkpoint to an error: the parameters behind DDP's numbers, shapes that differ, and statements."""

    path: str
    statements: tuple[Statement, ...] = ()
    numbering: Numbering | None = None
    shapes: tuple[Shapes, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The object `answer` of the document `ckpt.explain`."""
        return {
            "path": self.path,
            "statements": [
                {"text": row.text, "names": list(row.names), "command": row.command}
                for row in self.statements
            ],
            "index": None if self.numbering is None else self.numbering.to_json(),
            "shapes": [
                {
                    "name": row.name,
                    "checkpoint": None if row.file is None else list(row.file),
                    "model": list(row.model),
                }
                for row in self.shapes
            ],
        }


def answer(message: Message, survey: Survey, plan: Plan, section: str | None = None) -> Answer:
    """Answer an error of PyTorch for one checkpoint. Raises UsageError where its file cannot answer at all."""
    path = survey.path
    if message.kind in ("ddp", "twice"):
        return _ddp(message, survey, plan, section)
    if message.kind in ("keys", "sizes"):
        rows, shapes = _keys(message, survey, plan, section)
        return Answer(path, tuple(rows), shapes=shapes)
    found: dict[str, Callable[[Message, Survey, Plan], Iterator[Statement]]] = {
        "device": _device,
        "memory": _device,
        "globals": _globals,
        "code": _globals,
        "optimizer": _optimizer,
        "distributed": _distributed,
        "damaged": _damaged,
        "python2": _python2,
        "replicas": _replicas,
    }
    return Answer(path, tuple(found[message.kind](message, survey, plan)))


def damaged(error: CkptError, salvage: str | None = None) -> Answer:
    """Answer an error for a file that ckpt cannot open either: the reason is the answer. `salvage` writes what is whole."""
    text = f"{error.problem[:1].upper()}{error.problem[1:]}" if error.problem else str(error)
    command = None if (path := pasted_path(error.path or "")) is None else f"ckpt verify {path}"
    rows = [Statement(f"{text}.", (), command)]
    if salvage is not None:
        rows.append(
            Statement("What is whole of it can be written, with a list of what is lost:", (), salvage)
        )
    return Answer(error.path or "", tuple(rows))


def made_findings(code: Code, survey: Survey, plan: Plan) -> Answer:
    """The findings with one code that a checkpoint has."""
    if "inspect" not in code.by:
        by = " or ".join(f"ckpt {command}" for command in code.by)
        return Answer(survey.path, (Statement(f"{by} makes this finding."),))
    rows = [row for row in inspect(survey, Globs(), None, plan).findings if row.code == code.code]
    if not rows:
        return Answer(survey.path, (Statement(f"This file does not have the finding {code.code}."),))
    texts = [f"{row.message} {row.consequence or ''}".strip() for row in rows]
    return Answer(
        survey.path,
        tuple(Statement(text, row.tensors, row.hint) for text, row in zip(texts, rows, strict=True)),
    )


def answer_of_names(message: Message) -> Answer | None:
    """Return the answer that the names of an error give without a file: the rule that makes missing and unexpected keys the same."""
    if not message.missing or not message.unexpected:
        return None
    rules = _by_names(message.unexpected, message.missing)
    if not rules.partners:
        return None
    command = "ckpt strip FILE -o OUT" if _is_wrapper(rules) else None
    subs = " ".join(f"--sub {quote(rule.substitution)}" for rule in rules.renames)
    if command is None and rules.renames and all(rule.is_plain for rule in rules.renames):
        command = f"ckpt rename FILE {subs} -o OUT"
    return Answer("", (Statement(_renames_text(rules, len(message.missing)), (), command),))


def _by_names(here: Sequence[str], missing: Sequence[str]) -> Match:
    """The mapping of names in a file to names of a model: the shapes of the model are unknown, so names alone decide."""
    return match(dict.fromkeys(here, ()), dict.fromkeys(missing, ()), layouts=False)


def _renames_text(rules: Match, missing: int) -> str:
    met = len(rules.partners)
    texts = [rule.label for rule in rules.renames]
    text = (
        f"{met:,} of the {plural(missing, 'missing key')} {'is' if met == 1 else 'are'} there by other names"
    )
    return f"{text}: {and_more(texts, 4)}." if texts else f"{text}."


# --- DDP --------------------------------------------------------------------------------------------------------------


def _ddp(message: Message, survey: Survey, plan: Plan, section: str | None) -> Answer:
    rows: list[Statement] = []
    numbers = message.numbers
    names = _own_names(message.names, survey)
    if names:
        rows.append(Statement("DDP names the parameters itself.", tuple(names)))
    if numbers is None:
        if not names:
            rows.append(Statement("The text has no numbers of parameters. This is what the checkpoint says:"))
            for code in ("unused", "sometimes-unused"):
                rows += made_findings(CATALOGUE[code], survey, plan).statements
        return Answer(survey.path, tuple(rows))
    certain = named(survey, numbers, message.names) if section is None else None
    if certain is not None:
        rows.clear()
    found = certain or numbering(survey, numbers, section)
    rows += _reasons(numbers, found)
    return Answer(survey.path, tuple(rows), numbering=found)


def _own_names(names: Sequence[str], survey: Survey) -> list[str]:
    """The names that the file gives the parameters of a message: DDP leaves its own prefix out."""
    if not names:
        return []
    known = {name: name for name in (entry.name for entry in survey.tensors)}
    ends: dict[str, str] = {}
    for section in survey.candidates:
        for entry, relative in zip(section.entries, section.names(), strict=True):
            ends[relative] = entry.name
            ends.setdefault(relative.removeprefix("module."), entry.name)
    return [ends.get(name, known.get(name, name)) for name in names]


def _reasons(numbers: Numbers, found: Numbering) -> Iterator[Statement]:
    if numbers.kind == "twice":
        yield Statement(
            "Its gradient was ready twice: it is used outside of forward, in several activation checkpoints, or in"
            " several backward passes of one step."
        )
        return
    had = {flag for row in found.rows for flag in row.had_gradient}
    if False in had:
        yield Statement(f"Never a gradient: {UNUSED[:1].lower()}{UNUSED[1:]}")
    if True in had:
        yield Statement(
            "A gradient in an earlier step: forward did not take this branch in the step that stopped."
        )
    ranks = {row.ranks for row in found.rows}
    if len(ranks) > 1:
        yield Statement("The ranks list different parameters, so a branch depends on the data of a rank.")


# --- keys and shapes --------------------------------------------------------------------------------------------------


def _keys(
    message: Message, survey: Survey, plan: Plan, section: str | None
) -> tuple[list[Statement], tuple[Shapes, ...]]:
    chosen = _section(message, survey, section)
    if chosen is None:
        return [Statement("The file holds no model.")], ()
    shapes_in_file = {
        name: entry.tensor.shape for name, entry in zip(chosen.names(), chosen.entries, strict=True)
    }
    rows = list(_missing(message, survey, plan, chosen, shapes_in_file))
    differing = tuple(Shapes(row.name, shapes_in_file.get(row.name), row.model) for row in message.mismatched)
    if differing:
        rows += _shapes(message, survey, differing)
    return rows, differing


def _section(message: Message, survey: Survey, section: str | None) -> Section | None:
    """The section whose names the error has, else the only model."""
    if section is not None:
        return survey.section(section)
    wanted = {*message.unexpected, *(row.name for row in message.mismatched)}
    candidates = [part for part in survey.sections if part.kind in ("model", "ema", "other") and part.entries]
    scored = [
        (sum(name in wanted for name in part.names()), -number, part)
        for number, part in enumerate(candidates)
    ]
    best = max(scored, default=None, key=lambda row: row[:2])
    if best is not None and best[0]:
        return best[2]
    models = survey.candidates
    return models[0] if models else None


def _missing(
    message: Message, survey: Survey, plan: Plan, chosen: Section, shapes: dict[str, tuple[int, ...]]
) -> Iterator[Statement]:
    missing, unexpected = message.missing, message.unexpected
    if not missing and not unexpected:
        return
    here = [name for name in unexpected if name in shapes]
    top = {str(path[0]) for section in survey.sections if (path := section.path)}
    if unexpected and not here and top.intersection(unexpected):
        yield _loaded_whole(message, survey, chosen, shapes)
        return
    if unexpected and not here and not any(name in shapes for name in missing):
        yield Statement(
            f"None of the {plural(len(unexpected), 'unexpected key')} is in this file. Is it the file that was loaded?"
        )
    wanted = set(missing)
    left = here or [name for name in shapes if name not in wanted]
    rules = _by_names(left, missing) if left and missing else Match({})
    met = rules.partners
    if met:
        yield _renamed(survey, plan, chosen, rules, len(missing))
    present = [name for name in missing if name not in met and name in shapes]
    absent = [name for name in missing if name not in met and name not in shapes]
    if present:
        yield Statement(f"{plural(len(present), 'missing key')} {_be(present)} in this file.", tuple(present))
    if absent:
        yield Statement(
            f"{plural(len(absent), 'missing key')} {_be(absent)} not in this file under any name that fits.",
            tuple(absent),
        )
    rest = _left(here, set(met.values()))
    if rest:
        yield Statement(f"The model has no place for {plural(len(rest), 'key')} of this file.", tuple(rest))
    if (absent or rest) and (met or not unexpected) and not message.mismatched:
        yield _live(survey, "Load what fits, and see what does not:")


def _left(here: Sequence[str], met: set[str]) -> list[str]:
    """The keys of a file for which a model has no place.

    torch counts a BatchNorm's counter as missing only where the file has the version of the module (torch/nn/modules/
    batchnorm.py `_load_from_state_dict`), so one beside statistics that fit has a place.
    """
    return [
        name
        for name in here
        if name not in met
        and not (name.endswith(_COUNTER) and f"{name.removesuffix(_COUNTER)}running_mean" in met)
    ]


_COUNTER = "num_batches_tracked"


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _loaded_whole(
    message: Message, survey: Survey, chosen: Section, shapes: dict[str, tuple[int, ...]]
) -> Statement:
    """The whole checkpoint went into load_state_dict, and not its model."""
    load = survey.load.expression
    met = sum(name in shapes for name in message.missing)
    text = f"The whole checkpoint was loaded into the model. The weights are in {show(chosen.name, 80)}"
    text += f", which has {met:,} of the {plural(len(message.missing), 'missing key')}."
    return Statement(text, (), load)


def _renamed(survey: Survey, plan: Plan, chosen: Section, rules: Match, missing: int) -> Statement:
    """The command after which the missing keys are there."""
    text = _renames_text(rules, missing)
    stripped = plan(("stripped", chosen.name)) if _is_wrapper(rules) else None
    if stripped is not None and stripped.command is not None:
        return Statement(text, (), stripped.command)
    if rules.renames and all(rule.is_plain for rule in rules.renames):
        words = [word for rule in rules.renames for word in ("--sub", rule.substitution)]
        if len(survey.candidates) > 1:
            words += ["--section", chosen.name]
        way = plan(("rename", *words))
        if way.command is not None:
            return Statement(text, (), way.command)
    return Statement(text, (), _live(survey, "").command)


def _is_wrapper(rules: Match) -> bool:
    """Tell whether the only rule takes the prefix of a wrapper away."""
    return all(unwrapped_name(old) == new for new, old in rules.partners.items())


def _live(survey: Survey, text: str) -> Statement:
    return Statement(text, (), f"import ckpt; ckpt.open({literal(survey.path)}).load_into(model)")


def _shapes(message: Message, survey: Survey, rows: Sequence[Shapes]) -> Iterator[Statement]:
    said = {row.name: row.checkpoint for row in message.mismatched}
    other = [row.name for row in rows if row.file is not None and row.file != said[row.name]]
    lost = [row.name for row in rows if row.file is None]
    if other:
        yield Statement(
            f"{plural(len(other), 'tensor')} {'has' if len(other) == 1 else 'have'} another shape in this file than in the"
            " message. Is it the file that was loaded?",
            tuple(other),
        )
    if lost:
        yield Statement(f"{plural(len(lost), 'tensor')} {_be(lost)} not in this file.", tuple(lost))
    yield _live(survey, "Load what fits, and keep the model's own values elsewhere:")


# --- devices ----------------------------------------------------------------------------------------------------------


def _device(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    devices: dict[str, list[int]] = {}
    for storage in survey.checkpoint.storages:
        row = devices.setdefault(storage.device or "cpu", [0, 0])
        row[0] += 1
        row[1] += storage.nbytes
    others = {tag: row for tag, row in devices.items() if tag not in ("cpu", "meta")}
    if not others:
        yield Statement(
            "No tensor of this file is saved on a GPU: it is not the file that was loaded, or not the reason."
        )
        return
    for tag, (count, nbytes) in others.items():
        yield Statement(
            f"{plural(count, 'storage')} with {size_text(nbytes)} {'is' if count == 1 else 'are'} saved on {show(tag, 40)}."
        )
    if message.kind == "memory":
        yield Statement("A load without map_location puts them there, in every process.")
    if message.device is not None and ":" in message.device and message.device not in others:
        yield Statement(f"None is saved on {show(message.device, 40)}, which the message names.")
    way = plan(("rehome",))
    yield Statement("A file without devices loads everywhere:", (), way.text)
    expression = survey.load.expression
    if expression is not None and 'map_location="cpu"' in expression:
        yield Statement("Or load this one so:", (), expression)


# --- what loading imports ---------------------------------------------------------------------------------------------


def _globals(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    imports = {f"{row.module}.{row.name}": row for row in survey.checkpoint.imports}
    here = False
    for name in message.names:
        rows = [
            row
            for full, row in imports.items()
            if full == name or row.module == name or row.module.startswith(f"{name}.")
        ]
        here = here or bool(rows)
        for row in rows:
            at = f" at {listed(row.where)}" if row.where else ""
            runs = f" Loading calls {listed(row.calls, 2)}." if row.group == "called" and row.calls else ""
            yield Statement(f"The file names {show(f'{row.module}.{row.name}', 120)}{at}.{runs}")
        if not rows:
            yield Statement(f"The file does not name {show(name, 120)}.")
    refusals = survey.checkpoint.weights_only
    if not refusals:
        why = "weights_only=True loads this file" if refusals == () else "No pickle is loaded from this file"
        yield Statement(f"{why}.", (), survey.load.expression)
        return
    others = len(refusals) - len(message.names)
    if others > 0 and here:
        text = and_more([show(row.reason, 120) for row in refusals], 6)
        yield Statement(f"weights_only=True refuses {plural(len(refusals), 'thing')} in this file: {text}.")
    way = plan(("plain",))
    if way.command is not None:
        yield Statement("This file then loads with weights_only=True:", (), way.text)
    elif way.reason is not None:
        yield Statement(f"No command makes it loadable: {way.reason}.")


# --- optimizers -------------------------------------------------------------------------------------------------------


def _optimizer(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    del message, plan
    held = {use.optimizer.name: use for use in survey.matches}
    for section in survey.sections:
        kind = optimizer(section) if section.kind == "optimizer" else None
        if kind is None:
            continue
        match = held.get(section.name)
        yield Statement(_groups(section, match))
        if match is not None and match.model is not None:
            model = match.model
            count = sum(survey.roles[index].role in ("parameter", "unknown") for index in model.indices)
            yield Statement(
                f"{show(model.name, 80) or 'The model'} has {plural(count, 'parameter')}."
                + (
                    f" {count - len(match.slots):,} of them are not in the optimizer."
                    if count > len(match.slots)
                    else ""
                )
            )
    if not any(section.kind == "optimizer" for section in survey.sections):
        yield Statement("This file holds no optimizer.")
        return
    yield Statement(
        "The new optimizer must get the same parameters, in the same groups, in the same order. A layer that was added,"
        " or frozen and left out, changes them."
    )


def _groups(section: Section, match: Held | None) -> str:
    sizes = [len(group.slots) for group in groups_of(section)]
    name = show(section.name, 80) or "The optimizer"
    if len(sizes) == 1:
        return f"{name} has one group of {plural(sizes[0], 'parameter')}."
    listed_sizes = and_more([f"{size:,}" for size in sizes], 12)
    return f"{name} has {len(sizes):,} groups of {listed_sizes} parameters, {sum(sizes):,} in all."


# --- distributed checkpoints ------------------------------------------------------------------------------------------


def _distributed(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    del plan
    names = [entry.name for entry in survey.tensors] + [value.name for value in survey.checkpoint.values]
    known = set(names)
    here = [name for name in message.names if name in known]
    lost = [name for name in message.names if name not in known]
    if here:
        yield Statement(f"{plural(len(here), 'key')} {_be(here)} in this checkpoint.", tuple(here))
    if lost:
        yield Statement(f"{plural(len(lost), 'key')} {_be(lost)} not in this checkpoint.", tuple(lost))
        ends = {
            name: [other for other in names if other.endswith(f".{name}") or name.endswith(f".{other}")]
            for name in lost[:100]
        }
        found = {name: others[0] for name, others in ends.items() if others}
        for name, other in list(found.items())[:4]:
            yield Statement(f"It has {show(other, 120)} in place of {show(name, 120)}.")
    stateless = [name for name in lost if ".state." in name or name.startswith("state.")]
    if stateless:
        yield Statement("The optimizer saved no state for these parameters: they never had a gradient.")


# --- files that do not open -------------------------------------------------------------------------------------------


def _damaged(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    del message, plan
    path = pasted_path(survey.path)
    yield Statement(
        "ckpt reads this file to its end. The copy that failed was another one, or was still being written.",
        (),
        None if path is None else f"ckpt verify {path}",
    )


def _python2(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    del message
    encoding = survey.checkpoint.encoding
    if encoding is None:
        yield Statement("No text of this file needs another encoding: it is not the file that was loaded.")
        return
    yield Statement(
        f"Python 2 wrote this file. Its texts load with encoding={encoding!r}.", (), survey.load.expression
    )
    way = plan(("convert", "--encoding", encoding))
    if way.command is not None:
        yield Statement("This file then loads without it:", (), way.text)


def _replicas(message: Message, survey: Survey, plan: Plan) -> Iterator[Statement]:
    del message
    rows = [row for row in inspect(survey, Globs(), None, plan).findings if row.code == "list-modules"]
    for row in rows:
        yield Statement(f"{row.message} {row.consequence or ''}".strip(), row.where)
    if not rows:
        is_whole = any(section.is_module for section in survey.sections)
        known = (
            "Every module of this file is registered."
            if is_whole
            else "A state dict does not show modules in lists."
        )
        yield Statement(f"{known} Check the live model:", (), "ckpt lint --model FILE.py:FACTORY")

"""The lines of Python that load into a model what `ckpt warmstart` would load: plain
torch, without ckpt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ckpt.bytes.location import path_beside
from ckpt.commands.rewriting.report import LOADED, Coverage, Pairing
from ckpt.evidence.loading import load_of, string_literal
from ckpt.evidence.mapping import begin_pattern
from ckpt.evidence.survey import Survey
from ckpt.ext.warmstart.warmstart import Options
from ckpt.model.errors import UnsupportedError
from ckpt.model.text import counted_noun, percent_text, show

Pairs = Mapping[str, str]
"""Name in the model -> name in the pretrained state dict."""

_FILLS = ".load(state,"
"""A call that fills a state dict that is there already, and makes none."""
_STATE = ".state_dict()"
_MODULES = (
    r"\b(safetensors\.torch|torch\.package|pickle|gzip|bz2|lzma|joblib|tarfile"
    r"|zipfile)\.\w+\("
)
"""The modules of an expression that are imported, with the function that follows."""


def code_lines(
    coverage: Coverage, given: Survey, wanted: Survey, options: Options
) -> list[str]:
    """The lines of a script that has a `model`: load, rename, report.

    Rules are written where they say the same as the plan, else every name. Raises
    UnsupportedError for a file that no line of Python loads.
    """
    theirs = given.only_model(options.section)
    mine = wanted.only_model(options.into_section, "--into-section")
    load = load_of(given.checkpoint, [theirs])
    if load.expression is None:
        raise UnsupportedError(
            f"no line of Python loads it: {load.reason}",
            path=given.path,
            way=("weights",),
        )
    # `torch.distributed.checkpoint.load` fills a state dict that must have the names of
    # the file.
    if _FILLS in load.expression:
        out = path_beside(given.path, ".slim", (".pth",), other=False)
        raise UnsupportedError(
            (
                "no line of Python loads it: torch fills a state dict that has its "
                "names already"
            ),
            path=given.path,
            way=("weights",) if out is None else ("slim", "-o", out),
        )
    expression = load.expression
    expression = load.expression
    # A module or a program in the file: the lines work with its state dict.
    is_module = given.checkpoint.traits.names_are_code or theirs.is_module
    if is_module and not expression.endswith(_STATE):
        expression += _STATE

    def names(row: Pairing) -> tuple[str, str]:
        assert row.target is not None and row.source is not None
        return mine.relative(row.target.name), theirs.relative(row.source.name)

    # A tied tensor has its values under another name, which is in the lines already.
    rows = [
        row
        for row in coverage.of(*LOADED)
        if row.source is not None and row.status != "tied"
    ]
    # Tensors that are loaded as they are; the others have lines of their own.
    whole = dict(
        names(row) for row in rows if row.rows is None and row.status != "sliced"
    )
    shapes = {
        theirs.relative(entry.name): tuple(entry.tensor.shape)
        for entry in theirs.entries
    }
    own = {
        mine.relative(entry.name): tuple(entry.tensor.shape) for entry in mine.entries
    }
    # Rules are tried on all names: a rule that says less, or more, than the plan is not
    # written.
    rules = None
    for tried in _substitution_rules(coverage):
        if _rename_by_rules(tried, shapes, own) == whole:
            rules = tried
            break
    modules = {"torch", *re.findall(_MODULES, expression)}
    if rules:
        modules.add("re")
    some, number = coverage.tensors
    what = (
        f"{some:,} of {counted_noun(number, 'tensor')}, "
        f"{percent_text(*coverage.elements)} of the model"
    )
    note = f"  # {show(load.note, 200)}" if load.note else ""
    return [
        *(f"import {module}" for module in sorted(modules)),
        *re.findall(r"from [\w.]+ import \w+", load.note or ""),
        "",
        f"state = {expression}{note}",
        "own = model.state_dict()",
        *(_by_name(whole) if rules is None else _by_rules(rules)),
        *(line for row in rows for line in _part_lines(row, *names(row))),
        f"# {what}",
        "print(model.load_state_dict(chosen, strict=False))",
    ]


def _substitution_rules(coverage: Coverage) -> Iterator[list[tuple[str, str]]]:
    """Yield substitutions that may give each tensor its new name."""
    words = [rename.pattern for rename in coverage.renames if rename.kind == "words"]
    first, second = coverage.aligned
    start = [begin_pattern(first, second)] if first or second else []
    yield [*start, *words]
    # Both prefixes at once, or first the one that goes and at last the one that comes:
    # words of a rule may begin where a name begins.
    if first and second:
        yield [begin_pattern(first, ""), *words, begin_pattern("", second)]


def _rename_by_rules(
    rules: Sequence[tuple[str, str]],
    shapes: Mapping[str, tuple[int, ...]],
    own: Mapping[str, tuple[int, ...]],
) -> Pairs | None:
    """The names that the lines of `_by_rules` would choose, or None where two tensors
    would get one name.
    """
    chosen: dict[str, str] = {}
    for name, shape in shapes.items():
        new = name
        for pattern, text in rules:
            new = re.sub(pattern, text, new)
        # The same test as in the lines that are written: a name of the model, with its
        # shape.
        if own.get(new) == shape:
            if new in chosen:
                return None
            chosen[new] = name
    return chosen


def _by_rules(rules: Sequence[tuple[str, str]]) -> list[str]:
    lines = ["chosen = {}", "for name, value in state.items():"]
    lines += [
        f"    name = re.sub({_raw_literal(pattern)}, {_raw_literal(text)}, name)"
        for pattern, text in rules
    ]
    return [
        *lines,
        "    if name in own and own[name].shape == value.shape:",
        "        chosen[name] = value",
    ]


def _raw_literal(text: str) -> str:
    """A literal of a regular expression, raw where that is the same text."""
    # A raw literal cannot end in a backslash, and cannot escape a quote.
    is_raw = (
        text.isascii()
        and text.isprintable()
        and '"' not in text
        and not text.endswith("\\")
    )
    return f'r"{text}"' if is_raw and "\\" in text else string_literal(text)


def _by_name(pairs: Pairs) -> list[str]:
    rows = [
        f"    {string_literal(own)}: {string_literal(name)},"
        for own, name in pairs.items()
    ]
    return [
        "names = {",
        *rows,
        "}",
        "chosen = {own_name: state[name] for own_name, name in names.items()}",
    ]


def _part_lines(row: Pairing, own: str, name: str) -> list[str]:
    """The lines for a tensor of which a part is loaded, or that is loaded from
    a part.
    """
    assert row.target is not None and row.source is not None
    # The names of a file are strangers' texts: as literals they are only texts.
    mine, other = string_literal(own), string_literal(name)
    if row.status == "sliced":
        sizes = zip(row.target.tensor.shape, row.source.tensor.shape, strict=True)
        block = ", ".join(f":{min(pair)}" for pair in sizes)
        return [f"own[{mine}][{block}] = state[{other}][{block}]"]
    if row.rows is None:
        return []
    side, first, last = row.rows
    if side == "pretrained":
        return [f"chosen[{mine}] = state[{other}][{first}:{last}]"]
    return [f"own[{mine}][{first}:{last}] = state[{other}]"]

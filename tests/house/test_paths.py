"""Every constant that something is compared with is a path, the size of a block, a limit, or a number of a format.

What is a path, and so changes nothing of an answer, has both its sides tested: `tests/lib/paths.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import paths
import pytest
from house import parsed

ROOT = Path(__file__).resolve().parents[2]

LIMITS = [
    "evidence.adapters._LEAST",
    "evidence.adapters._READ",
    "evidence.extras._LEAST",
    "evidence.reordered._DISTINCT",
    "evidence.reordered._LEAST",
    "evidence.reordered._PARTS",
    "evidence.reordered._STEPS",
    "evidence.substitutions._MOST",
    "evidence.substitutions._WIDEST",
    "evidence.wrappers._HABIT",
    "evidence.matching._BESIDE",
    "evidence.matching._CHAINS",
    "evidence.matching._LONGEST_CHAIN",
    "evidence.matching._ORDERED",
    "evidence.numbering._LISTED",
    "evidence.numbering._MOST",
    "evidence.order._TELLING",
    "jobs.explain.case._LISTED",
    "jobs.explain.text._MARKS",
    "jobs.explain.lists._MOST_FOLDED",
    "jobs.explain.pages._KIN",
    "jobs.explain.pages._FEW",
    "jobs.explain.families.content._MANY",
    "jobs.explain.families.devices._NEAR",
    "jobs.explain.families.architectures._FEW_LAYERS",
    "jobs.explain.families.architectures._LEAST_PARTS",
    "jobs.explain.families.architectures._LEAST_WIDE",
    "jobs.explain.families.architectures._MOST_PARTS",
    "jobs.explain.families.keys._MOST_RANKS",
    "jobs.explain.families.keys._LEAST_DIVIDED",
    "jobs.explain.families.keys._LAST",
    "jobs.explain.families.keys._MOST_HEADS",
    "jobs.explain.families.spellings._LEAST_LETTERS",
    "jobs.explain.families.spellings._LONGEST",
    "pickles.grammar.forms._FEW_KEYS",
    "pickles.grammar.forms._HEAVY",
    "pickles.grammar.forms._LONG_NAME",
    "pickles.grammar.forms._LONG_NUMBER",
    "pickles.grammar.forms._LONG_TEXT",
    "pickles.grammar.forms._MADE",
    "pickles.grammar.forms._MOST_UNGUARDED",
    "pickles.grammar.forms._SHORT",
    "pickles.machine._LONG_NUMBER",
    "pickles.machine._LONG_TEXT",
    "pickles.grammar.torch_rules._MOST_RANKS",
    "pickles.bounds._AGAIN",
    "evidence.matching._LONGEST_NAME",
    "tree.find._LONG_KEY",
    "pickles.grammar.forms._WORK",
    "pickles.keys._DEEPEST",
    "pickles.keys._FEW_NUMBERS",
    "pickles.keys._LONGEST",
    "pickles.keys._MOST_OBJECTS",
    "pickles.keys._MOST_OF_TEN",
    "pickles.machine._MANY_NUMBERS",
    "jobs.explain.pages._LONGEST_CODE",
    "formats.common.expressions._ARGUMENT",
    "formats.common.expressions._COMPARED",
    "formats.common.expressions._DEEPEST",
    "formats.common.expressions._DIGITS",
    "formats.common.expressions._DIVIDED",
    "formats.common.expressions._LONGEST",
    "formats.common.expressions._PLACES",
    "formats.common.expressions._POWERS",
    "formats.common.expressions._PRECISION",
    "formats.common.expressions._SCANNED",
    "formats.common.expressions._TERMS",
    "formats.common.constants._MOST",
    "formats.common.constants._SHORT",
    "formats.common.script._FOREVER",
    "formats.common.script._LONG_TEXT",
    "formats.common.script._MADE",
    "formats.common.script._ROUNDS",
    "formats.common.script._SAID",
    "formats.common.script._STEPS",
    "formats.common.script_types._UNFOLDED",
    "pickles.rebuild._DEEPEST_TYPE",
    "formats.common.early.LOOKED",
    "formats.common.early._HOPS",
    "formats.dcp.reader._HEAD",
    "formats.contained.arrays._HEADER",
    "formats.torch_zip.unpacked._AROUND",
    "formats.common.following._MOST",
    "formats.common.following._END_RECORD",
    "formats.common.packed._FIRST",
    "formats.common.packed._HEAD",
    "formats.programs._TABLE_FOOTER",
    "formats.common.packed._PADDING",
    "formats.common.packed._SUMS",
    "formats.common.packed._ZF_HEADER",
    "formats.common.storages._LARGE",
    "formats.foreign._INSIDE",
    "jobs.check.lint._NAME",
    "formats.common.packed._STREAMS",
    "jobs.rewrite.plain._ROUNDS",
    "pickles.grammar.forms.MOST_ARGUMENTS",
    "pickles.grammar.forms._LARGE",
    "pickles.grammar.forms._LONG",
    "pickles.grammar.forms._NESTED",
    "pickles.grammar.numpy_rules._LONGEST_RECORD",
    "pickles.grammar.numpy_rules._NESTED_ARRAYS",
    "pickles.grammar.python_rules._LONG_PART",
    "pickles.grammar.python_rules._LONG_PATH",
    "pickles.machine._EQUAL_HASHES",
    "pickles.machine.FREE_SLOTS",
    "pickles.grammar.numpy_rules._DIMENSIONS",
    "pickles.grammar.numpy_rules._LONGEST_ELEMENT",
    "pickles.machine.TUPLE_ENTRIES",
    "evidence.gradients._READ",
    "evidence.loading._SPELLED",
    "formats.common.archive.TRAILING",
    "formats.common.placed._PADDING",
    "formats.common.recorded._READ",
    "formats.dcp.reader._COPIES",
    "formats.dcp.reader._GAPS",
    "formats.common.storages._KEY_BYTES",
    "io.source._WANTED",
    "tree.find._OUTER",
    "tree.find._KEY_ITEMS",
    "elements.spans.UNFOLDED",
    "evidence.dialects._DEPTH",
    "evidence.dialects._LONG",
    "evidence.emptied._LEAST",
    "evidence.mapping.ENOUGH",
    "evidence.mapping._AKIN",
    "evidence.mapping._ALIKE",
    "evidence.mapping._DEPTH",
    "evidence.mapping._MANY",
    "evidence.mapping._NUMBERED",
    "evidence.mapping._PARTS",
    "evidence.mapping._RULES",
    "evidence.mapping._ROUNDS",
    "evidence.mapping._WORTH",
    "jobs.diff.reasons._LITTLE",
    "jobs.rewrite.rehome._OF_CPU",
    "jobs.rewrite.rehome._OF_GPU",
    "jobs.report._MOST_NUMBERS",
    "jobs.rewrite.report._MOST",
    "jobs.rewrite.average._EXCLUDED",
    "jobs.rewrite.average._TRIES",
    "jobs.rewrite.warmstart.HALF",
    "jobs.rewrite.warmstart.LEAST",
    "formats.common.holes.LEAST_ZEROS",
    "jobs.rewrite.warmstart._NOTES",
    "evidence.devices._LISTED",
    "evidence.gradients._MOMENT_BYTES",
    "evidence.matching._MOST_PAIRS",
    "evidence.modules._DEPTH",
    "evidence.modules._VISITS",
    "evidence.scaled._PACKING",
    "evidence.sections.OTHER_SHARE",
    "formats.common.tar._EXTENSION",
    "formats.common.tar._SEEN",
    "formats.common.tar._TAIL",
    "formats.contained.reader._DEPTH",
    "formats.common.coverage._PAIRS",
    "formats.dcp.metadata._MOST",
    "formats.dcp.hf_reader._LISTED",
    "formats.dcp.hf_reader._TOO_MANY",
    "formats.deepspeed.plan._TAG_BYTES",
    "formats.folder.reader.TEXT_BYTES",
    "formats.folder.distributed._RANKS",
    "formats.foreign._SMALL",
    "formats.fsdp.reader._TOO_MANY",
    "formats.fsdp.reader._MOST",
    "formats.fsdp.__init__._MOST",
    "formats.pt2._MOST",
    "formats.pt2._TEXT",
    "formats.safetensors.writer._EXPANDED",
    "formats.torch_package._TEXT",
    "formats.torch_tar._MOST",
    "formats.common.appended._LOOKED_AT",
    "formats.common.archive._INFLATED",
    "formats.common.archive._ROOM",
    "formats.common.archive._SMALL",
    "evidence.matching._LARGEST",
    "formats.common.branches._CARRIED",
    "formats.common.following._HEADER",
    "formats.common.script._MEMBERS",
    "formats.foreign._EMPTY",
    "formats.common.doubling._MOST",
    "formats.common.doubling._UNFOLDED",
    "formats.common.early._LONGEST",
    "formats.torch_zip.unpacked._LETTERS",
    "formats.common.two_files._DIRECTORY",
    "formats.common.two_files._LOOKED_AT",
    "formats.common.appended._SEARCHED",
    "formats.common.appended._TRIED",
    "formats.torchscript_1_0._MOST",
    "io.location._TRIES",
    "io.cluster.watch.INTERVAL",
    "io.cluster.watch._ABSENCE",
    "io.cluster.watch._SILENCE",
    "io.cluster.watch._STEP",
    "io.executor.TRIES",
    "io.remote.http._REDIRECTS",
    "io.remote.hub._PAGES",
    "io.remote.source._PATIENCE",
    "io.remote.source._TRIES",
    "io.remote.traffic._SILENCE",
    "io.remote.target._MOST_PARTS",
    "io.source.MOST",
    "jobs.diff.rows._DEPTH",
    "jobs.diff.rows._UNFOLDED",
    "jobs.explain.pages._LEAST",
    "jobs.explain.pages._SHORT",
    "jobs.explain.pages._WORDS_OF_A_MESSAGE",
    "jobs.inspect.inspect._BLOAT_BYTES",
    "jobs.inspect.inspect._HEAVY",
    "jobs.report._KIN",
    "jobs.report._SHARE",
    "jobs.report._LONGEST",
    "jobs.rewrite.plain._INT_BITS",
    "jobs.rewrite.plain._KEY_PARTS",
    "limits.TENSOR_BYTES",
    "live.memory._DEPTH",
    "live.model._DEPTH",
    "live.memory._DEPTH",
    "live.model._DEPTH",
    "live.state._DEPTH",
    "limits._DIGITS",
    "jobs.rewrite.plain._DEPTH",
    "jobs.rewrite.plain._MOST",
    "jobs.rewrite.plain._SPREAD",
    "pickles.imports._KEPT",
    "pickles.machine.DIGITS",
    "pickles.machine.LINE_BYTES",
    "pickles.machine.MEMO_SLOT",
    "pickles.machine.NAME_CHARACTERS",
    "pickles.machine.TUPLE_DEPTH",
    "pickles.rebuild._TOO_MANY",
    "pickles.sharded._MOST",
    "pickles.skim.tensors._TAG",
    "pickles.state_dict._DEPTH",
    "tree.find._PARTS",
    "tree.walk._AGAIN",
    "tree.walk._STEPS",
    "tree.json.INT_BITS",
    "tree.literals._TEXT_PART",
    "tree.view.ARRAY_ELEMENTS",
    "tree.walk._PLACED",
    "tree.walk._PLACES",
    "tree.walk.REPEAT_LENGTH",
    "tree.walk.ROW_ITEMS",
]
"""Limits and levels, which an answer may depend on: beyond them it says so, or shows another row."""

FORMATS = [
    "errors.STOPPED",  # of Linux
    "pickles.grammar.numpy_rules._OBJECTS_FLAGS",
    "live.__init__._OLDEST",
    "elements.histogram.BINS",
    "elements.histogram._FINEST",
    "elements.single._CENTRED",
    "elements.single._LEAST",
    "elements.single._MOST",
    "elements.single._ROUNDING",
    "formats.common.tar.BLOCK",
    "formats.dcp.skim._LONG",
    "formats.dcp.skim._MARK",
    "formats.dcp.skim._SHORT",
    "formats.common.directory.MARK",
    "formats.plain_pickle.reader.KEPT",
    "formats.plain_pickle.reader._LONGEST",
    "formats.pt2._STRIDED",
    "formats.safetensors.writer._ALIGNMENT",
    "formats.safetensors.writer._LARGE",
    "formats.common.stream.MAGIC",
    "formats.common.stream.PROTOCOL",
    "formats.common.columns._MARK",
    "formats.common.layout._MAX16",
    "formats.common.layout._MAX32",
    "formats.torch_zip.reader._NEWEST",
    "formats.common.layout._SMALL",
    "formats.common.layout._LARGE",
    "formats.torchscript.writer._LARGE",
    "pickles.emit.BATCH",
    "pickles.skim.tensors._DIGITS",
    "pickles.skim.tensors._LENGTH",
    "pickles.skim.tensors._PUTS",
    "pickles.skim.tensors._BETWEEN",
    "pickles.skim.tensors._PROTOCOL",
]
"""Numbers of formats and of arithmetic, which nothing but they can be."""

REQUESTS = [
    "formats.common.packed._STEP",
    "formats.common.archive._WINDOW",
    "elements.audit._STEP",
    "formats.dcp.items._BLOCK",
    "formats.dcp.items._EDGE",
    "formats.common.dcp._HEAD",
    "formats.dcp.remains._HEAD",
    "formats.dcp.remains._SMALL",
    "formats.common.directory._AROUND",
    "formats.listing._HEAD",
    "formats.format.HEAD_BYTES",
    "formats.common.columns._BLOCK",
    "formats.common.columns._NEAR",
    "formats.common.columns._LEAD",
    "io.cluster.connect._EACH",
    "io.cluster.connect._LEAST",
    "io.cluster.connect._MOST",
    "io.cluster.parcel._TASKS",
    "io.executor._MOST",
    "io.remote.ahead.GAP",
    "io.remote.ahead.PIECE",
    "io.remote.ahead.REQUESTS",
    "io.remote.ahead._BATCH",
    "io.remote.ahead._FEW",
    "io.remote.ahead._GROUPS",
    "io.remote.ahead._LOOSE",
    "io.remote.connections._IDLE",
    "io.remote.connections._LARGE",
    "io.remote.connections._LEFT",
    "io.remote.connections._REST",
    "io.remote.connections._PIECE",
    "io.remote.location._BEFORE",
    "io.remote.location._FRESH",
    "io.remote.traffic._AGAIN",
    "tensors._EDGE",
    "io.remote.source._AFTER",
    "io.remote.source._BEFORE",
    "io.remote.source._FRONT",
    "io.remote.source._HEAD",
    "io.remote.source._MOST",
    "io.remote.source.HEAD",
    "io.remote.source.TAIL",
    "io.remote.source._FASTER",
    "io.remote.source._LEAST",
    "io.remote.source._NEAR",
    "io.remote.target.FLYING",
    "io.remote.target.PART",
    "io.remote.target._AHEAD",
    "io.remote.target._HELD",
]
"""How much is read, sent or kept at once: `tests/io` and `tests/elements` have their tests."""

SHOWN = ("render.", "cli.", "api.", "names._LONG", "text._SIBLINGS", "jobs.diff.rows._FEW")
"""Rooms whose constants decide what is shown, and what decides it elsewhere."""


def numbers(path: Path) -> dict[str, int | float]:
    """The constants of a module that are numbers."""
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    named = {target.id for node in parsed(path).body for target in targets(node)}
    found = {name: getattr(module, name, None) for name in named if name.upper() == name}
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def targets(node: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name):
                    yield inner


def compared() -> Iterator[str]:
    """The constants that something is compared with, or that bound a number: `room.module.NAME`."""
    for path in sorted((ROOT / "ckpt").rglob("*.py")):
        tree = parsed(path)
        if path.name == "__main__.py" or not any(isinstance(node, ast.Compare) for node in ast.walk(tree)):
            continue
        own = numbers(path)
        for node in ast.walk(tree):
            bounds = isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("min", "max", "range")
            if isinstance(node, ast.Compare) or bounds:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Name) and inner.id in own:
                        module = ".".join(path.relative_to(ROOT / "ckpt").with_suffix("").parts)
                        yield f"{module}.{inner.id}"


def test_every_constant_that_chooses_a_path_has_both_its_sides() -> None:
    used = set(compared())
    tested = {name.removeprefix("ckpt.") for name in (*paths.PATHS, *paths.SMALL)}
    known = {*LIMITS, *FORMATS, *REQUESTS, *tested}
    assert not sorted(name for name in used - known if not name.startswith(SHOWN)), (
        "is it a path? Then tests/lib/paths.py gets its two values"
    )
    assert not sorted({*LIMITS, *FORMATS, *REQUESTS} - used), "no longer compared"


@pytest.mark.parametrize("name", list(paths.PATHS))
def test_the_sides_of_a_path_are_two(name: str) -> None:
    fast, slow = paths.PATHS[name]
    assert fast != slow
    with paths.walking("fast"):
        assert paths.now()[name] == fast
        assert paths.changed()[name] == fast if fast != paths.SHIPPED[name] else name not in paths.changed()
    assert paths.now()[name] == paths.SHIPPED[name]

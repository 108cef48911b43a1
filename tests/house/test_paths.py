"""Every constant that something is compared with is a path, the size of a block, a
limit, or a number of a format.

What is a path, and so changes nothing of an answer, has both its sides tested:
`tests/lib/paths.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import paths
import pytest
from house import layer_of, parsed

ROOT = Path(__file__).resolve().parents[2]

LIMITS = [
    "commands.get.get._SORTED",
    "ext.adapters.pipelines._REST",
    "ext.gguf.changes._MOST",
    "ext.gguf.verdicts._LOOKED",
    "ext.gguf.verdicts._SAMPLE",
    "ext.adapters.account._GROUPS",
    "ext.adapters.base._MOST",
    "ext.adapters.base._TRIES",
    "ext.adapters.config._LONGEST",
    "ext.adapters.verdicts._CLOSE",
    "ext.layouts.comparing._BYTES",
    "ext.layouts.comparing._LEAST",
    "ext.layouts.fibres.LEAST",
    "ext.layouts.fibres.LEAST_OF_PAIRS",
    "ext.layouts.find._PADDING",
    "ext.layouts.reverse._MOST_SLICES",
    "ext.layouts.flat.LONGEST",
    "ext.layouts.flat.WINDOW",
    "ext.layouts.formulas._MOST_DIGITS",
    "ext.layouts.neighbours._MANY",
    "ext.layouts.neighbours._MOST_PAIRS",
    "ext.layouts.pieces.MOST",
    "ext.layouts.pieces._DEPTH",
    "ext.layouts.rules.MOST_CHARACTERS",
    "ext.layouts.rules.MOST_PIECES",
    "ext.layouts.scaled._SAMPLE",
    "ext.layouts.account._MOST_TIMES",
    "ext.layouts.account._SMALL",
    "ext.layouts.sides._EXPANDED",
    "ext.layouts.search._CANDIDATES",
    "ext.layouts.search._DIMS",
    "ext.layouts.search._INNER",
    "ext.layouts.search._SAMPLED",
    "ext.layouts.templates._MOST_NUMBERS",
    "ext.layouts.templates._MOST_TERMS",
    "ext.prune.finding._MOST",
    "ext.prune.finding._MOST_LOOKED",
    "ext.prune.finding._POINTER_BYTES",
    "ext.prune.identity._DEEPEST",
    "ext.prune.identity._MOST",
    "ext.prune.judging._NEAR",
    "ext.prune.naming._LONGEST",
    "ext.prune.rules._FRESH",
    "ext.resizing.grids._MOST",
    "ext.quantised.bits._LARGEST",
    "ext.quantised.bits._STATE",
    "ext.quantised.comparing._EXPLAINED",
    "ext.quantised.comparing._ROUNDING",
    "ext.quantised.floats._BLOCK",
    "ext.quantised.grids._TILE",
    "ext.quantised.hqq._NOTE",
    "ext.quantised.judge._ALIKE",
    "ext.quantised.judge._APART",
    "ext.quantised.judge._MOSTLY",
    "ext.quantised.judge._REST",
    "ext.quantised.judge._SPREAD",
    "ext.quantised.judge._STALE",
    "ext.quantised.judge._STALE_ALIKE",
    "ext.quantised.judge._STALE_CELLS",
    "ext.quantised.judge._STALE_FACTOR",
    "ext.quantised.judge._STALE_SIZE",
    "elements.lines.CHUNK",
    "elements.lines._ALIKE",
    "elements.lines._APART",
    "elements.lines._FEWEST",
    "elements.lines._LEAST",
    "elements.lines._MANY",
    "elements.lines._SHARE",
    "ext.gguf.changes._EXPERTS",
    "ext.gguf.changes._HEADS",
    "ext.gguf.meeting._MOST",
    "ext.gguf.verdicts._MOSTLY",
    "ext.quantised.judge._BANDS",
    "ext.quantised.judge._BETTER",
    "ext.quantised.judge._ELEMENTS",
    "ext.quantised.judge._LEAST_CELLS",
    "ext.quantised.judge._RUN",
    "ext.quantised.judge._SAME",
    "ext.quantised.judge._STRAYS",
    "ext.quantised.judge._TIMES",
    "ext.quantised.schemes._EXPANDED",
    "ext.resizing.hooks._EXPANDED",
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
    "ext.explain.case._LISTED",
    "ext.explain.case._END",
    "ext.explain.case._LEAST_SHARED",
    "ext.explain.families.leftovers._FEW",
    "ext.explain.families.recorded._LEAST",
    "ext.explain.families.recorded._MOST",
    "ext.explain.families.unpacking._NEAR",
    "ext.explain.pasted._MARKS",
    "ext.explain.lists._MOST_FOLDED",
    "ext.explain.pages._KIN",
    "ext.explain.pages._FEW",
    "ext.explain.families.content._MANY",
    "ext.explain.families.devices._NEAR",
    "ext.explain.families.architectures._FEW_LAYERS",
    "ext.explain.families.architectures._LEAST_PARTS",
    "ext.explain.families.architectures._LEAST_WIDE",
    "ext.explain.families.architectures._MOST_PARTS",
    "ext.explain.families.architectures._MANY_INPUTS",
    "ext.explain.families.memory._HEAVY",
    "ext.explain.families.adapters._MOST_EMBEDDED",
    "ext.explain.families.content._LEAST_TAIL",
    "ext.explain.command._SHORT",
    "ext.explain.families.keys._MOST_RANKS",
    "ext.explain.families.keys._LEAST_DIVIDED",
    "ext.explain.families.keys._LAST",
    "ext.explain.families.keys._MOST_HEADS",
    "ext.explain.families.spellings._LEAST_LETTERS",
    "ext.explain.families.spellings._LONGEST",
    "pickle.judge.grammar.forms._FEW_KEYS",
    "pickle.judge.grammar.forms._HEAVY",
    "pickle.judge.grammar.forms._LONG_NAME",
    "pickle.judge.grammar.forms._LONG_NUMBER",
    "pickle.judge.grammar.forms._LONG_TEXT",
    "pickle.judge.grammar.forms._MADE",
    "pickle.judge.grammar.forms._MOST_UNGUARDED",
    "pickle.judge.grammar.forms._SHORT",
    "pickle.machine._LONG_NUMBER",
    "pickle.machine._LONG_TEXT",
    "pickle.judge.grammar.torch_rules._MOST_RANKS",
    "pickle.bounds._AGAIN",
    "pickle.judge.imports._CLASSES_DEEP",
    "pickle.rebuild._MOST_AGAIN",
    "evidence.matching._LONGEST_NAME",
    "tree.find._LONG_KEY",
    "pickle.judge.grammar.forms._WORK",
    "pickle.keys._DEEPEST",
    "pickle.keys._FEW_NUMBERS",
    "pickle.keys._LONGEST",
    "pickle.keys._MOST_OBJECTS",
    "pickle.keys._MOST_OF_TEN",
    "pickle.machine._MANY_NUMBERS",
    "ext.explain.pages._LONGEST_CODE",
    "ext.pt2.expressions._ARGUMENT",
    "ext.pt2.expressions._COMPARED",
    "ext.pt2.expressions._DEEPEST",
    "ext.pt2.expressions._DIGITS",
    "ext.pt2.expressions._DIVIDED",
    "ext.pt2.expressions._LONGEST",
    "ext.pt2.expressions._PLACES",
    "ext.pt2.expressions._POWERS",
    "ext.pt2.expressions._PRECISION",
    "ext.pt2.expressions._SCANNED",
    "ext.pt2.expressions._TERMS",
    "ext.torchscript.constants._MOST",
    "ext.torchscript.constants._SHORT",
    "ext.torchscript.script._FOREVER",
    "ext.torchscript.script._LONG_TEXT",
    "ext.torchscript.script._MADE",
    "ext.torchscript.script._ROUNDS",
    "ext.torchscript.script._SAID",
    "ext.torchscript.script._STEPS",
    "ext.torchscript.script_types._UNFOLDED",
    "pickle.rebuild._DEEPEST_TYPE",
    "formats.common.early.LOOKED",
    "formats.common.early._HOPS",
    "ext.dcp.reader._HEAD",
    "ext.archives.arrays._HEADER",
    "formats.torch_zip.unpacked._AROUND",
    "formats.common.following._MOST",
    "formats.common.packed._FIRST",
    "formats.common.packed._HEAD",
    "formats.programs._TABLE_FOOTER",
    "formats.common.packed._PADDING",
    "formats.common.packed._SUMS",
    "formats.common.packed._ZF_HEADER",
    "formats.common.storages._LARGE",
    "formats.foreign._INSIDE",
    "ext.lint.lint._NAME",
    "formats.common.packed._STREAMS",
    "commands.convert.plain._ROUNDS",
    "pickle.judge.grammar.forms.MOST_ARGUMENTS",
    "pickle.judge.grammar.forms._LARGE",
    "pickle.judge.grammar.forms._LONG",
    "pickle.judge.grammar.forms._NESTED",
    "pickle.judge.grammar.numpy_rules._LONGEST_RECORD",
    "pickle.judge.grammar.numpy_rules._NESTED_ARRAYS",
    "pickle.judge.grammar.python_rules._LONG_PART",
    "pickle.judge.grammar.python_rules._LONG_PATH",
    "pickle.machine._EQUAL_HASHES",
    "pickle.machine.FREE_SLOTS",
    "pickle.judge.grammar.numpy_rules._DIMENSIONS",
    "pickle.judge.grammar.numpy_rules._LONGEST_ELEMENT",
    "pickle.machine.TUPLE_ENTRIES",
    "evidence.gradients._READ",
    "evidence.loading._SPELLED",
    "formats.common.archive.TRAILING",
    "formats.common.placed._PADDING",
    "formats.common.recorded._READ",
    "ext.dcp.reader._COPIES",
    "ext.dcp.reader._GAPS",
    "formats.common.storages._KEY_BYTES",
    "bytes.source._WANTED",
    "tree.find._OUTER",
    "tree.find._KEY_ITEMS",
    "elements.spans.UNFOLDED",
    "evidence.dialects._DEPTH",
    "ext.values.assignments._DEPTH",
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
    "commands.diff.reasons._LITTLE",
    "commands.rehome.rehome._OF_CPU",
    "commands.rehome.rehome._OF_GPU",
    "ext.lint.settings._GLOB",
    "ext.lint.settings._GLOBS",
    "ext.page.views._MOST_NUMBERS",
    "commands.rewriting.report._MOST",
    "ext.average.average._EXCLUDED",
    "ext.average.average._TRIES",
    "ext.warmstart.warmstart.HALF",
    "ext.warmstart.warmstart.LEAST",
    "formats.common.holes.LEAST_ZEROS",
    "ext.warmstart.warmstart._NOTES",
    "evidence.devices._LISTED",
    "evidence.gradients._MOMENT_BYTES",
    "evidence.matching._MOST_PAIRS",
    "evidence.modules._DEPTH",
    "evidence.modules._VISITS",
    "evidence.scaled._PACKING",
    "evidence.sections.OTHER_SHARE",
    "formats.common.tar._EXTENSION",
    "formats.common.tar._TAIL",
    "ext.archives.reader._DEPTH",
    "formats.common.coverage._PAIRS",
    "ext.dcp.metadata._MOST",
    "ext.dcp.hf_reader._LISTED",
    "ext.dcp.hf_reader._TOO_MANY",
    "ext.deepspeed.plan._TAG_BYTES",
    "ext.folders.reader.TEXT_BYTES",
    "ext.folders.distributed._RANKS",
    "formats.foreign._SMALL",
    "ext.fsdp.reader._TOO_MANY",
    "ext.fsdp.reader._MOST",
    "ext.fsdp.__init__._MOST",
    "ext.pt2.reader._MOST",
    "ext.pt2.reader._TEXT",
    "formats.safetensors.writer._EXPANDED",
    "ext.archives.torch_package._TEXT",
    "ext.old.torch_tar._MOST",
    "formats.common.appended._LOOKED_AT",
    "formats.common.archive._INFLATED",
    "formats.common.archive._ROOM",
    "formats.common.archive._SMALL",
    "evidence.matching._LARGEST",
    "ext.torchscript.branches._CARRIED",
    "formats.common.following._HEADER",
    "ext.torchscript.script._MEMBERS",
    "formats.foreign._EMPTY",
    "ext.torchscript.doubling._MOST",
    "ext.torchscript.doubling._UNFOLDED",
    "formats.common.early._LONGEST",
    "formats.torch_zip.unpacked._LETTERS",
    "formats.common.two_files._DIRECTORY",
    "formats.common.two_files._LOOKED_AT",
    "formats.common.appended._SEARCHED",
    "formats.common.appended._TRIED",
    "ext.torchscript.torchscript_1_0._MOST",
    "bytes.location._TRIES",
    "ext.cluster.watch.INTERVAL",
    "ext.cluster.watch._ABSENCE",
    "ext.cluster.watch._SILENCE",
    "ext.cluster.watch._STEP",
    "bytes.executor.TRIES",
    "ext.remote.http._REDIRECTS",
    "ext.remote.hub._PAGES",
    "ext.remote.source._PATIENCE",
    "ext.remote.source._TRIES",
    "ext.remote.traffic._SILENCE",
    "ext.remote.target._MOST_PARTS",
    "bytes.source.MOST",
    "commands.diff.rows._DEPTH",
    "commands.diff.rows._UNFOLDED",
    "ext.explain.pages._LEAST",
    "ext.explain.pages._SHORT",
    "ext.explain.pages._WORDS_OF_A_MESSAGE",
    "commands.inspect.inspect._BLOAT_BYTES",
    "commands.inspect.inspect._HEAVY",
    "ext.page.views._KIN",
    "ext.page.views._SHARE",
    "ext.page.views._LONGEST",
    "commands.convert.plain._INT_BITS",
    "commands.convert.plain._KEY_PARTS",
    "model.limits.TENSOR_BYTES",
    "ext.live.memory._DEPTH",
    "ext.live.model._DEPTH",
    "ext.live.memory._DEPTH",
    "ext.live.model._DEPTH",
    "ext.live.state._DEPTH",
    "model.limits._DIGITS",
    "commands.convert.plain._DEPTH",
    "commands.convert.plain._MOST",
    "commands.convert.plain._SPREAD",
    "pickle.judge.imports._KEPT",
    "pickle.machine.DIGITS",
    "pickle.machine.LINE_BYTES",
    "pickle.machine.MEMO_SLOT",
    "pickle.machine.NAME_CHARACTERS",
    "pickle.machine.TUPLE_DEPTH",
    "pickle.rebuild._TOO_MANY",
    "pickle.sharded._MOST",
    "pickle.skim.tensors._TAG",
    "pickle.state_dict._DEPTH",
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
    "formats.common.trailing._LOOKED",
    "formats.common.trailing._SAME",
    "formats.common.trailing._SHOWN",
]
"""Limits and levels, which an answer may depend on: beyond them it says so, or shows
another row.
"""

FORMATS = [
    "ext.gguf.header._ARRAY",
    "ext.gguf.header._LONGEST_NAME",
    "ext.gguf.header._TEXT",
    "ext.layouts.document.VERSION",
    "ext.lint.baseline.VERSION",
    "ext.layouts.document._LARGEST",
    "model.errors.STOPPED",  # of Linux
    "pickle.judge.grammar.numpy_rules._OBJECTS_FLAGS",
    "ext.live.__init__._OLDEST",
    "elements.histogram.BINS",
    "elements.histogram._FINEST",
    "elements.single._CENTRED",
    "elements.single._LEAST",
    "elements.single._MOST",
    "elements.single._ROUNDING",
    "formats.common.tar.BLOCK",
    "ext.dcp.skim._LONG",
    "ext.dcp.skim._MARK",
    "ext.dcp.skim._SHORT",
    "ext.pickles.reader.KEPT",
    "ext.pickles.reader._LONGEST",
    "ext.pt2.reader._STRIDED",
    "formats.safetensors.writer._ALIGNMENT",
    "formats.safetensors.writer._LARGE",
    "formats.common.stream.MAGIC",
    "formats.common.stream.PROTOCOL",
    "formats.common.columns._OFFSET_FIELD",
    "formats.common.tar._SEEN",
    "formats.common.zip_layout.MARK16",
    "formats.common.zip_layout.MARK32",
    "formats.common.zip_layout._UNICODE_PATH",
    "formats.common.zip_layout._ZIP64",
    "formats.torch_zip.reader._NEWEST",
    "formats.common.layout._SMALL",
    "formats.common.layout._LARGE",
    "ext.torchscript.writer._LARGE",
    "pickle.emit.BATCH",
    "pickle.skim.tensors._DIGITS",
    "pickle.skim.tensors._LENGTH",
    "pickle.skim.tensors._PUTS",
    "pickle.skim.tensors._BETWEEN",
    "pickle.skim.tensors._PROTOCOL",
]
"""Numbers of formats and of arithmetic, which nothing but they can be."""

REQUESTS = [
    "formats.common.packed._STEP",
    "formats.common.archive._WINDOW",
    "elements.audit._STEP",
    "ext.dcp.items._BLOCK",
    "ext.dcp.items._EDGE",
    "ext.dcp.file_names._HEAD",
    "ext.dcp.remains._HEAD",
    "ext.dcp.remains._SMALL",
    "formats.common.directory._AROUND",
    "formats.listing._HEAD",
    "formats.format.HEAD_BYTES",
    "formats.common.columns._BLOCK",
    "formats.common.columns._NEAR",
    "formats.common.columns._LEAD",
    "ext.cluster.connect._EACH",
    "ext.cluster.connect._LEAST",
    "ext.cluster.connect._MOST",
    "ext.cluster.parcel._TASKS",
    "bytes.executor._MOST",
    "ext.remote.ahead.GAP",
    "ext.remote.ahead.PIECE",
    "ext.remote.ahead.REQUESTS",
    "ext.remote.ahead._BATCH",
    "ext.remote.ahead._FEW",
    "ext.remote.ahead._GROUPS",
    "ext.remote.ahead._LOOSE",
    "ext.remote.connections._IDLE",
    "ext.remote.connections._LARGE",
    "ext.remote.connections._LEFT",
    "ext.remote.connections._REST",
    "ext.remote.connections._PIECE",
    "ext.remote.location._BEFORE",
    "ext.remote.location._FRESH",
    "ext.remote.traffic._AGAIN",
    "elements.boxes._EDGE",
    "ext.remote.source._AFTER",
    "ext.remote.source._BEFORE",
    "ext.remote.source._FRONT",
    "ext.remote.source._HEAD",
    "ext.remote.source._MOST",
    "ext.remote.source.HEAD",
    "ext.remote.source.TAIL",
    "ext.remote.source._FASTER",
    "ext.remote.source._LEAST",
    "ext.remote.source._NEAR",
    "ext.remote.target.FLYING",
    "ext.remote.target.PART",
    "ext.remote.target._AHEAD",
    "ext.remote.target._HELD",
]
"""How much is read, sent or kept at once: `tests/bytes` and `tests/elements` have their
tests.
"""

SHOWN = (
    "commands.diff.rows._FEW",
    "ext.page.html.__init__.PACK_BYTES",
    "model.names._LONG",
    "model.text._SIBLINGS",
)
"""Rooms whose constants decide what is shown, and what decides it elsewhere."""


def numbers(path: Path) -> dict[str, int | float]:
    """The constants of a module that are numbers."""
    module = import_module(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    )
    named = {target.id for node in parsed(path).body for target in targets(node)}
    found = {
        name: getattr(module, name, None) for name in named if name.upper() == name
    }
    return {name: value for name, value in found.items() if type(value) in (int, float)}


def targets(node: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name):
                    yield inner


def compared() -> Iterator[str]:
    """The constants that something is compared with, or that bound a number:
    `room.module.NAME`.
    """
    for path in sorted((ROOT / "ckpt").rglob("*.py")):
        tree = parsed(path)
        if path.name == "__main__.py" or not any(
            isinstance(node, ast.Compare) for node in ast.walk(tree)
        ):
            continue
        own = numbers(path)
        for node in ast.walk(tree):
            bounds = isinstance(node, ast.Call) and getattr(node.func, "id", None) in (
                "min",
                "max",
                "range",
            )
            if isinstance(node, ast.Compare) or bounds:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Name) and inner.id in own:
                        module = ".".join(
                            path.relative_to(ROOT / "ckpt").with_suffix("").parts
                        )
                        yield f"{module}.{inner.id}"


def test_every_constant_that_chooses_a_path_has_both_its_sides() -> None:
    used = set(compared())
    tested = {name.removeprefix("ckpt.") for name in (*paths.PATHS, *paths.SMALL)}
    known = {*LIMITS, *FORMATS, *REQUESTS, *tested}
    assert not sorted(
        name
        for name in used - known - set(SHOWN)
        if not layer_of(name.rpartition(".")[0])
    ), "is it a path? Then tests/lib/paths.py gets its two values"
    assert not sorted({*LIMITS, *FORMATS, *REQUESTS} - used), "no longer compared"


@pytest.mark.parametrize("name", list(paths.PATHS))
def test_the_sides_of_a_path_are_two(name: str) -> None:
    fast, slow = paths.PATHS[name]
    assert fast != slow
    with paths.walking("fast"):
        assert paths.now()[name] == fast
        assert (
            paths.changed()[name] == fast
            if fast != paths.SHIPPED[name]
            else name not in paths.changed()
        )
    assert paths.now()[name] == paths.SHIPPED[name]

"""docs/schema/: what every command prints is valid, every field is described, and no
other document would pass. The schemas, and the tables of docs/json.md, are those of the
declarations in ckpt/.
"""

from __future__ import annotations

import ast
import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import json_schemas
import pytest
from documents import WRITERS, Documents
from documents import documents as made
from inside import inside
from once import once
from process import ROOT

from ckpt.commands.diff.rows import Cause
from ckpt.commands.diff.rows import Status as DiffStatus
from ckpt.commands.inspect.inspect import Kind
from ckpt.commands.ls.ls import NOT_AS_IT_IS, RUNS_CODE, UNREADABLE
from ckpt.commands.rewriting.report import Status as CoverageStatus
from ckpt.commands.verify.verify import Verdict
from ckpt.evidence.mapping import Kind as RenameKind
from ckpt.evidence.roles import RoleName, Trust
from ckpt.ext.adapters.plan import Method
from ckpt.ext.adapters.verdicts import Verdict as MergeVerdict
from ckpt.ext.explain.families import FAMILIES
from ckpt.ext.explain.pages import Block
from ckpt.ext.layouts.find import ASSUMED, CONSTANT, NEIGHBOURS
from ckpt.ext.prune.judging import State
from ckpt.ext.quantised.judge import Verdict as WeightVerdict
from ckpt.model.findings import Level
from ckpt.pickle.judge.imports import Group
from ckpt.surface.cli import app

sys.path.insert(0, str(ROOT / "tools"))
import schemas

sys.path.remove(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """The documents that all commands print, by the name of the schema."""

    def print_all(folder: Path) -> None:
        (folder / "files").mkdir()
        (folder / "documents.json").write_text(json.dumps(made(folder / "files")))

    found: Documents = json.loads(
        (once(tmp_path_factory, "documents", print_all) / "documents.json").read_text()
    )
    return found


# --------------------------------------------------------------------------------------
# the schemas themselves


def test_every_command_with_json_has_its_schema_and_its_part_of_the_page() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    helps = {
        command: inside(command, "--help", cwd=ROOT).out for command in app.COMMANDS
    }
    with_json = {command for command, text in helps.items() if b" --json " in text}
    words = {"rewrite" if command in WRITERS else command for command in with_json}

    assert {*json_schemas.NAMES} == {*words, "error"}
    for name in {*json_schemas.NAMES} - {"error"}:
        assert (
            f"## `{json_schemas.schema(name)['title'].replace(',', '`,', 1)}\n" in page
        )


def test_the_schemas_and_the_tables_are_those_of_the_declarations() -> None:
    texts = schemas.files()

    assert {
        path.relative_to(ROOT).as_posix() for path in json_schemas.FOLDER.iterdir()
    } < texts.keys()
    assert [
        name
        for name, text in texts.items()
        if (ROOT / name).read_text(encoding="utf-8") != text
    ] == [], "make docs"
    assert all(
        len(re.findall(rf"<!-- fields: ckpt.{name} -->", texts[schemas.PAGE])) == 1
        for name in schemas.documents()
    )


def test_each_definition_is_used() -> None:
    documents = schemas.documents().values()
    names = {name for document in documents for name in document.scope}

    assert (
        names
        - {name for document in documents for name in schemas.schema(document)["$defs"]}
        == set()
    )


def test_a_word_of_a_list_is_described_by_its_field_alone(tmp_path: Path) -> None:
    """A definition may have the name of the word."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "a.fields").write_text(
        "define shape: text  # Sizes.\n"
        "document ckpt.a 1  # A.\n"
        "  size: shape\n"
        "  kind: one of (shape, other) or null\n"
    )
    (document,) = schemas.documents(tmp_path).values()
    table = list(schemas._Table(document, document, {}).parts())[-1].splitlines()

    assert table[2:] == [
        "| `size` | text | Sizes. |",
        "| `kind` | one of `shape`, `other` or null |  |",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "  name text",
        "    name: text",
        "  name: txt",
        "  name: list text",
        "  name: list of",
        "  name: (text or null",
        "  name: text null",
        "  if name is there then it is",
        "  name: text\n  if nam is null then name is null",
        "  name: text\n  name: int",
        "  define name: text",
        "   name: text",
        "name: text",
        "define again: text\ndefine again: int",
        "  name: text\n    inner: text",
    ],
)
def test_a_line_that_the_notation_does_not_have_is_refused(
    line: str, tmp_path: Path
) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "a.fields").write_text(f"document ckpt.a 1  # A.\n{line}\n")
    with pytest.raises(schemas.DeclarationError):
        [schemas.schema(document) for document in schemas.documents(tmp_path).values()]


def test_the_words_that_a_schema_lists_are_those_of_the_code() -> None:
    closed = {
        frozenset(get_args(each))
        for each in (
            RoleName,
            Trust,
            Level,
            Verdict,
            Cause,
            DiffStatus,
            CoverageStatus,
            Kind,
            Group,
        )
    }
    closed |= {
        frozenset(get_args(Block.__annotations__["kind"]))
        or frozenset(("text", "item", "command"))
    }
    closed |= {
        frozenset(WRITERS),
        frozenset(("inf", "-inf", "nan")),
        frozenset(("little", "big")),
        frozenset(("pretrained", "target")),
        frozenset(get_args(RenameKind)),
        frozenset(FAMILIES),
        frozenset(get_args(Method)),
        frozenset(get_args(MergeVerdict)),
        frozenset(get_args(WeightVerdict)),
        frozenset((NEIGHBOURS, ASSUMED, CONSTANT)),
        frozenset(get_args(State)),
    }
    listed = {
        frozenset(node["enum"])
        for name in json_schemas.NAMES
        for _, node in json_schemas.parts(json_schemas.schema(name))
        if "enum" in node
    }
    assert listed == closed
    for name, words in (("diff", DiffStatus), ("rewrite", CoverageStatus)):
        nodes = [node for _, node in json_schemas.parts(json_schemas.schema(name))]
        counts = [
            node
            for node in nodes
            if "unexpected" in node.get("properties", {})
            or "reshaped" in node.get("properties", {})
        ]
        assert [set(node["properties"]) - {"roles"} for node in counts] == [
            set(get_args(words))
        ]


def test_the_words_of_an_open_list_stand_on_the_page() -> None:
    """A field of text that may get more words names those of today."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    (loads,) = re.findall(r"^\| `loads` \| text \| (.+) \|$", page, re.MULTILINE)
    (kind,) = re.findall(r"^\| `changes\[\].kind` \| .+$", page, re.MULTILINE)
    made = {
        name
        for path in (ROOT / "ckpt").rglob("*.py")
        for name in re.findall(
            r"\bChange\(\s*\"([a-z]+)\"", path.read_text(encoding="utf-8")
        )
    }

    for word in (RUNS_CODE, UNREADABLE, NOT_AS_IT_IS, "not by torch"):
        assert f"`{word}`" in loads
    assert len(made) > 10
    assert {word for word in made if f"`{word}`" not in kind} == set()


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown keywords"):
        list(json_schemas.parts({"properties": {"a": {"oneOf": []}}}))


# --------------------------------------------------------------------------------------
# what builds the documents


def fields_in_code() -> Iterator[tuple[str, str]]:
    """(the name of a field, where it is written) of all functions that build parts of
    documents.
    """
    for path in sorted((ROOT / "ckpt").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            if function.name != "document" and not function.name.endswith("_json"):
                continue
            for node in ast.walk(function):
                for key in field_keys(node):
                    if isinstance(key, ast.Constant) and str(key.value).isidentifier():
                        where = f"{path.relative_to(ROOT)}:{key.lineno}"
                        yield str(key.value), where


def field_keys(node: ast.AST) -> list[ast.expr | None]:
    """The keys that a node gives to a mapping."""
    if isinstance(node, ast.Dict):
        return list(node.keys)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return [node.slice]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "number_json":
        return list(node.args[:1])
    return []


def test_each_field_in_the_code_is_declared() -> None:
    """A glance at the code, which tells at once where a line is missing. The documents
    below are the proof.
    """
    declared = {
        row.name
        for path in (ROOT / "ckpt").rglob("*.fields")
        for block in schemas.parsed(path.read_text(encoding="utf-8"), path.name)
        for row in all_fields(block)
    }
    written = list(fields_in_code())
    undeclared = [
        f'{where}: add "{name}: TYPE  # What it says." to the .fields beside it'
        for name, where in written
        if name not in declared
    ]

    assert len(written) > 500
    assert undeclared == [], "\n".join([*undeclared, "then python tools/schemas.py"])


def all_fields(row: schemas.Field) -> Iterator[schemas.Field]:
    """The fields below a declaration, on all levels."""
    for field in row.fields:
        yield field
        yield from all_fields(field)


# --------------------------------------------------------------------------------------
# documents


@pytest.mark.slow
@pytest.mark.parametrize("name", json_schemas.NAMES)
def test_what_is_printed_is_valid_and_described(
    documents: Documents, name: str
) -> None:
    assert documents[name]
    for document in documents[name]:
        assert json_schemas.problems(name, document) == [], document.get("file")
        assert json_schemas.problems(name, document, closed=True) == [], document.get(
            "file"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", json_schemas.NAMES)
def test_every_field_that_is_described_is_printed(
    documents: Documents, name: str
) -> None:
    seen = {
        place
        for document in documents[name]
        for place in json_schemas.described(name, document)
    }
    wanted = {
        f"{where}/properties/{key}"
        for where, node in json_schemas.parts(json_schemas.schema(name))
        for key in node.get("properties", {})
        if not re.search(r"/(if|then|else)(/|$)", where)
    }
    # Only a file that changes meanwhile has unread parts.
    never = sorted(place for place in wanted - seen if not place.endswith("/unread"))
    assert never == [], (
        "no document has these fields: add a command that prints them to "
        "tests/lib/documents.py"
    )


@pytest.mark.slow
def test_the_documents_hold_what_is_odd(documents: Documents) -> None:
    text = {name: json.dumps(found) for name, found in documents.items()}
    for word in (
        '"value_is": "-inf"',
        '"value_is": "bytes ',
        '"int of ',
        '"type": "tuple"',
        '"same_as"',
        '"sharding"',
    ):
        assert word in text["inspect"], word
    assert '"mean_is": "-inf"' in text["stats"] and '"std_is": "nan"' in text["stats"]
    assert {row["verdict"] for row in documents["verify"]} == set(get_args(Verdict))
    assert {
        row["status"]
        for each in documents["diff"]
        if "tensors" in each
        for row in each["tensors"]
    } == set(get_args(DiffStatus))
    assert {
        each["command"] for each in documents["rewrite"] if "command" in each
    } == set(WRITERS)
    assert len(documents["error"]) > 50


# --------------------------------------------------------------------------------------
# mutations

ANY = {
    "inspect": {"values[].value"},
    "get": {"value"},
    "diff": {"values[].before", "values[].after"},
}
"""Fields that hold any value: they may have any type, but they must be there. With a
dot at the end: all fields inside.
"""
FREE = {
    "inspect": {
        "tensors[].optimizer_state",
        "tensors[].parameter",
        "tensors[].sharding",
        "tensors[].piece",
        "index",
        "quantised",
        "values[].value_is",
        "values[].fields",
        "values[].same_as",
    },
    "get": {"value_is", "sharding", "piece"},
    "diff": {
        "adapter",
        "gguf",
        "quantised",
        "tensors[].change.histogram",
        "modules",
        "modules[].rel_l2_is",
        "tensors[].apart",
        "tensors[].parameter",
        "tensors[].change.rms_is",
    },
    "sum": {"sums[].tied", "root", "values"},
    "recipe": {
        *(f"rules[].{name}" for name in ("for", "by")),
        *(
            f"rules[].of[].{name}"
            for name in (
                "constant",
                "tensor",
                "shape",
                "dtype",
                "formula",
                "count",
                "to_step",
                "to",
                "from",
                "sizes",
                "to_steps",
                "from_steps",
            )
        ),
        *(f"dropped[].{name}" for name in ("for", "equal_to", "constant", "repeats")),
    },
    "stats": {
        "tensors[].channels",
        "tensors[].histogram",
        "unread",
        *(f"tensors[].{name}_is" for name in ("mean", "std", "rms")),
    },
    "rewrite": {"changes[].name"},
}
"""Fields that need not be there. What else there is must be, with this name and of this
type.
"""
TOO = {
    "inspect": {
        **dict.fromkeys(
            ("tensors[].section", "tensors[].parts[].device", "tensors[].piece.rank"),
            "NoneType",
        ),
        **dict.fromkeys(
            ("tensors[].piece.coordinate", "index.names[].name"), "NoneType"
        ),
        "index.assumes": "str",
        "adapter.base": "NoneType",
        **dict.fromkeys(
            (f"card.{key}" for key in ("license", "relation", "task", "library")),
            "NoneType",
        ),
        **dict.fromkeys(
            (f"tensors[].optimizer_state.{key}" for key in ("steps", "of")), "NoneType"
        ),
    },
    "get": dict.fromkeys(
        ("section", "device", "parts[].device", "piece.rank", "piece.coordinate"),
        "NoneType",
    ),
    "diff": {
        "findings[].hint": "str",
        "tensors[].change.histogram": "NoneType",
        "gguf.tensors[].relative_error": "NoneType",
        "gguf.tensors[].what": "str",
        "quantised.weights[].what": "str",
    },
    "stats": {
        "tensors[].channels.dim": "NoneType",
        **dict.fromkeys(("findings[].consequence", "findings[].hint"), "str"),
    },
    "ls": {"counters.*": "float"},
    "recipe": {"error.hint": "str"},
    "prune": {
        **dict.fromkeys(("error.hint", "checkpoints[].problem"), "str"),
        "checkpoints[].metrics[].value": "NoneType",
        "checkpoints[].counts.*": "float",
    },
    "rewrite": {
        "left_alone[].bytes": "int",
        "changes[].from": "NoneType",
        "coverage.pairs[].why": "str",
    },
}
"""What a field may be too, although no document here has it so."""
MAPS = (
    "rules[].for",
    "dropped[].for",
    "totals.dtypes",
    "totals.devices",
    "totals.roles",
    "totals.roles.*",
    "verified",
    "counters",
    "checkpoints[].counts",
    "adapter.kinds",
    "adapter.parts",
)
"""Mappings whose keys are words of the file, or not always there: each key is `*`."""


def fields(node: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """(place without indices, object, key) of every field of a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            inner = f"{place}.{'*' if place in MAPS else key}".removeprefix(".")
            yield inner, node, key
            yield from fields(value, inner)
    elif isinstance(node, list):
        for item in node:
            yield from fields(item, f"{place}[]")


def other_types(values: set[str]) -> list[Any]:
    """Values of the types that a field never has; a number may be whole, and a missing
    one may be null.
    """
    samples: dict[str, Any] = {
        "str": "x?",
        "bool": True,
        "dict": {"x?": 1},
        "list": [{"x?": 1}],
        "int": 7,
        "float": 7.5,
    }
    if "float" in values:
        values = values | {"int"}
    return [sample for name, sample in samples.items() if name not in values]


def changed(
    name: str, documents: list[dict[str, Any]]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(what is changed, where, the document): every field once taken away, once
    renamed, and once of each other type.
    """
    kinds = {place: {kind} for place, kind in TOO.get(name, {}).items()}
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for document in sorted(documents, key=lambda document: len(json.dumps(document))):
        branch = (
            "error"
            if document.keys() == {"schema", "ckpt", "file", "error"}
            else "document"
        )
        for place, holder, key in fields(document):
            kinds.setdefault(place, set()).add(type(holder[key]).__name__)
            seen.setdefault((branch, place), document)
    for (_, place), document in seen.items():
        if (
            any(place.startswith(each) for each in (*ANY.get(name, ()),))
            and place not in ANY[name]
        ):
            continue  # inside of a value of the file
        copied = copy.deepcopy(document)
        holder, key = next(
            (holder, key) for at, holder, key in fields(copied) if at == place
        )
        value = holder[key]
        if place not in FREE.get(name, ()) and not place.endswith(".*"):
            for new in (None, f"{key}_"):
                del holder[key]
                if new:
                    holder[new] = value
                yield ("renamed" if new else "removed"), place, copied
                holder.pop(new or "", None)
                holder[key] = value
        if place not in ANY.get(name, ()):
            for other in other_types(kinds[place]):
                holder[key] = other
                yield f"retyped as {other!r}", place, copied
            if "NoneType" not in kinds[place]:
                holder[key] = None
                yield "null", place, copied
            holder[key] = value


@pytest.mark.slow
@pytest.mark.parametrize("name", json_schemas.NAMES)
def test_a_field_that_is_removed_renamed_or_retyped_is_noticed(
    documents: Documents, name: str
) -> None:
    tried = list[str]()
    passed = []
    for change, place, document in changed(name, documents[name]):
        tried.append(place)
        if not json_schemas.problems(name, document):
            passed.append((change, place))
    assert passed == []
    assert len(tried) > 5 * len(set(tried)) > 30


GROUPS = {
    "stats": (
        "tensors",
        ("min", "max", "mean", "std", "rms", "numel", "zeros", "nan", "inf"),
        {"why_not": None},
    ),
    "inspect": ("tensors", ("detail", "parts", "piece", "sharding"), {"stride": None}),
    "rewrite": ("", ("coverage",), {"command": "warmstart"}),
}
"""Fields that are there together: where, which, and what another field then says."""


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_fields_that_belong_together_are_not_missed_together(
    documents: Documents, name: str
) -> None:
    rows, names, other = GROUPS[name]
    missed = 0
    for document in documents[name]:
        copied = copy.deepcopy(document)
        for row in copied.get(rows, ()) if rows else [copied]:
            if other.items() <= row.items() and names[0] in row:
                for each in names:
                    row.pop(each, None)
                assert json_schemas.problems(name, copied) != []
                missed += 1
                break
    assert missed > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", json_schemas.NAMES)
def test_further_fields_are_allowed(documents: Documents, name: str) -> None:
    for document in sorted(
        documents[name], key=lambda document: len(json.dumps(document))
    )[-3:]:
        copied = copy.deepcopy(document)
        holders = {
            id(holder): holder
            for place, holder, _ in fields(copied)
            if not place.endswith(".*")
        }
        holders[id(copied)] = copied
        for holder in holders.values():
            holder["a field of a later version"] = {"any": ["thing"]}
        assert json_schemas.problems(name, copied) == []

"""`ckpt lint`: what torch does not see, from the pickle and from the live model;
nothing that is not true.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import signal
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

import oracle
import pytest
import real_files
import rewriting
import torch
from inside import inside
from process import SAMPLES, Done, as_nobody, check_error
from process import ckpt as in_a_process
from torch import nn

from ckpt import formats
from ckpt.evidence.modules import unseen_parts
from ckpt.evidence.survey import Survey
from ckpt.ext.lint import lint as module
from ckpt.ext.lint.api import lint as lint_files
from ckpt.ext.lint.lint import lint_model, lint_structure, lint_values
from ckpt.model.errors import UsageError
from ckpt.model.findings import CATALOGUE, LEVELS, Finding

pytestmark = oracle.QUIET


def describe(model: nn.Module) -> Any:
    """The words of a live model about its tensors."""
    from ckpt.ext.live import model as live

    return live.describe(model)


def ckpt(*arguments: str | os.PathLike[str], cwd: Path = SAMPLES) -> Done:
    return inside(*arguments, cwd=cwd)


def linted(path: Path, *, values: bool = False) -> list[Finding]:
    with formats.open(str(path)) as checkpoint:
        survey = Survey(checkpoint)
        numbers = lint_values(survey).findings if values else ()
        return [*lint_structure(survey), *numbers]


def hook(module: Any, inputs: Any, output: Any) -> None:
    """A hook of somebody's code."""


class Cells(nn.Module):
    """Both cases of list-modules, and what looks like them and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.cell_0, self.cell_1 = nn.Linear(2, 3), nn.Conv1d(2, 2, 1)
        self.cells = [self.cell_0, self.cell_1]
        self.lost = [nn.Linear(3, 3), (nn.Linear(4, 4), {"deep": nn.Linear(5, 5)})]
        self.scales = [nn.Parameter(torch.ones(2))]
        self.known = [self.cell_0.weight]
        self.acts = [nn.ReLU()]
        self.wrapped = {"a": nn.Sequential(self.cell_1)}
        self.fine = nn.ModuleList([nn.Linear(1, 1)])
        self.table = nn.ModuleDict({"x": nn.Linear(1, 1)})
        self.grid = torch.arange(3)
        self.again = self.cell_0
        self.lstm = nn.LSTM(2, 2)
        self.sizes = [1, 2]


LOOSE = {
    ("cells[0]", "module", "cell_0"),
    ("cells[1]", "module", "cell_1"),
    ("lost[0]", "module", None),
    ("lost[1][0]", "module", None),
    ("lost[1][1]['deep']", "module", None),
    ("scales[0]", "parameter", None),
    ("wrapped['a']", "module", "cell_1"),
}


def test_the_pickle_and_the_live_model_say_the_same(tmp_path: Path) -> None:
    net = Cells()
    with formats.open(str(rewriting.saved(net, tmp_path / "a.pt"))) as checkpoint:
        found = unseen_parts(checkpoint)
    record = describe(net)

    for loose in (found.loose, record.loose):
        assert {(row.place, row.kind, row.registered) for row in loose} == LOOSE
    assert found.plain_tensors == record.plain_tensors == ("grid",)
    assert found.twice == record.twice == (("again", "cell_0"),)
    assert [f.code for f in lint_model(record)] == [
        "list-modules",
        "list-modules",
        "plain-tensor",
        "registered-twice",
    ]


class Nested(nn.Module):
    """A module that is found twice in lists, first so deep that its list is cut off."""

    def __init__(self) -> None:
        super().__init__()
        inner = [nn.Linear(1, 1)]
        deep = [[[[[[[[inner]]]]]]]]
        self.lists = [deep, inner]


class Doubling(nn.Module):
    """A file of three kilobytes with a list of a billion items."""

    def __init__(self) -> None:
        super().__init__()
        items: list[Any] = [1]
        for _ in range(8):
            items = [items] * 13
        self.items = items


def test_a_list_that_is_held_many_times_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpt.evidence import modules

    looks: list[Any] = []

    def counted(node: Any) -> Any:
        looks.append(node)
        assert len(looks) < 10_000
        return look(node)

    look = modules.look
    monkeypatch.setattr(modules, "look", counted)
    path = rewriting.saved(Doubling(), tmp_path / "a.pt")
    with formats.open(str(path)) as checkpoint:
        assert unseen_parts(checkpoint).loose == ()
    path = rewriting.saved(Nested(), tmp_path / "b.pt")
    with formats.open(str(path)) as checkpoint:
        assert [row.place for row in unseen_parts(checkpoint).loose] == ["lists[1][0]"]


def test_torch_itself_misses_what_is_named(tmp_path: Path) -> None:
    """`named_parameters()` lacks exactly the parameters of what is registered
    nowhere.
    """
    net = Cells()
    known = {id(parameter) for parameter in net.parameters()}
    named: set[int] = set()
    for row in describe(net).loose:
        thing = eval(f"net.{row.place}", {"net": net})
        inside = [thing] if row.kind == "parameter" else list(thing.parameters())
        if row.registered is None:
            assert known.isdisjoint(map(id, inside)) and row.parameters == len(inside)
            named.update(map(id, inside))
        else:
            assert known.issuperset(map(id, inside))
    everything = {
        id(p)
        for p in [
            *net.lost[0].parameters(),
            *net.lost[1][0].parameters(),
            *net.lost[1][1]["deep"].parameters(),
            *net.scales,
        ]
    }
    assert named == everything


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True),
        lambda: nn.LSTM(2, 3, 2),
        lambda: nn.GRU(2, 3),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.ModuleDict(
            {"a": nn.ModuleList([nn.Linear(1, 1)]), "b": nn.Sequential(nn.ReLU())}
        ),
        lambda: nn.ParameterList([torch.ones(1)]),
        lambda: nn.ParameterDict({"a": torch.ones(1)}),
        lambda: nn.utils.weight_norm(nn.Linear(2, 2)),
        lambda: nn.utils.spectral_norm(nn.Linear(2, 2)),
    ],
)
def test_torchs_own_modules_have_none(make: Any, tmp_path: Path) -> None:
    net = make()
    codes = {finding.code for finding in lint_model(describe(net))}
    assert codes.isdisjoint({"list-modules", "plain-tensor", "registered-twice"})
    try:
        path = rewriting.saved(net, tmp_path / "a.pt")
    except (AttributeError, RuntimeError):
        return  # not picklable
    found = {finding.code for finding in linted(path)}
    assert found.isdisjoint(
        {"list-modules", "plain-tensor", "registered-twice", "hooks", "private"}
    )


def test_hooks_of_somebodys_code(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].register_forward_hook(hook)
    net[1].register_forward_hook(functools.partial(hook, 1))
    (finding,) = (
        row
        for row in linted(rewriting.saved(net, tmp_path / "a.pt"))
        if row.code == "hooks"
    )

    assert (
        f"{hook.__module__}.hook of 0, {hook.__module__}.hook of 1" in finding.message
    )
    assert finding.where == ("0", "1")


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("*.*t*")), ids=lambda path: path.name
)
def test_samples_have_no_finding_that_is_not_true(path: Path) -> None:
    if path.suffix in (".py", ".md") or path.name in (
        "truncated.pth",
        "html_page.pth",
        "lfs_pointer.pth",
    ):
        return
    codes = {finding.code for finding in linted(path, values=True)}
    truth = {
        "whole_model.pth": {"list-modules"},
        "yolo_style.pt": {"plain-tensor"},
        "branch.rank0.pth": {"list-modules"},
        "branch.rank1.pth": {"list-modules"},
    }
    own = {
        "list-modules",
        "plain-tensor",
        "registered-twice",
        "hooks",
        "private",
        "nan",
        "inf",
        "dead-channels",
    }
    assert codes & own == truth.get(path.name, set())


@pytest.mark.parametrize("name", real_files.FILES)
def test_real_files_have_none(name: str) -> None:
    codes = {finding.code for finding in linted(real_files.path(name), values=True)}
    assert codes <= {
        "cuda",
        "weights-only",
        "unknown-import",
        "optimizer-heavy",
        "prefix",
        "bloat",
        "tied",
    }


# --- private --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("root", "/home/alice/data/train", "a home path at args.root: /home/alice"),
        ("root", "C:\\Users\\bob\\x", "a home path at args.root: C:\\\\Users\\\\bob"),
        ("cfg", ["a", "/Users/carol/x"], "a home path at args.cfg: /Users/carol"),
        ("hub", "hf_" + "a" * 34, "a Hugging Face token at args.hub"),
        ("git", "ghp_" + "b" * 36, "a GitHub token at args.git"),
        ("aws", "AKIAABCDEFGHIJKLMNOP", "an AWS key at args.aws"),
        ("db", "postgres://me:secret@db/x", "a password in an address at args.db"),
        (
            "wandb_api_key",
            "0123456789abcdef",
            "a secret by its name at args.wandb_api_key",
        ),
        (
            "master",
            "node7.cluster.internal",
            "a host name at args.master: node7.cluster.internal",
        ),
        (
            "master",
            "at -a.b-2.corp.internal:80",
            "a host name at args.master: a.b-2.corp.internal",
        ),
        ("master", "x..db.corp.lan.", "a host name at args.master: db.corp.lan"),
    ],
)
def test_what_is_private(key: str, value: Any, says: str, tmp_path: Path) -> None:
    thing = {
        "model": nn.Linear(2, 2).state_dict(),
        "args": argparse.Namespace(**{key: value, "lr": 0.1}),
    }
    (finding,) = (
        row
        for row in linted(rewriting.saved(thing, tmp_path / "a.pt"))
        if row.code == "private"
    )

    assert finding.message == says and finding.where == (f"args.{key}",)
    secret = value if isinstance(value, str) else ""
    assert "home" in says or "host" in says or secret not in finding.message


def test_what_is_not_private(tmp_path: Path) -> None:
    values = {"path": "data/train", "url": "https://example.org/x", "sk": "sk-learn", "host": "localhost", "key": "abc",
              "api": "sk-learn-based-estimator-pipeline", "op": "torch.internal", "tokenizer_secret": "disabled",
              "text": "the home of /usr/lib", "hf": "hf_short", "token_count": "12345678", "keys": "q,k,v"}  # fmt: skip
    path = rewriting.saved(
        {"model": nn.Linear(2, 2).state_dict(), "args": values}, tmp_path / "a.pt"
    )
    assert not [row for row in linted(path) if row.code == "private"]


# --- the command ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = {"a.weight": torch.ones(2), "a.bias": torch.ones(2)}
    (tmp_path / "runs" / "deep").mkdir(parents=True)
    rewriting.saved(state, tmp_path / "runs" / "good.pth")
    rewriting.saved(
        {f"module.{name}": value for name, value in state.items()},
        tmp_path / "runs" / "deep" / "dp.pth",
    )
    rewriting.saved(
        {"a.weight": torch.tensor([float("nan")])}, tmp_path / "runs" / "nan10.pth"
    )
    rewriting.saved(
        {"a.weight": torch.tensor([float("nan")])}, tmp_path / "runs" / "nan9.pth"
    )
    (tmp_path / "runs" / "notes.bin").write_bytes(b"no checkpoint at all")
    (tmp_path / "runs" / "README.md").write_text("not looked at")
    return tmp_path


def test_a_folder(folder: Path) -> None:
    done = ckpt("lint", "runs", cwd=folder)
    assert done.code == 1
    assert done.lines == [
        "runs/deep/dp.pth",
        "  warning  prefix  all 2 names begin with module. (DataParallel or DDP).",
    ]
    assert done.complaints == [
        "ckpt: runs/notes.bin: skipped: not a checkpoint: a text file",
        (
            "1 finding (1 warning) in 1 of 4 files · values not read (--read-values) · 1 file not looked at: 1 *.md "
            "(--others)"
        ),
    ]
    done = ckpt("lint", "runs", "--read-values", "--ignore", "prefix", cwd=folder)
    assert done.code == 1
    assert done.lines == [
        line
        for n in (9, 10)
        for line in (
            f"runs/nan{n}.pth",
            "  warning  nan  1 element is NaN in a.weight.",
        )
    ]
    assert ckpt("lint", "runs", "--ignore", "prefix", cwd=folder).code == 0
    done = ckpt("lint", "runs/good.pth", cwd=folder)
    assert (done.out, done.complaints) == (
        b"",
        ["no finding in 1 file · values not read (--read-values)"],
    )
    assert ckpt("lint", "runs/good.pth", "-q", cwd=folder) == Done(0, b"", b"")


def test_levels_and_codes(folder: Path) -> None:
    cuda = SAMPLES / "llama_bf16.pth"
    assert ckpt("lint", cuda).code == 0 and ckpt("lint", cuda).out == b""
    done = ckpt("lint", cuda, "--level", "info")
    assert done.code == 0 and "info     cuda  A bare torch.load" in done.lines[1]
    assert ckpt("lint", cuda, "--select", "cuda").lines == done.lines
    done = ckpt("lint", SAMPLES / "hostile.pth", "--level", "error")
    assert [line.split()[:2] for line in done.lines[1:]] == [
        ["error", "called-on-load"]
    ]
    assert ckpt("lint", cuda, "--select", "cuda", "--level", "warning").out == b""
    assert ckpt("lint", cuda, "--select", "cuda", "--level", "info").lines[1:]
    check_error(
        ckpt("lint", cuda, "--select", "none"), "--select none: not a finding of lint"
    )
    check_error(
        ckpt("lint", cuda, "--ignore", "frozen"),
        "--ignore frozen: not a finding of lint",
    )
    check_error(
        ckpt("lint", cuda, "--level", "loud"),
        "--level loud: not one of error warning info",
    )
    check_error(
        ckpt("lint", cuda, "--output-format", "gitlab"),
        "--output-format gitlab: not one of text json",
    )


def test_what_cannot_be_read(folder: Path) -> None:
    done = ckpt("lint", SAMPLES / "truncated.pth", folder / "runs" / "deep" / "dp.pth")
    assert (
        done.code == 2 and "cut off" in done.complaints[0] and "prefix" in done.lines[1]
    )
    assert ckpt("lint", folder / "none").code == 2
    (folder / "empty").mkdir()
    assert ckpt("lint", folder / "empty", "--require").code == 2


def test_shards_are_one_file() -> None:
    done = ckpt("lint", SAMPLES / "sharded", "--json")
    assert [row["path"] for row in json.loads(done.out)["files"]] == [
        str(SAMPLES / "sharded")
    ]


def test_forms(folder: Path) -> None:
    document = json.loads(ckpt("lint", "runs", "--json", cwd=folder).out)
    assert document["schema"] == {"name": "ckpt.lint", "version": 2}
    assert [
        (row["path"], [f["code"] for f in row["findings"]])
        for row in document["files"]
        if row["findings"]
    ] == [("runs/deep/dp.pth", ["prefix"])]
    assert ckpt("lint", "runs", "--output-format", "github", cwd=folder).lines == [
        (
            "::warning file=runs/deep/dp.pth::prefix all 2 names begin with module. "
            "(DataParallel or DDP)."
        )
    ]
    odd = rewriting.saved(
        {"module.a%0A::error::x.weight": torch.ones(1)}, folder / "a:b,c.pth"
    )
    (line,) = ckpt("lint", odd, "--output-format", "github").lines
    assert (
        "%3A" in line
        and line.count("::") >= 2
        and "%0A" not in line.replace("%250A", "")
    )


def test_settings_of_the_project(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.ckpt.lint]\nignore = ["prefix"]\nread-values = true\n'
    )
    done = ckpt("lint", "good.pth", "nan9.pth", "deep", cwd=folder / "runs")
    assert [line.split()[1] for line in done.lines if line.startswith(" ")] == ["nan"]
    assert ckpt("lint", "deep", "--ignore", "cuda", cwd=folder / "runs").code == 1
    (folder / "pyproject.toml").write_text(
        '[tool.ckpt.lint]\nlevel = "info"\nselect = ["nan"]\n'
    )
    assert ckpt("lint", "deep", cwd=folder / "runs").code == 0
    for text in (
        "[tool.ckpt.lint]\nignor = []\n",
        "[tool.ckpt.lint]\nignore = 3\n",
        "[tool",
    ):
        (folder / "pyproject.toml").write_text(text)
        check_error(ckpt("lint", "deep", cwd=folder / "runs"))


@pytest.mark.slow
def test_a_live_model(folder: Path) -> None:
    (folder / "nets.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, n=2):\n   "
        "     super().__init__()\n"
        "        self.a = nn.Linear(1, 1)\n        self.cells = [nn.Linear(1, 1) for _ "
        "in range(n)]\n"
    )
    done = in_a_process("lint", "--model", "nets.py:Net", "--arg", "n=3", cwd=folder)
    assert done.code == 1
    assert done.lines == [
        "nets.py:Net",
        (
            "  warning  list-modules  cells[0..2] (Linear) are not registered (3 "
            "modules, 6 parameters)."
        ),
        (
            "                         state_dict, .to(), the optimizer and "
            "DataParallel miss them. Use nn.ModuleList or nn.ModuleDict."
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("a.pth", "--model", "nets.py:good"),
            "no finding in 1 file and the model · values not read (--read-values)",
        ),
        (
            ("a.pth", "--model", "nets.py:bad"),
            "1 finding (1 warning) in 0 of 1 file and the model"
            " · values not read (--read-values)",
        ),
        (
            ("module.pth", "--model", "nets.py:good"),
            "1 finding (1 warning) in 1 of 1 file · values not read (--read-values)",
        ),
        (("--model", "nets.py:bad"), "1 finding (1 warning) in the model"),
        (("--model", "nets.py:good"), "no finding in the model"),
    ],
)
def test_a_live_model_is_counted_as_no_file(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\ndef good():\n    return nn.Linear(1, 1)\n"
        "class bad(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(1, 1)\n        self.cells = [nn.Linear(1, 1) for _ "
        "in range(3)]\n"
    )
    torch.save({"w": torch.ones(2), "b": torch.ones(3)}, tmp_path / "a.pth")
    torch.save(
        {"module.w": torch.ones(2), "module.b": torch.ones(3)}, tmp_path / "module.pth"
    )

    assert in_a_process("lint", *words, cwd=tmp_path).complaints == [said]

    counted = in_a_process("lint", *words, "--statistics", cwd=tmp_path).lines
    where = "in the model: " if "nets.py:bad" in words else "in 1 file: "
    assert said.startswith("no finding") != any(where in line for line in counted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    ["argparse.ArgumentParser().parse_args(['--steps'])", "sys.exit(3)", "sys.exit()"],
)
def test_a_script_that_ends_when_it_is_imported_is_said(
    line: str, tmp_path: Path
) -> None:
    text = (
        "import argparse, sys\nfrom torch import nn\ndef build():\n    return "
        f"nn.Linear(1, 1)\n{line}\n"
    )
    (tmp_path / "train.py").write_text(text)
    done = in_a_process("lint", "--model", "train.py:build", cwd=tmp_path)
    says = "ckpt: --model train.py:build: the script ends when it is imported"
    hint = 'put what the script runs below if __name__ == "__main__":'
    assert done.code == 2 and done.complaints[-1] == f"{says} ({hint})"


def test_every_code_that_lint_makes_is_in_the_catalogue() -> None:
    made = {code for code, row in CATALOGUE.items() if "lint" in row.by}
    assert made == {
        "nan",
        "inf",
        "dead-channels",
        "private",
        "hooks",
        "plain-tensor",
        "registered-twice",
    }


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ignor", "has an unknown key: ignor (did you mean ignore?)"),
        ("values", "has an unknown key: values (did you mean read-values?)"),
        (
            "xyz",
            (
                "has an unknown key: xyz (it takes select, ignore, level, read-values "
                "and per-file-ignores)"
            ),
        ),
    ],
)
def test_an_unknown_key_is_named(key: str, says: str, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.ckpt.lint]\n{key} = true\n")
    assert says in check_error(ckpt("lint", "runs", cwd=folder))


@pytest.mark.parametrize("level", ['"loud"', '""', "1", "[]"])
def test_a_level_that_does_not_exist_is_refused(level: str, folder: Path) -> None:
    (folder / "ckpt.toml").write_text(f"[lint]\nlevel = {level}\n")
    error = check_error(ckpt("lint", "runs", cwd=folder))
    assert "[lint] level is one of error warning info" in error


@pytest.mark.parametrize(
    "name", ["lfs_pointer.pth", "html_page.pth", "truncated.pth", "empty.pth"]
)
@pytest.mark.parametrize("ending", [".pth", ".bin"])
def test_what_stands_in_for_a_checkpoint_fails_in_a_folder_too(
    name: str, ending: str, tmp_path: Path
) -> None:
    data = b"" if name == "empty.pth" else (SAMPLES / name).read_bytes()
    (tmp_path / f"model{ending}").write_bytes(data)
    shutil.copy(SAMPLES / "llama_bf16.pth", tmp_path)
    done = inside("lint", ".", cwd=tmp_path)
    assert (done.code, done.out) == (2, b"")
    assert done.complaints[0].startswith(f"ckpt: model{ending}: ")
    assert (
        done.complaints[-1]
        == "no finding in 1 file · values not read (--read-values) · 1 unreadable"
    )
    assert inside("lint", ".", "--skip-unreadable", "-q", cwd=tmp_path).code == 0
    (row,) = (
        row
        for row in json.loads(inside("lint", ".", "--json", cwd=tmp_path).out)["files"]
        if row["error"]
    )
    assert row["path"] == f"model{ending}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("error", 1),
        ("called-on-load", 1),
        ("any", 1),
        ("prefix", 0),
        ("private", 0),
        ("private,warning", 1),
    ],
)
def test_fail_on_decides_alone(code: str, expected: int) -> None:
    assert (
        inside("lint", "hostile.pth", "--fail-on", code, cwd=SAMPLES).code == expected
    )
    assert (
        inside(
            "lint", "llama_bf16.pth", "--level", "info", "--fail-on", "any", cwd=SAMPLES
        ).code
        == 1
    )
    assert inside("lint", "llama_bf16.pth", "--fail-on", "any", cwd=SAMPLES).code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 1),
        ("-q", 1),
        ("--level warning", 0),
        ("--ignore cuda", 0),
        ("--select prefix", 0),
    ],
)
def test_a_gate_that_names_a_finding_of_level_info_finds_it(
    words: str, code: int
) -> None:
    """As `inspect --fail-on` does. What is switched off stays so."""
    words = f"lint llama_bf16.pth --fail-on cuda {words}"
    assert inside(*words.split(), cwd=SAMPLES).code == code
    path = SAMPLES / "llama_bf16.pth"
    assert lint_files(path, fail_on="cuda").exit_code == 1
    assert lint_files(path).exit_code == 0


def test_statistics(folder: Path) -> None:
    shutil.copy(folder / "runs" / "deep" / "dp.pth", folder / "runs" / "again.pth")
    done = inside("lint", "runs", "--statistics", "--read-values", cwd=folder)
    assert done.code == 1
    assert done.lines == [
        "2  prefix  in 2 files: names begin with the attribute of a wrapper",
        "2  nan  in 2 files: tensors hold NaN",
    ]


def test_statistics_name_the_most_serious_first(folder: Path) -> None:
    shutil.copy(SAMPLES / "hostile.pth", folder / "runs")
    shutil.copy(SAMPLES / "snapshot_after.pth", folder / "runs")
    done = inside("lint", "runs", "--statistics", cwd=folder)
    codes = [line.split()[1] for line in done.lines if line[:1].isdigit()]
    levels = [LEVELS.index(CATALOGUE[code].level) for code in codes]
    assert levels == sorted(levels) and len(set(levels)) > 2


def test_sarif_holds_every_finding_and_what_cannot_be_read(folder: Path) -> None:
    odd = folder / "runs" / "odd name%.pth"
    shutil.copy(SAMPLES / "whole_model.pth", odd)
    shutil.copy(SAMPLES / "lfs_pointer.pth", folder / "runs")
    done = inside("lint", "runs", "--output-format", "sarif", cwd=folder)
    log = json.loads(done.out)
    (run,) = log["runs"]
    found = json.loads(inside("lint", "runs", "--json", cwd=folder).out)["files"]

    assert (done.code, log["version"]) == (2, "2.1.0")
    told = [
        (
            unquote(row["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]),
            row["ruleId"],
            row["message"]["text"],
        )
        for row in run["results"]
    ]
    assert told == [
        (row["path"], f["code"], f["message"]) for row in found for f in row["findings"]
    ]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[row["ruleIndex"]]["id"] == row["ruleId"] for row in run["results"])
    assert {row["level"] for row in run["results"]} <= {"error", "warning", "note"}
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "Git LFS" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_junit_is_xml_with_a_test_for_each_file(folder: Path) -> None:
    shutil.copy(SAMPLES / "lfs_pointer.pth", folder / "runs")
    rewriting.saved(
        {"module.<&\"'\x00\x1b>.weight": torch.ones(1)}, folder / "runs" / "a<b>&.pth"
    )
    done = inside("lint", "runs", "--output-format", "junit", cwd=folder)
    (suite,) = ElementTree.fromstring(done.out)
    cases = {
        case.attrib["name"]: [child.tag for child in case]
        for case in suite
        if case.tag == "testcase"
    }
    (counted,) = suite.iter("property")
    assert counted.attrib == {"name": "not looked at: *.md", "value": "1"}

    assert (
        suite.attrib["tests"],
        suite.attrib["failures"],
        suite.attrib["errors"],
    ) == ("6", "2", "1")
    assert cases["runs/deep/dp.pth"] == ["failure"] and cases["runs/good.pth"] == []
    assert cases["runs/lfs_pointer.pth"] == ["error"] and cases["runs/a<b>&.pth"] == [
        "failure"
    ]


def test_many_files_give_the_same_as_each_alone(folder: Path) -> None:
    for number in range(12):
        shutil.copy(
            SAMPLES / ("hostile.pth", "truncated.pth", "dtypes.pth")[number % 3],
            folder / "runs" / f"{number}.pth",
        )
    together = json.loads(
        inside("lint", "runs", "--level", "info", "--json", cwd=folder).out
    )["files"]
    for row in together:
        if row["skipped"] is None:
            alone = inside("lint", row["path"], "--level", "info", "--json", cwd=folder)
            assert json.loads(alone.out)["files"] == [row]


# --- traps ----------------------------------------------------------------------------


class OwnDict(dict):  # type: ignore[type-arg]
    pass


class OwnList(list):  # type: ignore[type-arg]
    pass


class Two(NamedTuple):
    one: nn.Module
    two: nn.Module


class Holder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        inner = nn.Linear(2, 2)
        self.held: Any = {
            "dict": OwnDict(a=inner),
            "list": OwnList([inner]),
            "namedtuple": Two(inner, nn.ReLU()),
            "ordered": OrderedDict(a=inner),
            "keys": {(1, 2): inner, None: nn.Linear(1, 1)},
            "set": {inner},
        }[kind]


@pytest.mark.parametrize(
    "kind", ["dict", "list", "namedtuple", "ordered", "keys", "set"]
)
def test_containers_of_every_kind(kind: str, tmp_path: Path) -> None:
    net = Holder(kind)
    with formats.open(str(rewriting.saved(net, tmp_path / "a.pt"))) as checkpoint:
        found = [
            (row.kind, row.parameters, row.registered)
            for row in unseen_parts(checkpoint).loose
        ]
    expected = [("module", 2, None)] * (2 if kind == "keys" else 1)

    assert (
        found
        == expected
        == [(row.kind, row.parameters, row.registered) for row in describe(net).loose]
    )


def test_activations_that_are_registered_and_listed(tmp_path: Path) -> None:
    net = Holder("dict")
    net.held = None
    net.act = nn.ReLU()
    net.acts = [net.act]
    with formats.open(str(rewriting.saved(net, tmp_path / "a.pt"))) as checkpoint:
        assert unseen_parts(checkpoint).loose == () == describe(net).loose


def test_hooks_of_torch_itself(tmp_path: Path) -> None:
    path = rewriting.saved(
        nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()), tmp_path / "a.pt"
    )
    assert not [row for row in linted(path) if row.code == "hooks"]


def test_settings_that_cannot_be_taken(folder: Path) -> None:
    for text in (
        '[tool.ckpt.lint]\nread-values = "no"\n',
        "a=" + "[" * 5000,
        "a=" + "9" * 5000,
    ):
        (folder / "pyproject.toml").write_text(text)
        check_error(ckpt("lint", "runs/good.pth", cwd=folder))


GATES = (
    'select = ["prefix"]',
    'ignore = ["called-on-load", "unknown-import", "weights-only"]',
    'select = ["cuda"]\nignore = ["called-on-load"]\nlevel = "error"',
)


@pytest.mark.parametrize("rules", GATES)
def test_a_file_beside_the_checkpoint_does_not_switch_off_errors(
    rules: str, tmp_path: Path
) -> None:
    """The folder of a stranger may hold a pyproject.toml too."""
    (tmp_path / "x.pth").write_bytes((SAMPLES / "hostile.pth").read_bytes())
    without = inside("lint", "x.pth", cwd=tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.ckpt.lint]\n{rules}\n")
    done = inside("lint", "x.pth", cwd=tmp_path)
    assert done.code == 1 and "error    called-on-load" in done.out.decode()
    line, _ = done.complaints
    lost = len(without.lines) - len(done.lines)
    assert lost > 0
    assert (
        line.startswith("ckpt: ")
        and "pyproject.toml: switches off " in line
        and "--no-config" in line
    )
    assert (
        sum(map(int, re.findall(r"(\d+) [a-z-]+", line.partition("switches off")[2])))
        == lost
    )
    assert inside("lint", "x.pth", "--no-config", cwd=tmp_path) == without


def test_the_command_line_may_switch_off_everything(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes((SAMPLES / "hostile.pth").read_bytes())
    for rules in ('ignore = ["cuda"]', 'select = ["called-on-load"]'):
        (tmp_path / "pyproject.toml").write_text(f"[tool.ckpt.lint]\n{rules}\n")
        done = inside("lint", "x.pth", "--ignore", "called-on-load", cwd=tmp_path)
        assert "called-on-load" not in done.out.decode() + done.err.decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "1" * 5000, "cannot be read"),
        ("a = 1\n" + "#" * 1_000_000, "more than 1,000,000 bytes"),
        (".".join("a" * 50_000) + " = 1", "a key of more than 100 parts"),
        ("[" + " . ".join(["'a b'"] * 200) + "]", "a key of more than 100 parts"),
        ("x = {" + ".".join(['"a"'] * 200) + " = 1}", "a key of more than 100 parts"),
        ("a = " + "{a=" * 5000, "cannot be read"),
        ("a = " + "[" * 5000, "cannot be read"),
        ("a = 2000-99-99", "cannot be read"),
        ("a = '\udcff'", "cannot be read"),
        (
            '[tool.ckpt.lint]\nselect = ["\u202e"]',
            "[tool.ckpt.lint] select \\u202e: not a finding",
        ),
    ],
    ids=[
        "number",
        "size",
        "parts",
        "header",
        "inline",
        "table",
        "list",
        "date",
        "utf-8",
        "code",
    ],
)
def test_settings_are_bounded(text: str, says: str, folder: Path) -> None:
    """In one line, and fast: tomllib takes minutes for a key of 50,000 parts."""
    (folder / "pyproject.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert says in check_error(inside("lint", "runs/good.pth", cwd=folder))


def test_settings_with_many_dots_are_taken(folder: Path) -> None:
    versions = ", ".join(f'"package{number}==1.2.{number}"' for number in range(200))
    text = (
        f"[project]\nversions = [{versions}]\ndots = '{'.' * 5000}'\n"
        + "x" * 50_000
        + " = 1\n"
    )
    (folder / "pyproject.toml").write_text(text)
    assert inside("lint", "runs/good.pth", "-q", cwd=folder) == Done(0, b"", b"")


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(
    folder: Path, folder_of_all: Path
) -> None:
    runs = folder_of_all / "runs"
    shutil.copytree(folder / "runs", runs)
    closed = runs / "a closed one"
    closed.mkdir(mode=0o700 if os.getuid() == 0 else 0)
    (runs / "notes.bin").unlink()
    done = as_nobody("lint", "runs", cwd=folder_of_all)
    closed.chmod(0o700)
    assert done.code == 2
    assert done.lines[0] == "runs/deep/dp.pth" and "prefix" in done.lines[1]
    assert done.complaints == [
        "ckpt: runs/a closed one: cannot be read: permission denied",
        (
            "1 finding (1 warning) in 1 of 4 files · values not read (--read-values) · 1 unreadable · 1 file not looked "
            "at: 1 *.md (--others)"
        ),
    ]


def test_a_link_to_a_folder_is_mentioned(folder: Path) -> None:
    (folder / "runs" / "linked").symlink_to(folder / "runs" / "deep")
    assert (
        "ckpt: runs/linked: skipped: a link to a folder"
        in ckpt("lint", "runs", cwd=folder).complaints
    )


ENDLESS = {
    "labels": "a.",
    "dashes": "a-",
    "ends": "a.lan.",
    "ends alone": ".lan",
    "schemes": "a+",
    "addresses": "a://b:",
    "homes": "/home/",
    "keys": "-----BEGIN A ",
    "capitals": "-----BEGIN " + "A " * 1000,
    "tokens": "sk-",
    "long tokens": "a-sk-" + "a" * 19 + "_",
    "hubs": "hf_",
    "long hubs": "-hf_" + "a" * 29,
    "slack": "xoxb-",
    "paths": "C:\\Users\\",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENDLESS)
def test_texts_are_searched_in_linear_time(kind: str) -> None:
    """A million letters take a fraction of a second, or hours in the square of the
    time: then the alarm ends the test.
    """
    text = ENDLESS[kind]
    before = signal.signal(
        signal.SIGALRM, lambda *_: pytest.fail("it takes more than linear time")
    )
    signal.alarm(60)
    try:
        list(module._private_kinds("x.password", text * ((1 << 20) // len(text))))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "content",
    [
        torch.full((3, 2), float("nan")),
        {"w": torch.full((3, 2), float("nan"))},
        {"x": 1, "train": [torch.full((3, 2), float("nan"))]},
        {
            "state_dict": {"fc.weight": torch.ones(3, 2)},
            "ema_state_dict": {"fc.weight": torch.full((3, 2), float("nan"))},
        },
    ],
)
def test_values_are_read_where_no_model_is(content: Any, tmp_path: Path) -> None:
    """`stats` finds the NaN in such a file, and so does the gate."""
    torch.save(content, tmp_path / "a.pt")
    done = inside("lint", "a.pt", "--read-values", cwd=tmp_path)
    assert done.code == 1 and "6 elements are NaN in" in done.out.decode(), done


def test_a_file_without_tensors_has_no_values(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    done = inside("lint", "a.pt", "--read-values", cwd=tmp_path)
    assert (done.code, done.complaints) == (0, ["no finding in 1 file"])


@pytest.mark.parametrize("option", ["--fail-on", "--select"])
def test_a_code_of_values_is_refused_where_none_are_read(
    option: str, tmp_path: Path
) -> None:
    """A gate for NaN that reads no tensor is green for all of them."""
    torch.save({"w": torch.tensor([float("nan")])}, tmp_path / "a.pt")
    for words in (("nan,cuda",), ("nan", "-q"), ("nan", "--json")):
        done = ckpt("lint", "a.pt", option, *words, cwd=tmp_path)
        (line,) = done.complaints or [done.out.decode()]
        assert "nan needs the values of tensors, which are not read" in line
        assert "--read-values" in line and done.code == 2
    with pytest.raises(UsageError, match="read_values=True"):
        lint_files(tmp_path / "a.pt", **{option[2:].replace("-", "_"): "nan"})

    read = ckpt("lint", "a.pt", option, "nan", "--read-values", cwd=tmp_path)
    assert read.code == 1 and "are not read" not in read.err.decode()


def damaged_weight(folder: Path) -> Path:
    """A file of two weights with NaN, of which one does not match its checksum."""
    path = folder / "flipped.pth"
    values = {"a.weight": torch.full((8, 8), 0.25), "b.weight": torch.full((4,), 1.5)}
    values["b.weight"][0] = float("nan")
    torch.save(values, path)
    content = path.read_bytes()
    stored = values["a.weight"].numpy().tobytes()
    at = content.index(stored)
    path.write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    return path


def test_a_tensor_that_was_not_measured_is_no_clean_file(tmp_path: Path) -> None:
    damaged_weight(tmp_path)
    done = ckpt("lint", ".", "--read-values", cwd=tmp_path)
    assert done.code == 2
    assert (
        "flipped.pth: not measured: a.weight: unreadable: its bytes do not match the "
        "recorded checksum" in done.err.decode()
    )
    assert "1 element is NaN in b.weight" in done.out.decode()
    assert "1 finding (1 warning) in 1 of 1 file · 1 unreadable" in done.err.decode()
    assert ckpt("lint", ".", cwd=tmp_path).code == 0
    allowed = ckpt("lint", ".", "--read-values", "--skip-unreadable", cwd=tmp_path)
    assert allowed.code == 1  # the NaN is still there


def test_every_form_has_the_tensor_that_was_not_measured(tmp_path: Path) -> None:
    damaged_weight(tmp_path)
    for form in ("github", "junit", "sarif", "json"):
        done = ckpt("lint", ".", "--read-values", "--output-format", form, cwd=tmp_path)
        assert "not measured: a.weight" in done.out.decode(), form
        assert "NaN in b.weight" in done.out.decode(), form


def test_the_closing_line_says_that_values_were_not_read(folder: Path) -> None:
    done = ckpt("lint", ".", "--level", "info", cwd=folder)
    assert "finding" in done.err.decode()
    assert "values not read (--read-values)" in done.err.decode()


def test_one_module_has_two_names(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    path = rewriting.saved(nn.Sequential(layer, layer), tmp_path / "a.pt")

    (finding,) = (row for row in linted(path) if row.code == "registered-twice")
    assert finding.message == "1 module has two names: 1 = 0."

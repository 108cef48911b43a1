"""Each command is a function: the report has the document that the command prints, on
every sample.
"""

from __future__ import annotations

import inspect as introspection
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import torch
from inside import folder_of, inside
from process import SAMPLES

import ckpt
from ckpt.surface.cli.options import options_of

pytestmark = oracle.QUIET

NAMES = sorted(
    path.name for path in SAMPLES.iterdir() if path.suffix not in (".py", ".md")
)
UNREADABLE = {"dcp_interrupted", "html_page.pth", "lfs_pointer.pth", "truncated.pth"}
READABLE = [name for name in NAMES if name not in UNREADABLE]


def plain(document: Any) -> Any:
    """A document without the seconds that two runs cannot share."""
    if isinstance(document, dict):
        return {
            key: plain(value)
            for key, value in document.items()
            if key not in ("seconds", "verified")
        }
    return [plain(row) for row in document] if isinstance(document, list) else document


def printed(*words: str, folder: Path = SAMPLES) -> list[Any]:
    done = inside(*words, cwd=folder)
    return [plain(json.loads(line)) for line in done.out.decode().splitlines()]


def given(
    call: Callable[..., Any], *arguments: Any, folder: Path = SAMPLES, **keywords: Any
) -> Any:
    """The document of a function; of an error the one that the command prints."""
    with folder_of(folder):
        try:
            return plain(json.loads(json.dumps(call(*arguments, **keywords).to_json())))
        except ckpt.CkptError as error:
            return error.failure(
                str(getattr(arguments[0], "path", arguments[0]))
            )._asdict()


def answer(documents: list[Any]) -> Any:
    (document,) = documents
    return document.get("error") or document


READING: list[tuple[str, tuple[str, ...], Callable[..., Any], dict[str, Any]]] = [
    ("inspect", (), ckpt.inspect, {}),
    ("inspect", ("--include", "*weight*", "--level", "warning"), ckpt.inspect, {"include": "*weight*", "level": "warning"}),
    ("stats", (), ckpt.stats, {}),
    ("stats", ("--all", "--channels", "--sort", "rms"), ckpt.stats, {"all": True, "channels": True, "sort": "rms"}),
    ("stats", ("--histogram", "--ignore", "nan,inf"), ckpt.stats, {"histogram": True, "ignore": ["nan", "inf"]}),
    ("sum", (), ckpt.sum, {}),
    ("sum", ("--all", "--exclude", "*bias*"), ckpt.sum, {"all": True, "exclude": "*bias*"}),
    ("sum", ("--recorded",), ckpt.sum, {"recorded": True}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_reads(name: str) -> None:
    for command, words, function, keywords in READING:
        expected = answer(printed(command, name, "--json", *words))
        assert given(function, name, **keywords) == expected, (command, words)
        if name in READABLE and not keywords.get("recorded"):
            with folder_of(SAMPLES), ckpt.open(name) as opened:
                assert given(function, opened, **keywords) == expected and len(opened)
    for words, keywords in ((), {}), (("--quick",), {"quick": True}):
        assert (
            given(ckpt.verify, name, **keywords)
            == printed("verify", name, "--json", *words)[0]
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", READABLE)
def test_diff(name: str) -> None:
    for other in {name, "ddp_before.pth", "llama_bf16.pth"}:
        for words, keywords in (
            ((), {}),
            (("--structure",), {"structure": True}),
            (
                ("--rtol", "0.01", "--stat", "--strict"),
                {"rtol": 0.01, "stat": True, "strict": True},
            ),
        ):
            expected = answer(printed("diff", name, other, "--json", *words))
            assert given(ckpt.diff, name, other, check=False, **keywords) == expected, (
                other,
                words,
            )


WRITING: list[tuple[str, tuple[str, ...], Callable[..., Any], dict[str, Any]]] = [
    ("rehome", (), ckpt.rehome, {}),
    ("rehome", ("--map", "cuda:0=cuda:1", "--objects"), ckpt.rehome, {"map": "cuda:0=cuda:1", "objects": True}),
    ("strip", (), ckpt.strip, {}),
    ("rename", ("--sub", "s/weight/w/"), ckpt.rename, {"sub": "s/weight/w/"}),
    ("slim", (), ckpt.slim, {}),
    ("convert", ("--plain",), ckpt.convert, {"plain": True}),
    ("convert", ("--format", "safetensors", "--drop-other"), ckpt.convert, {"format": "safetensors", "drop_other": True}),
    ("convert", ("--dtype", "bfloat16", "--format", "torch-zip"), ckpt.convert, {"dtype": "bfloat16", "format": "torch-zip"}),
    ("salvage", (), lambda *paths, **words: ckpt.salvage(*paths, **words), {}),
    ("warmstart", ("--into", "legacy.pth"), lambda *paths, **words: ckpt.warmstart(*paths, **words), {"into": "legacy.pth"}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_writes(name: str, tmp_path: Path) -> None:
    """Each in turn, as a dry run, and for one in three with a file: the same document
    and the same bytes.
    """
    made = [tmp_path / "one", tmp_path / "two"]
    for number, (command, words, function, keywords) in enumerate(WRITING):
        check = {"check": False} if command == "warmstart" else {}
        expected = answer(printed(command, name, "--dry-run", "--json", *words))
        assert given(function, name, dry_run=True, **keywords, **check) == expected, (
            command,
            words,
        )
        if (number + NAMES.index(name)) % 3:
            continue
        for folder in made:
            folder.mkdir(exist_ok=True)
        ending = ".safetensors" if "safetensors" in words else ".pth"
        one, two = (folder / f"{number}{ending}" for folder in made)
        documents = printed(command, name, "-o", str(one), "--json", *words)
        expected = answer(documents)
        found = given(function, name, out=two, **keywords, **check)
        if isinstance(expected.get("output"), dict):
            expected["output"]["path"] = str(two)
        for part in ("hint", "message"):
            if expected.get(part):
                expected[part] = expected[part].replace(str(made[0]), str(made[1]))
        assert found == expected, (command, words)
        assert one.exists() == two.exists()
        if one.is_file():
            assert one.read_bytes() == two.read_bytes()


def test_average(tmp_path: Path) -> None:
    names = ["ddp_before.pth", "ddp_after.pth"]
    expected = answer(
        printed(
            "average",
            *names,
            "--ratios",
            "1,3",
            "-o",
            str(tmp_path / "a.pth"),
            "--json",
        )
    )
    with folder_of(SAMPLES):
        report = ckpt.average(names, ratios=[1, 3], out=tmp_path / "b.pth")
        with ckpt.open(names[0]) as first, ckpt.open(names[1]) as second:
            again = ckpt.average([first, second], ratios=[1, 3], out=tmp_path / "c.pth")
    expected["output"]["path"] = str(tmp_path / "b.pth")
    assert (
        plain(json.loads(json.dumps(report.to_json()))) == expected
        and report.exit_code == 0
    )
    assert report.path == str(tmp_path / "b.pth") and again.path == str(
        tmp_path / "c.pth"
    )
    assert (
        (tmp_path / "a.pth").read_bytes()
        == (tmp_path / "b.pth").read_bytes()
        == (tmp_path / "c.pth").read_bytes()
    )


def test_the_last_of_a_folder(tmp_path: Path) -> None:
    for number in range(1, 12):
        torch.save(
            {"w": torch.full((2,), float(number))}, tmp_path / f"epoch_{number}.pth"
        )
    report = ckpt.average(tmp_path, last=2, out=tmp_path / "mean.pth")
    assert torch.load(tmp_path / "mean.pth")["w"].tolist() == [10.5, 10.5]
    assert [Path(row.path).name for row in report.sources] == [
        "epoch_10.pth",
        "epoch_11.pth",
    ]
    assert report.warnings == (f"{tmp_path}: the last 2 of 11 epoch_*.pth",)


@pytest.mark.slow
def test_folders() -> None:
    for words, keywords in ((), {}), (("--sort", "findings"), {"sort": "findings"}):
        expected = printed("ls", ".", "--json", *words)
        with folder_of(SAMPLES):
            report = ckpt.ls(".", **keywords)
            assert [
                plain(row) for row in json.loads(json.dumps(report.to_json()))
            ] == expected
            assert (
                json.loads(json.dumps(ckpt.ls(".", jobs=None, **keywords).to_json()))
                == expected
            )
        assert [row.path for row in report] == [
            row["path"] for row in expected
        ] and report.exit_code == 2
    assert set(report.others) == {"README.md", "make_samples.py"}
    assert given(ckpt.lint, ".") == answer(printed("lint", ".", "--json"))
    assert given(
        ckpt.lint, [Path("zoo.pkl"), "hostile.pth"], level="info", read_values=True
    ) == answer(
        printed(
            "lint",
            "zoo.pkl",
            "hostile.pth",
            "--json",
            "--level",
            "info",
            "--read-values",
        )
    )


def test_an_open_checkpoint_is_a_row() -> None:
    with folder_of(SAMPLES), ckpt.open("train_cuda.pth") as opened:
        (row,) = ckpt.ls([opened])
        assert row == ckpt.ls("train_cuda.pth")[0] and row.parameters


FUNCTIONS = [
    "average",
    "convert",
    "diff",
    "inspect",
    "lint",
    "ls",
    "prune",
    "rehome",
    "rename",
    "salvage",
    "set",
    "slim",
    "stats",
    "strip",
    "sum",
    "verify",
    "warmstart",
]
SEEN_TO = {"color", "no_summary", "help_all"}
"""Options of all commands that no function has to do with."""
ELSEWHERE = {
    "json", "tsv", "table", "no_header", "quiet", "limit", "output", "output_format", "files_from", "recursive",
    "cluster", "textconv", "show", "name_only", "html", "depth", "bars", "values", "imports", "storages",
    "modules", "others", "statistics", "undo", "no_config", "jobs", "hide_intact", "require", "yes", "null", "why",
}  # fmt: skip
"""Options that say how something is printed, and by whom it is done."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_keywords_are_the_options(name: str) -> None:
    options = {row.parameter for row in options_of(name)} - SEEN_TO
    if name == "inspect":
        options -= {
            "all",
            "sort",
        }  # of the text: every tensor on a line of its own, the largest first
    if name == "diff":
        options.discard("force")  # of the page
    if name == "lint":
        options.discard("write_baseline")  # a function that looks writes nothing
    renamed = {"no_align": "align"}
    wanted = {
        renamed.get(option, option) for option in options if option not in ELSEWHERE
    }
    function = getattr(ckpt, name)
    own = set(introspection.signature(function).parameters)
    if "writing" in own:
        from ckpt.surface.api.writing import _WRITING

        own |= _WRITING
    assert wanted <= own
    assert function.__doc__ and all(
        row.kind is not row.VAR_POSITIONAL
        for row in introspection.signature(function).parameters.values()
    )


def test_a_keyword_that_no_function_has(tmp_path: Path) -> None:
    for call in (
        lambda: ckpt.strip("a.pth", outt="b.pth"),  # type: ignore[call-arg]
        lambda: ckpt.diff("a.pth", "b.pth", tolerance=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(
            TypeError, match=r"unexpected keyword argument '(outt|tolerance)'"
        ):
            call()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told: list[str] = []
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    with folder_of(SAMPLES):
        ckpt.inspect("hostile.pth")
        ckpt.stats("llama_bf16.pth", progress=progress)
        assert seen[-1][0] == seen[-1][1] > 0
        ckpt.diff("ddp_before.pth", "ddp_after.pth", progress=progress)
        ckpt.verify("truncated.pth")
        ckpt.lint(".")
        ckpt.ls(".")
        seen.clear()
        report = ckpt.convert(
            "hostile.pth",
            format="torch-legacy",
            out=tmp_path / "a.pth",
            keep_code=True,
            tell=told.append,
        )
        ckpt.rehome("train_cuda.pth", out=tmp_path / "b.pth", progress=progress)
        assert seen and seen[-1][0] == seen[-1][1]
    assert (
        report.warnings == tuple(told) and "DANGER: loading the result runs" in told[0]
    )
    assert capfd.readouterr() == ("", "")


def test_where_nothing_would_be_written_it_raises(tmp_path: Path) -> None:
    with folder_of(SAMPLES):
        with pytest.raises(ckpt.UsageError, match=r"where to write\? \(out="):
            ckpt.strip("ddp_after.pth")
        with pytest.raises(ckpt.LossError):
            ckpt.warmstart(
                "weights.safetensors",
                into="ddp_after.pth",
                out=tmp_path / "a.pth",
                min_coverage=0.9,
            )
        with pytest.raises(ckpt.CodeError):
            ckpt.convert("hostile.pth", format="torch-legacy", out=tmp_path / "a.pth")
        with pytest.raises(ckpt.UsageError, match="copy= goes with in_place="):
            ckpt.strip("ddp_after.pth", out=tmp_path / "a.pth", copy=True)
        with pytest.raises(ckpt.UsageError, match="ckpt slim writes a new file"):
            ckpt.slim("ddp_after.pth", in_place=True)
    assert list(tmp_path.iterdir()) == []


def test_an_open_checkpoint_is_written_and_stays_open(tmp_path: Path) -> None:
    with ckpt.open(SAMPLES / "ddp_after.pth") as opened:
        report = ckpt.strip(opened, out=tmp_path / "a.pth")
        assert report.path == str(tmp_path / "a.pth") and report.changes
        assert opened["model.module.fc1.weight"].numpy().size
    assert "model.fc1.weight" in ckpt.open(tmp_path / "a.pth")


def test_a_file_changes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    shutil.copy(SAMPLES / "train_cuda.pth", path)
    assert ckpt.rehome(path, in_place=True).saved
    assert {row.device for row in ckpt.open(path).values()} == {"cpu"}
    assert ckpt.rehome(path, in_place=True).saved is None  # it is as it should be


def changing(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Change a file at the end of a job, when the bytes that count were read."""
    from importlib import import_module

    module, _, attribute = name.rpartition(".")
    job = getattr(import_module(module), attribute)

    def changed(*arguments: Any, **keywords: Any) -> Any:
        result = job(*arguments, **keywords)
        os.utime(path, (1, 1))
        return result

    monkeypatch.setattr(f"{module}.{attribute}", changed)


@pytest.mark.parametrize(
    ("job", "call"),
    [
        ("ckpt.commands.inspect.inspect.inspect", ckpt.inspect),
        ("ckpt.commands.stats.stats.stats", ckpt.stats),
        ("ckpt.commands.sum.sums.sums", ckpt.sum),
        (
            "ckpt.commands.diff.diff.diff",
            lambda path: ckpt.diff(path, SAMPLES / "legacy.pth"),
        ),
        (
            "ckpt.commands.diff.diff.diff",
            lambda path: ckpt.diff(SAMPLES / "legacy.pth", path),
        ),
    ],
)
def test_a_file_that_changes_meanwhile(
    job: str,
    call: Callable[[Path], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = rewriting.saved({"a.weight": torch.ones(3)}, tmp_path / "a.pt")
    call(path)
    changing(path, monkeypatch, job)
    with pytest.raises(ckpt.CkptError, match="changed while it was read"):
        call(path)


def test_a_list_and_a_verdict_of_a_file_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewriting.saved({"a.weight": torch.ones(3)}, tmp_path / "a.pt")
    changing(path, monkeypatch, "ckpt.commands.ls.ls.ls")
    assert "changed while it was read" in str(ckpt.ls(path)[0].error)
    path = rewriting.saved({"a.weight": torch.ones(3)}, tmp_path / "a.pt")
    changing(path, monkeypatch, "ckpt.ext.lint.lint.lint_structure")
    assert "changed while it was read" in str(ckpt.lint(path).files[0].error)
    path = rewriting.saved({"a.weight": torch.ones(3)}, tmp_path / "a.pt")
    changing(path, monkeypatch, "ckpt.formats.verify.checksums")
    assert ckpt.verify(path).verdict == "unreadable"


def test_a_tensor_that_cannot_be_compared_raises(tmp_path: Path) -> None:
    one = rewriting.saved(
        {"a.weight": torch.ones(30), "b.weight": torch.ones(3)}, tmp_path / "a.pt"
    )
    two = tmp_path / "b.pt"
    two.write_bytes(
        one.read_bytes().replace(torch.ones(30).numpy().tobytes(), bytes(120))
    )
    with pytest.raises(
        ckpt.UnreadableError, match=r"do not match the checksums: a\.weight"
    ):
        ckpt.diff(one, two)
    report = ckpt.diff(one, two, check=False)
    assert report.damaged == ("a.weight",) and not report.same
    with pytest.raises(ckpt.UnreadableError):
        report.check()


def test_exit_codes() -> None:
    with folder_of(SAMPLES):
        assert ckpt.inspect("train_cuda.pth").exit_code == 0
        assert ckpt.inspect("train_cuda.pth", fail_on="cuda").exit_code == 1
        assert ckpt.diff("legacy.pth", "legacy.pth").exit_code == 0
        assert ckpt.diff("ddp_before.pth", "ddp_after.pth").exit_code == 1
        assert (
            ckpt.diff("ddp_before.pth", "ddp_after.pth", fail_on="nan").exit_code == 0
        )
        assert (
            ckpt.diff(
                "ddp_before.pth", "ddp_after.pth", fail_on=["nan", "frozen"]
            ).exit_code
            == 1
        )
        assert (
            ckpt.verify("truncated.pth").exit_code == 1
            and ckpt.verify("none.pth").exit_code == 2
        )
        assert (
            ckpt.lint("legacy.pth").exit_code == 0
            and ckpt.lint("hostile.pth").exit_code == 1
        )
        assert (
            ckpt.lint("none.pth").exit_code == 2
            and ckpt.lint("none.pth", skip_unreadable=True).exit_code == 0
        )
        assert ckpt.ls("hostile.pth", fail_on="error").exit_code == 1


def test_a_missing_path_says_what_may_be_meant(tmp_path: Path) -> None:
    rewriting.saved({"a": torch.ones(1)}, tmp_path / "note.pth")
    for call in (
        ckpt.open,
        ckpt.inspect,
        ckpt.stats,
        lambda path: ckpt.strip(path, dry_run=True),
    ):
        with pytest.raises(
            ckpt.NotOpenedError, match=r"no such file \(did you mean .*note.pth\?\)"
        ):
            call(tmp_path / "nope.pth")


def test_a_live_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    torch.save(model.state_dict(), tmp_path / "a.pth")
    report = ckpt.inspect(tmp_path / "a.pth", model=model)
    assert {row.name: (row.role, row.evidence) for row in report.tensors}[
        "1.running_mean"
    ] == (
        "buffer",
        "certain",
    )
    assert ckpt.diff(tmp_path / "a.pth", tmp_path / "a.pth", model=model).same

    class Listed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [torch.nn.Linear(2, 2)]

    (row,) = ckpt.lint(model=Listed()).files
    assert [finding.code for finding in row.findings] == [
        "list-modules"
    ] and row.path == "Listed"


def test_reports_are_short_to_look_at(tmp_path: Path) -> None:
    with folder_of(SAMPLES):
        shown = [
            repr(ckpt.stats("llama_bf16.pth")),
            repr(ckpt.verify("truncated.pth")),
            repr(ckpt.verify("html_page.pth")),
            repr(ckpt.lint("hostile.pth")),
            repr(ckpt.lint(["hostile.pth", "html_page.pth"])),
            repr(ckpt.ls("hostile.pth")),
            repr(ckpt.sum("llama_bf16.pth")),
            repr(ckpt.sum("llama_bf16.pth", recorded=True)),
            repr(ckpt.strip("ddp_after.pth", dry_run=True)),
            repr(
                ckpt.warmstart("compiled.pth", into="legacy.pth", dry_run=True).coverage
            ),
            repr(ckpt.open("llama_bf16.pth").values),
            # What is selected is counted, in tensors and in bytes.
            repr(ckpt.inspect("ddp_after.pth", include="*fc3.bias")),
        ]
    assert shown == [
        "<ckpt.StatsReport llama_bf16.pth: 57 tensors, 0 findings>",
        "<ckpt.VerifyReport truncated.pth: damaged>",
        "<ckpt.VerifyReport html_page.pth: unreadable, not a checkpoint: an HTML page>",
        "<ckpt.LintReport: 2 findings in 1 file>",
        "<ckpt.LintReport: 2 findings in 1 file, 1 unreadable>",
        "<ckpt.LsReport: 1 checkpoint>",
        "<ckpt.SumReport llama_bf16.pth: 57 sums>",
        "<ckpt.SumReport llama_bf16.pth: 1 file>",
        "<ckpt.RewriteReport strip ddp_after.pth → nothing written: 48 tensors>",
        "<ckpt.Coverage of compiled.pth: 9 of 9 tensors>",
        "<0 values>",
        "<ckpt.InspectReport ddp_after.pth: 1 tensor, 40 B, 3 findings>",
    ]


def test_the_content_of_a_file_is_no_list() -> None:
    data = (SAMPLES / "legacy.pth").read_bytes()
    for call in (
        ckpt.ls,
        ckpt.lint,
        lambda given: ckpt.ls([given]),
        lambda given: ckpt.lint([3]),
    ):
        with pytest.raises(
            TypeError,
            match=r"paths and open checkpoints are taken here, not (bytes|int)",
        ):
            call(data)
    with pytest.raises(ckpt.UsageError, match="a mean takes two checkpoints or more"):
        ckpt.average(data, out="a.pth")


def test_open_checkpoints_are_linted(tmp_path: Path) -> None:
    with (
        folder_of(SAMPLES),
        ckpt.open("hostile.pth") as opened,
        ckpt.open("legacy.pth") as other,
    ):
        assert given(ckpt.lint, opened) == given(ckpt.lint, "hostile.pth")
        assert [
            row.path for row in ckpt.lint([opened, "train_cuda.pth", other]).files
        ] == [
            "hostile.pth",
            "legacy.pth",
            "train_cuda.pth",
        ]
    path = rewriting.saved({"a": torch.ones(2)}, tmp_path / "a.pt")
    with ckpt.open(path) as opened:
        os.utime(path, (1, 1))
        (row,) = ckpt.lint(opened).files
    assert row.error is not None and "changed while it was read" in row.error.message


def test_bytes_are_written_to_a_path(tmp_path: Path) -> None:
    data = (SAMPLES / "ddp_after.pth").read_bytes()
    ckpt.strip(data, out=tmp_path / "a.pth")
    ckpt.strip(SAMPLES / "ddp_after.pth", out=tmp_path / "b.pth")
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "b.pth").read_bytes()


@pytest.mark.needs("dcp")
def test_sums_are_compared_without_a_file(tmp_path: Path) -> None:
    with folder_of(SAMPLES):
        sums, records = ckpt.sum("legacy.pth"), ckpt.sum("dcp", recorded=True)
        assert ckpt.verify("legacy.pth", sums=sums).verdict == "intact"
        assert ckpt.verify("dcp", sums=records).verdict == "intact"
        assert (
            ckpt.verify(
                "llama_bf16.pth", sums=sums._replace(path="llama_bf16.pth")
            ).verdict
            == "damaged"
        )
        (tmp_path / "a.sums").write_text("\n".join(sums.lines()))
        assert ckpt.verify("legacy.pth", sums=tmp_path / "a.sums").checked == (
            f"{len(sums.sums)} stored sums match",
        )


def test_sums_that_are_compared_are_those_that_were_made(tmp_path: Path) -> None:
    """A selection holds for a report too, and a tensor that had no sum is not damaged
    for it.
    """
    path = rewriting.saved(
        {"a.weight": torch.ones(2), "b.weight": torch.ones(2)}, tmp_path / "a.pt"
    )
    sums = ckpt.sum(path)
    wrong = sums._replace(sums=(sums.sums[0], sums.sums[1]._replace(digest="0" * 64)))
    assert ckpt.verify(path, sums=wrong).verdict == "damaged"
    assert ckpt.verify(path, sums=wrong, include="a.*").checked == (
        "1 stored sum matches",
        "all checksums match",
    )
    unread = sums._replace(
        sums=(sums.sums[0], sums.sums[1]._replace(digest="", unread="was not read"))
    )
    assert ckpt.verify(path, sums=unread).verdict == "intact"
    with pytest.raises(ckpt.UsageError, match=r"no tensor matches"):
        ckpt.verify(path, sums=sums, include="c.*")


def test_numbers_have_names() -> None:
    values = torch.tensor([0.0, 1.0, -3.0, float("nan"), float("inf")])
    buffer = io.BytesIO()
    torch.save({"a.weight": values}, buffer)
    (row,) = ckpt.stats(buffer).rows
    assert (row.name, row.min, row.max, row.zeros, row.nan, row.inf) == (
        "a.weight",
        -3.0,
        1.0,
        1,
        1,
        1,
    )


def test_the_repr_of_ls_counts_what_cannot_be_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    assert (
        repr(ckpt.ls([tmp_path / "a.pth", tmp_path / "nope"]))
        == "<ckpt.LsReport: 1 checkpoint, 1 unreadable>"
    )
    assert (
        repr(ckpt.ls(tmp_path / "nope"))
        == "<ckpt.LsReport: 0 checkpoints, 1 unreadable>"
    )

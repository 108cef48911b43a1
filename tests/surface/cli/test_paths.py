"""Several PATHs: an error stops nothing, and the worst exit code wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inside import inside
from process import SAMPLES, terminal

from ckpt.model.errors import UnreadableError, UsageError
from ckpt.surface.cli.inputs import run_for_each, worst_code


def test_the_worst_code_wins() -> None:
    assert worst_code([]) == 0
    assert worst_code([0, 1, 0]) == 1
    assert worst_code([1, 2, 0]) == 2


def test_each_goes_on_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def one(path: str) -> int:
        seen.append(path)
        if path == "b":
            raise UnreadableError("broken")
        return int(path == "c")

    assert run_for_each(["a", "b", "c"], one) == 2
    assert seen == ["a", "b", "c"]
    assert capsys.readouterr().err == "ckpt: b: broken\n"
    assert run_for_each(["a", "c"], one) == 1
    assert run_for_each(["a"], one) == 0


def test_only_errors_with_a_name_are_caught() -> None:
    def one(path: str) -> int:
        raise ValueError(path)

    with pytest.raises(ValueError, match="a"):
        run_for_each(["a"], one)
    assert issubclass(UsageError, Exception)


COMMANDS = {
    "inspect": ((), "ckpt.inspect"),
    "stats": ((), "ckpt.stats"),
    "get": (("epoch",), "ckpt.get"),
    "diff": (("legacy.pth",), "ckpt.diff"),
    "rehome": (("--dry-run",), "ckpt.rewrite"),
    "slim": (("--dry-run",), "ckpt.rewrite"),
    "warmstart": (("--into", "legacy.pth", "--dry-run"), "ckpt.rewrite"),
}
"""Commands with one document per PATH -> more arguments, and the name of their
schema.
"""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("file", "code"), [("gone.pth", "not-opened"), ("truncated.pth", "cut-off")]
)
def test_an_error_is_a_document(command: str, file: str, code: str) -> None:
    more, schema = COMMANDS[command]

    done = inside(command, file, *more, "--json", cwd=SAMPLES)

    (line,) = done.lines
    found = json.loads(line)
    assert found["schema"] == {"name": schema, "version": 1}
    assert found["file"] == {"path": file} and found["error"]["code"] == code
    error = found["error"]
    said = (
        error["message"]
        if error["hint"] is None
        else f"{error['message']} ({error['hint']})"
    )
    assert done.complaints == [f"ckpt: {file}: {said}"] and done.code == 2


def test_an_error_of_the_second_file_names_it() -> None:
    (line,) = inside("diff", "legacy.pth", "gone.pth", "--json", cwd=SAMPLES).lines

    assert json.loads(line)["file"] == {"path": "gone.pth"}


def test_without_json_an_error_is_only_a_line() -> None:
    for command, (more, _) in COMMANDS.items():
        assert inside(command, "gone.pth", *more, cwd=SAMPLES).out == b"", command


@pytest.mark.parametrize(
    "paths", [["legacy.pth"], ["legacy.pth", "gone.pth", "weights.safetensors"]]
)
@pytest.mark.parametrize("command", ["inspect", "stats", "verify"])
def test_one_line_per_document_in_a_pipe(command: str, paths: list[str]) -> None:
    lines = inside(command, *paths, "--json", cwd=SAMPLES).lines

    assert [json.loads(line)["file"]["path"] for line in lines] == paths


def test_on_a_terminal_a_document_is_indented() -> None:
    shown = terminal("inspect", "legacy.pth", "--json")

    assert shown.startswith(
        '{\n  "schema": {"name": "ckpt.inspect", "version": 1},\n  "ckpt": '
    )
    assert '\n  "tensors": [\n    {"name": ' in shown and shown.endswith("\n}\n")
    (line,) = inside("inspect", "legacy.pth", "--json", cwd=SAMPLES).lines
    assert json.loads(shown) == json.loads(line) and line == json.dumps(
        json.loads(line)
    )


def test_the_codes_of_errors_are_on_the_page() -> None:
    from ckpt.model import errors

    made = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.CkptError)
        and kind is not errors.CkptError
    }
    page = (Path(errors.__file__).parents[2] / "docs" / "json.md").read_text(
        encoding="utf-8"
    )
    table = page.partition("| code | what |\n|---|---|\n")[2].partition("\n\n")[0]
    assert {row.split("`")[1] for row in table.splitlines()} == made and len(made) == 14

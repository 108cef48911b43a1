"""The law of paths: however large a file is, and so however it is read, compared and
written, the answer is the same.

Random checkpoints go both ways, `paths.walking("fast")` and `"slow"`. The documents of
inspect, diff and stats are the same as a whole, and so is what every writer writes:
bytes, or where only the memo of a pickle is used in another way, what torch loads.
torch is the third witness: it has the tensors that we have, at the same places, with
the same elements.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import oracle
import paths
import pytest
import torch
from needs import is_there
from paths import many
from randoms import DTYPES, ODD, Random, changed
from rewriting import convert, write
from same import difference

from ckpt import formats
from ckpt.commands.diff.diff import diff
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.rehome.rehome import Moves, rehome
from ckpt.commands.rename.rename import rename, substitution
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.commands.slim.slim import slim
from ckpt.commands.stats.stats import stats
from ckpt.commands.strip.strip import strip
from ckpt.elements.blocks import elements
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.tensors import TensorRef

LIMITS = Limits()
SIDES: tuple[paths.Side, ...] = ("slow", "fast")
CHUNKS, EACH = 10, many(2, 40)
"""So many tests, each of so many checkpoints."""

pytestmark = [*oracle.QUIET, pytest.mark.slow]


class Writer(NamedTuple):
    format: str
    suffix: str
    run: Callable[[Survey], RewriteReport]


def converting(format: str, **options: Any) -> Callable[[Survey], RewriteReport]:
    return lambda survey: convert(survey.checkpoint, format, **options)


WRITERS = {
    "strip": Writer("torch-zip", ".pth", lambda survey: strip(survey, LIMITS)),
    "rename": Writer(
        "torch-zip",
        ".pth",
        lambda survey: rename(survey, [substitution("s/layers/blocks/")], LIMITS),
    ),
    "rehome": Writer(
        "torch-zip", ".pth", lambda survey: rehome(survey, Moves({}, "cpu"), LIMITS)
    ),
    "slim": Writer(
        "torch-zip", ".pth", lambda survey: slim(survey, LIMITS, drop_other=True)
    ),
    "legacy": Writer("torch-legacy", ".pth", converting("torch-legacy")),
    "plain": Writer("torch-zip", ".pth", converting("torch-zip", plain=True)),
    "bfloat16": Writer("torch-zip", ".pth", converting("torch-zip", dtype="bfloat16")),
    "safetensors": Writer(
        "safetensors", ".safetensors", converting("safetensors", drop_other=True)
    ),
    "float16": Writer(
        "safetensors",
        ".safetensors",
        converting("safetensors", dtype="float16", drop_other=True),
    ),
    "dcp": Writer("dcp", ".dcp", converting("dcp")),
}


def document(make: Callable[[], Any]) -> Any:
    """A document as it is printed; of an error its text."""
    try:
        return json.loads(json.dumps(make()))
    except CkptError as error:
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def surveys(*files: Path) -> Iterator[list[Survey]]:
    with contextlib.ExitStack() as stack:
        yield [Survey(stack.enter_context(formats.open(str(file)))) for file in files]


def said(one: Path, two: Path) -> dict[str, Any]:
    """What the commands that look say of two files."""
    found: dict[str, Any] = {}
    with surveys(one) as (survey,):
        found["inspect"] = document(lambda: inspect(survey).to_json())
    with surveys(one) as (survey,):
        found["stats"] = document(lambda: stats(survey).to_json())
    for name, other in (("diff", two), ("itself", one)):
        with surveys(one, other) as (before, after):
            found[name] = document(lambda: diff(before, after).to_json())
    return found


def written(
    source: Path, other: Path, folder: Path
) -> dict[str, tuple[Path | None, Any]]:
    """What each writer makes of a file: where it is, and the report; or no file, and
    the error.
    """
    folder.mkdir()
    made: dict[str, tuple[Path | None, Any]] = {}
    for name, writer in WRITERS.items():
        with surveys(source) as (survey,):
            made[name] = once(
                folder / f"{name}{writer.suffix}",
                writer.format,
                lambda: writer.run(survey),  # noqa: B023
            )
    if is_there("warmstart"):
        from ckpt.ext.warmstart.warmstart import warmstart

        with surveys(source, other) as (target, given):
            into = folder / "warmstart.pth"
            made["warmstart"] = once(
                into, "torch-zip", lambda: warmstart(given, target, LIMITS)
            )
    return made


def once(
    to: Path, format: str, run: Callable[[], RewriteReport]
) -> tuple[Path | None, Any]:
    try:
        report = run()
        write(report.result, to, format)
    except CkptError as error:
        return None, f"{type(error).__name__}: {error.problem}"
    return to, document(lambda: report.to_json())


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files of a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name if path.is_dir() else "": file.read_bytes() for file in files}


def load(path: Path) -> Any:
    return torch.load(path, weights_only=False, map_location="cpu")


def save(number: int, folder: Path) -> tuple[Path, Path, Any]:
    """A random checkpoint and a changed one, as torch saves them, with device tags; and
    the checkpoint itself.
    """
    is_zip = number % 5 > 0
    random = Random(
        number, ODD if is_zip else DTYPES
    )  # of the others torch reads nothing back before 1.6
    thing, pick = random.checkpoint(), random.pick
    tag = pick.choice(("cpu", "cpu", "cuda:0", None))

    def location(storage: Any) -> str:
        return tag or f"cuda:{storage.nbytes() % 3}"

    one, two = folder / "a.pth", folder / "b.pth"
    with mock.patch.object(torch.serialization, "location_tag", location):
        for path, each in ((one, thing), (two, changed(thing, pick))):
            torch.save(each, path, _use_new_zipfile_serialization=is_zip)
    return one, two, thing


def check_witness(path: Path, side: paths.Side) -> None:
    """Hold our tensors, and their elements, against those that torch loads."""
    loaded = list(oracle.leaves(load(path)))
    with formats.open(str(path)) as checkpoint:
        ours = [entry for entry in checkpoint.tensors if "attached" not in entry.path]
        assert [entry.path for entry in ours] == [at for at, _ in loaded], side
        for entry, (_, tensor) in zip(ours, loaded, strict=True):
            assert f"torch.{entry.tensor.dtype.name}" == str(tensor.dtype)
            if isinstance(entry.tensor, TensorRef):
                dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
                bytes_of = dense.flatten().clone().view(torch.uint8).numpy().tobytes()
                assert b"".join(elements(entry.tensor)) == bytes_of, entry.name


def check(number: int, folder: Path) -> int:
    """Send one checkpoint both ways. Return how many files were compared."""
    one, two, _ = save(number, folder)
    looks: dict[paths.Side, Any] = {}
    made: dict[paths.Side, Any] = {}
    for side in SIDES:
        with paths.walking(side):
            looks[side] = said(one, two)
            check_witness(one, side)
            made[side] = written(one, two, folder / side)
            tensors, box = made[side]["safetensors"][0], made["slow"]["dcp"][0]
            for kind, file in (("safetensors", tensors), ("dcp", box)):
                looks[side][kind] = said(file, file) if file else None
    assert looks["fast"].keys() == looks["slow"].keys()
    for name in looks["slow"]:
        if name != "safetensors":
            assert looks["fast"][name] == looks["slow"][name], name
    count = 0
    for name, (slow, report) in made["slow"].items():
        fast, other = made["fast"][name]
        assert other == report, name
        if slow is None:
            assert fast is None
            continue
        count += 1
        if contents(slow) != contents(fast) and name != "dcp":
            assert slow.suffix == ".pth", "safetensors have no memo"
            assert difference(load(slow), load(fast)) is None, name
            assert abs(slow.stat().st_size - fast.stat().st_size) <= 4_096 + 2_000, (
                "a page, where storages keep their place in it"
            )
        elif name == "dcp":
            with surveys(slow, fast) as (before, after):
                report = diff(before, after)
                assert report.same and len(report.rows) == len(before.tensors), name
    return count


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_both_ways_give_one_answer(chunk: int, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    counts: list[int] = []
    for number in range(chunk * EACH, (chunk + 1) * EACH):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            counts.append(check(number, folder))
        except BaseException as error:
            raise AssertionError(f"checkpoint {number}") from error
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert sum(counts) > 4 * len(counts), "most writers have something to write"

"""`make kills`: 200 SIGKILLs for each way of writing. What is there afterwards is the
old or the new, and the source is whole.

Half of them come at a random event (a call that changes something), half after a random
part of a run's time. The name of this file keeps it out of the suite, which has a
sample in tests/bytes/test_target.py and tests/formats/test_save.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import kills
import pytest
import torch
from process import SAMPLES
from safetensors.torch import save_file
from torch import nn

from ckpt import formats
from ckpt.bytes import target
from ckpt.elements.computed import place_of
from ckpt.formats import save
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits

KILLS = 200
WAYS: dict[str, tuple[str, ...]] = {
    "rehome": ("rehome", "in.pth", "-o", "out.pth"),
    "rehome --force": ("rehome", "in.pth", "-o", "out.pth", "--force"),
    "strip": ("strip", "in.pth", "-o", "out.pth", "--force"),
    "rename": (
        "rename",
        "in.pth",
        "--sub",
        "s/module/net/",
        "-o",
        "out.pth",
        "--force",
    ),
    "slim": ("slim", "in.pth", "-o", "out.pth", "--force"),
    "salvage": ("salvage", "in.pth", "-o", "out.pth", "--force"),
    "convert": ("convert", "in.pth", "-o", "out.safetensors", "--force"),
    "convert --plain": ("convert", "in.pth", "--plain", "-o", "out.pth", "--force"),
    "convert --shard-size": (
        "convert",
        "in.pth",
        "-o",
        "set.safetensors",
        "--shard-size",
        "400KB",
    ),
    "convert --shard-size --force": (
        "convert",
        "in.pth",
        "-o",
        "set.safetensors",
        "--shard-size",
        "700KB",
        "--force",
    ),
    "recipe": ("recipe", "in.pth", "old.safetensors", "-o", "new.json", "--force"),
    "convert --recipe": (
        "convert",
        "in.pth",
        "--recipe",
        "layout.json",
        "-o",
        "out.safetensors",
        "--force",
    ),
    "warmstart": (
        "warmstart",
        "old.pth",
        "--into",
        "in.pth",
        "-o",
        "out.pth",
        "--force",
    ),
    "merge": ("merge", "plain.pth", "lora.safetensors", "-o", "out.pth", "--force"),
    "average": ("average", "old.pth", "in.pth", "-o", "out.pth", "--force"),
    "--in-place": ("rehome", "in.pth", "--in-place"),
    "--in-place, write by write": ("rehome", "in.pth", "--in-place"),
    "--in-place --copy": ("rehome", "in.pth", "--in-place", "--copy"),
    "--undo": ("rehome", "--undo", "rewritten.pth"),
    "--undo, write by write": ("rehome", "--undo", "rewritten.pth"),
}
THROUGH = ", write by write"
"""The end of a way on a file system that forces single writes to the disk."""


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory, killer: kills.Killer
) -> dict[str, bytes]:
    """The files of the folder before each run, some megabytes, so that writing takes
    its time.
    """
    folder = tmp_path_factory.mktemp("made")
    for name, seed in (("in.pth", 0), ("old.pth", 1)):
        torch.manual_seed(seed)
        model = nn.DataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))))
        with mock.patch.object(
            torch.serialization, "location_tag", lambda storage: "cuda:0"
        ):
            torch.save({"model": model.state_dict(), "epoch": seed}, folder / name)
    (folder / "out.pth").write_bytes((folder / "old.pth").read_bytes())
    (folder / "rewritten.pth").write_bytes((folder / "in.pth").read_bytes())
    for arguments in (
        ("convert", "old.pth", "-o", "out.safetensors"),
        ("convert", "old.pth", "-o", "set.safetensors", "--shard-size", "400KB"),
        ("rehome", "rewritten.pth", "--in-place"),
        ("convert", "in.pth", "--strip", "-o", "old.safetensors"),
        ("recipe", "old.pth", "out.safetensors", "-o", "new.json"),
        ("recipe", "in.pth", "old.safetensors", "-o", "layout.json"),
    ):
        assert killer.run(*arguments, cwd=folder).code == 0
    save_adapter(folder)
    (folder / "sample.pth").write_bytes((SAMPLES / "train_cuda.pth").read_bytes())
    return kills.contents(folder)


def save_adapter(folder: Path) -> None:
    """Save a base without wrappers, and an adapter for it."""
    layers = range(8)
    base = {f"{layer}.weight": torch.randn(256, 256) for layer in layers}
    torch.save(base, folder / "plain.pth")
    adapter = {}
    for layer in layers:
        begin = f"diffusion_model.{layer}"
        adapter[f"{begin}.lora_A.weight"] = torch.randn(4, 256)
        adapter[f"{begin}.lora_B.weight"] = torch.randn(256, 4)
        adapter[f"{begin}.alpha"] = torch.tensor(8.0)
    save_file(adapter, folder / "lora.safetensors")


def the_set(path: Path) -> dict[str, bytes]:
    """The tensors of a set by name. Raises CkptError where it is not whole."""
    with formats.open(str(path)) as opened:
        return {
            entry.name: b"".join(map(bytes, place_of(entry.tensor).read_blocks()))  # type: ignore[arg-type]
            for entry in opened.tensors
        }


@pytest.mark.parametrize("way", WAYS)
def test_killed(
    way: str,
    files: dict[str, bytes],
    killer: kills.Killer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    arguments = WAYS[way]
    through = way.endswith(THROUGH) if "place" in way or "undo" in way else None
    old = dict(files)
    if way == "rehome":
        del old["out.pth"]
    if way == "convert --shard-size":
        old = {name: data for name, data in old.items() if not name.startswith("set")}
    index = folder / "set.safetensors.index.json"

    kills.restore(folder, old)
    old_set = the_set(index) if index.exists() else None
    ran = killer.run(*arguments, cwd=folder)
    assert ran.code == 0, ran
    new = kills.contents(folder)
    new_set = the_set(index) if index.exists() else None
    changed = {
        name for name in old.keys() | new.keys() if old.get(name) != new.get(name)
    }
    assert changed, "it does nothing"
    events = sum(
        1
        for _ in _until_done(
            killer, arguments, folder, through, lambda: kills.restore(folder, old)
        )
    )

    chance = random.Random(way)
    outcomes: Counter[str] = Counter()
    killed = 0
    while killed < KILLS:
        kills.restore(folder, old)
        by_event = killed % 2 == 0
        nth = chance.randint(1, events) if by_event else 0
        after = None if by_event else chance.uniform(0, ran.seconds)
        ended = killer.run(
            *arguments, cwd=folder, nth=nth, after=after, through=through
        )
        killed += ended.was_killed
        assert ended.was_killed or ended.code == 0, ended
        left = [path for path in folder.iterdir() if path.name.endswith(target.SUFFIX)]
        now = kills.contents(folder)
        differ = {
            name for name in old.keys() | now.keys() if old.get(name) != now.get(name)
        }
        if "shard" in way:
            found = the_set(index) if index.exists() else None
            assert found in (old_set, new_set), "a mixture"
            outcomes["new" if found == new_set else "old"] += 1
            assert all(name.startswith("set") for name in differ)
        elif (
            way.removesuffix(THROUGH) == "--in-place"
            and differ
            and now["in.pth"] != new["in.pth"]
        ):
            assert differ == {"in.pth"} and now["in.pth"].startswith(old["in.pth"])
            with pytest.raises(CkptError, match="ckpt rehome --undo --dry-run "):
                formats.open(str(folder / "in.pth"))
            assert save.undo_rewrite(str(folder / "in.pth"), Limits()).after == len(
                old["in.pth"]
            )
            assert kills.contents(folder) == old
            outcomes["torn, and brought back by --undo"] += 1
        else:
            assert differ <= changed and all(
                now.get(name) == new.get(name) for name in differ
            )
            outcomes["new" if differ else "old"] += 1
        assert len(left) <= (12 if "shard" in way else 1)
        for path in left:
            path.unlink()
    with capsys.disabled():
        print(
            (
                f"\n{way}: {killed} kills, {events} events; "
                f"{dict(sorted(outcomes.items()))}"
            ),
            end="",
        )
    assert outcomes["old"]


def _until_done(
    killer: kills.Killer,
    arguments: tuple[str, ...],
    folder: Path,
    through: bool | None,
    again: Callable[[], None],
) -> Iterator[kills.Ran]:
    again()
    for ran in killer.at_events(*arguments, cwd=folder, through=through, step=1):
        for path in folder.iterdir():
            if path.name.endswith(target.SUFFIX):
                path.unlink()
        again()
        yield ran

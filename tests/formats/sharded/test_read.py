"""Which files a folder or an index stands for."""

from __future__ import annotations

import json
from pathlib import Path

import oracle
import pytest
import safetensors.torch
import torch
from inside import inside

from ckpt import formats
from ckpt.bytes.source import File
from ckpt.formats.sharded import reader
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, UnreadableError
from ckpt.tree.find import metadata_of

pytestmark = oracle.QUIET
ONE, TWO = {"a.weight": torch.ones(2)}, {"b.weight": torch.zeros(2)}


def index(
    folder: Path, name: str, files: dict[str, dict[str, torch.Tensor]], **changes: str
) -> Path:
    for file, state in files.items():
        if file.endswith(".safetensors"):
            safetensors.torch.save_file(state, folder / file)
        else:
            torch.save(state, folder / file)
    weight_map = {key: file for file, state in files.items() for key in state} | changes
    (folder / name).write_text(json.dumps({"weight_map": weight_map}))
    return folder / name


def opened(path: Path) -> Checkpoint:
    with formats.open(str(path)) as checkpoint:
        return checkpoint


def test_shards_stand_in_natural_order(tmp_path: Path) -> None:
    files = {
        f"m-{number}.bin": {f"{number}.weight": torch.ones(1)} for number in (10, 9, 1)
    }
    found = opened(index(tmp_path, "pytorch_model.bin.index.json", files))
    assert found.parts == ("m-1.bin", "m-9.bin", "m-10.bin")
    assert [entry.name for entry in found.tensors] == [
        "1.weight",
        "9.weight",
        "10.weight",
    ]


@pytest.mark.needs("folders")
def test_safetensors_come_before_pickles_and_one_file_before_shards(
    tmp_path: Path,
) -> None:
    index(tmp_path, "pytorch_model.bin.index.json", {"1.bin": ONE, "2.bin": TWO})
    assert opened(tmp_path).parts == ("1.bin", "2.bin")
    index(
        tmp_path,
        "model.safetensors.index.json",
        {"1.safetensors": ONE, "2.safetensors": TWO},
    )
    found = opened(tmp_path)
    assert found.parts == ("1.safetensors", "2.safetensors")
    assert [notice.code for notice in found.account.notices] == ["unread-file"], (
        "the other index was not read"
    )
    torch.save(ONE, tmp_path / "pytorch_model.bin")
    assert opened(tmp_path).parts == ("1.safetensors", "2.safetensors")
    safetensors.torch.save_file(TWO, tmp_path / "model.safetensors")
    found = opened(tmp_path)
    assert [entry.name for entry in found.tensors] == ["b.weight"] and len(
        found.account.notices
    ) == 3


@pytest.mark.needs("folders")
def test_two_files_that_are_as_good_are_a_question(tmp_path: Path) -> None:
    for name in ("model.safetensors", "adapter_model.safetensors"):
        safetensors.torch.save_file(ONE, tmp_path / name)
    with pytest.raises(UnreadableError):
        opened(tmp_path)


@pytest.mark.needs("folders")
def test_an_optimizer_beside_shards_is_a_part_once_and_only_of_a_folder(
    tmp_path: Path,
) -> None:
    path = index(tmp_path, "pytorch_model.bin.index.json", {"1.bin": ONE, "2.bin": TWO})
    for name in ("optimizer.pt", "optimizer.bin"):
        torch.save(
            {
                "state": {0: {"exp_avg": torch.ones(2)}},
                "param_groups": [{"params": [0]}],
            },
            tmp_path / name,
        )
    found = opened(tmp_path)
    assert found.parts == ("1.bin", "2.bin", "optimizer.pt")
    assert [entry.name for entry in found.tensors][2:] == ["optimizer.state.0.exp_avg"]
    assert len({storage.id for storage in found.storages}) == 3
    assert opened(path).parts == ("1.bin", "2.bin")


def test_an_index_that_lies_is_noticed(tmp_path: Path) -> None:
    files = {"1.bin": {**ONE, "c.weight": torch.ones(1)}, "2.bin": TWO}
    path = index(
        tmp_path, "pytorch_model.bin.index.json", files, **{"a.weight": "2.bin"}
    )
    assert [notice.tensors for notice in opened(path).account.notices] == [
        ("a.weight",)
    ]
    path.write_text(
        json.dumps({"weight_map": {"a.weight": "1.bin", "b.weight": "2.bin"}})
    )
    assert [notice.tensors for notice in opened(path).account.notices] == [
        ("c.weight",)
    ]


def test_a_tensor_in_two_shards_that_the_index_does_not_decide_or_in_none_is_refused(
    tmp_path: Path,
) -> None:
    files = {"1.bin": {**ONE, "c.weight": torch.ones(1)}, "2.bin": {**ONE, **TWO}}
    path = index(tmp_path, "pytorch_model.bin.index.json", files)
    document = json.loads(path.read_text())
    del document["weight_map"]["a.weight"]
    path.write_text(json.dumps(document))
    with pytest.raises(UnreadableError, match="in several shards"):
        opened(path)
    path = index(
        tmp_path,
        "pytorch_model.bin.index.json",
        {"1.bin": ONE, "2.bin": TWO},
        **{"d.weight": "1.bin"},
    )
    with pytest.raises(UnreadableError):
        opened(path)


# --- shards of safetensors are read by their headers alone ----------------------------


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
@pytest.mark.parametrize("kind", ["a pickle first", "safetensors first", "a program"])
def test_shards_of_several_formats_are_refused(
    kind: str, ending: str, tmp_path: Path
) -> None:
    """Else a tensor is lost when the set is written, or is in its tree twice."""
    names = ["a.bin", "b.safetensors"]
    if kind == "safetensors first":
        names = ["b.bin", "a.safetensors"]
    for name in names:
        tensors = {name[0]: torch.ones(3)}
        if name.endswith("safetensors"):
            safetensors.torch.save_file(tensors, tmp_path / name)
        else:
            torch.save(tensors, tmp_path / name)
    if kind == "a program":
        names[1] = "b.bin"
        layer = torch.nn.Module()
        layer.register_buffer("b", torch.ones(3))
        torch.jit.script(layer).save(str(tmp_path / "b.bin"))
    stem = "model" if ending == "safetensors" else "pytorch_model"
    path = tmp_path / f"{stem}.{ending}.index.json"
    path.write_text(json.dumps({"weight_map": {name[0]: name for name in names}}))

    for words in (("inspect",), ("slim", "-o", "out.pth"), ("lint",)):
        done = inside(*words, path, cwd=tmp_path)
        assert done.code == 2 and b"its shards are of several formats: a." in done.err
    assert not (tmp_path / "out.pth").exists()


def shards(folder: Path, count: int = 12) -> Path:
    files = {
        f"model-{number:05}-of-{count:05}.safetensors": {
            f"layers.{number}.{name}": torch.full((number + 1, 2), 1.0)
            for name in ("b.10", "b.9", "a")
        }
        for number in range(count)
    }
    path = index(folder, "model.safetensors.index.json", files)
    first = folder / "model-00003-of-00012.safetensors"
    safetensors.torch.save_file(
        files[first.name], first, metadata={"format": "pt", "tied.weight": "layers.3.a"}
    )
    return path


def everything(found: Checkpoint) -> object:
    tensors = [
        (*row[:2], *row[3:], row.tensor[1:], row.tensor.storage[:4])
        for row in found.tensors
    ]  # type: ignore[index]
    places = [storage.place and storage.place[1:] for storage in found.storages]  # type: ignore[index]
    keys = (
        found.root.keys,
        [len(view) if hasattr(view, "__len__") else 0 for view in found.root.values],
    )  # type: ignore[union-attr]
    rows = [row[:-1] for row in found.containers]
    return (
        tensors,
        [storage[:4] for storage in found.storages],
        places,
        keys,
        rows,
        found.values,
        found.parts,
        found.account.notices,
        (
            found.nbytes,
            found.traits,
            found.format,
            found.index_bytes,
            found.weights_only,
            found.byteorder,
        ),
        [source.name for source in found.sources],
    )


def test_headers_alone_give_what_a_checkpoint_of_each_shard_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shards(tmp_path)
    alone: list[int] = []
    read = reader.of_headers
    monkeypatch.setattr(
        reader, "of_headers", lambda *args: alone.append(1) or read(*args)
    )
    found = everything(opened(path))
    assert alone == [1]
    monkeypatch.setattr(reader, "read_shards", lambda *args: None)
    assert everything(opened(path)) == found and alone == [1]


@pytest.mark.parametrize(
    "change", ["cut", "pickle", "gone", "text", "moved", "empty", "long"]
)
def test_a_shard_that_is_not_usual_is_told_as_before(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shards(tmp_path)
    bad = tmp_path / "model-00005-of-00012.safetensors"
    data = bad.read_bytes()
    if change == "pickle":
        torch.save(
            {
                "layers.5.a": torch.ones(2),
                "layers.5.b.9": torch.ones(2),
                "layers.5.b.10": torch.ones(2),
            },
            bad,
        )
    elif change == "gone":
        bad.unlink()
    else:
        made = {
            "cut": data[:-1],
            "text": b"version https://git-lfs.github.com/spec/v1\n",
            "moved": data.replace(b"layers.5.a", b"layers.6.a"),
            "empty": b"",
            "long": (1 << 40).to_bytes(8, "little") + data[8:],
        }
        bad.write_bytes(made[change])

    def said() -> object:
        try:
            return everything(opened(path))
        except CkptError as error:
            return type(error), str(error), error.path, error.hint

    found = said()
    monkeypatch.setattr(reader, "read_shards", lambda *args: None)
    assert said() == found
    assert isinstance(found, tuple) and (
        change == "pickle" or issubclass(found[0], CkptError)
    )


def test_the_first_value_of_the_metadata_is_shown_and_the_last_is_kept(
    tmp_path: Path,
) -> None:
    path = index(
        tmp_path,
        "model.safetensors.index.json",
        {"1.safetensors": ONE, "2.safetensors": TWO},
    )
    for name, state, value in (
        ("1.safetensors", ONE, "first"),
        ("2.safetensors", TWO, "last"),
    ):
        safetensors.torch.save_file(state, tmp_path / name, metadata={"note": value})
    found = opened(path)
    assert [value.node for value in found.values] == ["first"]
    assert metadata_of(found.root) == {"note": "last"}


def test_shards_are_closed_before_they_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shards(tmp_path)
    (tmp_path / "model-00011-of-00012.safetensors").write_bytes(b"")
    closed: list[str] = []
    close = File.close
    monkeypatch.setattr(
        File, "close", lambda self: closed.append(self.name) or close(self)
    )
    monkeypatch.setattr(File, "__del__", lambda self: None)
    with pytest.raises(CkptError):
        opened(path)
    assert closed.count(str(tmp_path / "model-00000-of-00012.safetensors")) == 2


def test_no_file_stays_open_behind_shards_that_disagree_with_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shards(tmp_path)
    document = json.loads(path.read_text())
    document["weight_map"]["layers.99.a"] = "model-00003-of-00012.safetensors"
    path.write_text(json.dumps(document))
    closed: list[str] = []
    close = File.close
    monkeypatch.setattr(
        File, "close", lambda self: closed.append(self.name) or close(self)
    )
    with pytest.raises(UnreadableError, match="that no shard holds"):
        opened(path)
    assert {name for name in closed if name.endswith(".safetensors")} == {
        str(tmp_path / f"model-{number:05}-of-00012.safetensors")
        for number in range(12)
    }

"""Every format of the table behaves alike: recognised by content, read without tensor
data, refused by name.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import deepspeeds
import exported
import hostile
import needs
import pytest
import scripted
import torch
from safetensors.torch import load_file, save_file

from ckpt import formats
from ckpt.bytes.location import locate
from ckpt.bytes.source import File
from ckpt.evidence.survey import Survey
from ckpt.formats import FORMATS
from ckpt.formats.foreign import FORMAT as FOREIGN
from ckpt.formats.format import Format
from ckpt.formats.torch_zip import reader as torch_zip
from ckpt.model.errors import (
    CkptError,
    LimitError,
    NotOpenedError,
    UnreadableError,
    UnsupportedError,
)
from ckpt.model.limits import Limits
from ckpt.model.tensors import Composite, TensorRef

EXAMPLES = {
    "deepspeed": "",
    "torch-zip": "ddp_after.pth",
    "torch-legacy": "legacy.pth",
    "torchscript": "scripted.pt",
    "safetensors": "weights.safetensors",
    "gguf": "llama_q8_0.gguf",
    "dcp": "dcp",
    "folder": "sharded",
    "sharded": "sharded/model.safetensors.index.json",
    "archive": "agent.zip",
    "pickle": "zoo.pkl",
    "foreign": "html_page.pth",
}
MADE = {
    "pt2": exported.pt2,
    "torch-package": exported.package,
    "torch-tar": lambda: hostile_data("tar/good.pt"),
    "torch-zip-1.4": lambda: hostile_data("foreign/torch14.pt"),
    "torchscript-1.0": lambda: scripted.written_by("1.2"),
}
"""Formats without a sample, and what makes a file of each."""


def hostile_data(name: str) -> bytes:
    data = next(case.data for case in hostile.CASES if case.name == name)
    assert isinstance(data, bytes)
    return data


OF_RANKS = {"dcp-hf": "hf", "fsdp-ranks": "accelerate"}
"""Formats that only several ranks write: the folders of train_ranks.py."""


def example(
    name: str, samples: Path, folder: Path, request: pytest.FixtureRequest
) -> Path:
    """A file of a format: a sample, or one that is made in the folder."""
    if name in OF_RANKS:
        trained: Path = request.getfixturevalue("ranks")
        return trained / OF_RANKS[name]
    if name == "deepspeed":
        return deepspeeds.write(folder / "run", 2)
    if name == "torch-unpacked":
        shutil.unpack_archive(samples / EXAMPLES["torch-zip"], folder / "out", "zip")
        return next((folder / "out").iterdir())
    if name in MADE:
        return exported.written(folder, "made", MADE[name]())
    return samples / EXAMPLES[name]


def test_every_format_has_an_example() -> None:
    examples = {*EXAMPLES, *MADE, *OF_RANKS, "deepspeed", "torch-unpacked"}
    table = {reader.name for reader in (*FORMATS, FOREIGN)}
    lacking = "a format has a sample in EXAMPLES, or what makes its file in MADE"
    assert table <= examples, lacking
    assert needs.ABSENT or table == examples, lacking


@pytest.mark.parametrize("reader", (*FORMATS, FOREIGN), ids=lambda reader: reader.name)
def test_recognises_its_own_whatever_it_is_called(
    reader: Format, samples: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = example(reader.name, samples, tmp_path, request)
    stays = source.is_dir() or source.suffix == ".json"  # an index is known by its name
    path = source if stays else tmp_path / "renamed.data"
    if not stays:
        shutil.copy(source, path)
    probe = formats.probe_at(locate(str(path)), Limits())

    first = formats.format_of(probe)

    assert first == reader
    assert isinstance(reader.suffixes, tuple)
    if reader.name != "foreign":
        with formats.open(str(path)) as checkpoint:
            assert checkpoint.format == reader.name
            assert checkpoint.tensors
            assert checkpoint.path == str(path)


@pytest.mark.parametrize(
    "name", sorted({*EXAMPLES, *MADE, *OF_RANKS, "deepspeed"} - {"foreign"})
)
def test_storages_are_known_and_hold_their_tensors(
    name: str, samples: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with formats.open(str(example(name, samples, tmp_path, request))) as checkpoint:
        known = {id(storage) for storage in checkpoint.storages}
        ids = [storage.id for storage in checkpoint.storages]

        assert len(set(ids)) == len(ids)
        for entry in checkpoint.tensors:
            parts = (
                [entry.tensor]
                if isinstance(entry.tensor, TensorRef)
                else [part for _, part in entry.tensor.parts]
            )
            for part in parts:
                assert id(part.storage) in known
                assert part.extent[1] <= part.storage.nbytes


def test_no_tensor_data_is_read(tmp_path: Path) -> None:
    state = {f"layers.{i}.weight": torch.ones(50_000) for i in range(20)}
    for name, write in {
        "zip.pth": lambda path: torch.save(state, path),
        "legacy.pth": lambda path: torch.save(
            state, path, _use_new_zipfile_serialization=False
        ),
        "st.safetensors": lambda path: save_file(state, path),
    }.items():
        write(tmp_path / name)
        counted = 0

        with formats.open(str(tmp_path / name)) as checkpoint:
            assert len(checkpoint.tensors) == 20
            place = checkpoint.storages[0].place
            assert place is not None and isinstance(place.source, File)
            counted = place.source.bytes_read

        # A legacy file begins with its pickles, whose length nobody knows: a first look
        # of 256 KiB. The last 64 KiB of all but archives may hold the end of a zip
        # archive, which torch would find.
        most = {"zip.pth": 20_000, "legacy.pth": 366_000, "st.safetensors": 86_000}
        assert 0 < counted < most[name], name


# --- safetensors ----------------------------------------------------------------------


def test_safetensors_sees_what_the_library_sees(tmp_path: Path) -> None:
    state = {
        name: torch.zeros(4, 6).to(getattr(torch, name))
        for name in [
            "float64",
            "float32",
            "float16",
            "bfloat16",
            "int64",
            "int8",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "bool",
            "float8_e4m3fn",
            "float8_e5m2",
            "complex64",
        ]
    }
    state |= {
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "layers.10": torch.ones(1),
        "layers.9": torch.ones(1),
    }
    save_file(state, tmp_path / "all.safetensors", {"format": "pt", "step": "7"})

    with formats.open(str(tmp_path / "all.safetensors")) as checkpoint:
        ours = {entry.name: entry.tensor for entry in checkpoint.tensors}
        theirs = load_file(tmp_path / "all.safetensors")

        assert {name: (str(t.dtype), tuple(t.shape)) for name, t in theirs.items()} == {
            name: (f"torch.{ref.dtype.name}", ref.shape) for name, ref in ours.items()
        }
        assert list(ours).index("layers.9") < list(ours).index("layers.10")
        values = {value.name: value.node for value in checkpoint.values}
        assert values == {"__metadata__.format": "pt", "__metadata__.step": "7"}
        for name, ref in ours.items():
            assert isinstance(ref, TensorRef) and ref.storage.place is not None
            data = ref.storage.place.source.read(
                ref.storage.place.offset, ref.storage.place.size
            )
            assert (
                data
                == bytes(theirs[name].contiguous().flatten().view(torch.uint8).tolist())
                if ref.numel
                else data == b""
            )


def test_four_bit_elements_are_shown_in_pairs(tmp_path: Path) -> None:
    path = tmp_path / "f4.safetensors"
    header = json.dumps(
        {"w": {"dtype": "F4", "shape": [2, 8], "data_offsets": [0, 8]}}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    with formats.open(str(path)) as checkpoint:
        tensor = checkpoint.tensors[0].tensor

        assert (tensor.dtype.name, tensor.shape, tensor.nbytes) == (
            "float4_e2m1fn_x2",
            (2, 4),
            8,
        )


# --- shards ---------------------------------------------------------------------------


@pytest.fixture
def shards(samples: Path, tmp_path: Path) -> Path:
    shutil.copytree(samples / "sharded", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.needs("folders")
def test_shards_are_one_checkpoint(shards: Path) -> None:
    with (
        formats.open(str(shards)) as folder,
        formats.open(str(shards / "model.safetensors.index.json")) as index,
    ):
        assert [entry.name for entry in folder.tensors] == [
            entry.name for entry in index.tensors
        ]
        assert index.parts == (
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        )
        assert folder.parts == (*index.parts, "config.json")
        assert {storage.id.partition(":")[0] for storage in folder.storages} == {
            "shard-1",
            "shard-2",
        }


@pytest.mark.needs("folders")
@pytest.mark.parametrize("is_link", [False, True], ids=["missing", "a link to nothing"])
def test_a_missing_shard_is_named(is_link: bool, shards: Path) -> None:
    (shards / "model-00002-of-00002.safetensors").unlink()
    if is_link:
        (shards / "model-00002-of-00002.safetensors").symlink_to(
            "../../blobs/0123456789abcdef"
        )

    with pytest.raises(
        UnreadableError,
        match=r"1 of 2 shards missing, with \d+ tensors: model-00002-of-00002",
    ):
        formats.open(str(shards))


def edit_index(shards: Path, change: dict[str, str | None]) -> None:
    path = shards / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for name, shard in change.items():
        if shard is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = shard
    path.write_text(json.dumps(index))


@pytest.mark.needs("folders")
def test_a_tensor_in_another_shard_and_one_listed_nowhere_are_named(
    shards: Path,
) -> None:
    edit_index(
        shards,
        {
            "classifier.bias": "model-00001-of-00002.safetensors",
            "classifier.weight": None,
        },
    )

    with formats.open(str(shards)) as checkpoint:
        notices = {
            notice.tensors: notice.message for notice in checkpoint.account.notices
        }

        assert set(notices) == {("classifier.bias",), ("classifier.weight",)}
        assert (
            "the index says model-00001-of-00002.safetensors"
            in notices["classifier.bias",]
        )


@pytest.mark.needs("folders")
def test_a_listed_tensor_that_no_shard_holds_is_an_error(shards: Path) -> None:
    edit_index(shards, {"lost.weight": "model-00001-of-00002.safetensors"})

    with pytest.raises(
        UnreadableError, match="lists 1 tensor that no shard holds: lost"
    ):
        formats.open(str(shards))


@pytest.mark.needs("folders")
def test_shards_of_pickles_and_an_optimizer_beside_them(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"weight": model.weight.data}, tmp_path / "pytorch_model-1.bin")
    torch.save({"bias": model.bias.data}, tmp_path / "pytorch_model-2.bin")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    index = {
        "metadata": {},
        "weight_map": {"weight": "pytorch_model-1.bin", "bias": "pytorch_model-2.bin"},
    }
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))

    with formats.open(str(tmp_path)) as checkpoint:
        names = [entry.name for entry in checkpoint.tensors]

        assert names[:2] == ["weight", "bias"]  # the order of the model
        assert "optimizer.state.0.exp_avg" in names


@pytest.mark.needs("folders")
def test_safetensors_win_over_pickles_and_the_other_is_named(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")

    with formats.open(str(tmp_path)) as checkpoint:
        assert checkpoint.path == str(tmp_path / "model.safetensors")
        assert "pytorch_model.bin" in checkpoint.account.notices[0].message


# --- legacy ---------------------------------------------------------------------------


def test_a_second_legacy_checkpoint_is_reported(tmp_path: Path) -> None:
    with (tmp_path / "two.pth").open("wb") as file:
        torch.save({"first": torch.ones(1)}, file, _use_new_zipfile_serialization=False)
        middle = file.tell()
        torch.save(
            {"second": torch.ones(1)}, file, _use_new_zipfile_serialization=False
        )

    with formats.open(str(tmp_path / "two.pth")) as checkpoint:
        assert [entry.name for entry in checkpoint.tensors] == ["first"]
        assert [notice.code for notice in checkpoint.account.notices] == [
            "trailing-data"
        ]
        assert (
            f"a second checkpoint begins at byte {middle:,}"
            in checkpoint.account.notices[0].message
        )


def test_what_torch_writes_and_cannot_read_back(tmp_path: Path) -> None:
    path = tmp_path / "untyped.pth"
    torch.save(
        {"w": torch.zeros(6, dtype=torch.uint16)},
        path,
        _use_new_zipfile_serialization=False,
    )

    with pytest.raises(AttributeError):
        torch.load(path, weights_only=False)
    with formats.open(str(path)) as checkpoint:
        tensor = checkpoint.tensors[0].tensor
        assert (tensor.dtype.name, tensor.shape) == ("uint16", (6,))
        assert checkpoint.not_loadable


def test_a_checkpoint_inside_a_pickle(tmp_path: Path) -> None:
    storage = torch.arange(4, dtype=torch.float32).storage()
    _, (inner,) = storage.__reduce__()
    assert inner.startswith(b"\x80")

    class Bare:
        def __reduce__(self) -> object:
            return torch.storage._load_from_bytes, (inner,)

    torch.save({"nested": Bare(), "w": torch.ones(2)}, tmp_path / "nested.pth")

    with formats.open(str(tmp_path / "nested.pth")) as checkpoint:
        by_name = {entry.name: entry.tensor for entry in checkpoint.tensors}
        nested = by_name["nested"]
        assert (
            isinstance(nested, Composite)
            and nested.layout == "storage"
            and nested.shape == (4,)
        )
        with pytest.raises(LimitError, match=r"Limits\(nesting=N"):
            formats.open(str(tmp_path / "nested.pth"), Limits(nesting=0))


# --- TorchScript ----------------------------------------------------------------------


@pytest.mark.needs("torchscript")
def test_torchscript_tells_parameters_from_buffers(samples: Path) -> None:
    with formats.open(str(samples / "scripted.pt")) as checkpoint:
        kinds = {entry.name: entry.kind for entry in checkpoint.tensors}
        scripted = torch.jit.load(str(samples / "scripted.pt"))

        assert {name for name, kind in kinds.items() if kind == "parameter"} == {
            n for n, _ in scripted.named_parameters()
        }
        assert {name for name, kind in kinds.items() if kind == "buffer"} == {
            n for n, _ in scripted.named_buffers()
        }


# --- what is not read -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("_CHECKPOINT_METADATA", "a JAX checkpoint"),
        ("ocdbt.process_0", "a JAX checkpoint"),
        ("manifest.ocdbt", "a JAX checkpoint"),
        (".zarray", "a zarr array or group"),
        (".zgroup", "a zarr array or group"),
        ("zarr.json", "a zarr array or group"),
    ],
)
def test_folders_of_other_worlds_are_named(
    name: str, problem: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_bytes(b"{}")
    (folder / "params.pt").touch()

    for path in (folder, folder / name):
        with pytest.raises(UnsupportedError, match=problem):
            formats.open(str(path))


def test_a_directory_names_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "epoch_1.pth").touch()
    with pytest.raises(
        UnsupportedError,
        match=r"holds 1 checkpoint file \(name one, such as \S+/epoch_1.pth\)",
    ):
        formats.open(str(tmp_path))


def test_the_path_stands_in_front_of_the_error(tmp_path: Path) -> None:
    with pytest.raises(CkptError) as caught:
        formats.open(str(tmp_path / "nope.pth"))

    assert str(caught.value) == f"{tmp_path / 'nope.pth'}: no such file"


def test_a_changed_byteorder_is_told(tmp_path: Path) -> None:
    import zipfile

    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    source = zipfile.ZipFile(buffer)
    with zipfile.ZipFile(tmp_path / "big.pth", "w") as target:
        for name in source.namelist():
            target.writestr(
                name, b"big" if name.endswith("byteorder") else source.read(name)
            )

    with formats.open(str(tmp_path / "big.pth")) as checkpoint:
        assert checkpoint.byteorder == "big"


@pytest.mark.needs("folders")
def test_a_directory_with_one_file_is_that_file(tmp_path: Path) -> None:
    torch.save(
        {"model": {"b.w": torch.ones(1), "a.w": torch.ones(2)}, "epoch": 7},
        tmp_path / "pytorch_model.bin",
    )

    with formats.open(str(tmp_path)) as checkpoint:
        assert [entry.name for entry in checkpoint.tensors] == [
            "model.b.w",
            "model.a.w",
        ]
        assert checkpoint.path.endswith("pytorch_model.bin")
        assert [value.name for value in checkpoint.values] == ["epoch"]


@pytest.mark.needs("folders")
def test_values_and_metadata_live_on_beside_an_optimizer(tmp_path: Path) -> None:
    save_file(
        {"w": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"}
    )
    torch.save({"state": {}, "param_groups": []}, tmp_path / "optimizer.pt")

    with formats.open(str(tmp_path)) as checkpoint:
        assert "__metadata__.format" in [value.name for value in checkpoint.values]


def test_an_index_that_lists_itself_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": index.name}}))

    with pytest.raises(CkptError, match="which is an index itself"):
        formats.open(str(index))


def test_an_archive_that_torch_refuses_has_no_load(tmp_path: Path) -> None:
    import opcodes as op

    path = tmp_path / "saved.pth"
    path.write_bytes(
        op.torch_zip(op.pickled({"w": op.tensor()}), swap={"version": None})
    )
    with formats.open(str(path)) as checkpoint:
        assert Survey(checkpoint).load.expression is None
    with pytest.raises(Exception, match="version"):
        torch.load(path)


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "saved.pth"
    torch.save({"w": torch.ones(2)}, path)
    read = torch_zip.read

    def slow(probe: Any, limits: Any) -> Any:
        found = read(probe, limits)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr(torch_zip, "read", slow)
    with pytest.raises(CkptError, match="changed while it was read"):
        formats.open(str(path))


def test_a_file_that_points_to_a_checkpoint_of_several_files_is_none_itself(
    tmp_path: Path,
) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    pointer = (
        folder / "latest" if (folder / "latest").exists() else folder.parent / "latest"
    )

    assert (
        formats.format_of(formats.probe_at(locate(str(pointer)), Limits())).name
        == "deepspeed"
    )
    assert not formats.is_checkpoint_file(str(pointer), Limits())


@pytest.mark.needs("folders")
def test_a_folder_format_is_reached_by_its_folder_and_by_its_own_files(
    samples: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"")
    reached = [
        formats.is_folder_format(str(path), Limits())
        for path in (folder, folder / ".metadata")
    ]

    assert reached == [True, True]
    assert not formats.is_folder_format(str(folder / "notes.txt"), Limits())
    assert not formats.is_folder_format(str(samples), Limits())
    assert not formats.is_folder_format(str(tmp_path / "nothing"), Limits())
    assert formats.files_of_folder(str(samples), Limits()) is None


@pytest.mark.needs("folders")
def test_the_files_of_a_folder_are_those_that_are_read(
    samples: Path, tmp_path: Path
) -> None:
    for name in ("model.safetensors", "model.fp16.safetensors"):
        shutil.copy(samples / "weights.safetensors", tmp_path / name)
    (tmp_path / "config.json").write_text("{}")

    found = formats.files_of_folder(str(tmp_path), Limits())
    assert sorted(found or ()) == ["config.json", "model.safetensors"], (
        "any other file is judged by itself"
    )


def test_a_distributed_checkpoint_whose_companion_cannot_be_read_is_one_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpt.ext.dcp import file_names as dcp_names

    def refuse(*_: object) -> str:
        raise NotOpenedError("no permission")

    for name in (".metadata", "__0_0.distcp", "metadata.json"):
        (tmp_path / name).write_bytes(b"{}")
    monkeypatch.setattr(dcp_names, "find_companion", refuse)

    assert sorted(formats.files_of_folder(str(tmp_path), Limits()) or ()) == [
        ".metadata",
        "__0_0.distcp",
    ]


@pytest.mark.parametrize(
    ("ending", "is_one"), [(".pth", True), (".SAFETENSORS", True), (".txt", False)]
)
def test_an_archive_of_checkpoints_is_recognised(
    ending: str, is_one: bool, tmp_path: Path
) -> None:
    """No format reads it, and its error says what is in it."""
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        for number in range(2):
            archive.writestr(f"{number}{ending}", b"x")
    assert formats.is_checkpoint_file(str(tmp_path / "a"), Limits()) is is_one


@pytest.mark.parametrize(
    ("name", "same", "other"),
    [
        ("a.pth", "a.x.pth", "a.x.pth"),
        ("a.weights", "a.x.weights", "a.x.pth"),
        ("a", "a.x", "a.x.pth"),
        ("a.safetensors", "a.x.pth", "a.x.pth"),
    ],
)
def test_the_place_beside_a_checkpoint_has_an_ending_of_its_format(
    name: str, same: str, other: str, samples: Path, tmp_path: Path
) -> None:
    """Its own ending stays in the same format, unless it is one of another format."""
    shutil.copy(samples / "ddp_after.pth", tmp_path / name)
    with formats.open(str(tmp_path / name)) as checkpoint:
        for is_same, expected in ((True, same), (False, other)):
            found = formats.out_beside(checkpoint, ".x", same_format=is_same)
            assert found == str(tmp_path / expected)


def test_a_directory_says_how_many_files_were_not_looked_into(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"note_{number:02}.txt").write_text("text")
    with pytest.raises(CkptError, match=r"without a checkpoint \(8 files not looked"):
        formats.open(str(tmp_path))

    torch.save({"w": torch.ones(1)}, tmp_path / "a.tar")
    with pytest.raises(CkptError, match="holds at least 1 checkpoint file"):
        formats.open(str(tmp_path))

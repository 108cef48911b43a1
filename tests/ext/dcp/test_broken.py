"""Broken and hostile distributed checkpoints: torch loads most of them without a word,
or runs what they name.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
import torch.distributed.checkpoint as dcp
from folders import in_cache
from inside import inside
from once import once
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
)

import ckpt
from ckpt import formats
from ckpt.model.errors import CkptError

pytestmark = oracle.QUIET


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "model": {
            "up.weight": torch.randn(8, 4),
            "up.bias": torch.randn(8),
            "down.weight": torch.randn(8, 4),
        },
        "epoch": 3,
        "names": ["a", "b"],
    }


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(
        tmp_path_factory,
        "good_dcp",
        lambda folder: dcp.save(state(), checkpoint_id=str(folder)),
    )


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "c")
    return tmp_path / "c"


def metadata(folder: Path) -> Metadata:
    found: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return found


def store(folder: Path, found: Any, protocol: int = 4) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(found, protocol))


def index(name: str) -> MetadataIndex:
    return MetadataIndex(
        name, torch.Size([0, 0] if name.endswith("weight") else [0]), 0
    )


Edit = Callable[[Metadata], None]


def in_two(found: Metadata, second: ChunkStorageMetadata | None) -> None:
    """`up.weight` in two chunks, both with the item of the whole."""
    rows = [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([4, 4]))]
    if second is not None:
        rows.append(second)
        place = found.storage_data[index("model.up.weight")]
        found.storage_data[MetadataIndex("model.up.weight", second.offsets, 1)] = place
    found.state_dict_metadata["model.up.weight"].chunks = rows


def hole(found: Metadata) -> None:
    in_two(found, None)


def overlap(found: Metadata) -> None:
    in_two(found, ChunkStorageMetadata(torch.Size([3, 0]), torch.Size([4, 4])))


def negative(found: Metadata) -> None:
    in_two(found, ChunkStorageMetadata(torch.Size([4, 0]), torch.Size([4, 4])))
    found.state_dict_metadata["model.up.weight"].chunks[1] = ChunkStorageMetadata(
        (4, 0), (-4, 4)
    )


def beyond(found: Metadata) -> None:
    found.state_dict_metadata["model.up.weight"].chunks[0] = ChunkStorageMetadata(
        torch.Size([0, 0]), torch.Size([9, 4])
    )


def dimensions(found: Metadata) -> None:
    found.state_dict_metadata["model.up.weight"].chunks[0] = ChunkStorageMetadata(
        torch.Size([0]), torch.Size([32])
    )


def dtype(found: Metadata) -> None:
    row = found.state_dict_metadata["model.up.weight"]
    row.properties.dtype = torch.float64


def item_of(name: str, **changes: Any) -> Edit:
    def edit(found: Metadata) -> None:
        found.storage_data[index(name)] = replace(
            found.storage_data[index(name)], **changes
        )

    return edit


def swapped(found: Metadata) -> None:
    """The items of two tensors of one shape and dtype, which torch cannot tell
    apart.
    """
    one, two = index("model.up.weight"), index("model.down.weight")
    found.storage_data[one], found.storage_data[two] = (
        found.storage_data[two],
        found.storage_data[one],
    )


def same_span(found: Metadata) -> None:
    found.storage_data[index("model.down.weight")] = found.storage_data[
        index("model.up.weight")
    ]


def other_shape(found: Metadata) -> None:
    found.storage_data[index("model.up.weight")] = found.storage_data[
        index("model.up.bias")
    ]


def no_item(found: Metadata) -> None:
    del found.storage_data[index("model.up.weight")]


def moved(found: Metadata, name: str, path: tuple[str | int, ...]) -> None:
    """Give an item another path, and the name that torch gives a value there."""
    other = ".".join(map(str, path))
    found.state_dict_metadata[other] = found.state_dict_metadata.pop(name)
    for key in [key for key in found.storage_data if key.fqn == name]:
        found.storage_data[replace(key, fqn=other)] = found.storage_data.pop(key)
    del found.planner_data[name]
    found.planner_data[other] = path


def through_a_leaf(found: Metadata) -> None:
    moved(found, "epoch", ("model", "up.weight", "epoch"))


def same_path(found: Metadata) -> None:
    found.planner_data["epoch"] = ("names",)


def each_others_names(found: Metadata) -> None:
    paths = found.planner_data
    paths["model.up.weight"], paths["model.down.weight"] = (
        paths["model.down.weight"],
        paths["model.up.weight"],
    )


def a_name_of_no_item(found: Metadata) -> None:
    found.planner_data["model.up.weight"] = ("model", "other")


def codec(found: Metadata) -> None:
    item_of("model.up.weight", transform_descriptors=["stream.mine/1"])(found)


def huge(found: Metadata) -> None:
    found.state_dict_metadata["model.up.weight"].size = torch.Size([2**62, 2**62])


LOSSES: list[tuple[str, Edit, str]] = [
    # What inspect and verify say, while all other tensors are read.
    ("hole", hole, "model.up.weight lacks [4:8, :]"),
    ("overlap", overlap, "two chunks of model.up.weight hold [3:4, :]"),
    ("no item", no_item, "parts of 1 tensor are missing: model.up.weight"),
    (
        "past the end",
        item_of("model.up.weight", offset=10**6),
        "parts of 1 tensor are missing",
    ),
    (
        "a file that is missing",
        item_of("model.up.weight", relative_path="__7_0.distcp"),
        "__7_0.distcp",
    ),
    ("two items in one place", same_span, "share bytes"),
]


@pytest.mark.parametrize(
    ("edit", "said"), [row[1:] for row in LOSSES], ids=[row[0] for row in LOSSES]
)
def test_a_part_that_is_missing_is_said_and_the_rest_is_read(
    edit: Edit, said: str, copy: Path
) -> None:
    found = metadata(copy)
    edit(found)
    store(copy, found)
    findings = ckpt.inspect(copy).findings
    assert {(row.code in ("incomplete", "overlap"), row.level) for row in findings} == {
        (True, "error")
    }
    (finding,) = [row for row in findings if said in row.message]
    with ckpt.open(copy) as checkpoint:
        assert torch.equal(
            checkpoint["model.up.bias"].torch(), state()["model"]["up.bias"]
        )
        if "share" not in said:
            assert finding.tensors == ("model.up.weight",)
        with pytest.raises(CkptError):
            checkpoint["model.up.weight"].numpy()
    done = inside("verify", str(copy), cwd=copy)
    assert done.code == 1 and said in done.out.decode(), done
    done = inside(
        "convert",
        str(copy),
        "-o",
        "out.safetensors",
        "--section",
        "model",
        cwd=copy.parent,
    )
    assert done.code == 2 and not (copy.parent / "out.safetensors").exists(), done
    done = inside("diff", str(copy), str(copy), cwd=copy)
    assert done.code == 2, done


ITEMS: list[tuple[str, Edit, str]] = [
    # What only the items show: torch loads all of them, or stops with an error of its
    # own.
    ("dtype", dtype, "holds float32 [8, 4], .metadata says float64 [8, 4]"),
    ("other shape", other_shape, "share bytes"),
    (
        "not at its beginning",
        item_of("model.up.weight", offset=5),
        "no archive begins at byte 5",
    ),
    ("one byte less", item_of("model.up.weight", length=1500), "model.up.weight"),
    ("codec", codec, "is encoded by stream.mine/1"),
]


@pytest.mark.parametrize(
    ("edit", "said"), [row[1:] for row in ITEMS], ids=[row[0] for row in ITEMS]
)
def test_an_item_that_is_something_else_is_found_by_verify(
    edit: Edit, said: str, copy: Path
) -> None:
    found = metadata(copy)
    edit(found)
    store(copy, found)
    done = inside("verify", str(copy), cwd=copy)
    assert done.code == 1 and said in done.out.decode(), done
    with ckpt.open(copy) as checkpoint, pytest.raises(CkptError) as caught:
        checkpoint["model.up.weight"].numpy()
    assert "model.up.weight" in str(caught.value) and str(copy) in str(caught.value)


def test_an_item_that_cannot_be_read_is_named(copy: Path) -> None:
    found = metadata(copy)
    info = found.storage_data[index("model.up.weight")]
    file = copy / info.relative_path
    data = bytearray(file.read_bytes())
    entry = data.index(b"PK\x01\x02", info.offset)
    data[entry + 8] |= 1  # the record is called encrypted
    file.write_bytes(data)

    with ckpt.open(copy) as checkpoint, pytest.raises(CkptError) as caught:
        checkpoint["model.up.weight"].numpy()

    said = str(caught.value)
    assert said.count("model.up.weight: record ") == 1 and "is encrypted" in said


REFUSED: list[tuple[str, Edit, str]] = [
    ("negative", negative, "has an invalid number"),
    ("beyond", beyond, "reaches index 9 of a dimension of 8"),
    ("dimensions", dimensions, "other dimensions"),
    ("huge", huge, "impossible size"),
    ("through a leaf", through_a_leaf, "leads through a value"),
    ("same path", same_path, "epoch has the path names, so loaders give it two names"),
    ("each other's names", each_others_names, "so loaders give it two names"),
    (
        "a name of no item",
        a_name_of_no_item,
        "has the path model.other, so loaders give it two names",
    ),
    (
        "up",
        item_of("model.up.weight", relative_path="../c/__0_0.distcp"),
        "is not a file in this folder",
    ),
    (
        "absolute",
        item_of("model.up.weight", relative_path="/etc/passwd"),
        "is not a file in this folder",
    ),
    (
        "nul",
        item_of("model.up.weight", relative_path="a\0b"),
        "is not a file in this folder",
    ),
    (
        "empty",
        item_of("model.up.weight", relative_path=""),
        "is not a file in this folder",
    ),
    ("negative offset", item_of("model.up.weight", offset=-1), "invalid number"),
    ("length", item_of("model.up.weight", length=2**70), "invalid number"),
    ("no text", item_of("model.up.weight", relative_path=5), "is not a text"),
]


@pytest.mark.parametrize(
    ("edit", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_contradicts_itself_is_refused_in_one_line(
    edit: Edit, said: str, copy: Path
) -> None:
    found = metadata(copy)
    edit(found)
    store(copy, found)
    done = inside("inspect", str(copy), cwd=copy)
    assert (done.code, done.out) == (2, b"")
    assert said in done.err.decode() and done.err.count(b"\n") == 1, done


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04N.",
        b"\x80\x04]\x94.",
        pickle.dumps({"a": 1}),
        pickle.dumps(BytesStorageMetadata()),
        pickle.dumps(Metadata({}, {}, {}))[:-5],
        b"PK\x03\x04",
        pickle.dumps(Metadata({"a": BytesStorageMetadata()}, {"a": ()}, {})),
        pickle.dumps(Metadata({"a": 5}, None, {})),  # type: ignore[dict-item]
        pickle.dumps(Metadata({}, None, {5: 6})),
        pickle.dumps(Metadata([], None, {})),  # type: ignore[arg-type]
    ],
)
def test_another_metadata_is_one_line(content: bytes, copy: Path) -> None:
    (copy / ".metadata").write_bytes(content)
    done = inside("inspect", str(copy), cwd=copy)
    assert (
        done.code == 2 and done.err.count(b"\n") == 1 and b"Traceback" not in done.err
    ), done


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_call_in_the_metadata_is_told_and_not_made(copy: Path) -> None:
    found = metadata(copy)
    found.storage_meta = Runs(copy / "ran")
    store(copy, found)
    report = ckpt.inspect(copy)
    (finding,) = [row for row in report.findings if row.code == "called-on-load"]
    assert finding.message.startswith("DANGER") and "posix.system" in finding.message
    done = inside("convert", str(copy), "-o", "o.pth", cwd=copy.parent)
    assert done.code in (0, 2) and not (copy / "ran").exists()
    if done.code == 0:  # calls of the source's metadata are never copied
        assert b"posix" not in (copy.parent / "o.pth").read_bytes()


def test_a_call_in_an_object_is_told_and_not_made(tmp_path: Path) -> None:
    """torch loads objects with weights_only=False."""
    dcp.save(
        {"w": torch.ones(2), "args": Runs(tmp_path / "ran")},
        checkpoint_id=str(tmp_path / "c"),
    )
    (finding,) = [
        row
        for row in ckpt.inspect(tmp_path / "c").findings
        if row.code == "called-on-load"
    ]
    assert finding.where == ("args",)
    assert not (tmp_path / "ran").exists()
    done = inside("convert", str(tmp_path / "c"), "-o", "o.pth", cwd=tmp_path)
    assert done.code == 2 and not (tmp_path / "o.pth").exists(), done


def test_a_flipped_bit_is_found(copy: Path) -> None:
    """torch loads it: it compares no checksum of a tensor."""
    place = metadata(copy).storage_data[index("model.up.weight")]
    data = bytearray((copy / "__0_0.distcp").read_bytes())
    at = data.index(state()["model"]["up.weight"].numpy().tobytes())
    assert place.offset < at < place.offset + place.length
    data[at + 7] ^= 1
    (copy / "__0_0.distcp").write_bytes(data)
    done = inside("verify", str(copy), cwd=copy)
    assert done.code == 1 and "model.up.weight is damaged" in done.out.decode(), done
    assert inside("verify", str(copy), "--json", cwd=copy).code == 1


def test_swapped_items_are_not_told_apart(copy: Path) -> None:
    """Nothing in the items names their tensor, so nothing can be said: what stands here
    is a limit, not a wish.
    """
    found = metadata(copy)
    swapped(found)
    store(copy, found)
    assert inside("verify", str(copy), cwd=copy).code == 0


@pytest.mark.parametrize("kind", ["file", "metadata"])
def test_links_and_fifos_are_refused(kind: str, copy: Path) -> None:
    """torch follows links out of the folder, and waits for a FIFO for ever."""
    target = copy / ("__0_0.distcp" if kind == "file" else ".metadata")
    shutil.move(target, copy.parent / "elsewhere")
    os.symlink(copy.parent / "elsewhere", target)
    done = inside("inspect", str(copy), cwd=copy)
    assert done.code == 2 and b" is a link: " in done.err, done
    target.unlink()
    os.mkfifo(target)
    done = inside("verify", str(copy), cwd=copy)
    assert done.code in (1, 2) and b"FIFO" in done.out + done.err, done


@pytest.mark.parametrize(
    ("beside", "newest"),
    [
        ((), None),
        (("step-100", "step-900"), "step-900"),
        (("step-900", "step-2000"), "step-900"),
        (("step-2000",), "step-2000"),
    ],
)
def test_an_interrupted_save_is_named(
    beside: tuple[str, ...], newest: str | None, copy: Path, tmp_path: Path
) -> None:
    for name in beside:
        shutil.copytree(copy, tmp_path / "runs" / name)
    (copy / ".metadata").rename(copy / ".metadata.tmp")
    data = (copy / ".metadata.tmp").read_bytes()
    (copy / ".metadata.tmp").write_bytes(data[: len(data) // 2])
    shutil.copytree(copy, tmp_path / "runs/step-1000")
    shutil.copytree(copy, tmp_path / "runs/step-950")  # interrupted too
    (tmp_path / "runs/step-960").symlink_to(tmp_path / "nowhere")
    done = inside("inspect", "runs/step-1000", cwd=tmp_path)
    assert done.code == 2
    hint = f" ({newest} beside it has its .metadata)" if newest else ""
    lost = "5 whole items lie in it, their names are lost"
    said = (
        "an interrupted save: 1 data file without .metadata, which is written last: "
        f"{lost}{hint}\n"
    )
    assert done.err.decode() == f"ckpt: runs/step-1000: {said}"


def test_a_missing_file_of_a_rank(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "fsdp2", tmp_path / "c")
    (tmp_path / "c/__3_0.distcp").unlink()
    (found,) = [
        row for row in ckpt.inspect(tmp_path / "c").findings if row.code == "incomplete"
    ]
    assert "1 of 4 data files missing: __3_0.distcp" in found.message
    assert (
        found.message.endswith(" tensors and 16 values")
        and "model.up.weight" in found.tensors
    )
    done = inside("verify", "c", "--json", cwd=tmp_path)
    assert done.code == 1 and b'"lost": [' in done.out.replace(
        b'"lost":[', b'"lost": ['
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(protocol: int, copy: Path) -> None:
    """Python 3.14 writes protocol 5; a tool may write any."""
    store(copy, metadata(copy), protocol)
    with ckpt.open(copy) as checkpoint:
        assert torch.equal(
            checkpoint["model.up.weight"].torch(), state()["model"]["up.weight"]
        )


def test_copies_that_differ(trained: Path, tmp_path: Path) -> None:
    """What each rank wrote of a replicated tensor: loaders take one of them."""
    shutil.copytree(trained / "alone", tmp_path / "c")
    assert inside("verify", "c", cwd=tmp_path).code == 0
    path = tmp_path / "c/__1_0.distcp"
    data = bytearray(path.read_bytes())
    found = pickle.loads((tmp_path / "c/__1.metadata").read_bytes())
    place: _StorageInfo = found.storage_data[
        MetadataIndex("replicated", torch.Size([0]), 0)
    ]
    other = io.BytesIO()
    torch.save(torch.arange(6.0) + 1, other)
    data[place.offset :] = other.getvalue()
    path.write_bytes(data)
    found.storage_data[MetadataIndex("replicated", torch.Size([0]), 0)] = replace(
        place, length=len(other.getvalue())
    )
    (tmp_path / "c/__1.metadata").write_bytes(pickle.dumps(found))
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 1
    assert (
        "replicated differs between __0_0.distcp and __1_0.distcp" in done.out.decode()
    ), done


def test_two_ranks_that_disagree(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "alone", tmp_path / "c")
    found = pickle.loads((tmp_path / "c/__1.metadata").read_bytes())
    found.state_dict_metadata["replicated"].size = torch.Size([7])
    (tmp_path / "c/__1.metadata").write_bytes(pickle.dumps(found))
    done = inside("inspect", "c", cwd=tmp_path)
    assert done.code == 2 and "two ranks disagree on replicated" in done.err.decode()


def test_an_item_that_is_recorded_twice(copy: Path) -> None:
    """By its index, and by none, which means the beginning."""
    found = metadata(copy)
    place = found.storage_data[index("model.up.weight")]
    found.storage_data[MetadataIndex("model.up.weight")] = place
    store(copy, found)
    done = inside("inspect", str(copy), cwd=copy)
    assert (
        done.code == 2
        and "the item of model.up.weight is recorded twice" in done.err.decode()
    ), done


def test_nothing_saved_is_an_empty_dict(tmp_path: Path) -> None:
    dcp.save({}, checkpoint_id=str(tmp_path / "c"))
    with formats.open(str(tmp_path / "c")) as checkpoint:
        assert type(checkpoint.root).__name__ == "Dict" and not checkpoint.tensors


def test_many_faults_are_one_finding(copy: Path) -> None:
    found = metadata(copy)
    for name in ("model.up.weight", "model.down.weight"):
        found.state_dict_metadata[name].chunks = []
    for name in ("epoch", "names"):
        del found.storage_data[MetadataIndex(name)]
    store(copy, found)
    rows = [
        (row.message, row.tensors)
        for row in ckpt.inspect(copy).findings
        if row.code == "incomplete"
    ]
    assert rows == [
        (
            "model.up.weight lacks [:, :]: no file holds it, and 1 more like it",
            ("model.up.weight", "model.down.weight"),
        ),
        ("epoch was not read: no file is recorded for it, and 1 more like it", ()),
    ]


def test_the_files_that_it_names_are_limited(copy: Path) -> None:
    found = metadata(copy)
    for number in range(4):
        found.storage_data[MetadataIndex(f"x{number}")] = _StorageInfo(
            f"__{number}_9.distcp", 0, 5
        )
    store(copy, found)
    assert inside("inspect", str(copy), cwd=copy).code == 0
    done = inside("inspect", str(copy), "--limit", "shards=4", cwd=copy)
    assert (
        done.code == 2
        and ".metadata names too many files (more than 4)" in done.err.decode()
    ), done


@pytest.mark.parametrize(
    ("position", "is_fine"), [(2, True), (9_000, True), (10**6, False), (2**40, False)]
)
def test_a_list_position_that_torch_would_allocate_for(
    position: int, is_fine: bool, copy: Path
) -> None:
    """Empty dicts are not saved, so positions may be left out; not a million of
    them.
    """
    found = metadata(copy)
    moved(found, "model.up.bias", ("model", "list", position))
    (copy / ".metadata").write_bytes(pickle.dumps(found))
    done = inside("verify", "c", cwd=copy.parent)
    assert (done.code == 0) == is_fine, done
    if not is_fine:
        assert (
            done.code == 1 and f"position {position:,} of a list".encode() in done.out
        ), done
        for words in (
            ("inspect", "c"),
            ("convert", "c", "-o", "o.pth"),
            ("diff", "c", "c"),
        ):
            assert inside(*words, cwd=copy.parent).code == 2


def test_a_checkpoint_in_the_cache_of_hugging_face(copy: Path, tmp_path: Path) -> None:
    snapshot = in_cache(copy, tmp_path / "hub")

    for command in (
        ("inspect",),
        ("verify",),
        ("convert", "-o", str(tmp_path / "out.safetensors"), "--drop-other"),
    ):
        done = inside(command[0], str(snapshot), *command[1:], cwd=tmp_path)
        assert done.code == 0, done.err


def test_any_other_link_is_refused_as_a_link(copy: Path, tmp_path: Path) -> None:
    snapshot = in_cache(copy, tmp_path / "hub")
    name = next(
        path.name for path in sorted(snapshot.iterdir()) if path.name != ".metadata"
    )
    shutil.move((snapshot / name).resolve(), tmp_path / "elsewhere")
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(tmp_path / "elsewhere")

    for command in ("inspect", "verify", "lint"):
        done = inside(command, str(snapshot), cwd=tmp_path)
        text = (done.out + done.err).decode()
        assert done.code == 2 and f"{name} is a link: only one to the blobs/" in text, (
            text
        )
        assert "damaged" not in text and "missing" not in text


def test_an_empty_file_of_a_rank_with_nothing_to_write_is_no_finding(
    copy: Path,
) -> None:
    for rank in (1, 2, 3):
        (copy / f"__{rank}_0.distcp").touch()
    assert b"dead-files" not in inside("inspect", str(copy), cwd=copy).out
    (copy / "__2_0.distcp").write_bytes(b"x")

    done = inside("inspect", str(copy), cwd=copy)

    assert (
        b"dead-files" in done.out
        and b"__2_0.distcp" in done.out
        and b"__1_0.distcp" not in done.out
    )


def test_diff_blames_the_folder_that_lacks_a_file(good: Path, copy: Path) -> None:
    next(copy.glob("*.distcp")).unlink()
    for order in ((copy, good), (good, copy)):
        done = inside("diff", *map(str, order), cwd=copy.parent)
        assert done.code == 2
        assert done.complaints[-1].startswith(f"ckpt: {copy}: not compared: "), (
            done.complaints
        )


def test_a_killed_save_of_one_rank_is_found_in_a_run(tmp_path: Path) -> None:
    """Its only file was one that no command looks at, so that verify of the run said
    intact.
    """
    for step in (10, 20):
        dcp.save(
            {"weight": torch.ones(3), "step": step},
            checkpoint_id=str(tmp_path / "run" / f"step-{step}"),
        )
    (tmp_path / "run" / "step-20" / ".metadata").unlink()
    assert [path.name for path in (tmp_path / "run" / "step-20").iterdir()] == [
        "__0_0.distcp"
    ]

    for command, code in (
        ("ls", 2),
        ("lint", 2),
        ("stats", 2),
        ("sum", 2),
        ("verify", 1),
    ):
        for path in ("run", "run/step-20"):
            done = inside(command, path, cwd=tmp_path)
            assert (
                done.code == code
                and b"an interrupted save: 1 data file without .metadata"
                in done.out + done.err
            )
        assert (
            inside(
                command,
                "run/step-10",
                "-q" if command != "ls" else "--tsv",
                cwd=tmp_path,
            ).code
            == 0
        )


def test_no_command_is_proposed_that_stops_at_a_missing_part(
    trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained / "fsdp2", tmp_path / "c")
    before = [
        row["hint"]
        for row in json.loads(inside("inspect", "c", "--json", cwd=tmp_path).out)[
            "findings"
        ]
    ]
    (tmp_path / "c/__3_0.distcp").unlink()
    hints = [
        row["hint"]
        for row in json.loads(inside("inspect", "c", "--json", cwd=tmp_path).out)[
            "findings"
        ]
    ]
    assert any(before) and not any(hint and "slim" in hint for hint in hints), (
        before,
        hints,
    )
    for hint in filter(None, hints):
        assert inside(*shlex.split(hint)[1:], cwd=tmp_path).code == 0, hint


@pytest.mark.parametrize("command", ["sum", "stats"])
def test_a_part_that_lost_nothing_is_answered_for(command: str, tmp_path: Path) -> None:
    copy, lost = tmp_path / "c", "optimizer.state.up.weight.exp_avg"
    moments = {
        "state": {"up.weight": {"exp_avg": torch.ones(8, 4)}},
        "param_groups": [{"lr": 0.1}],
    }
    dcp.save({**state(), "optimizer": moments}, checkpoint_id=str(copy))
    whole = metadata(copy)
    whole.state_dict_metadata[lost].chunks = []
    store(copy, whole)
    assert inside(command, str(copy), "-q", cwd=copy).code == 0  # the model
    done = inside(command, str(copy), "--all", cwd=copy)
    assert done.code == 2 and lost in done.complaints[-1], done

    found = metadata(copy)
    del found.storage_data[
        MetadataIndex("epoch")
    ]  # of what has no tensors, nothing says where it belongs
    store(copy, found)
    done = inside(command, str(copy), cwd=copy)
    assert done.code == 2 and "epoch was not read" in done.complaints[-1], done


def test_an_object_that_is_a_program_is_a_danger(tmp_path: Path) -> None:
    """torch.load hands it to torch.jit.load, which runs its code. It is a value that
    cannot be read, and a danger.
    """
    dcp.save(
        {"w": torch.ones(2), "o": {1, 2}},
        checkpoint_id=str(tmp_path / "c"),
        no_dist=True,
    )
    path, listing = tmp_path / "c/__0_0.distcp", tmp_path / "c/.metadata"
    program = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Identity()), program)
    found = pickle.loads(listing.read_bytes())
    place = next(place for key, place in found.storage_data.items() if key.fqn == "o")
    key = next(key for key in found.storage_data if key.fqn == "o")
    data = path.read_bytes()
    found.storage_data[key] = replace(
        place, offset=len(data), length=len(program.getvalue())
    )
    path.write_bytes(data + program.getvalue())
    listing.write_bytes(pickle.dumps(found))

    done = inside("lint", "c", "--level", "error", cwd=tmp_path)

    assert done.code == 1 and b"runs the code of a TorchScript archive" in done.out, (
        done
    )

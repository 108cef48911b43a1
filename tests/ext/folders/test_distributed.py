"""Folders around distributed checkpoints: Megatron, Lightning, accelerate,
torchtitan.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import frameworks_dcp as written
import pytest
import safetensors.torch
import torch
from inside import inside as run
from process import check_error
from process import ckpt as process

import ckpt
from ckpt import formats
from ckpt.commands.convert.convert import convert
from ckpt.commands.verify.verify import judge_structure
from ckpt.evidence.survey import Survey
from ckpt.ext.folders.distributed import missing_ranks, rank_of
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import (
    CkptError,
    FolderError,
    UnreadableError,
    UnsupportedError,
    UsageError,
)
from ckpt.model.limits import Limits
from ckpt.surface.api.walk import found


def sections(checkpoint: Checkpoint) -> dict[str, tuple[str, int]]:
    return {
        part.name: (part.kind, part.tensors) for part in Survey(checkpoint).sections
    }


def facts(checkpoint: Checkpoint) -> dict[str, object]:
    return dict(checkpoint.facts)


def same(folder: Path, tensors: written.Tensors, key: str = "model") -> None:
    """Every tensor below a key equals what was saved."""
    with ckpt.open(str(folder)) as opened:
        names = [name for name in opened if name.startswith(f"{key}.")]
        assert names == [f"{key}.{name}" for name in tensors]
        for name, tensor in tensors.items():
            assert torch.equal(opened[f"{key}.{name}"].torch(), tensor), name


# --- Megatron -------------------------------------------------------------------------


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    written.megatron(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "latest_checkpointed_iteration.txt",
        "iter_0000010",
        "iter_0000010/.metadata",
        "iter_0000010/metadata.json",
        "iter_0000010/__0_0.distcp",
    ],
)
def test_each_path_into_torch_dist_leads_to_it(inside: str, megatron: Path) -> None:
    with formats.open(str(megatron / inside)) as checkpoint:
        assert checkpoint.layout == "Megatron checkpoint, torch_dist"
        assert facts(checkpoint) == {
            "iteration": 10,
            "layers": 2,
            "hidden size": 4,
            "tensor parallel": 2,
            "pipeline parallel": 1,
            "ranks": 2,
        }
        assert checkpoint.path == str(
            megatron / ("iter_0000010" if "iter" in inside[:4] else "")
        )


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    """A checkpoint of NeMo 2: `weights/` as Megatron writes it, and `context/`."""
    written.megatron(tmp_path / "run")
    folder = tmp_path / "llama--last"
    shutil.copytree(tmp_path / "run/iter_0000010", folder / "weights")
    (folder / "context" / "nemo_tokenizer").mkdir(parents=True)
    (folder / "context" / "io.json").write_text("{}")
    (folder / "context" / "model.yaml").write_text(
        "_target_: nemo.collections.llm.LlamaModel\n"
    )
    return folder


def test_a_folder_of_nemo_2_is_its_weights(nemo: Path, tmp_path: Path) -> None:
    with formats.open(str(nemo)) as found, formats.open(str(nemo / "weights")) as alone:
        assert (
            found.layout == "NeMo 2 checkpoint, torch_dist"
            and facts(found)["iteration"] == 10
        )
        assert [row.name for row in found.tensors] == [
            row.name for row in alone.tensors
        ]
        assert all(file.startswith("weights/") for file in found.parts)
    same(nemo, written.megatron_keys())
    assert run("verify", nemo, cwd=tmp_path).code == 0
    done = run("ls", nemo, cwd=tmp_path)
    assert b"1 checkpoint," in done.err and b"3 not looked at" in done.err
    done = run("convert", nemo, "-o", "w.safetensors", cwd=tmp_path)
    assert done.code == 0
    assert (
        safetensors.torch.load_file(tmp_path / "w.safetensors").keys()
        == written.megatron_keys().keys()
    )


def test_a_folder_of_nemo_2_without_its_weights_says_what_is_wrong(nemo: Path) -> None:
    (nemo / "weights/.metadata").unlink()
    with pytest.raises(UnreadableError, match="an interrupted save"):
        formats.open(str(nemo))
    for path in (nemo / "weights").iterdir():
        path.unlink()
    (nemo / "weights/metadata.json").write_text('{"sharded_backend": "zarr"}')
    with pytest.raises(UnsupportedError, match="zarr backend"):
        formats.open(str(nemo))
    (nemo / "weights/metadata.json").unlink()
    with pytest.raises(UnsupportedError, match="a directory without a checkpoint"):
        formats.open(str(nemo))


def test_a_link_to_the_weights_of_nemo_2_is_not_followed(nemo: Path) -> None:
    (nemo / "weights").rename(nemo.parent / "elsewhere")
    (nemo / "weights").symlink_to(nemo.parent / "elsewhere")
    with pytest.raises(UnsupportedError):
        formats.open(str(nemo))


def test_keys_of_the_optimizer_and_objects_of_ranks_are_no_weights(
    megatron: Path,
) -> None:
    with formats.open(str(megatron)) as checkpoint:
        assert sections(checkpoint) == {
            "model": ("model", 4),
            "optimizer": ("optimizer", 12),
            "objects": ("other", 2),
        }
        names = [value.name for value in checkpoint.values]
        assert "objects.decoder.layers.mlp.linear_fc1._extra_state/shard_0_2" in names
        assert "model.decoder.layers.mlp.linear_fc1._extra_state/shard_0_2" not in names
    same(megatron, written.megatron_keys())


def test_names_of_torch_dist_have_the_order_of_the_ranks(megatron: Path) -> None:
    """`.metadata` has no paths, and a tensor holds all layers: no number of DDP is a
    name here.
    """
    for path in (
        megatron,
        megatron / "iter_0000010",
        megatron / "iter_0000010/.metadata",
    ):
        check_error(process("inspect", path, "--index", "0"), "dcp keeps no order")
        with formats.open(str(path)) as checkpoint:
            assert not checkpoint.traits.keeps_order


def test_paths_in_metadata_come_before_the_keys_of_torch_dist(megatron: Path) -> None:
    folder = megatron / "iter_0000010"
    written.save(folder, {"net": {"b": torch.ones(2), "a": torch.ones(2)}})
    with formats.open(str(folder)) as checkpoint:
        assert checkpoint.layout == "Megatron checkpoint, torch_dist"
        assert [entry.name for entry in checkpoint.tensors] == ["net.b", "net.a"]
        assert checkpoint.traits.keeps_order


def test_chained_optimizers_are_one_section(tmp_path: Path) -> None:
    written.megatron(tmp_path, chained=True)
    with formats.open(str(tmp_path)) as checkpoint:
        assert sections(checkpoint)["optimizer"] == ("optimizer", 24)
        assert sections(checkpoint)["model"] == ("model", 4)
        names = [entry.name for entry in checkpoint.tensors]
        assert (
            "optimizer.chained_1.optimizer.state.exp_avg.decoder.final_layernorm.weight"
            in names
        )


def test_a_file_of_the_latest_iteration_names_it(tmp_path: Path) -> None:
    written.megatron(tmp_path, 10)
    written.megatron(tmp_path, 9)
    with formats.open(str(tmp_path)) as checkpoint:
        assert facts(checkpoint)["iteration"] == 9
        assert checkpoint.parts == (
            "iter_0000009/__0_0.distcp",
            "iter_0000009/common.pt",
        )


def test_torch_dist_without_its_common_file_is_named_too(tmp_path: Path) -> None:
    folder = written.megatron(tmp_path, common=False)
    with formats.open(str(folder)) as checkpoint:
        assert checkpoint.layout == "Megatron checkpoint, torch_dist"
        assert sections(checkpoint)["model"] == ("model", 4)
        assert checkpoint.not_loadable


def test_a_damaged_common_file_is_a_finding(megatron: Path) -> None:
    (megatron / "iter_0000010/common.pt").write_bytes(b"nothing")
    with formats.open(str(megatron)) as checkpoint:
        assert [notice.code for notice in checkpoint.account.notices] == [
            "damaged-file"
        ]
        assert (
            "iter_0000010/common.pt was not read"
            in checkpoint.account.notices[0].message
        )
        assert len(checkpoint.tensors) == 18


@pytest.mark.parametrize(
    "text",
    ["../iter_0000010", "1e5", "-1", "", "9" * 200, "release/../..", "\0", "ten"],
)
def test_the_file_of_the_latest_iteration_leads_nowhere_else(
    text: str, megatron: Path
) -> None:
    (megatron / "latest_checkpointed_iteration.txt").write_text(text)
    with pytest.raises(UnreadableError, match="is not the number of an iteration"):
        formats.open(str(megatron))


def test_an_iteration_that_is_not_there(megatron: Path) -> None:
    (megatron / "latest_checkpointed_iteration.txt").write_text("20")
    with pytest.raises(
        UnreadableError,
        match=r"names iter_0000020, .* \(the folder holds iter_0000010\)",
    ):
        formats.open(str(megatron))


def test_an_iteration_that_is_a_link_is_not_followed(megatron: Path) -> None:
    (megatron / "iter_0000010").rename(megatron.parent / "elsewhere")
    (megatron / "iter_0000010").symlink_to(megatron.parent / "elsewhere")
    with pytest.raises(UnreadableError, match="names iter_0000010, which is a link"):
        formats.open(str(megatron))


def test_the_zarr_backend_is_refused_by_name(tmp_path: Path) -> None:
    written.megatron(tmp_path)
    for path in (tmp_path / "iter_0000010").iterdir():
        path.unlink()
    (tmp_path / "iter_0000010/metadata.json").write_text('{"sharded_backend": "zarr"}')
    with pytest.raises(UnsupportedError, match="zarr backend"):
        formats.open(str(tmp_path))
    (tmp_path / "iter_0000010/metadata.json").unlink()
    with pytest.raises(UnreadableError, match="iter_0000010 holds no file of a rank"):
        formats.open(str(tmp_path))


@pytest.mark.parametrize(
    "command", ["inspect", "ls", "lint", "verify", "stats", "convert"]
)
@pytest.mark.parametrize("path", ["run", "run/iter_0000010"])
@pytest.mark.parametrize("has_document", [True, False])
def test_a_folder_of_zarr_is_refused_once_with_a_way_out(
    has_document: bool, path: str, command: str, tmp_path: Path
) -> None:
    data = tmp_path / "run/iter_0000010"
    (data / "decoder.weight").mkdir(parents=True)
    (data / "decoder.weight/.zarray").write_text("{}")
    (data / "decoder.weight/0.0").write_bytes(bytes(16))
    torch.save({"iteration": 10}, data / "common.pt")
    (tmp_path / "run/latest_checkpointed_iteration.txt").write_text("10")
    if has_document:
        (data / "metadata.json").write_text(
            '{"sharded_backend": "zarr", "sharded_backend_version": 1}'
        )
    done = run(
        command, path, *(("-o", "o.pth") if command == "convert" else ()), cwd=tmp_path
    )
    (line,) = [
        line for line in (done.out + done.err).decode().splitlines() if "zarr" in line
    ]
    assert done.code == 2 and line.endswith("--ckpt-convert-save DIR)"), done
    assert b"common.pt" not in done.out, "no file of it is one of its own"


def test_metadata_json_of_another_program_means_nothing(tmp_path: Path) -> None:
    folder = written.save(tmp_path / "step-1", {"model": {"w": torch.ones(2)}})
    (folder / "metadata.json").write_text('{"run": 1}')
    with formats.open(str(folder)) as checkpoint:
        assert (checkpoint.format, checkpoint.layout) == ("dcp", "")


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    written.classic(tmp_path, 2, 2)
    with formats.open(str(tmp_path)) as checkpoint:
        assert checkpoint.layout == "Megatron checkpoint, ranks side by side"
        kinds = sections(checkpoint)
        folders = [
            "mp_rank_00_000",
            "mp_rank_00_001",
            "mp_rank_01_000",
            "mp_rank_01_001",
        ]
        assert list(kinds) == [f"{name}.model" for name in folders]
        assert facts(checkpoint) | {"iteration": 10, "ranks": 4} == facts(checkpoint)
        assert facts(checkpoint)["mp_rank_01_000"] == "tensor 1, pipeline 0"
        assert checkpoint.parts[1] == "iter_0000010/mp_rank_00_001/model_optim_rng.pt"
        assert [member.checkpoint.nbytes for member in checkpoint.members] == [
            (tmp_path / name).stat().st_size for name in checkpoint.parts
        ]
    same(
        tmp_path,
        torch.load(tmp_path / checkpoint.parts[3], weights_only=False)["model"],
        f"{folders[3]}.model",
    )


def test_ranks_are_never_merged(tmp_path: Path) -> None:
    written.classic(tmp_path)
    with formats.open(str(tmp_path)) as checkpoint:
        for name in ("safetensors", "torch-zip"):
            traits = next(row.traits for row in formats.FORMATS if name == row.name)
            with pytest.raises(UsageError, match="2 files of ranks") as caught:
                convert(Survey(checkpoint), name, traits, Limits(), lambda entry: None)
            assert "name one: iter_0000010/mp_rank_00/model_optim_rng.pt, or" in str(
                caught.value.hint
            )
        assert Survey(checkpoint).load.expression is None


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = written.classic(tmp_path, 2, 2)
    shutil.rmtree(folder / "mp_rank_01_000")
    with formats.open(str(tmp_path)) as checkpoint:
        assert [notice.code for notice in checkpoint.account.notices] == ["incomplete"]
        assert (
            checkpoint.account.notices[0].message
            == "files of 1 of 4 ranks are missing: mp_rank_01_000"
        )
        assert "1 of 4 ranks" in judge_structure(checkpoint).problems[0].what


def test_the_file_of_the_only_rank_is_the_checkpoint(tmp_path: Path) -> None:
    folder = written.classic(tmp_path, 1)
    with formats.open(str(folder)) as checkpoint:
        assert checkpoint.path == str(folder / "mp_rank_00/model_optim_rng.pt")
        assert checkpoint.layout == "Megatron checkpoint"
        assert facts(checkpoint)["iteration"] == 10
        assert sections(checkpoint) == {"model": ("model", 2), "rng_state": ("rng", 0)}


def test_which_rank_a_folder_is_of() -> None:
    assert rank_of("mp_rank_03", experts=False) == "tensor 3"
    assert rank_of("mp_rank_03_012", experts=False) == "tensor 3, pipeline 12"
    assert rank_of("mp_rank_03_012", experts=True) == "tensor 3, expert 12"
    assert (
        rank_of("mp_rank_03_012_001", experts=True) == "tensor 3, pipeline 12, expert 1"
    )
    assert missing_ranks(["mp_rank_00", "mp_rank_01_001"], (2, 1)) == []
    assert missing_ranks(["mp_rank_00_000", "mp_rank_01_001"], (2, 2)) == [
        "mp_rank_00_001",
        "mp_rank_01_000",
    ]
    assert missing_ranks([], (10**9, 10**9)) == []  # a hostile number


# --- Lightning ------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", ".metadata", "__0_0.distcp"])
def test_each_path_into_a_folder_of_lightning_leads_to_it(
    inside: str, tmp_path: Path
) -> None:
    folder, weights = written.lightning(tmp_path / "last.ckpt")
    with formats.open(str(folder / inside)) as checkpoint:
        assert checkpoint.layout == "Lightning checkpoint, DCP"
        assert checkpoint.path == str(folder)
        assert facts(checkpoint) == {"epoch": 3, "step": 40}
        assert sections(checkpoint) == {
            "model": ("model", 7 + 2),
            "optimizer_0": ("optimizer", 18),
        }
        assert "meta.hyper_parameters.lr" in [value.name for value in checkpoint.values]
    same(folder, weights)


def test_meta_pt_of_another_program_is_not_called_lightning(tmp_path: Path) -> None:
    folder, _ = written.lightning(tmp_path / "a.ckpt")
    torch.save({"epoch": 1}, folder / "meta.pt")
    with formats.open(str(folder)) as checkpoint:
        assert checkpoint.layout == "DCP beside meta.pt"


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_beside_the_data_is_not_opened(
    kind: str, tmp_path: Path
) -> None:
    folder, _ = written.lightning(tmp_path / "a.ckpt")
    meta = folder / "meta.pt"
    meta.rename(tmp_path / "outside.pt")
    if kind == "link":
        meta.symlink_to(tmp_path / "outside.pt")
    elif kind == "fifo":
        os.mkfifo(meta)
    else:
        meta.mkdir()
    with formats.open(str(folder)) as checkpoint:
        assert checkpoint.format == "dcp"
        assert not [value for value in checkpoint.values if value.path[0] == "meta"]


def test_nothing_in_meta_pt_is_run(tmp_path: Path) -> None:
    folder, _ = written.lightning(tmp_path / "a.ckpt")
    marker = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(marker),)

    torch.save({"epoch": 1, "hyper_parameters": Hostile()}, folder / "meta.pt")
    with formats.open(str(folder)) as checkpoint:
        assert any(
            row.group == "called" and row.file == "meta.pt"
            for row in checkpoint.imports
        )
    assert not marker.exists()


def test_what_is_lost_of_the_data_is_said_of_the_folder(tmp_path: Path) -> None:
    folder, _ = written.lightning(tmp_path / "a.ckpt")
    (folder / "__0_0.distcp").unlink()
    with formats.open(str(folder)) as checkpoint:
        assert "incomplete" in {notice.code for notice in checkpoint.account.notices}
        assert {name.split(".")[0] for name, _ in checkpoint.account.left_out} == {
            "optimizer_0"
        }


# --- accelerate -----------------------------------------------------------------------


def test_a_folder_of_accelerate_is_one_checkpoint(tmp_path: Path) -> None:
    folder, (weights,) = written.accelerate(tmp_path / "state")
    with formats.open(str(folder)) as checkpoint:
        assert checkpoint.layout == "accelerate checkpoint"
        kinds = sections(checkpoint)
        assert (kinds["model"], kinds["optimizer"]) == (("model", 9), ("optimizer", 18))
        assert [member.file for member in checkpoint.members] == [
            "pytorch_model_fsdp_0/.metadata",
            "optimizer_0/.metadata",
            "scheduler.bin",
            "sampler.bin",
            "random_states_0.pkl",
            "random_states_1.pkl",
        ]
        (root,) = (row for row in checkpoint.containers if not row.path)
        assert (root.keys, root.first, root.last) == (("model", "optimizer"), 0, 27)
        load = Survey(checkpoint).load.expression
        assert load is not None and str(folder / "pytorch_model_fsdp_0") in load
        assert (
            judge_structure(checkpoint).checked[-1]
            == "the metadata and 2 data files agree"
        )
    same(folder, weights)


@pytest.mark.parametrize("inside", ["", ".metadata", "__0_0.distcp"])
def test_one_of_its_checkpoints_alone_says_what_lies_beside_it(
    inside: str, tmp_path: Path
) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    with formats.open(str(folder / "optimizer_0" / inside)) as checkpoint:
        assert checkpoint.path == str(folder / "optimizer_0")
        assert list(sections(checkpoint)) == ["optimizer"]
        said = "pytorch_model_fsdp_0/, random_states_*.pkl, sampler.bin, scheduler.bin"
        assert facts(checkpoint) == {"beside it": said}


def test_a_second_model_has_a_key_of_its_own(tmp_path: Path) -> None:
    folder, models = written.accelerate(tmp_path / "state", 2)
    with formats.open(str(folder)) as checkpoint:
        kinds = sections(checkpoint)
        assert (kinds["model"], kinds["model_1.model"]) == (("model", 9), ("model", 9))
        assert (kinds["optimizer"], kinds["optimizer_1.optimizer"]) == (
            ("optimizer", 18),
        ) * 2
        assert Survey(checkpoint).load.expression is None
    same(folder, models[0])
    same(folder, models[1], "model_1.model")


def test_an_optimizer_that_was_not_saved_whole_is_a_finding(tmp_path: Path) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    (folder / "optimizer_0/.metadata").unlink()
    with formats.open(str(folder)) as checkpoint:
        (notice,) = checkpoint.account.notices
        assert (
            notice.code == "damaged-file"
            and "optimizer_0/.metadata was not read" in notice.message
        )
        assert "model" in sections(checkpoint) and "optimizer" not in sections(
            checkpoint
        )
    (folder / "pytorch_model_fsdp_0/.metadata").unlink()
    with pytest.raises(UnreadableError, match="an interrupted save"):
        formats.open(str(folder))


def test_a_link_to_a_model_is_not_followed(tmp_path: Path) -> None:
    folder, _ = written.accelerate(tmp_path / "state")
    (folder / "pytorch_model_fsdp_0").rename(tmp_path / "elsewhere")
    (folder / "pytorch_model_fsdp_0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CkptError):
        formats.open(str(folder))


def test_weights_in_one_file_come_before_a_distributed_model(tmp_path: Path) -> None:
    folder, (weights,) = written.accelerate(tmp_path / "state")
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    with formats.open(str(folder)) as checkpoint:
        assert [notice.code for notice in checkpoint.account.notices] == ["unread-file"]
        assert [member.file for member in checkpoint.members][:2] == [
            "model.safetensors",
            "optimizer_0/.metadata",
        ]


# --- folders of steps -----------------------------------------------------------------


def test_a_folder_of_steps_names_the_newest(tmp_path: Path) -> None:
    folder = written.torchtitan(tmp_path / "checkpoint", (9, 10))
    with pytest.raises(
        FolderError,
        match=r"2 checkpoints: step-10, step-9 \(name one; the newest is step-10\)",
    ):
        formats.open(str(folder))
    (folder / "step-100").mkdir()
    (folder / "step-100/__0_0.distcp").write_bytes(b"cut")
    with pytest.raises(
        FolderError, match=r"newest complete is step-10; step-100 is not complete"
    ):
        formats.open(str(folder))
    shutil.rmtree(folder / "step-9")
    shutil.rmtree(folder / "step-100")
    with pytest.raises(FolderError, match=r"a directory around step-10"):
        formats.open(str(folder))


def test_a_folder_of_torchtune_names_the_newest_epoch(tmp_path: Path) -> None:
    for epoch in range(2):
        folder = tmp_path / f"epoch_{epoch}"
        folder.mkdir()
        safetensors.torch.save_file(
            {"w": torch.ones(2)}, folder / "model-00001-of-00001.safetensors"
        )
    written.folders_save(
        tmp_path / "recipe_state/recipe_state.pt", {"seed": 0, "epochs_run": 1}
    )
    with pytest.raises(FolderError, match=r"the newest is epoch_1"):
        formats.open(str(tmp_path))
    written.save(tmp_path / "dist_epoch_0", {"model": {"w": torch.ones(2)}})
    with formats.open(str(tmp_path / "dist_epoch_0")) as checkpoint:
        assert checkpoint.format == "dcp"


def test_who_searches_finds_each_of_them_once(tmp_path: Path) -> None:
    written.megatron(tmp_path / "a")
    written.classic(tmp_path / "b")
    written.lightning(tmp_path / "c.ckpt")
    written.accelerate(tmp_path / "d")
    written.torchtitan(tmp_path / "e")
    written.megatron(tmp_path / "f", common=False)
    names = [
        os.path.relpath(item.path, tmp_path)
        for item in found([str(tmp_path)])
        if not item.is_other
    ]
    assert names == ["a", "b", "c.ckpt", "d", "e/step-10", "e/step-20", "f"]

"""A folder is one checkpoint: which files it is made of, where their content goes, and
what damage does.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import opcodes as op
import oracle
import pytest
import safetensors.torch
import torch
from inside import inside

import ckpt
from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError, LimitError, NotOpenedError, UnreadableError
from ckpt.model.limits import Limits
from ckpt.tree.json import plain

pytestmark = oracle.QUIET


def opened(path: Path, limits: Limits | None = None) -> Checkpoint:
    with formats.open(str(path), limits) as checkpoint:
        return checkpoint


def sections(checkpoint: Checkpoint) -> dict[str, str]:
    return {part.name: part.kind for part in Survey(checkpoint).sections}


def value(path: Path, name: str) -> Any:
    with ckpt.open(path) as checkpoint:
        return checkpoint.value(name)


def loaded(checkpoint: Checkpoint) -> Any:
    """What the printed line gives, run as it stands."""
    expression = Survey(checkpoint).load.expression
    assert expression is not None
    return eval(expression, {"torch": torch, "safetensors": safetensors})


# --- layouts --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_checkpoint_of_the_trainer(name: str, tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "checkpoint-2", name=name)
    found = opened(folder)

    assert (found.path, found.format, found.layout) == (
        str(folder),
        "folder",
        "Hugging Face Trainer checkpoint",
    )
    assert sorted(found.parts) == sorted(path.name for path in folder.iterdir())
    assert sections(found) == {
        "": "model",
        "optimizer": "optimizer",
        "scheduler": "scheduler",
        "rng_state": "rng",
    }
    weights = folders.weights(folders.model())
    assert {entry.name for entry in found.tensors[: len(weights)]} == set(weights)
    assert value(folder, "trainer_state.global_step") == 2
    assert value(folder, "trainer_state.log_history.1.loss") == 0.5
    assert value(folder, "training_args.learning_rate") == 5e-05
    assert value(folder, "config.architectures") == ["NetForTest"]
    facts = {"step": 2, "epoch": 1.0, "best metric": 0.25, "architecture": "NetForTest"}
    assert dict(found.facts) == facts
    assert not [row.name for row in found.values if "log_history" in row.name], (
        "a row for each step"
    )


def test_states_of_several_ranks_and_a_scaler(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    (folder / "rng_state.pth").rename(folder / "rng_state_0.pth")
    torch.save(folders.rng(), folder / "rng_state_10.pth")
    torch.save({"scale": 2.0}, folder / "scaler.pt")
    assert sections(opened(folder)) == {
        "": "model",
        "optimizer": "optimizer",
        "scheduler": "scheduler",
        "scaler": "scaler",
        "rng_state_0": "rng",
        "rng_state_10": "rng",
    }


@pytest.mark.parametrize("safe", [True, False])
def test_a_state_of_accelerate(safe: bool, tmp_path: Path) -> None:
    one = opened(folders.accelerate(tmp_path / "one", safe=safe))
    assert one.layout == "accelerate checkpoint"
    assert sections(one) == {
        "": "model",
        "optimizer": "optimizer",
        "scheduler": "scheduler",
        "scaler": "scaler",
        "random_states_0": "rng",
    }
    assert value(tmp_path / "one", "custom_checkpoint_0.n") == 7

    two = opened(folders.accelerate(tmp_path / "two", models=2, safe=safe))
    stem = "model" if safe else "pytorch_model"
    kinds = {
        f"{stem}": "model",
        f"{stem}_1": "model",
        "optimizer": "optimizer",
        "optimizer_1": "optimizer",
    }
    assert kinds.items() <= sections(two).items()
    assert len({storage.id for storage in two.storages}) == len(two.storages)


def test_a_checkpoint_of_speechbrain(tmp_path: Path) -> None:
    folder = folders.speechbrain(tmp_path / "CKPT+2026")
    found = opened(folder)
    assert found.layout == "SpeechBrain checkpoint"
    assert sections(found) == {
        "enc": "model",
        "model": "model",
        "optimizer": "optimizer",
    }
    assert value(folder, "counter") == 1
    assert value(folder, "brain") == {
        "avg_train_loss": 0.5,
        "optimizer_step": 2,
        "step": 0,
    }
    assert value(folder, "CKPT") == {
        "end-of-epoch": True,
        "loss": 1.0,
        "unixtime": 1795337925.05,
    }


def test_an_adapter(tmp_path: Path) -> None:
    found = opened(folders.adapter(tmp_path / "lora"))
    assert found.layout == "PEFT adapter"
    assert dict(found.facts) == {
        "adapter": "LORA",
        "rank": 8,
        "alpha": 16,
        "base model": "org/base",
    }
    assert sections(found) == {"": "model"}
    found = opened(folders.adapter(tmp_path / "two", rank_pattern={"fc": 4}))
    assert dict(found.facts)["rank by default"] == 8 and "rank" not in dict(found.facts)
    torch.save(1, tmp_path / "lora" / "optimizer.pt")
    assert dict(opened(tmp_path / "lora").facts)["rank"] == 8, (
        "the Trainer saves adapters too"
    )


def test_a_pipeline_of_diffusers(tmp_path: Path) -> None:
    found = opened(folders.diffusers(tmp_path / "p"))
    assert found.layout == "diffusers pipeline"
    assert sections(found) == {"unet": "model", "text_encoder": "model"}
    assert dict(found.facts) == {"pipeline": "TestPipeline"}
    assert "unet/diffusion_pytorch_model-00001-of-00002.safetensors" in found.parts
    shutil.rmtree(tmp_path / "p" / "text_encoder")
    assert [entry.name for entry in opened(tmp_path / "p").tensors] == [
        "bias",
        "weight",
    ], "one model has no key"


@pytest.mark.parametrize(
    "name", ["diffusion_pytorch_model.bin", "diffusion_pytorch_model.fp16.safetensors"]
)
def test_a_single_file_of_diffusers(name: str, tmp_path: Path) -> None:
    folders.save(tmp_path / name, folders.weights(folders.model()))
    found = opened(tmp_path)
    assert found.path == str(tmp_path / name) and not found.members, (
        "a folder with one file is that file"
    )
    folders.save(tmp_path / "config.json", {"_class_name": "UNet2DModel"})
    assert dict(opened(tmp_path).facts) == {"class": "UNet2DModel"}


def test_modules_of_sentence_transformers(tmp_path: Path) -> None:
    found = opened(folders.sentence_transformers(tmp_path / "st"))
    assert sections(found) == {"0_Transformer": "model", "2_Dense": "model"}, (
        "a small model is one too"
    )
    found = opened(folders.sentence_transformers(tmp_path / "plain", dense=False))
    assert {entry.name for entry in found.tensors} == {"encoder.weight", "encoder.bias"}


def test_a_file_with_the_name_of_a_list_is_no_list(tmp_path: Path) -> None:
    folders.save(tmp_path / "model.safetensors", folders.weights(folders.model()))
    for content in ({"a": 1}, [], [1], [{"path": 1, "type": "x"}]):
        folders.save(tmp_path / "modules.json", content)
        assert opened(tmp_path).path.endswith("model.safetensors")


# --- how it loads ---------------------------------------------------------------------


MAKERS: dict[str, Callable[[Path], Path]] = {
    "trainer": folders.trainer,
    "trainer of pickles": lambda path: folders.trainer(path, name="pytorch_model.bin"),
    "accelerate": folders.accelerate,
    "two models": lambda path: folders.accelerate(path, models=2),
    "speechbrain": folders.speechbrain,
    "adapter": folders.adapter,
    "diffusers": folders.diffusers,
    "sentence-transformers": folders.sentence_transformers,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_line_that_loads_gives_the_weights(kind: str, tmp_path: Path) -> None:
    found = opened(MAKERS[kind](tmp_path / "f"))
    state = loaded(found)
    models = [part for part in Survey(found).sections if part.kind == "model"]
    names = [part.path[0] for part in models if part.path]
    if len(names) < 2:
        state = {names[0] if names else "": state}
    assert len(state) == len(models)
    for part in models:
        assert set(state[part.name]) == set(part.names())


def test_what_is_refused_says_its_file(tmp_path: Path) -> None:
    folders.trainer(tmp_path / "c")
    document = json.loads(inside("inspect", "c", "--json", cwd=tmp_path).out)
    said = {
        (row["code"], row["message"].split(" imports ")[0].split(":")[0])
        for row in document["findings"]
    }
    refuses = "weights_only=True refuses"
    assert said >= {
        ("unknown-import", "Loading training_args.bin"),
        ("weights-only", f"{refuses} rng_state.pth"),
        ("weights-only", f"{refuses} training_args.bin"),
    }
    assert {row["file"] for row in document["weights_only"]["reasons"]} == {
        "rng_state.pth",
        "training_args.bin",
    }
    assert (
        "for weights_only=True" not in inside("inspect", "c", cwd=tmp_path).out.decode()
    )  # the weights load
    assert all(
        row["where"][0].startswith("rng_state.")
        for row in document["weights_only"]["reasons"][:1]
    )
    row = next(row for row in document["imports"] if row["group"] == "unknown")
    assert (row["file"], row["where"]) == ("training_args.bin", ["training_args"])
    for finding in document["findings"]:
        if finding["code"] == "weights-only":
            words = shlex.split(finding["hint"])
            assert inside(*words[1:], cwd=tmp_path).code == 0
            torch.load(tmp_path / words[-1], weights_only=True)


# --- damage, and files that are not read ----------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"]
)
@pytest.mark.parametrize("damage", ["cut", "empty", "folder"])
def test_a_damaged_file_beside_the_weights_is_named(
    name: str, damage: str, tmp_path: Path
) -> None:
    folder = folders.trainer(tmp_path / "c")
    if damage == "cut":
        cut(folder / name)
    elif damage == "empty":
        (folder / name).write_bytes(b"")
    else:  # every command passed it over
        (folder / name).unlink()
        (folder / name).mkdir()
    found = opened(folder)
    (notice,) = found.account.notices
    assert notice.code == "damaged-file" and notice.message.startswith(
        f"{name} was not read: "
    )
    assert damage != "folder" or notice.message.endswith(": a folder, not a file")
    assert name not in found.parts and len(found.parts) == 6

    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 1 and done.lines[0].startswith(
        f"c: damaged: {name} was not read: "
    )
    done = inside("inspect", "c", "--fail-on", "damaged-file", cwd=tmp_path)
    assert done.code == 1 and any(
        line.startswith(f"! damaged-file  {name}") for line in done.lines
    )
    done = inside("slim", "c", "-o", "w.safetensors", cwd=tmp_path)
    assert done.code == 0 and name in done.complaints[0]
    assert any(
        line.startswith("left out: ") and f": {name} was not read: " in line
        for line in done.lines
    )
    assert not any("(unread)" in line for line in done.lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"]
)
def test_a_folder_with_a_damaged_file_is_the_same_as_no_other(
    name: str, tmp_path: Path
) -> None:
    """diff said same with exit code 0, and that the part is not in the folder; convert
    left it out with exit code 0.
    """
    folders.trainer(tmp_path / "a")
    folders.trainer(tmp_path / "b")
    assert inside("diff", "a", "b", "-q", cwd=tmp_path).code == 0
    cut(tmp_path / "b" / name)

    for sides in (("a", "b"), ("b", "a"), ("b", "b")):
        done = inside("diff", *sides, cwd=tmp_path)
        assert (
            done.code == 2 and f"is lost: {name} was not read: " in done.complaints[-1]
        ), done
        assert "not in the other file" not in done.out.decode()
        assert inside("diff", *sides, "-q", cwd=tmp_path).code == 2
        report = json.loads(inside("diff", *sides, "--json", cwd=tmp_path).out)
        assert report["same"] is False
    done = inside("convert", "b", "-o", "c.pth", cwd=tmp_path)
    assert done.code == 1 and any(
        f": {name} was not read: " in line for line in done.lines
    )
    assert inside("convert", "b", "-o", "d.pth", "-q", cwd=tmp_path).code == 1
    assert inside("convert", "a", "-o", "e.pth", "-q", cwd=tmp_path).code == 0
    assert (
        inside("slim", "b", "-o", "f.pth", "-q", cwd=tmp_path).code == 0
    )  # the weights are whole


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "training_args.bin"])
def test_all_of_a_folder_with_a_damaged_file_is_not_at_hand(
    name: str, tmp_path: Path
) -> None:
    """stats and sum ended with exit code 0, as if the part were not there. The model
    alone is whole.
    """
    folder = folders.trainer(tmp_path / "c")
    for command in ("stats", "sum"):
        assert inside(command, "c", "--all", "-q", cwd=tmp_path).code == 0
    cut(folder / name)
    part = ckpt.open(folder).checkpoint.account.left_out[0][0]

    for command, what in (("stats", "measured"), ("sum", "read")):
        done = inside(command, "c", "--all", cwd=tmp_path)
        assert done.code == 2 and done.lines, done
        assert done.complaints[-1].startswith(
            f"ckpt: c: not {what}: {part}: {name} was not read: "
        ), done
        assert inside(command, "c", "--all", "-q", cwd=tmp_path).code == 2
        document = json.loads(inside(command, "c", "--all", "--json", cwd=tmp_path).out)
        (found,) = document["unread"]
        assert (found if command == "stats" else found["name"]) == part
        other = "rng_state" if name == "optimizer.pt" else "optimizer"
        assert inside(command, "c", "--section", other, "-q", cwd=tmp_path).code == 0
        model = inside(command, "c", cwd=tmp_path)
        assert (
            model.code == 0
            and name in model.complaints[0]
            and len(model.complaints) == 1
        )
        assert "unread" not in json.loads(
            inside("stats", "c", "--json", cwd=tmp_path).out
        )


def test_another_part_is_whole_without_the_damaged_file(tmp_path: Path) -> None:
    folder = folders.accelerate(tmp_path / "c")
    torch.save({"table": torch.ones(3, 4)}, folder / "custom_checkpoint_0.pkl")
    cut(folder / "optimizer.bin")
    for command in ("stats", "sum"):
        assert (
            inside(
                command, "c", "--section", "custom_checkpoint_0", "-q", cwd=tmp_path
            ).code
            == 0
        )
        assert inside(command, "c", "--all", "-q", cwd=tmp_path).code == 2


@pytest.mark.parametrize(
    "view", ["--tsv", "--table=github", "--values", "--bars", None, "--json"]
)
def test_a_view_without_findings_says_what_was_not_read(
    view: str | None, tmp_path: Path
) -> None:
    folder = folders.trainer(tmp_path / "c")
    cut(folder / "rng_state.pth")
    done = inside("inspect", "c", *([view] if view else []), cwd=tmp_path)
    assert done.code == 0 and len(done.complaints) == (view not in (None, "--json")), (
        done
    )
    assert b"rng_state.pth was not read: " in (done.err or done.out)


def test_damaged_weights_make_the_folder_unreadable(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    cut(folder / "model.safetensors")
    with pytest.raises(UnreadableError) as raised:
        opened(folder)
    assert raised.value.path == str(folder / "model.safetensors")
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 1 and done.lines[0].startswith(
        "c: damaged: model.safetensors: cut off"
    )
    assert "lost: " in done.lines[0]
    done = inside("verify", "c/model.safetensors", cwd=tmp_path)
    assert done.lines[0].startswith("c/model.safetensors: damaged: cut off")


def test_a_damaged_part_of_a_pipeline_is_named(tmp_path: Path) -> None:
    folder = folders.diffusers(tmp_path / "p")
    cut(folder / "text_encoder" / "model.safetensors")
    done = inside("verify", "p", cwd=tmp_path)
    assert done.code == 1 and done.lines[0].startswith(
        "p: damaged: text_encoder/model.safetensors: cut off"
    )


def test_values_that_changed_on_the_disk_are_found_with_their_file(
    tmp_path: Path,
) -> None:
    folder = folders.accelerate(tmp_path / "c")
    path = folder / "optimizer.bin"
    data = bytearray(path.read_bytes())
    with formats.open(str(path)) as checkpoint:
        storage = checkpoint.storages[3]
        tensor = next(e.name for e in checkpoint.tensors if e.tensor.storage is storage)  # type: ignore[union-attr]
        data[storage.place.offset] ^= 1  # type: ignore[union-attr]
    path.write_bytes(data)
    done = inside("verify", "c", cwd=tmp_path)
    assert done.code == 1
    assert done.lines[0].startswith("c: damaged: optimizer.bin: record ")
    assert done.lines[0].endswith(
        f"27 of 28 tensors are whole, lost: optimizer.{tensor}"
    )


def test_no_word_of_an_index_where_there_is_none(tmp_path: Path) -> None:
    folders.trainer(tmp_path / "c")
    text = inside("verify", "c", cwd=tmp_path).lines[0]
    assert text.startswith("c: intact: ") and "7 files" in text and "index" not in text
    folders.diffusers(tmp_path / "p")
    assert "index and shards agree" in inside("verify", "p", cwd=tmp_path).lines[0]


def test_the_size_in_the_index_is_that_of_the_weights_alone(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    size = sum(value.nbytes for value in folders.weights(folders.model()).values())
    (folder / "model.safetensors").rename(folder / "m-1.safetensors")
    names = list(folders.weights(folders.model()))
    index = {
        "metadata": {"total_size": size},
        "weight_map": dict.fromkeys(names, "m-1.safetensors"),
    }
    folders.save(folder / "model.safetensors.index.json", index)
    assert "total_size" not in inside("verify", "c", cwd=tmp_path).lines[0]
    index["metadata"] = {"total_size": 1}
    folders.save(folder / "model.safetensors.index.json", index)
    assert (
        "total_size of the index (1 bytes"
        in inside("verify", "c", cwd=tmp_path).lines[0]
    )


def test_a_limit_is_an_error_and_no_damage(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    with pytest.raises(LimitError):
        opened(folder, Limits(operations=100))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_no_damage(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    (folder / "optimizer.pt").chmod(0)
    with pytest.raises(NotOpenedError):
        opened(folder)


def test_links_to_files_are_followed_and_links_to_folders_are_not(
    tmp_path: Path,
) -> None:
    folder = folders.trainer(tmp_path / "c")
    (folder / "optimizer.pt").rename(tmp_path / "blob")
    (folder / "optimizer.pt").symlink_to("../blob")
    assert "optimizer.pt" in opened(folder).parts

    pipeline = folders.diffusers(tmp_path / "p")
    (pipeline / "unet").rename(tmp_path / "elsewhere")
    (pipeline / "unet").symlink_to("../elsewhere")
    with pytest.raises(
        CkptError, match="unet is a link: no link in this folder is followed"
    ):
        opened(pipeline)


@pytest.mark.parametrize("path", ["../up", "/etc", "a/b", "..", "a\\b"])
def test_no_name_leads_out_of_the_folder(path: str, tmp_path: Path) -> None:
    folders.save(tmp_path / "up" / "model.safetensors", {"a.weight": torch.ones(1)})
    folder = folders.sentence_transformers(tmp_path / "st")
    folders.save(folder / "modules.json", [{"path": path, "type": "x.Transformer"}])
    with pytest.raises(UnreadableError, match="which is not a folder beside it"):
        opened(folder)
    folder = folders.diffusers(tmp_path / "p")
    folders.save(
        folder / "model_index.json", {path: ["a", "b"], "text_encoder": ["a", "b"]}
    )
    assert [part.partition("/")[0] for part in opened(folder).parts] == [
        "text_encoder",
        "model_index.json",
    ]


def test_two_files_of_one_key_are_read_once(tmp_path: Path) -> None:
    folder = folders.trainer(tmp_path / "c")
    shutil.copy(folder / "optimizer.pt", folder / "optimizer.bin")
    found = opened(folder)
    assert "optimizer.bin" not in found.parts
    assert [(row.code, row.message) for row in found.account.notices] == [
        ("unread-file", "optimizer.bin is beside optimizer.pt and was not read")
    ]


@pytest.mark.parametrize("what", ["module", "keys"])
def test_weights_that_are_not_names_and_tensors_get_a_key(
    what: str, tmp_path: Path
) -> None:
    folder = folders.accelerate(tmp_path / "c", safe=False)
    net = folders.model()
    thing: Any = (
        net
        if what == "module"
        else {"state_dict": net.state_dict(), "optimizer": {"lr": 1}}
    )
    torch.save(thing, folder / "pytorch_model.bin")
    found = opened(folder)
    names = {str(entry.path[0]) for entry in found.tensors}
    assert "model" in names and found.tensors
    if what == "keys":
        assert value(folder, "model.optimizer.lr") == 1
        assert set(loaded(found)) == set(net.state_dict())


def test_a_folder_of_several_checkpoints_is_a_question(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        torch.save(folders.weights(folders.model()), tmp_path / name)
    with pytest.raises(
        CkptError, match=r"it holds 2 checkpoint files \(name one, such as \S+/a.pth\)"
    ):
        opened(tmp_path)


def test_nothing_but_damage_is_unreadable(tmp_path: Path) -> None:
    folder = folders.speechbrain(tmp_path / "c")
    for path in folder.glob("*.ckpt"):
        path.write_bytes(b"")
    with pytest.raises(
        UnreadableError, match=r"brain\.ckpt was not read: an empty file"
    ):
        opened(folder)


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    """Python writes NaN into the state of a run that diverged."""
    folder = folders.trainer(tmp_path / "c")
    (folder / "trainer_state.json").write_text(
        '{"global_step": 3, "best_metric": NaN, "worst": -Infinity}'
    )
    found = opened(folder)
    assert not found.account.notices
    with formats.open(str(folder)) as checkpoint:
        assert plain(checkpoint.root) is not None
    assert math.isnan(value(folder, "trainer_state.best_metric"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("random_states_0.pkl", "  loads   Take the weights alone:"),
        (
            "scheduler.pt",
            "  loads   weights_only refuses posix.system at scheduler.e. Take the "
            "weights alone:",
        ),
    ],
)
def test_weights_beside_a_file_that_runs_code_need_no_trust(
    name: str, says: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    safetensors.torch.save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    (folder / "trainer_state.json").write_text('{"global_step": 5}')
    call = op.call(op.glob("posix", "system"), "true")
    if name.endswith(".pkl"):
        (folder / name).write_bytes(op.pickled(call))
    else:
        (folder / name).write_bytes(op.torch_zip(op.pickled(op.mapping([("e", call)]))))
    lines = inside("inspect", "run", cwd=tmp_path).lines
    assert says in lines
    at = lines.index("          or its tensors alone:")
    assert (
        lines[at + 1].strip() == 'safetensors.torch.load_file("run/model.safetensors")'
    )
    assert not any("trust its author" in line for line in lines)

"""Messages and files that people bring. Each answer is the one that the person needs,
and says nothing that is false.
"""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import sys
import types
from collections import OrderedDict
from pathlib import Path

import numpy as np
import oracle
import pytest
import rewriting
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered
from process import ROOT, check_error, ckpt
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)


WEIGHTS = OrderedDict(Net().state_dict())


# --- torch.load gave something else ---------------------------------------------------


def training(path: Path) -> Path:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net.fc(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    data = {"epoch": 3, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
    return rewriting.saved(data, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attribute", ["eval", "to", "cuda", "forward", "parameters", "state_dict"]
)
def test_a_state_dict_is_taken_for_a_model(attribute: str, tmp_path: Path) -> None:
    text = (
        "AttributeError: 'collections.OrderedDict' object has no attribute "
        f"'{attribute}'"
    )
    found = Answered(text, rewriting.saved(WEIGHTS, tmp_path / "weights.pth"))

    assert found.kind == "attribute" and found.code == 0
    assert found.said.startswith(
        "This file is a state dict of 2 tensors: the weights by their names, and no "
        "module."
    )
    assert found.commands == [
        'model.load_state_dict(torch.load("weights.pth", map_location="cpu"))'
    ]


def test_a_training_checkpoint_is_taken_for_a_model(tmp_path: Path) -> None:
    found = Answered(
        "AttributeError: 'dict' object has no attribute 'eval'",
        training(tmp_path / "t.pth"),
    )

    assert (
        "a dict of epoch, model and optimizer, and the weights are in model"
        in found.said
    )
    assert found.commands == [
        'model.load_state_dict(torch.load("t.pth", map_location="cpu")["model"])'
    ]


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "net"])
def test_a_key_that_is_not_there(key: str, tmp_path: Path) -> None:
    found = Answered(f"KeyError: '{key}'", training(tmp_path / "t.pth"))

    keys = f"The keys of this file are epoch, model and optimizer, and none is {key}."
    assert f"{keys} The weights are in model." in found.said
    assert set(found.loaded()) == set(WEIGHTS)


def test_a_key_of_a_training_checkpoint_and_weights_alone(tmp_path: Path) -> None:
    found = Answered("KeyError: 'epoch'", rewriting.saved(WEIGHTS, tmp_path / "w.pth"))

    assert (
        "weights alone, by their names at its root: no epoch and no optimizer is in it"
        in found.said
    )


def test_a_key_that_is_there_is_said_to_be_there(tmp_path: Path) -> None:
    found = Answered("KeyError: 'epoch'", training(tmp_path / "t.pth"))

    assert found.said.startswith("This file has the key epoch at its root")


def test_a_module_for_load_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "module.pth"
    torch.save(Net(), path)

    found = Answered(
        "TypeError: Expected state_dict to be dict-like, got <class '__main__.Net'>.",
        path,
    )

    assert "pass module.state_dict()" in found.said
    assert set(torch.load(found.run("ckpt slim"), weights_only=True)) == set(WEIGHTS)


def test_lightning_resumes_from_weights(tmp_path: Path) -> None:
    text = (
        "KeyError: 'Trying to restore optimizer state but checkpoint contains only the "
        "model. This is probably due to `ModelCheckpoint.save_weights_only` being set "
        "to `True`.'"
    )
    path = rewriting.saved(WEIGHTS, tmp_path / "w.pth")
    assert Answered(text, path).said.startswith("This file holds no optimizer.")
    assert (
        "an optimizer, in optimizer"
        in Answered(text, training(tmp_path / "t.pth")).said
    )
    assert (
        "Lightning did not write this file"
        in Answered("KeyError: 'pytorch-lightning_version'", path).said
    )


def test_a_module_that_an_older_version_pickled(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    del module[1].__dict__["approximate"]
    path = tmp_path / "old.pth"
    torch.save(module, path)

    found = Answered(
        "AttributeError: 'GELU' object has no attribute 'approximate'", path
    )

    assert "pickled objects of GELU without approximate: 1" in found.said
    assert set(torch.load(found.run("ckpt slim"), weights_only=True)) == {
        "0.weight",
        "0.bias",
    }
    assert "has approximate" not in found.said


@pytest.mark.parametrize(
    ("name", "has"), [("betas", True), ("momentum", False), ("square_avg", False)]
)
def test_an_optimizer_of_another_kind(name: str, has: bool, tmp_path: Path) -> None:
    found = Answered(f"KeyError: '{name}'", training(tmp_path / "t.pth"))

    assert "Adam" in found.said
    assert ("another file was loaded" in found.said) is has
    assert (f"and no {name}" in found.said) is not has


def test_arguments_that_a_module_of_lightning_lacks(tmp_path: Path) -> None:
    text = "TypeError: Net.__init__() missing 1 required positional argument: 'hidden'"
    bare = rewriting.saved({"state_dict": WEIGHTS, "epoch": 1}, tmp_path / "bare.ckpt")
    full = {"state_dict": WEIGHTS, "hyper_parameters": {"lr": 0.1, "depth": 3}}

    assert "no hyper_parameters" in Answered(text, bare).said
    said = Answered(text, rewriting.saved(full, tmp_path / "full.ckpt")).said
    assert "2 arguments under hyper_parameters: lr, depth" in said


# --- readers --------------------------------------------------------------------------

JIT = (
    "RuntimeError: PytorchStreamReader failed locating file constants.pkl: file not "
    "found"
)


def test_a_state_dict_for_torch_jit_load(tmp_path: Path) -> None:
    path = rewriting.saved(WEIGHTS, tmp_path / "best.pt")
    with pytest.raises(RuntimeError, match=re.escape("constants.pkl")):
        torch.jit.load(path)

    found = Answered(JIT, path)

    assert found.said.startswith(
        "This file is whole. It is no TorchScript program: it holds a state dict"
    )
    for word in ("LFS", "download", "copy that failed"):
        assert word not in found.page
    assert set(found.loaded()) == set(WEIGHTS)
    assert (
        "a dict of epoch, model and optimizer"
        in Answered(JIT, training(tmp_path / "t.pt")).said
    )


def test_a_program_for_torch_jit_load(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "program.pt")

    found = Answered(JIT, tmp_path / "program.pt")

    assert "is a TorchScript program, which torch.jit.load takes" in found.said
    assert "state dict" not in found.said


@pytest.mark.parametrize(
    "text",
    [
        (
            "RuntimeError: ./zip.pth is a zip archive (did you mean to use "
            "torch.jit.load()?)"
        ),
        "RuntimeError: version_ <= kMaxSupportedFileFormatVersion INTERNAL ASSERT "
        "FAILED. Attempted to read a PyTorch file with version 3, but the maximum "
        "supported version for reading is 2. Your PyTorch installation may be too old.",
    ],
)
def test_a_torch_that_is_too_old(text: str, tmp_path: Path) -> None:
    found = Answered(text, rewriting.saved(dict(WEIGHTS), tmp_path / "zip.pth"))

    assert "the format of torch 1.6 and newer" in found.said
    written = found.run("ckpt convert")
    assert not written.read_bytes().startswith(b"PK")
    assert torch.equal(
        torch.load(written, weights_only=True)["fc.weight"], WEIGHTS["fc.weight"]
    )


def test_mmap_of_a_legacy_file(tmp_path: Path) -> None:
    path = tmp_path / "legacy.pth"
    torch.save(dict(WEIGHTS), path, _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError) as caught:
        torch.load(path, mmap=True)

    found = Answered(f"RuntimeError: {caught.value}", path)

    assert set(torch.load(found.run("ckpt convert"), mmap=True)) == set(WEIGHTS)
    zipped = rewriting.saved(dict(WEIGHTS), tmp_path / "zip.pth")
    assert (
        "Another file was loaded"
        in Answered(f"RuntimeError: {caught.value}", zipped).said
    )


def test_numpy_of_another_version(tmp_path: Path) -> None:
    thing = {"model": WEIGHTS, "best": np.float64(0.9), "curve": np.arange(4.0)}
    found = Answered(
        "ModuleNotFoundError: No module named 'numpy._core'",
        rewriting.saved(thing, tmp_path / "n.pth"),
    )

    assert found.kind == "numpy" and "at best, curve" in found.said
    assert "whole pickled model" not in found.page
    assert torch.load(found.run("ckpt convert"), weights_only=True)["best"] == 0.9


def test_a_path_of_another_system(tmp_path: Path) -> None:
    thing = {"model": WEIGHTS, "opt": {"save_dir": pathlib.PosixPath("runs/exp")}}
    path = rewriting.saved(thing, tmp_path / "p.pth")

    found = Answered(
        "NotImplementedError: cannot instantiate 'PosixPath' on your system", path
    )

    assert "PosixPath at opt.save_dir. Windows cannot make a PosixPath." in found.said
    assert (
        torch.load(found.run("ckpt convert"), weights_only=True)["opt"]["save_dir"]
        == "runs/exp"
    )


def test_a_tensor_that_a_newer_torch_rebuilds(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.note = "x"  # type: ignore[attr-defined]
    path = rewriting.saved({"a": parameter}, tmp_path / "p.pth")
    text = (
        "AttributeError: Can't get attribute '_rebuild_parameter_with_state' on "
        "<module 'torch._utils' from '/x/_utils.py'>"
    )

    found = Answered(text, path)

    assert "The file calls torch._utils._rebuild_parameter_with_state" in found.said
    assert (
        "another file was loaded"
        in Answered(text, rewriting.saved(WEIGHTS, tmp_path / "w.pth")).said
    )


def test_transformers_wants_a_newer_torch(tmp_path: Path) -> None:
    text = (
        "ValueError: Due to a serious vulnerability issue in `torch.load`, even with "
        "`weights_only=True`, we now require users to upgrade torch to at least v2.6 "
        "in order to use the function."
    )
    found = Answered(
        text, rewriting.saved(dict(WEIGHTS), tmp_path / "pytorch_model.bin")
    )

    assert set(load_file(found.run("ckpt convert"))) == set(WEIGHTS)


def test_a_class_of_another_version_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "ultralytics",
        "ultralytics.nn",
        "ultralytics.nn.modules",
        "ultralytics.nn.modules.block",
    ):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    block = type("C3k2", (nn.Module,), {"__module__": "ultralytics.nn.modules.block"})
    sys.modules["ultralytics.nn.modules.block"].C3k2 = block  # type: ignore[attr-defined]
    module = nn.Sequential(block(), nn.Linear(2, 2))
    path = rewriting.saved(
        {"model": module, "version": "8.3.0", "date": "2024-10-01"},
        tmp_path / "yolo.pt",
    )
    text = (
        "AttributeError: Can't get attribute 'C3k2' on <module "
        "'ultralytics.nn.modules.block' from '/x/ultralytics/nn/modules/block.py'>"
    )

    found = Answered(text, path)

    assert (
        "is installed and lacks this name: another version of ultralytics wrote "
        "the file"
    ) in found.said
    assert "The file says version = 8.3.0" in found.said
    assert "pip install -U ultralytics" in found.commands
    missing = Answered("ModuleNotFoundError: No module named 'ultralytics'", path)
    assert "another version" not in missing.said


# --- safetensors, folders -------------------------------------------------------------

HEADERS = [
    (
        "safetensors_rust.SafetensorError: Error while deserializing header: "
        "HeaderTooLarge"
    ),
    (
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing: "
        "header too large"
    ),
]


@pytest.mark.parametrize("text", HEADERS)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"<!DOCTYPE html>\n<html><head><title>Login</title></head></html>\n",
            "an HTML page",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:"
            + b"4d" * 32
            + b"\nsize 12345\n",
            "Git LFS pointer",
        ),
        (b'{"detail": "not found"}\n', "JSON"),
    ],
)
def test_a_header_that_is_none(
    text: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    found = Answered(text, path)

    assert found.code == 0 and said in found.said


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_under_the_name_of_safetensors(is_zip: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    torch.save(dict(WEIGHTS), path, _use_new_zipfile_serialization=is_zip)

    found = Answered(HEADERS[0], path)

    assert "This file is no safetensors: its format is PyTorch" in found.said
    assert set(load_file(found.run("ckpt convert"))) == set(WEIGHTS)


def test_safetensors_that_are_cut_off_and_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(16, 16)}, path)
    text = (
        "SafetensorError: Error while deserializing header: incomplete metadata, file "
        "not fully covered"
    )
    whole = Answered(text, path)
    assert whole.said.startswith("ckpt reads this file to its end") and set(
        whole.loaded()
    ) == {"a"}

    path.write_bytes(path.read_bytes()[:-500])

    assert "Cut off" in Answered(text, path).said


def test_metadata_without_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2)}, path)
    text = (
        "OSError: The safetensors archive passed at model.safetensors does not contain "
        "the valid metadata. Make sure you save your model with the `save_pretrained` "
        "method."
    )

    found = Answered(text, path)

    assert "has no format" in found.said
    (line,) = [command for command in found.commands if "save_file" in command]
    monkeypatch.chdir(tmp_path)
    exec(line)
    assert b'"format":"pt"' in path.read_bytes() and set(load_file(path)) == {"a"}


@pytest.mark.parametrize(
    "text",
    [
        "IsADirectoryError: [Errno 21] Is a directory: 'step-10'",
        "PermissionError: [Errno 13] Permission denied: 'step-10'",
    ],
)
def test_a_folder_for_torch_load(text: str, tmp_path: Path) -> None:
    dcp.save({"model": dict(WEIGHTS)}, checkpoint_id=tmp_path / "step-10", no_dist=True)

    found = Answered(text, tmp_path / "step-10")

    assert "torch.load reads one file, and not a folder" in found.said
    assert set(
        torch.load(found.run("ckpt convert"), weights_only=True)["model"]
    ) == set(WEIGHTS)


def test_a_pickle_loader_for_a_file_of_torch(tmp_path: Path) -> None:
    text = (
        "_pickle.UnpicklingError: A load persistent id instruction was encountered,\n"
        "but no persistent_load function was specified."
    )

    found = Answered(text, rewriting.saved(WEIGHTS, tmp_path / "w.pth"))

    assert "pickle.load does not read this file" in found.said
    assert set(found.loaded()) == set(WEIGHTS)


def test_damage_is_read_and_not_believed(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"a": torch.ones(4000), "b": torch.ones(3)}, tmp_path / "w.pth"
    )
    text = (
        "RuntimeError: PytorchStreamReader failed reading file data/0: file read failed"
    )
    whole = Answered(text, path)
    assert (
        "This file is whole (PyTorch zip; 2 tensors, all checksums match)" in whole.said
    )
    content = bytearray(path.read_bytes())
    content[content.index(np.ones(8, np.float32).tobytes()) + 100] ^= 1
    path.write_bytes(content)

    found = Answered(text, path)

    assert "a" in found.names and "whole" not in found.said.partition(".")[0]


# --- saving ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        (
            "RuntimeError: [enforce fail at inline_container.cc:659] . unexpected pos "
            "2387758464 vs 2387758376"
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:857] . "
            "PytorchStreamWriter failed writing file data/37: file write failed"
        ),
        "OSError: [Errno 28] No space left on device",
    ],
)
def test_a_save_that_failed(text: str, tmp_path: Path) -> None:
    found = Answered(text, rewriting.saved(WEIGHTS, tmp_path / "w.pth"))

    assert found.kind == "saving" and "This file is whole" in found.said
    assert not re.search("LFS|web page|download|reads this file to its end", found.page)


def test_tied_weights_for_safetensors(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    tied = {"emb.weight": weight, "lm_head.weight": weight}
    with pytest.raises(RuntimeError) as caught:
        save_file(tied, tmp_path / "x.safetensors")

    found = Answered(
        f"RuntimeError: {caught.value}", rewriting.saved(tied, tmp_path / "tied.pth")
    )

    assert (
        "2 tensors of this file share memory: emb.weight, lm_head.weight" in found.said
    )
    assert torch.equal(load_file(found.run("ckpt convert"))["emb.weight"], weight)


# --- keys, in the words of each loader ------------------------------------------------


def keys_text(missing: list[str], unexpected: list[str]) -> str:
    quoted = [
        ", ".join(f'"{name}"' for name in names) for names in (missing, unexpected)
    ]
    return (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in "
        f"state_dict: {quoted[0]}. \n\tUnexpected key(s) in state_dict: {quoted[1]}. "
    )


LOGS = {
    "as it is": lambda text: text,
    "on one line": lambda text: " ".join(text.split()),
    "JSON": lambda text: json.dumps({"log": text, "stream": "stderr"}),
    "times": lambda text: "\n".join(
        f"2024-03-05 10:32:45,071 - train - ERROR - {line}" for line in text.split("\n")
    ),
    "Kubernetes": lambda text: "\n".join(
        f"2024-03-05T10:32:45.071Z stderr F {line}" for line in text.split("\n")
    ),
    "ranks": lambda text: "\n".join(f"[rank1]: {line}" for line in text.split("\n")),
    "compose": lambda text: "\n".join(
        f"trainer-1  | {line}" for line in text.split("\n")
    ),
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
    "HTML": lambda text: text.replace('"', "&quot;"),
    "60 columns": lambda text: "\n".join(
        line[at : at + 60]
        for line in text.split("\n")
        for at in range(0, len(line), 60)
    ),
    "curly quotes": lambda text: re.sub('"([^"]+)"', r"“\1”", text),
}


@pytest.mark.slow
@pytest.mark.parametrize("log", LOGS)
def test_a_log_is_read_like_the_message(log: str, tmp_path: Path) -> None:
    data = {
        "epoch": 3,
        "global_step": 100,
        "state_dict": dict(WEIGHTS),
        "callbacks": {},
    }
    path = rewriting.saved(data, tmp_path / "l.ckpt")
    text = keys_text(list(WEIGHTS), list(data))

    found = Answered(LOGS[log](text), path)

    assert found.said == (
        "The whole checkpoint was loaded into the model. The weights are in "
        "state_dict, which has 2 of the 2 missing keys."
    )
    assert set(found.loaded()) == set(WEIGHTS)


def folder_of(tensors: dict[str, torch.Tensor], path: Path) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(
        json.dumps({"architectures": ["BertForSequenceClassification"]})
    )
    return path


BODY = {
    "bert.embeddings.word_embeddings.weight": torch.ones(30, 8),
    "bert.encoder.layer.0.output.dense.weight": torch.ones(8, 16),
    "bert.encoder.layer.1.output.dense.weight": torch.ones(8, 16),
}


def table(*rows: tuple[str, str, str]) -> str:
    title = "[transformers] \x1b[1mBertModel LOAD REPORT\x1b[0m from: ./x\n"
    lines = "".join(
        f"{name:60} | \x1b[31m{status}\x1b[0m | {more}\n" for name, status, more in rows
    )
    return (
        f"{title}{'Key':60} | Status     | \n{'-' * 60}-+-----------+-\n{lines}\n"
        "Notes:\n- MISSING:\tnewly initialized.\n"
    )


def test_the_table_of_transformers_5(tmp_path: Path) -> None:
    wrapped = folder_of(
        {f"module.{name}": value for name, value in BODY.items()}, tmp_path / "ddp"
    )
    folded = "bert.encoder.layer.{0, 1}.output.dense.weight"
    rows = [(f"module.{name}", "UNEXPECTED", "") for name in (next(iter(BODY)), folded)]
    rows += [(name, "MISSING", "") for name in (next(iter(BODY)), folded)]

    found = Answered(table(*rows), wrapped)

    assert (
        found.said == "3 of the 3 missing keys are there by other names: module.* → *."
    )
    assert set(load_file(found.run("ckpt slim") / "model.safetensors")) == set(BODY)


@pytest.mark.parametrize(
    "text",
    [
        table(("classifier.weight", "MISSING", ""), ("classifier.bias", "MISSING", "")),
        "Some weights of BertForSequenceClassification were not initialized from the "
        "model checkpoint at ./head and are newly initialized: ['classifier.bias', "
        "'classifier.weight']\nYou should probably TRAIN this model on a down-stream "
        "task.",
        "Missing keys (classifier.weight, classifier.bias) discovered while loading "
        "pretrained weights. This is expected if model is being adapted.",
        (
            "_IncompatibleKeys(missing_keys=['classifier.weight', 'classifier.bias'], "
            "unexpected_keys=[])"
        ),
    ],
)
def test_a_head_that_a_base_model_does_not_have(text: str, tmp_path: Path) -> None:
    found = Answered(text, folder_of(BODY, tmp_path / "head"))

    assert set(found.names) == {"classifier.weight", "classifier.bias"}
    assert "They are the head for a task" in found.said and "expected" in found.said


@pytest.mark.parametrize(
    "text",
    [
        table(
            (
                "lm_head.weight",
                "MISMATCH",
                (
                    "Reinit due to size mismatch - ckpt: torch.Size([70, 16]) vs "
                    "model:torch.Size([64, 16])"
                ),
            )
        ),
        (
            "- lm_head.weight: found shape torch.Size([70, 16]) in the checkpoint and "
            "torch.Size([64, 16]) in the model instantiated"
        ),
        "size mismatch for lm_head.weight: copying a param with shape torch.Size([70, "
        "16]) from checkpoint, the shape in current model is torch.Size([64, 16]).",
        "ValueError: Trying to set a tensor of shape torch.Size([70, 16]) in "
        '"lm_head.weight" (which has shape'
        " torch.Size([64, 16])), this looks incorrect.",
        "ValueError: Cannot load ./x  because lm_head.weight expected shape "
        "torch.Size([64, 16]), but got torch.Size([70, 16]). If you want to instead "
        "overwrite randomly initialized weights, please make sure to pass both",
    ],
)
def test_a_vocabulary_of_another_size(text: str, tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": torch.ones(70, 16),
        "lm_head.weight": torch.ones(70, 16),
    }

    found = Answered(text, folder_of(tensors, tmp_path / "vocab"))

    assert (
        "The vocabulary has 70 rows in the checkpoint and 64 in the model" in found.said
    )


def detector(path: Path) -> Path:
    box = "roi_heads.box_predictor"
    tensors = {
        f"{box}.cls_score.weight": torch.ones(81, 16),
        f"{box}.cls_score.bias": torch.ones(81),
        f"{box}.bbox_pred.weight": torch.ones(320, 16),
    }
    return rewriting.saved({"model": tensors, "iteration": 99}, path)


def test_the_words_of_mmcv(tmp_path: Path) -> None:
    text = (
        "2024-03-05 10:32:45,071 - mmdet - WARNING - The model and loaded state dict "
        "do not match exactly\n\n"
        "unexpected key in source state_dict: "
        "roi_heads.box_predictor.bbox_pred.weight\n\n"
        "missing keys in source state_dict: backbone.x.weight\n\n"
    )
    found = Answered(text, detector(tmp_path / "model_final.pth"))

    assert found.kind == "keys"
    assert found.names == [
        "backbone.x.weight",
        "roi_heads.box_predictor.bbox_pred.weight",
    ]
    assert (
        "1 missing key is not in this file" in found.said
        and "no place for 1 key of this file" in found.said
    )
    assert "optimizer" not in found.page


def test_the_words_of_fvcore(tmp_path: Path) -> None:
    text = (
        "Skip loading parameter 'roi_heads.box_predictor.cls_score.weight' to the "
        "model due to incompatible shapes: (81, 16) in the checkpoint but (6, 16) in "
        "the model! You might want to double check if this is expected."
    )
    found = Answered(text, detector(tmp_path / "model_final.pth"))

    assert "81 outputs where the model has 6: another number of classes" in found.said
    text = (
        "Some model parameters or buffers are not found in the checkpoint:\n"
        "backbone.res2.{bias, weight}\nx.bias\n"
    )
    found = Answered(text, tmp_path / "model_final.pth")
    assert found.names == ["backbone.res2.bias", "backbone.res2.weight", "x.bias"]


def test_the_words_of_diffusers_and_vllm(tmp_path: Path) -> None:
    path = rewriting.saved(dict(WEIGHTS), tmp_path / "w.pth")
    text = (
        "ValueError: Cannot load <class 'UNet'> from ./x because the following keys "
        "are missing: \n"
        " conv_in.weight, conv_in.bias. \n Please make sure to pass "
        "`low_cpu_mem_usage=False`"
    )
    assert Answered(text, path).names == ["conv_in.weight", "conv_in.bias"]
    text = "ValueError: There is no module or parameter named 'fc' in Net"
    assert Answered(text, path).kind == "keys"


def test_names_that_peft_adds(tmp_path: Path) -> None:
    name = "base_model.model.lm_head"
    path = rewriting.saved(
        {f"{name}.weight": torch.ones(324, 16)}, tmp_path / "adapter.pth"
    )
    text = (
        f"size mismatch for {name}.modules_to_save.default.weight: copying a param "
        "with shape torch.Size([324, 16]) from checkpoint, the shape in current model "
        "is torch.Size([320, 16])."
    )

    found = Answered(text, path)

    assert "not in this file" not in found.said and "not there" not in found.page
    assert "model.resize_token_embeddings(324)" in found.said and not found.commands


def test_positions_of_another_image_size(tmp_path: Path) -> None:
    path = rewriting.saved(
        {"pos_embed": torch.ones(1, 1370, 8), "head.weight": torch.ones(2, 8)},
        tmp_path / "vit.pth",
    )
    text = (
        "size mismatch for pos_embed: copying a param with shape torch.Size([1, 1370, "
        "8]) from checkpoint, the shape in current model is torch.Size([1, 257, 8])."
    )

    said = Answered(text, path).said

    assert (
        "1,370 (37 x 37 and 1 more) in the checkpoint and 257 (16 x 16 and 1 more) "
        "in the model"
    ) in said


def test_a_key_of_another_program(tmp_path: Path) -> None:
    found = Answered(
        "KeyError: 'dims'", rewriting.saved(dict(WEIGHTS), tmp_path / "w.bin")
    )

    assert "weights alone, by their names at its root" in found.said and found.code == 0


def test_the_state_of_an_optimizer_on_the_cpu(tmp_path: Path) -> None:
    text = (
        "RuntimeError: Expected all tensors to be on the same device, but found at "
        "least two devices, cuda:0 and cpu! (when checking argument for argument "
        "state_steps in method wrapper_CUDA___fused_adamw_)"
    )
    found = Answered(text, training(tmp_path / "t.pth"))
    assert (
        "its state is on another device than the parameters" in found.said
        and "plain Python list" not in found.page
    )
    alone = ckpt("explain", text)
    assert (
        b"plain Python list" not in alone.out
        and b"the state of an optimizer" in alone.out
    )


def test_a_mount_and_numbers_that_are_not_finite(tmp_path: Path) -> None:
    path = rewriting.saved(dict(WEIGHTS), tmp_path / "w.pth")
    assert (
        "network drive" in Answered("OSError: [Errno 5] Input/output error", path).said
    )
    text = (
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    )
    assert "no element is NaN or infinite" in Answered(text, path).said


def test_shapes_of_one_rank(tmp_path: Path) -> None:
    shapes = {
        "a.wq.weight": (4, 8),
        "a.wo.weight": (8, 4),
        "a.w1.weight": (16, 8),
        "a.w2.weight": (8, 16),
    }
    wanted = {
        "a.wq.weight": (8, 8),
        "a.wo.weight": (8, 8),
        "a.w1.weight": (32, 8),
        "a.w2.weight": (8, 32),
    }
    path = rewriting.saved(
        {name: torch.ones(shape) for name, shape in shapes.items()}, tmp_path / "r.pth"
    )
    text = "\n".join(
        f"size mismatch for {name}: copying a param with shape "
        f"torch.Size({list(shapes[name])}) from checkpoint, the shape in current model "
        f"is torch.Size({list(wanted[name])})."
        for name in shapes
    )

    found = Answered(text, path)

    assert (
        "one rank of 2 of tensor parallelism" in found.said
        and "Load what fits" not in found.said
    )


# --- distributed checkpoints, optimizers, types ---------------------------------------


def test_an_option_that_a_newer_torch_asks_for(tmp_path: Path) -> None:
    group = {"lr": 0.1, "betas": (0.9, 0.99), "params": ["fc.weight"]}
    state = {"model": dict(WEIGHTS), "optim": {"state": {}, "param_groups": [group]}}
    dcp.save(state, checkpoint_id=tmp_path / "step", no_dist=True)
    text = (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optim.param_groups.0.decoupled_weight_decay."
    )

    found = Answered(text, tmp_path / "step")

    assert "is an option of a group of parameters, and no state" in found.said
    assert "allow_partial_load=True" in found.said
    assert "gradient" not in found.page


def test_extra_states_of_other_layers(tmp_path: Path) -> None:
    name = "decoder.layers.attention._extra_state/shard_{}_2"
    state = {"decoder.w": torch.ones(2), name.format(0): 1, name.format(1): 2}
    dcp.save(state, checkpoint_id=tmp_path / "step", no_dist=True)
    text = (
        "Missing key in checkpoint state_dict: "
        "decoder.layers.attention._extra_state/shard_0_32."
    )

    found = Answered(text, tmp_path / "step")

    assert "The model asks for 32 of them, and 2 were saved" in found.said
    assert "gradient" not in found.page


def test_the_state_of_a_rank_that_did_not_save(tmp_path: Path) -> None:
    state = {
        "model": dict(WEIGHTS),
        **{f"dataloader.dp_rank_{rank}": rank for rank in range(2)},
    }
    dcp.save(state, checkpoint_id=tmp_path / "step", no_dist=True)

    found = Answered(
        "Missing key in checkpoint state_dict: dataloader.dp_rank_3.", tmp_path / "step"
    )

    assert (
        "2 keys of this kind" in found.said and "another number of ranks" in found.said
    )


def test_sizes_of_a_distributed_checkpoint(tmp_path: Path) -> None:
    dcp.save({"model": dict(WEIGHTS)}, checkpoint_id=tmp_path / "step", no_dist=True)
    text = (
        "ValueError: Size mismatch between saved torch.Size([2, 3]) and current: "
        "torch.Size([5, 3]) for model.fc.weight"
    )

    found = Answered(text, tmp_path / "step")

    assert found.kind == "distributed"
    assert "model.fc.weight  [2, 3]      [5, 3]" in found.page


def test_a_step_that_a_version_of_torch_refuses(tmp_path: Path) -> None:
    text = (
        "AssertionError: If capturable=False, state_steps should not be CUDA tensors."
    )
    assert "torch 1.12.0" in Answered(text, training(tmp_path / "t.pth")).said


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float",
        (
            "RuntimeError: expected m1 and m2 to have the same dtype, but got: "
            "c10::Half != float"
        ),
        (
            "RuntimeError: Input type (torch.cuda.HalfTensor) and weight type "
            "(torch.cuda.FloatTensor) should be the same"
        ),
    ],
)
def test_types_in_a_product(text: str, tmp_path: Path) -> None:
    half = {name: value.half() for name, value in WEIGHTS.items()}

    found = Answered(text, rewriting.saved(half, tmp_path / "h.pth"))

    assert (
        "The weights of this file are 2 tensors of float16." in found.said
        and "list" not in found.page
    )
    assert (
        torch.load(found.run("ckpt convert"), weights_only=True)["fc.weight"].dtype
        == torch.float32
    )
    assert (
        "They are all float32"
        in Answered(text, rewriting.saved(dict(WEIGHTS), tmp_path / "f.pth")).said
    )


def test_a_device_in_the_code_of_a_program(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(1).to(x.device)

    torch.jit.trace(Noisy(), torch.ones(2), check_trace=False).save(tmp_path / "t.pt")
    text = (
        "RuntimeError: Input and hidden tensors are not at the same device, found "
        "input tensor at cuda:0 and hidden tensor at cpu"
    )

    found = Answered(text, tmp_path / "t.pt")

    assert found.said.startswith("The code of this program names cpu as a constant")
    assert "Trace the model on the device where it is used" in found.said
    assert all(name.startswith("code/") for name in found.names) and found.names
    assert "list" not in found.page


# --- messages without a page ----------------------------------------------------------


def test_a_message_without_a_page_is_answered_by_the_file(tmp_path: Path) -> None:
    wrapped = nn.DataParallel(Net()).state_dict()
    path = rewriting.saved(wrapped, tmp_path / "w.pth")

    found = Answered("FooError: the frobnicator gave up", path)

    assert (found.code, found.kind) == (0, None)
    assert "No page knows this error. The file itself says:" in found.page
    assert "module." in found.said and found.commands[0].startswith("ckpt strip ")


def test_a_message_without_a_page_and_a_file_without_a_fault(tmp_path: Path) -> None:
    found = Answered(
        "FooError: the frobnicator gave up",
        rewriting.saved(WEIGHTS, tmp_path / "w.pth"),
    )

    assert found.code == 2
    assert (
        "ckpt finds nothing in this file (PyTorch zip) that stops a load." in found.said
    )
    assert set(found.loaded()) == set(WEIGHTS)
    (tmp_path / "page.pth").write_text("<!DOCTYPE html>\n<html></html>\n")
    page = Answered("FooError: the frobnicator gave up", tmp_path / "page.pth")
    assert page.code == 0 and "HTML" in page.said


# --- what other findings know ---------------------------------------------------------


def profiled() -> dict[str, torch.Tensor]:
    tensors = dict(WEIGHTS)
    for place in ("", "fc."):
        for name in ("total_ops", "total_params"):
            tensors[f"{place}{name}"] = torch.zeros(1, dtype=torch.float64)
    return tensors


def test_counters_of_a_profiler(tmp_path: Path) -> None:
    counters = [name for name in profiled() if "total_" in name]
    path = rewriting.saved({"state_dict": profiled()}, tmp_path / "p.pth")
    quoted = ", ".join(f'"{name}"' for name in counters)
    head = "RuntimeError: Error(s) in loading state_dict for Net:\n\t"

    found = Answered(f"{head}Unexpected key(s) in state_dict: {quoted}. ", path)

    assert (
        "counters of thop.profile, no weights" in found.said
        and "wrapper" not in found.page
    )
    assert set(
        torch.load(found.run("ckpt slim"), weights_only=True)["state_dict"]
    ) == set(WEIGHTS)
    plain = rewriting.saved(dict(WEIGHTS), tmp_path / "w.pth")
    other = Answered(f"{head}Missing key(s) in state_dict: {quoted}. ", plain)
    assert (
        "it was profiled before the load" in other.said
        and "load_into" not in other.page
    )


def test_a_model_that_zero_3_has_emptied(tmp_path: Path) -> None:
    names = [
        f"layers.{layer}.attention.{key}.weight"
        for layer in range(4)
        for key in ("q", "k", "v", "o")
    ]
    path = rewriting.saved(
        {name: torch.empty(0) for name in names}, tmp_path / "pytorch_model.bin"
    )
    for text in (
        f"size mismatch for {names[0]}: copying a param with shape torch.Size([0]) "
        "from checkpoint, the shape in current model is torch.Size([64, 64]).",
        f'ValueError: Trying to set a tensor of shape torch.Size([0]) in "{names[0]}" '
        "(which has shape torch.Size([64, 64])), this"
        " looks incorrect.",
    ):
        found = Answered(text, path)
        assert "holds no weights: 16 of 16 parameters are empty" in found.said
        assert (
            "stage3_gather_16bit_weights_on_model_save" in found.said
            and "Load what fits" not in found.page
        )


def test_scales_that_a_converter_does_not_know(tmp_path: Path) -> None:
    weight = torch.ones(16, 16).to(torch.float8_e4m3fn)
    name = "model.layers.0.mlp.down_proj.weight"
    folder = folder_of(
        {name: weight, f"{name}_scale_inv": torch.ones(1, 1)}, tmp_path / "fp8"
    )

    found = Answered(f"ValueError: Can not map tensor '{name}_scale_inv'", folder)

    assert "FP8 with scales" in found.said


def test_ranks_of_tensor_parallelism(tmp_path: Path) -> None:
    folder = tmp_path / "7B"
    folder.mkdir()
    whole = {
        f"layers.{layer}.{key}.weight": torch.randn(8, 8)
        for layer in range(4)
        for key in ("wq", "wk", "wo")
    }
    whole["norm.weight"] = torch.ones(8)
    for rank in (0, 1):
        part = {
            name: value.chunk(2)[rank].clone() if value.ndim == 2 else value
            for name, value in whole.items()
        }
        rewriting.saved(part, folder / f"consolidated.0{rank}.pth")
    (folder / "params.json").write_text(json.dumps({"dim": 8, "n_layers": 4}))

    found = Answered(
        "AssertionError: Loading a checkpoint for MP=2 but world size is 1", folder
    )

    assert "2 ranks of tensor parallelism" in found.said and not found.commands
    text = (
        "size mismatch for layers.0.wq.weight: copying a param with shape "
        "torch.Size([4, 8]) from checkpoint, the shape in current model is "
        "torch.Size([8, 8])."
    )
    found = Answered(text, folder / "consolidated.00.pth")
    assert (
        "ank 0 of 2 of tensor parallelism" in found.said
        and "Load what fits" not in found.page
    )


def test_shards_without_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    for number in (1, 2):
        save_file(
            {f"layer{number}.weight": torch.ones(2)},
            folder / f"model-0000{number}-of-00002.safetensors",
            {"format": "pt"},
        )
    (folder / "config.json").write_text("{}")
    text = (
        "OSError: Error no file named model.safetensors, or pytorch_model.bin, found "
        "in directory llm."
    )

    found = Answered(text, folder)

    assert "has no index" in found.said
    done = ckpt(*shlex.split(found.commands[0])[1:], cwd=tmp_path)
    assert done.code == 0 and set(
        load_file(tmp_path / "llm.converted.safetensors")
    ) == {
        "layer1.weight",
        "layer2.weight",
    }


def test_an_optimizer_that_got_another_order(tmp_path: Path) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    model = Parts()
    optimizer = torch.optim.Adam(
        [*model.head.parameters(), *model.backbone.parameters()]
    )
    model.head(model.backbone(torch.ones(1, 6))).sum().backward()
    optimizer.step()
    path = rewriting.saved(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "o.pth",
    )
    text = (
        "RuntimeError: The size of tensor a (8) must match the size of tensor b (6) at "
        "non-singleton dimension 1"
    )

    found = Answered(text, path)

    assert found.said.startswith(
        "The optimizer got the parameters in another order than the model's"
    )
    assert "head.weight, head.bias, backbone.weight, backbone.bias" in found.said


def test_an_adapter_of_another_trainer(tmp_path: Path) -> None:
    name = "lora_unet_down_blocks_0_attentions_0_proj_in"
    tensors = {
        f"{name}.lora_down.weight": torch.ones(4, 8),
        f"{name}.lora_up.weight": torch.ones(8, 4),
        f"{name}.alpha": torch.ones(()),
    }
    save_file(tensors, tmp_path / "kohya.safetensors")

    found = Answered(
        "No LoRA keys associated to UNet2DConditionModel found with the prefix='unet'.",
        tmp_path / "kohya.safetensors",
    )

    assert "names of kohya" in found.said and "None begins with unet" in found.said


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ddp_after.pth",
        "whole_model.pth",
        "train_cuda.pth",
        "weights.safetensors",
        "dcp",
    ],
)
def test_no_sentence_ends_before_its_command(name: str) -> None:
    from ckpt.ext.explain import pages

    for page in pages():
        for text in page.messages if page.code is None else ():
            if {"ddp", "twice"}.intersection(page.kinds):
                # the findings that it introduces follow as statements of their own
                continue
            done = ckpt(
                "explain", text, f"sample_checkpoints/{name}", "--json", cwd=ROOT
            )
            if done.out and (answer := json.loads(done.out).get("answer")):
                for row in answer["statements"]:
                    assert (
                        row["command"] or row["names"] or not row["text"].endswith(":")
                    ), (text, row)


# --- logs -----------------------------------------------------------------------------


def test_a_log_without_an_error_is_no_trouble(tmp_path: Path) -> None:
    path = rewriting.saved(WEIGHTS, tmp_path / "w.pth")
    log = tmp_path / "train.log"
    log.write_text("epoch 3\nall is well\nKeyboardInterrupt\n")

    for words in (("-", str(path)), (str(log), str(path)), (str(log),), ("-",)):
        done = ckpt("explain", *words, input=log.read_bytes())
        assert (done.code, done.out, done.err) == (0, b"no error in this text\n", b"")
    document = json.loads(ckpt("explain", str(log), str(path), "--json").out)
    assert (document["pages"], document["message"], document["answer"]) == (
        [],
        None,
        None,
    )


@pytest.mark.parametrize("name", ["w.pth", "w.bin"])
def test_a_file_before_the_message_is_refused(name: str, tmp_path: Path) -> None:
    """The file was silently a word of the message, and the answer asked for one."""
    message = "Parameter indices which did not receive grad for rank 0: 1"
    rewriting.saved(WEIGHTS, tmp_path / name)
    rewriting.saved(WEIGHTS, tmp_path / "x.pt")

    done = ckpt("explain", name, message, cwd=tmp_path)
    check_error(done, f"{name}: the message comes first, and the file behind it")
    assert f"(ckpt explain MESSAGE {name})".encode() in done.err
    done = ckpt("explain", name, "x.pt", message, cwd=tmp_path)
    assert f"(ckpt explain MESSAGE {name} x.pt)".encode() in done.err
    # A name alone, of a file that is not there, is what somebody pasted.
    done = ckpt("explain", f"a-{name}", message, cwd=tmp_path)
    assert done.code == 0


def test_a_log_is_a_file(tmp_path: Path) -> None:
    path = rewriting.saved(WEIGHTS, tmp_path / "w.pth")
    log = tmp_path / "train.log"
    log.write_text(
        "epoch 3\nAttributeError: 'collections.OrderedDict' object has no attribute "
        "'eval'\n"
    )

    done = ckpt("explain", str(log), str(path))
    piped = ckpt("explain", "-", str(path), "--tee", input=log.read_bytes())

    assert done.code == 0 and b"This file is a state dict of 2 tensors" in done.out
    assert piped.out == done.out and piped.err == log.read_bytes()
    twice = ckpt("explain", str(path), str(path))
    assert twice.code == 2 and b"a file in the place of the message" in twice.err


def test_equal_ends_of_names_are_no_evidence(tmp_path: Path) -> None:
    shapes = {"aux_head.weight": (4, 6), "aux_head.bias": (4,), "body.weight": (6, 6)}
    path = rewriting.saved(
        {name: torch.ones(shape) for name, shape in shapes.items()},
        tmp_path / "nohead.pth",
    )
    text = (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in "
        'state_dict: "head.weight", "head.bias". '
    )

    found = Answered(text, path)

    assert "other names" not in found.said and not any(
        "rename" in command for command in found.commands
    )
    assert (
        "2 missing keys are not in this file under a name that ckpt can match."
        in found.said
    )
    inner = rewriting.saved(
        {f"net.{name}": value for name, value in WEIGHTS.items()},
        tmp_path / "inner.pth",
    )
    text = 'Missing key(s) in state_dict: "fc.weight", "fc.bias". '
    assert (
        "2 of the 2 missing keys are there by other names" in Answered(text, inner).said
    )


def test_memory_that_runs_out_in_a_step_of_the_training(tmp_path: Path) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    step = ckpt(
        "explain",
        f'File "train.py", line 3\n    loss.backward()\n{text}',
        "train_cuda.pth",
        cwd=ROOT / "sample_checkpoints",
    )
    load = ckpt(
        "explain",
        f'File "a.py"\n    state = torch.load(path)\n{text}',
        "train_cuda.pth",
        cwd=ROOT / "sample_checkpoints",
    )

    assert "in a step of the training has other reasons" in " ".join(
        step.out.decode().split()
    )
    assert "A load without map_location puts them there, in every process." in " ".join(
        load.out.decode().split()
    )


def test_numbers_of_which_the_file_says_nothing_are_a_guess(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    data = {
        "model": net.state_dict(),
        "optimizer": torch.optim.SGD(net.parameters(), 0.1).state_dict(),
    }
    path = rewriting.saved(data, tmp_path / "sgd.pth")

    found = Answered(
        "Parameter indices which did not receive grad for rank 0: 2 3", path
    )

    assert "These names are a guess" in found.said
    assert found.commands == [
        "ckpt inspect sgd.pth --model FILE.py:FACTORY --index 2,3",
        "ckpt explain MESSAGE OLDER sgd.pth",
    ]
    once = ckpt("inspect", str(path), "--index", "2,3")
    assert (
        once.code == 0
        and ckpt("inspect", str(path), "--index", "2", "--index", "3").out == once.out
    )

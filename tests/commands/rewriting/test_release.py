"""`--strip`, `--to` and `--with-config`: a release out of a training run in one
command.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import folders
import oracle
import pytest
import safetensors.torch
import torch
from inside import inside
from needs import is_there
from process import check_error
from torch import nn

import ckpt

pytestmark = oracle.QUIET

PREFIX = "_orig_mod._fsdp_wrapped_module."


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def training(folder: Path, prefix: str = PREFIX) -> Path:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    names = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    path = folder / "train.pt"
    torch.save({"model": names, "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    return path


def a_base(folder: Path) -> Path:
    """A folder as save_pretrained writes it, of a compiled model, with code."""
    base = folder / "base"
    base.mkdir()
    weights = {f"_orig_mod.{name}": value for name, value in net().state_dict().items()}
    torch.save(weights, base / "pytorch_model.bin")
    (base / "config.json").write_text('{"model_type": "net"}')
    (base / "tokenizer.json").write_text('{"version": "1.0"}')
    (base / "tokenizer.model").write_bytes(b"\x00pieces")
    for code in ("modeling_net.py", "README.py", "LICENSE.pth"):
        (base / code).write_text("raise SystemExit\n")
    (base / "training_args.bin").write_bytes(b"no config")
    return base


@pytest.mark.parametrize("command", ["convert", "slim"])
def test_a_prefix_that_stays_is_said(command: str, tmp_path: Path) -> None:
    training(tmp_path)
    done = inside(command, "train.pt", "-o", "out.safetensors", cwd=tmp_path)
    line = (
        f"left alone: {PREFIX}*: the prefix of a wrapper, on 7 tensors  (--strip takes "
        "it off)"
    )
    assert done.code == 0 and line in done.lines
    assert all(
        name.startswith(PREFIX)
        for name in safetensors.torch.load_file(tmp_path / "out.safetensors")
    )


@pytest.mark.parametrize("command", ["convert", "slim"])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_stripped_weights_load(command: str, ending: str, tmp_path: Path) -> None:
    training(tmp_path)
    done = inside(command, "train.pt", "--strip", "-o", f"out.{ending}", cwd=tmp_path)
    assert (
        done.code == 0
        and f"{PREFIX}* → *" in "\n".join(done.lines)
        and "left alone" not in "\n".join(done.lines)
    )
    if ending == "pth":
        loaded = torch.load(tmp_path / "out.pth", weights_only=True)
        loaded = loaded["model"] if command == "convert" else loaded
    else:
        loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")
    model = net()
    model.load_state_dict(loaded)
    assert list(loaded) == list(model.state_dict()) if ending == "pth" else set(loaded)


@pytest.mark.needs("folders")
@pytest.mark.parametrize("command", ["convert", "slim", "salvage"])
@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model.safetensors"])
def test_a_folder_of_hugging_face_becomes_its_weights_alone(
    command: str, weights: str, tmp_path: Path
) -> None:
    base = a_base(tmp_path)
    if weights == "model.safetensors":
        (base / "pytorch_model.bin").unlink()
        safetensors.torch.save_file(net().state_dict(), base / weights)
    for name in ("training_args.bin", "tokenizer.json"):
        (base / name).unlink()
    with ckpt.open(base) as opened:
        names = set(opened)
    hint = (
        "transformers also needs"
        if command == "salvage"
        else "-o FOLDER --with-config keeps"
    )
    line = f"left out: config = {{'model_type': 'net'}}  ({hint} config.json)"
    done = inside(command, "base", "-o", "out.pth", cwd=tmp_path)
    assert done.code == 0 and line in done.lines
    assert set(torch.load(tmp_path / "out.pth", weights_only=True)) == names
    if command == "convert":
        done = inside(command, "base", "-o", "out.dcp", cwd=tmp_path)
        assert done.code == 0 and line in done.lines
        with ckpt.open(tmp_path / "out.dcp") as opened:
            assert set(opened) == names


@pytest.mark.needs("folders")
def test_a_training_in_a_folder_keeps_its_documents(tmp_path: Path) -> None:
    base = a_base(tmp_path)
    torch.save(
        torch.optim.AdamW(net().parameters()).state_dict(), base / "optimizer.pt"
    )
    (base / "training_args.bin").unlink()
    assert inside("convert", "base", "-o", "out.pth", cwd=tmp_path).code == 0
    loaded = torch.load(tmp_path / "out.pth", weights_only=True)
    assert {"config", "optimizer"} < set(loaded)


def test_a_prefix_of_ones_own(tmp_path: Path) -> None:
    training(tmp_path, "model.")
    done = inside("slim", "train.pt", "--strip", "-o", "out.pth", cwd=tmp_path)
    row = (
        "left alone: names: nothing to strip: no name has the prefix of a wrapper; all "
        "7 begin with model. (--prefix model.)"
    )
    assert done.code == 0 and row in done.lines
    done = inside(
        "slim",
        "train.pt",
        "--prefix",
        "model.",
        "-o",
        "out.pth",
        "--force",
        cwd=tmp_path,
    )
    assert done.code == 0 and "left alone" not in "\n".join(done.lines)
    net().load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True))
    done = inside(
        "convert",
        "train.pt",
        "--prefix",
        "nothing.",
        "-o",
        "out.safetensors",
        cwd=tmp_path,
    )
    assert done.code == 2 and "no tensor's name begins with nothing." in " ".join(
        done.complaints
    )


def test_a_dcp_gets_the_new_names_of_model_and_optimizer(tmp_path: Path) -> None:
    training(tmp_path)
    assert (
        inside(
            "convert",
            "train.pt",
            "--strip",
            "--optimizer-keys",
            "order",
            "-o",
            "out.dcp",
            cwd=tmp_path,
        ).code
        == 0
    )
    with ckpt.open(tmp_path / "out.dcp") as opened:
        names = list(opened)
    assert "model.0.weight" in names and not any(PREFIX in name for name in names)


def test_devices_move_in_the_same_command(tmp_path: Path) -> None:
    sample = (
        Path(__file__).resolve().parents[3] / "sample_checkpoints" / "train_cuda.pth"
    )
    done = inside("slim", str(sample), "--to", "cpu", "-o", "out.pth", cwd=tmp_path)
    assert (
        done.code == 0
        and "cuda:0 → cpu" in "\n".join(done.lines)
        and "kept model" in "\n".join(done.lines)
    )
    with ckpt.open(tmp_path / "out.pth") as opened:
        assert {opened[name].device for name in opened} == {"cpu"}
    done = inside(
        "slim", str(sample), "--to", "nowhere", "-o", "out2.pth", cwd=tmp_path
    )
    assert done.code == 2 and not (tmp_path / "out2.pth").exists()


# --- config.json and the tokenizer ----------------------------------------------------


@pytest.mark.needs("folders")
def test_a_folder_that_loads(tmp_path: Path) -> None:
    base = a_base(tmp_path)
    done = inside(
        "slim", "base", "--strip", "--with-config", "-o", "release", cwd=tmp_path
    )
    assert done.code == 0, done
    assert "carried along: config.json, tokenizer.json, tokenizer.model" in done.lines
    assert "left out: modeling_net.py: code, which is not carried along" in done.lines
    assert "left out: README.py: code, which is not carried along" in done.lines
    assert not any(line.startswith("left out: config") for line in done.lines)
    release = tmp_path / "release"
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"]
    assert sorted(path.name for path in release.iterdir()) == names
    for name in ("config.json", "tokenizer.json", "tokenizer.model"):
        assert (release / name).read_bytes() == (base / name).read_bytes()
    net().load_state_dict(safetensors.torch.load_file(release / "model.safetensors"))


def test_shards_and_the_weights_file_itself(tmp_path: Path) -> None:
    a_base(tmp_path)
    words = ["convert", "base/pytorch_model.bin", "--strip", "--with-config"]
    done = inside(
        *words, "--shard-size", "60", "--json", "-o", "release/", cwd=tmp_path
    )
    assert done.code == 0
    document = json.loads(done.out)
    assert document["carried"] == ["config.json", "tokenizer.json", "tokenizer.model"]
    index = json.loads(
        (tmp_path / "release" / "model.safetensors.index.json").read_text()
    )
    assert set(index["weight_map"]) == set(net().state_dict())
    assert (tmp_path / "release" / "config.json").exists()


@pytest.mark.needs("folders")
def test_an_adapter_keeps_the_name_of_its_file(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    weights = {
        f"base_model.model.fc.lora_{letter}.weight": torch.ones(2, 2) for letter in "AB"
    }
    torch.save(weights, base / "adapter_model.bin")
    (base / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert (
        inside("convert", "base", "--with-config", "-o", "release", cwd=tmp_path).code
        == 0
    )
    names = sorted(path.name for path in (tmp_path / "release").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]


@pytest.mark.needs("folders")
def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    a_base(tmp_path)
    release = tmp_path / "release"
    release.mkdir()
    (release / "config.json").write_text("mine")
    done = inside("slim", "base", "--with-config", "-o", "release", cwd=tmp_path)
    assert done.code == 2 and "release/config.json: already exists" in " ".join(
        done.complaints
    )
    assert sorted(path.name for path in release.iterdir()) == ["config.json"]
    assert (
        inside(
            "slim",
            "base",
            "--with-config",
            "-o",
            "release",
            "--dry-run",
            "--force",
            cwd=tmp_path,
        ).code
        == 0
    )
    assert (release / "config.json").read_text() == "mine"
    assert (
        inside(
            "slim", "base", "--with-config", "-o", "release", "--force", cwd=tmp_path
        ).code
        == 0
    )
    assert json.loads((release / "config.json").read_text()) == {"model_type": "net"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["base", "--with-config"], "where to write?"),
        (["base", "--with-config", "-o", "s3://bucket/x"], "writes local files only"),
        (["base", "--with-config", "-o", "out.safetensors"], "OUT is a folder"),
        (["base", "--with-config", "-o", "out.pt"], "OUT is a folder (-o out)"),
        (["base", "--with-config", "-o", "out.bin"], "OUT is a folder (-o out)"),
        (
            ["base", "--with-config", "--format", "torch-zip", "-o", "out"],
            "goes with safetensors",
        ),
        (["base", "train.pt", "--with-config", "-o", "out"], "takes one PATH"),
        (
            ["train.pt", "--with-config", "-o", "out"],
            "train.pt: --with-config finds no config.json beside the weights "
            "(-o out.safetensors writes the weights alone)",
        ),
    ],
)
def test_what_is_refused(words: list[str], text: str, tmp_path: Path) -> None:
    a_base(tmp_path)
    training(tmp_path)
    done = inside("convert", *words, cwd=tmp_path)
    assert done.code == 2 and text in " ".join(done.complaints)
    assert not (tmp_path / "out").exists()


def test_a_link_to_a_file_of_yours_is_not_followed(tmp_path: Path) -> None:
    base = a_base(tmp_path)
    (tmp_path / "secret.txt").write_text("mine")
    (base / "tokenizer.json").unlink()
    (base / "tokenizer.json").symlink_to(tmp_path / "secret.txt")
    done = inside(
        "slim", "base/pytorch_model.bin", "--with-config", "-o", "out", cwd=tmp_path
    )
    assert (
        done.code == 2
        and "is a link" in " ".join(done.complaints)
        and not (tmp_path / "out").exists()
    )


@pytest.mark.needs("folders")
def test_shards_say_how_they_are_opened(tmp_path: Path) -> None:
    (a_base(tmp_path) / "training_args.bin").unlink()
    done = inside(
        "convert", "base", "-o", "small.safetensors", "--shard-size", "60", cwd=tmp_path
    )
    line = (
        "  from_pretrained looks for model.safetensors.index.json in a folder (-o "
        "FOLDER/model.safetensors)"
    )
    assert done.code == 0 and line in done.lines
    (tmp_path / "out").mkdir()
    done = inside(
        "convert",
        "base",
        "-o",
        "out/model.safetensors",
        "--shard-size",
        "60",
        cwd=tmp_path,
    )
    line = (
        "  from_pretrained opens the folder out once config.json of the model lies in "
        "it (--with-config)"
    )
    assert done.code == 0 and line in done.lines
    done = inside(
        "convert",
        "base",
        "--with-config",
        "-o",
        "whole",
        "--shard-size",
        "60",
        cwd=tmp_path,
    )
    assert done.code == 0 and "  from_pretrained opens the folder whole" in done.lines
    assert {"config.json", "model.safetensors.index.json"} <= {
        path.name for path in (tmp_path / "whole").iterdir()
    }


# --- a part with a wrapper, and a device ----------------------------------------------


@pytest.fixture
def compiled_part(tmp_path: Path) -> Path:
    """A model of which torch.compile wraps one part, with an average and an optimizer,
    on two devices.
    """
    model = {
        "enc._orig_mod.weight": torch.ones(2),
        "enc._orig_mod.bias": torch.ones(2),
        "head.w": torch.ones(3),
    }
    average = {name: value.clone() for name, value in model.items()}
    optimizer = {
        "state": {0: {"m": torch.ones(2)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    torch.save(
        {"model": model, "ema": average, "optimizer": optimizer}, tmp_path / "a.pt"
    )
    return tmp_path


def test_a_wrapper_around_a_part_is_said_of_the_names_that_have_it(
    compiled_part: Path,
) -> None:
    text = inside("inspect", "a.pt", cwd=compiled_part).out.decode()
    assert "3 tensors, 28 B, 2 of 3 names begin with enc._orig_mod." in text
    assert "names begin with" not in text.replace("2 of 3 names begin with", "")

    done = inside("strip", "a.pt", "-o", "b.pt", cwd=compiled_part)
    assert [line.split("   ")[0] for line in done.lines[:2]] == [
        "*._orig_mod.* → *.*"
    ] * 2
    assert list(torch.load(compiled_part / "b.pt")["model"]) == [
        "enc.weight",
        "enc.bias",
        "head.w",
    ]


def test_no_change_is_printed_of_what_is_left_out(compiled_part: Path) -> None:
    words = ("a.pt", "--strip", "--dry-run")
    done = inside("slim", *words, "--to", "cuda:1", cwd=compiled_part)
    assert done.lines[:3] == [
        "*._orig_mod.* → *.*   2 tensors of model",
        "kept model            3 tensors, 28 B",
        "cpu → cuda:1          3 storages, 28 B",
    ]
    kept = inside("slim", *words, "--keep", "ema", cwd=compiled_part)
    assert kept.lines[1] == "*._orig_mod.* → *.*   2 tensors of ema"
    done = inside(
        "convert",
        *words,
        "-o",
        "b.safetensors",
        "--section",
        "model",
        cwd=compiled_part,
    )
    assert [line for line in done.lines if "_orig_mod" in line] == [
        "*._orig_mod.* → *.*       2 tensors of model"
    ]


@pytest.mark.parametrize("words", [("slim",), ("convert", "--drop-other")])
def test_a_device_in_a_format_without_devices_is_refused(
    words: tuple[str, ...], compiled_part: Path
) -> None:
    done = inside(
        *words, "a.pt", "--to", "cuda:1", "-o", "b.safetensors", cwd=compiled_part
    )
    check_error(
        done,
        "a.pt: safetensors keeps no device, so nothing in it can be moved to cuda:1",
    )
    assert not (compiled_part / "b.safetensors").exists()
    assert (
        inside(
            *words, "a.pt", "--to", "cpu", "-o", "b.safetensors", cwd=compiled_part
        ).code
        == 0
    )


@pytest.mark.needs("folders")
@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module."])
def test_a_folder_with_its_config_stays_one_without_the_prefix(
    prefix: str, tmp_path: Path
) -> None:
    """The printed command writes what PeftModel and from_pretrained open, and layers
    have their names in the base model.
    """
    adapter, base = folders.adapter(tmp_path / "lora"), tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(
        json.dumps({"architectures": ["Net"], "dtype": "float32"})
    )
    safetensors.torch.save_file(net().state_dict(), base / "model.safetensors")
    for folder, file, config in (
        (adapter, "adapter_model.safetensors", "adapter_config.json"),
        (base, "model.safetensors", "config.json"),
    ):
        state = safetensors.torch.load_file(folder / file)
        safetensors.torch.save_file(
            {f"{prefix}{name}": value for name, value in state.items()}, folder / file
        )

        text = inside("inspect", folder.name, cwd=tmp_path).out.decode()

        command = (
            f"ckpt slim {folder.name} --strip --with-config -o {folder.name}.stripped"
        )
        assert command in text
        if folder is adapter and is_there("adapters"):
            assert (
                "LoRA    names of PEFT" in text
                and "changes 1 layer of the base model: 0\n" in text
            )
        assert inside(*command.split()[1:], cwd=tmp_path).code == 0
        result = tmp_path / f"{folder.name}.stripped"
        assert set(safetensors.torch.load_file(result / file)) == set(state)
        assert json.loads((result / config).read_text()) == json.loads(
            (folder / config).read_text()
        )


@pytest.mark.needs("folders")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"dtype": "bfloat16"}, True),
        ({"torch_dtype": "torch.bfloat16"}, True),
        ({"dtype": "float16"}, False),
        ({"dtype": None}, False),
        ({}, False),
        ([], False),
    ],
)
def test_a_config_with_another_dtype_than_the_cast_weights_is_said(
    config: object, said: bool, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(
        net().bfloat16().state_dict(), base / "model.safetensors"
    )

    done = inside(
        "convert",
        "base",
        "--dtype",
        "float16",
        "--with-config",
        "-o",
        "out",
        cwd=tmp_path,
    )

    assert done.code == 0
    text = (
        "left alone: config.json: says dtype bfloat16, so transformers casts the "
        "weights of float16 to that"
    )
    assert (f"{text}  (set its dtype to float16)" in done.lines) == said
    assert json.loads((tmp_path / "out/config.json").read_text()) == config
    done = inside("convert", "base", "--with-config", "-o", "same", cwd=tmp_path)
    assert "config.json: says" not in done.out.decode()


@pytest.mark.needs("folders")
@pytest.mark.parametrize("out", ["made", "made/"])
def test_a_folder_as_out_of_a_model_of_hugging_face(out: str, tmp_path: Path) -> None:
    """The proposed options work, and no file without a name is proposed."""
    (a_base(tmp_path) / "training_args.bin").unlink()

    done = inside("convert", "base", "-o", out, cwd=tmp_path)

    assert done.code == 2 and "(-o made/ --with-config, or " in done.complaints[0]
    assert (
        inside("convert", "base", "-o", "made/", "--with-config", cwd=tmp_path).code
        == 0
    )
    assert (tmp_path / "made/config.json").is_file()


@pytest.mark.parametrize("command", ["convert", "slim", "strip", "rehome", "salvage"])
def test_a_folder_that_is_not_there_is_told_a_way_that_works(
    command: str, tmp_path: Path
) -> None:
    training(tmp_path)
    done = inside(command, "train.pt", "-o", "made/", cwd=tmp_path)
    (line,) = done.complaints
    if command == "convert":
        assert "(-o made/train.safetensors --parents, or --format " in line
        words = ("-o", "made/train.safetensors", "--parents")
    else:
        assert line == "ckpt: made/: there is no such folder (mkdir -p made)"
        (tmp_path / "made").mkdir()
        words = ("-o", "made/")
    assert done.code == 2
    assert inside(command, "train.pt", *words, cwd=tmp_path).code == 0
    (made,) = (tmp_path / "made").iterdir()
    assert made.stem == "train"


@pytest.mark.needs("folders")
def test_a_file_in_the_place_of_a_folder_is_told_its_folder(tmp_path: Path) -> None:
    (a_base(tmp_path) / "training_args.bin").unlink()
    words = ("convert", "base", "--with-config")
    done = inside(*words, "-o", "made/model.safetensors", cwd=tmp_path)
    assert done.code == 2 and done.complaints[0].endswith("OUT is a folder (-o made)")
    assert inside(*words, "-o", "made", cwd=tmp_path).code == 0
    (tmp_path / "taken").write_text("a file")
    done = inside(*words, "-o", "taken", "--force", cwd=tmp_path)
    assert done.code == 2 and done.complaints[0].endswith("OUT is a folder")


@pytest.mark.parametrize(
    "words",
    [
        ("rename", "--sub", "s/^a/b/"),
        ("convert",),
        ("slim",),
        ("strip",),
        ("rehome",),
    ],
)
def test_a_tokenizer_that_stays_behind_is_said(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    weights = {"a.weight": torch.ones(2, 2)}
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    command, *rest = words
    done = inside(command, "llm", *rest, "-o", "out.safetensors", cwd=tmp_path)
    assert "tokenizer.json, tokenizer_config.json: files of the folder" in (
        done.out.decode()
    )
    assert "config.json" in done.out.decode()


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1",)


@pytest.mark.parametrize("name", ["word.model", "vocab.txt", "README.md"])
def test_a_pickle_that_is_called_a_text_is_not_carried_along(
    name: str, tmp_path: Path
) -> None:
    base = a_base(tmp_path)
    (base / name).write_bytes(pickle.dumps([_Runs()]))

    done = inside("slim", "base", "--with-config", "-o", "release", cwd=tmp_path)
    assert done.code == 0
    assert f"left out: {name}: runs code, and is not carried along" in done.lines
    assert not (tmp_path / "release" / name).exists()
    assert (tmp_path / "release/tokenizer.model").exists()


def test_a_private_config_stays_private(tmp_path: Path) -> None:
    base = a_base(tmp_path)
    (base / "config.json").chmod(0o600)

    done = inside("slim", "base", "--with-config", "-o", "release", cwd=tmp_path)
    assert done.code == 0
    modes = {
        path.name: path.stat().st_mode for path in (tmp_path / "release").iterdir()
    }
    assert modes["config.json"] & 0o077 == 0 and modes["tokenizer.json"] & 0o044

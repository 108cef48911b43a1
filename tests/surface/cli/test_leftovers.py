"""Statements that were wrong on the screen, and screens that stopped people: each as
they would have met it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from inside import inside
from needs import skip_without
from process import SAMPLES, check_error, terminal
from safetensors.torch import save_file
from torch import nn

DDP = (
    "Expected to have finished reduction. Parameter indices which did not receive grad "
    "for rank 0: 2 3"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two saves of a run in which one layer had no gradient."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"used": nn.Linear(4, 2), "idle": nn.Linear(4, 2)})
    adam = torch.optim.Adam(net.parameters())
    for epoch in (1, 3):
        for _ in range(2):
            adam.zero_grad()
            net["used"](torch.randn(8, 4)).square().sum().backward()
            adam.step()
        state = {
            "model": net.state_dict(),
            "optimizer": adam.state_dict(),
            "epoch": epoch,
        }
        torch.save(state, tmp_path / f"e{epoch}.pth")
        torch.save({**state, "loss": -epoch}, tmp_path / f"other{epoch}.pth")
    return tmp_path


def test_a_diff_from_the_newer_save_to_the_older_one(run: Path) -> None:
    text = inside("diff", "e3.pth", "e1.pth", cwd=run).lines

    assert (
        "e3.pth is of a later epoch or step: if both are saves of one run, the "
        "older one comes first:"
    ) in text
    assert "  ckpt diff e1.pth e3.pth" in text
    assert "later" not in inside("diff", "e1.pth", "e3.pth", cwd=run).out.decode()
    assert "later" not in inside("diff", "e1.pth", "e1.pth", cwd=run).out.decode()


def test_counters_that_do_not_agree_say_nothing_of_the_order(run: Path) -> None:
    for name, epoch, step in (("a", 3, 10), ("b", 1, 20)):
        torch.save(
            {
                "model": {"w.weight": torch.full((2,), float(step))},
                "epoch": epoch,
                "global_step": step,
            },
            run / f"{name}.pth",
        )

    assert "later" not in inside("diff", "a.pth", "b.pth", cwd=run).out.decode()


def test_an_explanation_by_saves_in_the_wrong_order(run: Path) -> None:
    check_error(
        inside("explain", DDP, "e3.pth", "e1.pth", cwd=run),
        "e3.pth: a later save than e1.pth (epoch 3 → 1), and the older one comes first "
        "(if both are saves of one run: ckpt explain message e1.pth e3.pth)",
    )
    assert inside("explain", DDP, "e1.pth", "e3.pth", cwd=run).code == 0


def test_tensors_without_values_are_not_called_the_same(tmp_path: Path) -> None:
    torch.save(
        {"a.weight": torch.empty(3, device="meta"), "a.bias": torch.ones(2)},
        tmp_path / "a.pth",
    )

    done = inside("diff", "a.pth", "a.pth", cwd=tmp_path)

    assert done.code == 0
    assert done.lines[-1] == (
        "same, but for the values of 1 tensor on the device meta, which neither file "
        "holds: 2 tensors"
    )


TIED = torch.arange(8.0).reshape(4, 2)


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """A model with a head that is tied to its embedding, and the same written under one
    name.
    """
    fc = {"fc.weight": torch.ones(2, 2)}
    torch.save({"emb.weight": TIED, **fc, "head.weight": TIED}, tmp_path / "both.pth")
    torch.save({"emb.weight": TIED + 2, **fc}, tmp_path / "one.pth")
    torch.save(
        {"emb.weight": TIED + 2, **fc, "head.weight": TIED}, tmp_path / "apart.pth"
    )
    return tmp_path


def test_an_average_of_a_tied_head_and_one_under_one_name(heads: Path) -> None:
    assert inside("average", "one.pth", "both.pth", "-o", "a.pth", cwd=heads).code == 0
    done = inside("average", "both.pth", "one.pth", "-o", "b.pth", cwd=heads)

    assert (
        "left out: head.weight of both.pth: tied to emb.weight, which is averaged"
        in done.lines
    )
    two, one = torch.load(heads / "a.pth"), torch.load(heads / "b.pth")
    assert list(two) == ["emb.weight", "fc.weight", "head.weight"] and list(one) == [
        "emb.weight",
        "fc.weight",
    ]
    for found in (two["emb.weight"], two["head.weight"], one["emb.weight"]):
        assert torch.equal(found, TIED + 1)
    assert two["emb.weight"].data_ptr() == two["head.weight"].data_ptr()


@pytest.mark.parametrize(
    "names",
    [("apart.pth", "both.pth"), ("apart.pth", "one.pth"), ("one.pth", "apart.pth")],
)
def test_a_head_of_its_own_is_not_taken_for_a_tied_one(
    names: tuple[str, str], heads: Path
) -> None:
    check_error(inside("average", *names, "-o", "c.pth", cwd=heads), "head.weight")


def a_cache(folder: Path, *, is_sharded: bool) -> Path:
    """The folder of a model in a Hugging Face cache, of which one blob was removed."""
    model = folder / "models--org--a--b"
    snapshot = model / "snapshots" / "abc"
    for inner in (model / "blobs", model / "refs", snapshot):
        inner.mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    source = SAMPLES / "sharded" if is_sharded else folder / "one"
    if not is_sharded:
        source.mkdir()
        shutil.copy(SAMPLES / "weights.safetensors", source / "model.safetensors")
    for number, path in enumerate(sorted(source.iterdir())):
        shutil.copy(path, model / "blobs" / f"b{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/b{number}")
    assert inside("inspect", model.name, cwd=folder).code == 0
    (
        snapshot / sorted(path.name for path in source.glob("*.safetensors"))[-1]
    ).resolve().unlink()
    return model


@pytest.mark.parametrize(
    "name", ["models--org--a--b", "models--org--a--b/snapshots/abc/model.safetensors"]
)
def test_a_blob_of_a_cache_that_was_removed(name: str, tmp_path: Path) -> None:
    model = a_cache(tmp_path, is_sharded=False)
    says = (
        "no such file: the hugging face cache has lost its blob (hf download org/a--b)"
    )

    check_error(inside("inspect", name, cwd=tmp_path), says)
    check_error(
        inside("inspect", "model.safetensors", cwd=model / "snapshots" / "abc"), says
    )
    assert says in inside("verify", name, cwd=tmp_path).out.decode().lower()
    assert says in " ".join(
        inside("ls", name, cwd=tmp_path).out.decode().lower().split()
    )


def test_a_shard_of_a_cache_that_was_removed(tmp_path: Path) -> None:
    model = a_cache(tmp_path, is_sharded=True)

    check_error(
        inside("inspect", model.name, cwd=tmp_path),
        "1 of 2 shards missing, with 6 tensors: model-00002-of-00002.safetensors: "
        "the hugging face cache has lost their blobs (hf download org/a--b)",
    )


def test_a_link_that_leads_nowhere_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "a.pth").symlink_to("b.pth")

    check_error(
        inside("inspect", "a.pth", cwd=tmp_path),
        "no such file (a link to b.pth, which is not there)",
    )


LISTS = {
    "as Windows writes it": b"\xef\xbb\xbfa.pth\r\nb c.pth\r\n\r\n",
    "with comments": "# “the last two”\na.pth\nb c.pth\n#end".encode(),
    "plain": b"a.pth\nb c.pth",
    "with NULs": b"a.pth\0b c.pth\0",
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_other_editors(kind: str, tmp_path: Path) -> None:
    for name in ("a.pth", "b c.pth"):
        torch.save({"w.weight": torch.ones(2)}, tmp_path / name)
    (tmp_path / "list").write_bytes(LISTS[kind])

    done = inside("verify", "--files-from", "list", cwd=tmp_path)

    assert [line.partition(":")[0] for line in done.lines] == [
        "a.pth",
        "b c.pth",
    ] and done.code == 0


def test_a_file_that_is_called_like_a_comment_comes_first(tmp_path: Path) -> None:
    for name in ("#a.pth", "b.pth\r"):
        torch.save({"w.weight": torch.ones(2)}, tmp_path / name)
    (tmp_path / "list").write_bytes(b"#a.pth\nb.pth\r\n")

    assert inside("verify", "--files-from", "list", cwd=tmp_path).code == 0


@pytest.mark.parametrize("recorded", [[], ["--recorded"]])
def test_sums_of_other_editors(recorded: list[str], tmp_path: Path) -> None:
    torch.save({"w.weight": torch.ones(2)}, tmp_path / "a.pth")
    sums = inside("sum", *recorded, "a.pth", cwd=tmp_path).out
    (tmp_path / "a.sums").write_bytes(b"\xef\xbb\xbf" + sums.replace(b"\n", b"\r\n"))

    assert inside("verify", "a.pth", "--sums", "a.sums", cwd=tmp_path).code == 0


TRAILING = {
    b"garbage at the end\n": (
        "19 bytes (text: 'garbage at the end') follow the zip archive"
    ),
    bytes(range(128, 168)): "40 bytes follow the zip archive",
    b"<!DOCTYPE html><html>": "21 bytes (an HTML page) follow the zip archive",
}


@pytest.mark.parametrize("more", TRAILING)
def test_bytes_behind_an_archive_are_named(more: bytes, tmp_path: Path) -> None:
    torch.save({"w.weight": torch.ones(2)}, tmp_path / "a.pth")
    with (tmp_path / "a.pth").open("ab") as file:
        file.write(more)

    (line,) = inside("verify", "a.pth", cwd=tmp_path).lines

    assert (
        line.startswith("a.pth: intact: ")
        and TRAILING[more] in line
        and line.endswith("torch ignores them")
    )


def test_bytes_behind_safetensors_are_named(tmp_path: Path) -> None:
    data = (SAMPLES / "weights.safetensors").read_bytes()
    for more, what in (
        (b"x", "1 byte (text: 'x')"),
        (bytes(9), "9 bytes (zeros)"),
        (bytes(70_000), "70,000 bytes (zeros at first)"),
        (data, f"{len(data):,} bytes (the beginning of the file again)"),
    ):
        (tmp_path / "a.safetensors").write_bytes(data + more)
        line, *_ = inside("verify", "a.safetensors", cwd=tmp_path).lines
        assert (
            f"damaged: the file has {what} after the last tensor, which "
            "safetensors refuses"
        ) in line


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (
            2000,
            (
                "bytes are intact, and 5,000 bytes (zeros) follow (ckpt rehome --undo "
                "--dry-run a.pth)"
            ),
        ),
        (
            2,
            (
                "5,000 bytes (zeros) follow the zip archive, which ends at byte 1,407: "
                "torch does not find its end"
            ),
        ),
    ],
)
def test_zeros_behind_an_archive_are_named(
    count: int, says: str, tmp_path: Path
) -> None:
    torch.save({"w.weight": torch.ones(count)}, tmp_path / "a.pth")
    with (tmp_path / "a.pth").open("ab") as file:
        file.write(bytes(5000))

    line, *_ = inside("verify", "a.pth", cwd=tmp_path).lines

    assert says in line


def test_the_hint_of_a_merge_is_for_merge(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    save_file(
        {"w.weight": torch.ones(4, 4)}, base / "model.safetensors", {"format": "pt"}
    )
    (base / "config.json").write_text('{"model_type": "x"}')
    lora = {
        "base_model.model.w.lora_A.weight": torch.ones(2, 4),
        "base_model.model.w.lora_B.weight": torch.ones(4, 2),
    }
    (tmp_path / "lora").mkdir()
    save_file(lora, tmp_path / "lora" / "adapter_model.safetensors", {"format": "pt"})
    (tmp_path / "lora" / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 2, "lora_alpha": 2}'
    )

    done = inside("merge", "base", "lora", "-o", "m.safetensors", cwd=tmp_path)

    assert done.code == 0, done
    (line,) = [line for line in done.lines if "config.json" in line]
    assert (
        line.endswith("(-o FOLDER --with-config keeps config.json)")
        and "slim" not in line
    )


def test_numbers_of_parameters_fit_a_narrow_screen(tmp_path: Path) -> None:
    names = [
        f"backbone.stage_{number}.cross_attention_projection.weight"
        for number in range(3)
    ]
    torch.save({name: torch.ones(128, 128, 3, 3) for name in names}, tmp_path / "a.pth")
    words = ("inspect", "a.pth", "--index", "1,2")

    narrow = terminal(*words, columns=72, cwd=tmp_path)
    wide = terminal(*words, columns=120, cwd=tmp_path)

    assert (
        max(map(len, plain(narrow))) <= 72
        and names[1] in narrow
        and "128, 128, 3, 3" not in narrow
    )
    assert "… no room for DTYPE, SHAPE (--json, or a wider screen)" in narrow
    assert "[128, 128, 3, 3]" in wide and "no room" not in wide
    longest = terminal(*words, columns=40, cwd=tmp_path)
    assert "[128, 128, 3, 3]" in longest and "no room" not in longest


def plain(text: str) -> list[str]:
    """Return the lines of a terminal without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


@pytest.mark.parametrize("words", [("strip", "m"), ("strip", "m/model.safetensors")])
def test_nothing_to_strip_is_said_of_folders_as_of_files(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    if words[1] == "m":
        skip_without("folders")
    (tmp_path / "m").mkdir()
    save_file(
        {"w.weight": torch.ones(2)},
        tmp_path / "m" / "model.safetensors",
        {"format": "pt"},
    )
    (tmp_path / "m" / "config.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}

    done = inside(*words, "--in-place", cwd=tmp_path)

    assert done.code == 0
    assert done.lines == [
        "m/model.safetensors: nothing to strip: no name has the prefix of a wrapper"
    ]
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()
    } == before

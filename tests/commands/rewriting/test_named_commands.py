"""Commands that are printed because of names: each is pasted, and what it wrote has the
names that were promised.
"""

from __future__ import annotations

from pathlib import Path

import oracle
import printed
import pytest
import torch
from inside import inside

pytestmark = oracle.QUIET


def keys_error(missing: list[str], unexpected: list[str]) -> str:
    """The message of `load_state_dict`."""
    lists = [
        ", ".join(f'"{name}"' for name in names) for names in (missing, unexpected)
    ]
    return (
        "RuntimeError: Error(s) in loading state_dict for E2E:\n"
        f"\tMissing key(s) in state_dict: {lists[0]}. \n\tUnexpected key(s) in "
        f"state_dict: {lists[1]}. "
    )


def espnet(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The layers of ESPnet before and after they were renamed, as old.pth and
    target.pth.
    """
    old = {
        "encoder.input_layer.conv.0.weight": torch.randn(4, 1, 3, 3),
        "encoder.input_layer.conv.0.bias": torch.randn(4),
        "encoder.input_layer.out.0.weight": torch.randn(4, 4),
        "encoder.input_layer.out.1.pe": torch.randn(1, 5, 4),
        "encoder.encoders.0.w.weight": torch.randn(4, 4),
        "encoder.norm.weight": torch.randn(4),
        "encoder.norm.bias": torch.randn(4),
        "decoder.output_norm.weight": torch.randn(4),
        "decoder.output_norm.bias": torch.randn(4),
    }
    new = {}
    for name, tensor in old.items():
        for before, after in (
            ("input_layer", "embed"),
            ("encoder.norm", "encoder.after_norm"),
        ):
            name = name.replace(before, after)
        new[name.replace("output_norm", "after_norm")] = torch.randn_like(tensor)
    del new["encoder.embed.out.1.pe"]
    torch.save(old, folder / "old.pth")
    torch.save(new, folder / "target.pth")
    return old, new


def test_the_rename_that_explain_prints_gives_every_name_that_it_promises(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    old, new = espnet(folder)
    text = keys_error(
        [name for name in new if name not in old],
        [name for name in old if name not in new],
    )

    done = inside("explain", text, "old.pth", cwd=folder)

    assert done.code == 0, done.err
    assert "7 of the 7 missing keys" in done.out.decode().replace("\n", " ")
    (wrote,) = printed.check_commands(
        done.out.decode(), folder, tmp_path / "scratch"
    ).values()
    written = torch.load(wrote[0], weights_only=True)
    assert set(new) == set(written) - {"encoder.embed.out.1.pe"}
    assert torch.equal(
        written["decoder.after_norm.bias"], old["decoder.output_norm.bias"]
    )
    assert torch.equal(written["encoder.after_norm.bias"], old["encoder.norm.bias"])


def test_warmstart_and_diff_say_the_names_that_become_one_another(
    tmp_path: Path,
) -> None:
    espnet(tmp_path)
    done = inside(
        "warmstart", "old.pth", "--into", "target.pth", "-o", "x.pth", cwd=tmp_path
    )
    text = done.out.decode()
    assert "loads 8 of 8 tensors" in text
    assert "renamed: norm → after_norm, 2 tensors" in text
    assert "renamed: output_norm → after_norm, 2 tensors" in text
    compared = inside("diff", "old.pth", "target.pth", cwd=tmp_path).out.decode()
    assert (
        "output_norm → after_norm" in compared.replace("\n", " ")
        and "output_norm → norm" not in compared
    )


@pytest.mark.parametrize("option", ["--force", None])
def test_the_way_out_of_a_refused_warm_start_keeps_the_force_that_was_given(
    tmp_path: Path, option: str | None
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    torch.save(
        {f"first.{n}.w": torch.randn(n + 2, 3) for n in range(4)}, folder / "one.pth"
    )
    torch.save(
        {f"second.{n}.v": torch.randn(n + 2, 3) for n in range(4)}, folder / "two.pth"
    )
    if option:
        torch.save({}, folder / "out.pth")
    words = [
        "warmstart",
        "one.pth",
        "--into",
        "two.pth",
        "-o",
        "out.pth",
        *([option] if option else []),
    ]
    done = inside(*words, cwd=folder)
    assert done.code == 1
    (command,) = printed.check_commands(done.err.decode(), folder, tmp_path / "scratch")
    assert ("--force" in command) == bool(option)

"""DataParallel around a part of a model: every command sees it, and a module that its
author called `module` stays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import printed
import pytest
import torch
from inside import inside
from torch import nn

import ckpt
from ckpt.evidence.wrappers import Inner, inner_modules, unwrapping_rule

pytestmark = oracle.QUIET


class Vgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.classifier = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def vgg(folder: Path) -> None:
    """The ImageNet example wraps the features of VGG and AlexNet alone: plain.pth
    before it, vgg.pth.tar after it.
    """
    model = Vgg()
    torch.save(model.state_dict(), folder / "plain.pth")
    model.features = nn.DataParallel(model.features)  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = {"epoch": 90, "arch": "vgg16", "state_dict": model.state_dict()}
    torch.save(state | {"optimizer": optimizer.state_dict()}, folder / "vgg.pth.tar")


def prefixes(path: Path) -> list[dict[str, Any]]:
    done = inside("inspect", path.name, "--json", cwd=path.parent)
    assert done.code == 0, done.err
    return [row for row in json.loads(done.out)["findings"] if row["code"] == "prefix"]


def test_the_features_of_vgg_come_out_of_their_wrapper_and_load_into_the_plain_model(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    vgg(folder)

    (finding,) = prefixes(folder / "vgg.pth.tar")

    assert finding["message"] == (
        "4 of 8 names of state_dict begin with features.module. (DataParallel or DDP "
        "around features)."
    )
    assert finding["level"] == "warning" and len(finding["tensors"]) == 4
    (wrote,) = printed.check_commands(
        finding["hint"], folder, tmp_path / "scratch"
    ).values()
    written = torch.load(wrote[0], weights_only=True)
    plain = torch.load(folder / "plain.pth", weights_only=True)
    assert list(written["state_dict"]) == list(plain)
    Vgg().load_state_dict(written["state_dict"])
    assert list(written["state_dict"]._metadata) == list(plain._metadata)


def test_diff_warmstart_and_python_see_the_wrapper_of_a_part(tmp_path: Path) -> None:
    vgg(tmp_path)
    same = inside("diff", "vgg.pth.tar", "plain.pth", cwd=tmp_path)
    assert same.code == 0 and "aligned: features.module → features" in same.out.decode()
    words = ("warmstart", "plain.pth", "--into", "vgg.pth.tar", "-o", "out.pth")
    done = inside(*words, cwd=tmp_path).out.decode()
    assert (
        "loads 8 of 8 tensors" in done
        and "renamed: features → features.module, 4 tensors" in done
    )
    with ckpt.open(tmp_path / "vgg.pth.tar") as opened:
        model = Vgg()
        assert opened.load_into(model, strict=True).share == 1
        Vgg().load_state_dict(opened.state_dict("state_dict", strip=True))


@pytest.mark.parametrize(
    ("state", "section", "names"),
    [
        (
            {
                "net.module.conv.weight": [3, 3],
                "net.module.conv.bias": [3],
                "net.module.bn.weight": [3],
            },
            "generator",
            ["net.conv.weight", "net.conv.bias", "net.bn.weight"],
        ),
        (
            {
                "_model.module.field.aabb": [2, 3],
                "_model.module.field.w.weight": [3, 3],
                "datamanager.x": [2],
            },
            "pipeline",
            ["_model.field.aabb", "_model.field.w.weight", "datamanager.x"],
        ),
        (
            {
                "block.module.weight": [3, 3],
                "block.norm.weight": [3],
                "block.out.weight": [3, 3],
            },
            "model",
            ["block.module.weight", "block.norm.weight", "block.out.weight"],
        ),
        (
            {f"G.module.{n}.weight": [n + 2] for n in range(3)}
            | {f"D.module.{n}.weight": [n + 5] for n in range(3)},
            "state_dict",
            [f"{part}.{n}.weight" for part in "GD" for n in range(3)],
        ),
        (
            {
                f"blocks.{n}.module.{m}.weight": [3, 3]
                for n in range(3)
                for m in range(2)
            },
            "model",
            [f"blocks.{n}.module.{m}.weight" for n in range(3) for m in range(2)],
        ),
    ],
)
def test_strip_takes_the_wrapper_of_a_part_and_leaves_a_module_of_the_author(
    tmp_path: Path, state: dict[str, list[int]], section: str, names: list[str]
) -> None:
    torch.save(
        {
            section: {name: torch.randn(shape) for name, shape in state.items()},
            "epoch": 3,
        },
        tmp_path / "a.pth",
    )
    done = inside("strip", "a.pth", "-o", "out.pth", cwd=tmp_path)
    assert done.code == 0, done.err
    assert list(torch.load(tmp_path / "out.pth", weights_only=True)[section]) == names
    assert bool(prefixes(tmp_path / "a.pth")) == (names != list(state))
    assert ("nothing to strip" in done.out.decode()) == (names == list(state))


def test_one_layer_called_module_is_possibly_wrapped_and_only_taken_out_where_asked(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    state = {
        "encoder.module.weight": torch.randn(3, 3),
        "head.weight": torch.randn(2, 3),
    }
    torch.save(state, folder / "a.pth")
    stripped = inside("strip", "a.pth", "-o", "out.pth", cwd=folder)
    assert list(torch.load(folder / "out.pth", weights_only=True)) == list(state)
    assert (
        "all names below encoder begin with module., perhaps a wrapper's"
        in stripped.out.decode()
    )
    (folder / "out.pth").unlink()

    (finding,) = prefixes(folder / "a.pth")

    assert finding["level"] == "info" and "may be around encoder" in finding["message"]
    (wrote,) = printed.check_commands(
        finding["hint"], folder, tmp_path / "scratch"
    ).values()
    assert list(torch.load(wrote[0], weights_only=True)) == [
        "encoder.weight",
        "head.weight",
    ]
    # The names of another file are evidence enough.
    torch.save(
        {name.replace(".module", ""): value for name, value in state.items()},
        folder / "b.pth",
    )
    assert inside("diff", "a.pth", "b.pth", cwd=folder).code == 0
    assert inside("diff", "a.pth", "a.pth", cwd=folder).code == 0


def test_a_dict_of_dicts_with_a_key_module_is_left(tmp_path: Path) -> None:
    parts = {part: {"weight": torch.randn(3, 3)} for part in ("a", "b")}
    torch.save(
        {"model": {"features": {"module": parts}, "fc": {"weight": torch.randn(2)}}},
        tmp_path / "a.pth",
    )
    done = inside("strip", "a.pth", "-o", "out.pth", cwd=tmp_path)
    assert done.code == 0 and "nothing to strip" in done.out.decode()


@pytest.mark.parametrize(
    ("names", "inner"),
    [
        (["a.module", "a.modules.b", "amodule.b"], Inner()),
        (["a.module.x.w", "a.module.y.w"], Inner(("a.module.",))),
        (
            ["a.module.module.x.w", "a.module.module.y.w"],
            Inner(("a.module.", "a.module.module.")),
        ),
        (
            ["a._orig_mod.module.x.w", "a._orig_mod.module.y.w"],
            Inner(("a._orig_mod.module.",)),
        ),
        (
            ["module.a.module.x.w", "module.a.module.y.w"],
            Inner((), ("module.a.module.",)),
        ),
        (["a.module.w", "a.module.b"], Inner((), ("a.module.",))),
        (
            ["a.module.x.w", "a.module.y.w", "b.module.w", "b.own.w"],
            Inner((), ("a.module.",)),
        ),
        (
            ["a.module.x.module.w", "a.module.y.w"],
            Inner((), ("a.module.",), ("a.module.x.module.",)),
        ),
        (["a.0.module.x.w", "a.0.module.y.w"], Inner((), (), ("a.0.module.",))),
        (
            [f"part{n}.module.{leaf}.w" for n in range(2) for leaf in "xy"],
            Inner((), (), ("part0.module.", "part1.module.")),
        ),
        (
            [f"{part}.module.{leaf}.w" for part in "abcde" for leaf in "xy"],
            Inner((), (), tuple(f"{part}.module." for part in "abcde")),
        ),
    ],
)
def test_the_names_say_how_sure_a_wrapper_is(names: list[str], inner: Inner) -> None:
    assert inner_modules(names) == inner
    rule = unwrapping_rule(names)
    assert inner.sure or [rule(name) for name in names] == [
        name.removeprefix("module.") for name in names
    ]


def test_a_hundred_thousand_long_names_are_looked_at_once() -> None:
    begin = "a_part_of_a_model_with_a_rather_long_name.that_goes_on_and_on_until_it_fills_the_line.layers"
    names = [
        f"{begin}.{n}.module.{leaf}.weight"
        for n in range(50_000)
        for leaf in ("one", "two")
    ]
    assert len(inner_modules(names).rest) == 50_000
    rule = unwrapping_rule(names, every=True)
    assert rule(names[0]) == f"{begin}.0.one.weight" and "module" not in rule(names[-1])

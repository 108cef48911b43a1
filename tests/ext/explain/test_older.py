"""DDP's numbers with the code of the model, or with an older save of the run: then they
are no guess.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import oracle
import pytest
import torch
from inside import inside
from process import terminal
from torch import nn

pytestmark = oracle.QUIET

MESSAGE = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before "
    "starting a new one."
    " Parameter indices which did not receive grad for rank 0: {}"
)


class Chain(nn.Module):
    """Layers of one width, of which some are used."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(3, 3, bias=number % 3 > 0) for number in range(layers)
        )
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, used: set[int]) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x) if number in used else x
        return self.norm(x)


def run(folder: Path, layers: int, frozen: set[int], unused: set[int]) -> list[str]:
    """Save before and after one step of plain SGD, whose state says nothing. Returns
    the names that DDP counts.
    """
    torch.manual_seed(layers)
    model = Chain(layers)
    for number in frozen:
        model.layers[number].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        folder / "old.pt",
    )
    out = model(torch.randn(8, 3), set(range(layers)) - unused)
    (out * torch.randn(8, 3)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        folder / "new.pt",
    )
    return [
        name for name, parameter in model.named_parameters() if parameter.requires_grad
    ]


def unchanged_in(folder: Path) -> list[str]:
    """The names of the parameters that are the same in both saves."""
    old, new = (torch.load(folder / name)["model"] for name in ("old.pt", "new.pt"))
    names = [name for name in old if "norm" not in name or name.endswith(".weight")]
    return [name for name in names if torch.equal(old[name], new[name])]


def answered(folder: Path, numbers: list[int], *paths: str) -> Any:
    text = MESSAGE.format(" ".join(map(str, numbers)))
    done = inside("explain", text, *paths, "--json", cwd=folder)
    assert done.code == 0, done
    return json.loads(done.out)["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_the_names_are_right_or_among_the_candidates(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    layers = random.randint(2, 9)
    frozen = {number for number in range(layers) if random.random() < 0.3}
    unused = {number for number in range(layers) if random.random() < 0.3}
    counted = run(tmp_path, layers, frozen, unused)
    truth = {
        index: f"model.{name}"
        for index, name in enumerate(counted)
        if name.startswith("layers.") and int(name.split(".")[1]) in unused
    }
    if not truth:
        truth = {}
        return
    answer = answered(tmp_path, sorted(truth), "old.pt", "new.pt")
    index = answer["index"]
    for row in index["names"]:
        assert truth[row["index"]] in row["candidates"]
    is_sure = all(row["name"] for row in index["names"])
    # Plain SGD does not tell a frozen parameter from a step that was too small to see.
    has_more = len(truth) < len(unchanged_in(tmp_path))
    assert index["evidence"]["trust"] == ("likely" if has_more else "strong")
    assert (index["assumes"] is not None) == has_more
    assert index["parameters"] == len(counted)
    # Sure wherever no frozen layer touches an unused one.
    touching = any(
        {number - 1, number + 1} & (frozen - unused) for number in unused - frozen
    )
    assert is_sure or touching or unused & frozen


class Buffered(nn.Module):
    """A buffer that only its name tells, one that no name tells, a frozen layer, and an
    unused one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.ones(3))
        self.register_buffer("drift", torch.ones(3))
        self.frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
        self.used = nn.Linear(3, 3, bias=False)
        self.unused = nn.Linear(3, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(self.frozen(x) * self.inv_freq + self.drift)


@pytest.mark.parametrize("holds", ["nothing", "live", "all"])
@pytest.mark.parametrize("drifts", [False, True])
def test_no_buffer_is_taken_for_a_changed_parameter(
    drifts: bool, holds: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Buffered()
    live = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(live if holds == "live" else model.parameters(), 0.1)
    for name in ("old.pt", "new.pt"):
        kept = {} if holds == "nothing" else {"optimizer": optimizer.state_dict()}
        torch.save({"model": model.state_dict(), **kept}, tmp_path / name)
        model(torch.randn(8, 3)).pow(2).sum().backward()
        optimizer.step()
        model.drift += drifts
    index = answered(tmp_path, [1], "old.pt", "new.pt")["index"]
    (row,) = index["names"]
    truth = "model.unused.weight"
    assert truth in row["candidates"] or index["evidence"]["trust"] == "likely"
    # Without a buffer that moves, and without a name that nobody knows, it is found.
    assert row["name"] == truth or (drifts and holds != "all")
    if row["name"] == truth:
        # The frozen layer may be one whose step was too small to see.
        assert index["assumes"] == "each parameter that had a gradient changed"
        assert ("; " in index["evidence"]["note"]) == (holds != "all")
        assert index["parameters"] == 2


def test_the_other_ways_are_named_for_a_guess_only(tmp_path: Path) -> None:
    run(tmp_path, 4, {0}, {2})
    guess = answered(tmp_path, [2, 3], "new.pt")
    commands = [row["command"] for row in guess["statements"] if row["command"]]
    assert "ckpt explain MESSAGE OLDER new.pt" in commands
    sure = answered(tmp_path, [2, 3], "old.pt", "new.pt")
    assert sure["index"]["assumes"] == "each parameter that had a gradient changed"
    run(tmp_path, 4, set(), {2})
    sure = answered(tmp_path, [3, 4], "old.pt", "new.pt")
    assert [row["command"] for row in sure["statements"] if row["command"]] == []
    (said,) = (row for row in sure["statements"] if "did not change" in row["text"])
    assert said["names"] == [
        "model.layers.2.weight",
        "model.layers.2.bias",
    ]


def test_saves_that_do_not_fit_are_said(tmp_path: Path) -> None:
    run(tmp_path, 4, set(), set())
    answer = answered(tmp_path, [1, 2], "old.pt", "new.pt")
    texts = [row["text"] for row in answer["statements"]]
    assert (
        "Every parameter changed since old.pt, so each of them had a gradient in "
        "between."
    ) in texts
    run(tmp_path, 5, set(), {4})
    texts = [
        row["text"] for row in answered(tmp_path, [0], "old.pt", "new.pt")["statements"]
    ]
    assert any(
        text.endswith("a step was too small to see, or the saves are of another run.")
        for text in texts
    )


def test_a_branch_that_only_the_step_that_stopped_left_out_is_said(
    tmp_path: Path,
) -> None:
    """Some of the numbers changed before: they had a gradient then, and no step was too
    small to see.
    """
    run(tmp_path, 5, set(), {4})
    texts = [
        row["text"]
        for row in answered(tmp_path, [4, 6], "old.pt", "new.pt")["statements"]
    ]
    (said,) = (text for text in texts if "did not change" in text)
    assert "a step was too small to see, or the saves" not in said
    assert said.endswith(
        "1 of the 2 that the numbers name changed in between: forward took it in a step "
        "before the one that stopped, or the saves are of another run."
    )


def test_a_branch_of_the_last_step_is_said_where_the_optimizer_is_sure(
    tmp_path: Path,
) -> None:
    """Adam's steps rule out one that was too small to see, and the reason stays."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for name in ("old.pt", "new.pt"):
        optimizer.zero_grad()
        model[2](model[1](model[0](torch.randn(8, 3)))).pow(2).sum().backward()
        optimizer.step()
        whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(whole, tmp_path / name)

    answer = answered(tmp_path, [2, 3, 6, 7], "old.pt", "new.pt")

    (said,) = (
        row["text"] for row in answer["statements"] if "did not change" in row["text"]
    )
    assert "2 of the 4 that the numbers name changed in between: forward took" in said


@pytest.mark.parametrize("hidden", [{1}, {3}, {3, 4}])
def test_a_frozen_layer_and_a_step_too_small_to_see_fit_together(
    hidden: set[int], tmp_path: Path
) -> None:
    """Plain SGD does not tell them apart, but what changed had a gradient all the
    same.
    """
    counted = run(tmp_path, 8, {0, 6}, {2, 7})
    old, new = (torch.load(tmp_path / name) for name in ("old.pt", "new.pt"))
    # A bias in front of BatchNorm moves by less than float32 has digits.
    for number in hidden:
        name = f"layers.{number}.{'weight' if number % 3 == 0 else 'bias'}"
        new["model"][name] = old["model"][name]
    torch.save(new, tmp_path / "new.pt")
    truth = {
        index: f"model.{name}"
        for index, name in enumerate(counted)
        if name.startswith(("layers.2.", "layers.7."))
    }

    index = answered(tmp_path, list(truth), "old.pt", "new.pt")["index"]

    still = {f"model.{name}" for name in unchanged_in(tmp_path)}
    for row in index["names"]:
        assert truth[row["index"]] in row["candidates"]
        assert set(row["candidates"]) <= still
    assert index["parameters"] >= len(counted)


@pytest.mark.parametrize("lack", ["all", "reshaped", "retyped", "absent"])
def test_an_older_save_of_another_model_says_nothing_of_gradients(
    lack: str, tmp_path: Path
) -> None:
    run(tmp_path, 4, set(), {2})
    older = torch.load(tmp_path / "old.pt")
    weights = older["model"]
    if lack == "all":
        older["model"] = {"embed.weight": torch.ones(5, 2)}
    elif lack == "reshaped":
        weights["layers.0.weight"] = torch.ones(4, 3)
    elif lack == "retyped":
        weights["layers.0.weight"] = weights["layers.0.weight"].half()
    else:
        del weights["layers.0.weight"]
    torch.save(older, tmp_path / "old.pt")

    answer = answered(tmp_path, [3, 4], "old.pt", "new.pt")

    texts = " ".join(row["text"] for row in answer["statements"])
    assert "Every parameter changed" not in texts
    (said,) = (row for row in answer["statements"] if "tells nothing" in row["text"])
    assert "model.layers.0.weight" in said["names"]
    assert len(said["names"]) == (1 if lack != "all" else 8)
    assert answer["index"]["evidence"]["trust"] == "likely"


class Averaged(nn.Module):
    """A frozen layer, one that learns, one whose gradient is zero, and one without a
    gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 3).requires_grad_(False)
        self.body = nn.Linear(3, 3)
        self.still = nn.Linear(3, 3, bias=False)
        self.aux = nn.Linear(3, 3)


def save_steps(folder: Path, average: str | None = None) -> None:
    """Save old.pt and new.pt after a step of Adam each, with an average of the model
    where it is named.
    """
    torch.manual_seed(0)
    net = Averaged()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    mean = {name: value.clone() for name, value in net.state_dict().items()}
    for name in ("old.pt", "new.pt"):
        out = net.body(net.stem(torch.randn(4, 3))).pow(2) + 0 * net.still(
            torch.ones(3)
        )
        out.sum().backward()
        optimizer.step()
        mean = {
            key: value * 0.9 + mean[key] * 0.1
            for key, value in net.state_dict().items()
        }
        kept = {} if average is None else {average: mean}
        content = {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            **kept,
        }
        torch.save(content, folder / name)


@pytest.mark.parametrize("average", [None, "ema", "swa_model"])
def test_changed_parameters_of_the_model_are_counted_and_what_stood_still_is_named(
    average: str | None, tmp_path: Path
) -> None:
    save_steps(tmp_path, average=average)
    answer = answered(tmp_path, [3, 4], "old.pt", "new.pt")

    why = (
        "2 parameters changed since the older save, 1 is the same although the "
        "optimizer stepped, and these did not"
    )
    assert answer["index"]["evidence"]["note"] == why
    unchanged, stepped = answer["statements"][-2:]
    assert unchanged["text"].startswith("4 parameters did not change since old.pt")
    assert unchanged["names"] == [
        f"model.{name}"
        for name in ("stem.weight", "stem.bias", "aux.weight", "aux.bias")
    ]
    assert stepped["text"].startswith(
        "1 parameter is the same although the optimizer stepped"
    )
    assert stepped["names"] == ["model.still.weight"]


def test_saves_in_which_nothing_changed_are_not_called_those_of_another_run(
    tmp_path: Path,
) -> None:
    net = Averaged()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    for name in ("old.pt", "new.pt"):
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
            tmp_path / name,
        )
    texts = [
        row["text"] for row in answered(tmp_path, [3], "old.pt", "new.pt")["statements"]
    ]
    assert any(
        text.endswith("so these saves do not tell which parameters had a gradient.")
        for text in texts
    )
    assert not any("do not fit" in text for text in texts)


def test_ranks_that_differ_are_answered_from_the_newer_save(tmp_path: Path) -> None:
    run(tmp_path, 4, set(), {2})
    text = "Parameter indices which did not receive grad for rank {}: {}"
    lines = "\n".join((text.format(0, "3 4"), text.format(1, "5")))
    done = inside("explain", lines, "old.pt", "new.pt", cwd=tmp_path)
    assert done.code == 0 and "likely" in "\n".join(done.lines)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_folder_of_saves_answers_by_the_one_that_was_written_last(
    is_cut: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.Adam(model.parameters())
    (tmp_path / "run").mkdir()
    for epoch in (1, 2, 3):
        model[0](torch.ones(2, 3)).sum().backward()
        optimizer.step()
        path = tmp_path / "run" / f"epoch_{epoch}.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path)
        os.utime(path, (epoch, epoch))
    if is_cut:
        path.write_bytes(path.read_bytes()[:900])
        os.utime(path, (9, 9))
    done = inside("explain", MESSAGE.format("2 3"), "run", "--json", cwd=tmp_path)
    answer = json.loads(done.out)["answer"]
    which = "epoch_2.pt" if is_cut else "epoch_3.pt"
    last = "the last one that can be read" if is_cut else "which was written last"
    assert answer["path"] == f"run/{which}"
    assert answer["statements"][0]["text"] == (
        f"run holds 3 checkpoints. This is the answer of {which}, {last}."
    )
    names = [row["name"] for row in answer["index"]["names"]]
    assert names == ["model.1.weight", "model.1.bias"]


def test_the_code_of_the_model_makes_it_certain(tmp_path: Path) -> None:
    run(tmp_path, 4, {0}, {2})
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "class Chain(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = nn.ModuleList(nn.Linear(3, 3, bias=n % 3 > 0) for n in "
        "range(4))\n"
        "        self.norm = nn.BatchNorm1d(3)\n"
        "def make(frozen=True):\n"
        "    net = Chain()\n"
        "    net.layers[0].requires_grad_(not frozen)\n"
        "    return net\n"
    )
    for words, name in (
        ((), "model.layers.2.weight"),
        (("--arg", "frozen=False"), "model.layers.1.bias"),
    ):
        answer = answered(tmp_path, [2], "new.pt", "--model", "nets.py:make", *words)
        assert answer["index"]["evidence"]["trust"] == "certain"
        assert [row["name"] for row in answer["index"]["names"]] == [name]


def test_a_factory_that_freezes_nothing_names_no_frozen_layer(tmp_path: Path) -> None:
    stem, rest = nn.Linear(4, 4), [nn.Linear(4, 4) for _ in range(3)]
    model = nn.Sequential(stem, *rest)
    stem.requires_grad_(False)
    live = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(live, 0.1)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make(frozen):\n"
        "    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])\n"
        "    net[0].requires_grad_(not frozen)\n"
        "    return net\n"
    )
    words = ("a.pt", "--model", "nets.py:make", "--arg")
    wrong = answered(tmp_path, [0, 1], *words, "frozen=False")
    for row, truth in zip(
        wrong["index"]["names"], ("model.1.weight", "model.1.bias"), strict=True
    ):
        assert row["name"] is None and truth in row["candidates"]
    assert "8 that require a gradient" in wrong["index"]["evidence"]["note"]
    assert any("--model freezes exactly" in row["text"] for row in wrong["statements"])

    right = answered(tmp_path, [0, 1], *words, "frozen=True")["index"]
    assert right["evidence"]["trust"] == "certain"
    assert [row["name"] for row in right["names"]] == ["model.1.weight", "model.1.bias"]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_of_all_parameters_tells_what_the_factory_should_freeze(
    kind: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    """The run froze the stem and gave the optimizer all parameters, as most scripts do:
    DDP counts fewer than the factory builds.
    """
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    model[0].requires_grad_(False)
    optimizer = kind(model.parameters(), 0.1)  # type: ignore[call-arg]
    model[3](model[1](torch.randn(2, 4))).sum().backward()  # 2 is not used
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])\n"
    )
    # Of 1.weight, 1.bias, 2.weight and so on; the factory would call them 1.
    index = answered(tmp_path, [2, 3], "a.pt", "--model", "nets.py:make")["index"]
    names = [row["name"] for row in index["names"]]
    if kind is torch.optim.Adam:
        assert index["evidence"]["trust"] == "likely"
        assert names == ["model.2.weight", "model.2.bias"]
        return
    note = index["evidence"]["note"]
    assert note.endswith("if the run froze nothing either")
    assert names == ["model.1.weight", "model.1.bias"]


def test_an_optimizer_that_got_what_the_factory_trains_settles_what_is_frozen(
    tmp_path: Path,
) -> None:
    """Numbers of parameters that had a gradient have their names too: the optimizer
    holds what the model trains, and not what it freezes.
    """
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    model[3].requires_grad_(False)
    trained = [row for row in model.parameters() if row.requires_grad]
    optimizer = torch.optim.Adam(trained)
    model[3](model[0](torch.randn(2, 4))).sum().backward()
    optimizer.step()
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(whole, tmp_path / "a.pt")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])\n"
        "    model[3].requires_grad_(False)\n"
        "    return model\n"
    )

    index = answered(tmp_path, [0, 2], "a.pt", "--model", "nets.py:make")["index"]

    names = [row["name"] for row in index["names"]]
    assert names == ["model.0.weight", "model.1.weight"]
    assert index["parameters"] == 6
    assert index["assumes"].startswith("the factory freezes what the run froze")


def test_the_last_number_shows_that_nothing_was_frozen(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    torch.save(model.state_dict(), tmp_path / "a.pt")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])\n"
    )
    index = answered(tmp_path, [4, 5], "a.pt", "--model", "nets.py:make")["index"]
    assert index["evidence"]["note"] == "the model that --model builds"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["KeyError: 'x'", "old.pt", "new.pt"],
            "one PATH is asked about this error, and 2 are named: a second one, OLDER",
        ),
        (
            ["KeyError: 'x'", "--model", "nets.py:make"],
            "--model needs the PATH of a checkpoint",
        ),
        ([MESSAGE.format(1), "gone.pt", "new.pt"], "gone.pt"),
        (
            [MESSAGE.format(1), "old.pt", "old.pt", "new.pt"],
            "old.pt: more than two checkpoints behind",
        ),
    ],
)
def test_what_is_refused(words: list[str], problem: str, tmp_path: Path) -> None:
    run(tmp_path, 3, set(), set())
    done = inside("explain", *words, cwd=tmp_path)
    assert done.code == 2 and problem in done.complaints[0]


def test_many_candidates_are_one_line(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
    for number in range(10):
        model[number].requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [value for value in model.parameters() if value.requires_grad]
    )
    out = torch.randn(2, 4)
    for number, layer in enumerate(model):
        out = out if number in (13, 17) else layer(out)
    out.sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )
    done = inside("explain", MESSAGE.format("6 7"), "a.pt", cwd=tmp_path)
    assert not any(line.lstrip().startswith("or ") for line in done.lines)
    assert any(
        line.startswith("    6  one of 21: model.3-13.weight ×11, ")
        for line in done.lines
    )


def test_model_is_used_or_said_to_be_of_no_use(tmp_path: Path) -> None:
    run(tmp_path, 4, {0}, set())
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    net = nn.Module()\n"
        "    net.layers = nn.ModuleList(nn.Linear(3, 3, bias=n % 3 > 0) for n in "
        "range(4))\n"
        "    net.norm = nn.BatchNorm1d(3)\n"
        "    net.layers[0].requires_grad_(False)\n"
        "    return net\n"
    )
    text = "loaded state dict contains a parameter group that doesn't match the size"
    words = ("new.pt", "--model", "nets.py:make")
    done = inside("explain", f"ValueError: {text}", *words, cwd=tmp_path)
    assert "The model of --model has 8, and trains 7 parameters." in done.lines
    assert not done.complaints

    done = inside("explain", "KeyError: 'state_dict'", *words, cwd=tmp_path)
    assert done.code == 0 and "--model is not used" in done.complaints[0]


def test_many_candidates_are_broken_between_names(tmp_path: Path) -> None:
    model = nn.ModuleDict()
    for letter in "abcdefghij":
        child = nn.ModuleDict({letter * 20: nn.Linear(4, 4, bias=False)})
        model[f"layer_{letter}"] = child
    live = list(model.parameters())[5:]
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": torch.optim.SGD(live, 0.1).state_dict(),
        },
        tmp_path / "a.pt",
    )
    seen = terminal(
        "explain",
        MESSAGE.format("0 2"),
        "a.pt",
        cwd=tmp_path,
        NO_COLOR="1",
        TERM="dumb",
    )
    lines = seen.splitlines()
    start = next(i for i, line in enumerate(lines) if "one of" in line)
    indent = lines[start].index("one of")
    assert lines[start + 1].startswith(" " * indent + "model."), seen
    assert max(map(len, lines)) <= 80, seen


def test_a_model_in_the_place_of_an_optimizer_is_told_its_state(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    content = {"model": model.state_dict(), "opt": optimizer.state_dict()}
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(KeyError) as caught:
        optimizer.load_state_dict(content["model"])
    done = inside("explain", f"KeyError: {caught.value}", "a.pt", cwd=tmp_path)
    assert '  optimizer.load_state_dict(checkpoint["opt"])' in done.lines


def test_two_layers_of_other_classes_are_not_called_the_last(tmp_path: Path) -> None:
    one, two = (
        nn.ModuleDict(
            {"body": nn.Linear(4, 4), "aux": nn.Linear(4, n), "out": nn.Linear(4, n)}
        )
        for n in (5, 7)
    )
    torch.save(one.state_dict(), tmp_path / "a.pt")
    with pytest.raises(RuntimeError) as caught:
        two.load_state_dict(one.state_dict())
    text = " ".join(inside("explain", str(caught.value), "a.pt", cwd=tmp_path).lines)
    assert "These 2 layers cannot be loaded, and the others can." in text


def saved_pair(folder: Path, moved: set[str], states: dict[str, int]) -> None:
    """Save layers of which some moved before and after a step, with an optimizer that
    holds those of `states`, in their order, with their steps.
    """
    names = ["a.weight", "a.bias", "b.weight", "c.weight", "d.weight", "e.weight"]
    torch.manual_seed(1)
    old = {
        name: torch.randn(3, 3) if name.endswith("weight") else torch.randn(3)
        for name in names
    }
    new = {name: value + (name in moved) for name, value in old.items()}
    for file, model in (("old.pt", old), ("new.pt", new)):
        group = {"lr": 0.1, "momentum": 0, "params": list(range(len(names)))}
        state = {}
        for number, name in enumerate(names):
            if name in states:
                moments = {
                    "exp_avg": model[name] * 0 + 1,
                    "exp_avg_sq": model[name] * 0 + 1,
                }
                state[number] = {"step": torch.tensor(float(states[name])), **moments}
        torch.save(
            {"model": model, "optimizer": {"state": state, "param_groups": [group]}},
            folder / file,
        )


def test_a_step_that_is_too_small_to_see_is_an_assumption(tmp_path: Path) -> None:
    """`a.bias` had a gradient of nearly zero, so DDP counts it, and its 2 is
    `b.weight`. The saves alone say `d.weight`, which is frozen.
    """
    saved_pair(tmp_path, {"a.weight", "c.weight", "e.weight"}, {})
    index = answered(tmp_path, [2], "old.pt", "new.pt")["index"]
    assert index["evidence"]["trust"] == "likely"
    assert index["assumes"] == "each parameter that had a gradient changed"


def test_numbers_keep_the_order_of_the_names(tmp_path: Path) -> None:
    """An older save says as much as the newer one alone: the second of two numbers is
    not the first of three names.
    """
    moved = {"a.weight", "a.bias", "b.weight"}
    saved_pair(tmp_path, moved, dict.fromkeys(moved, 2))
    alone = answered(tmp_path, [3, 4], "new.pt")["index"]["names"]
    found = answered(tmp_path, [3, 4], "old.pt", "new.pt")["index"]
    expected = [["c.weight", "d.weight"], ["d.weight", "e.weight"]]
    for rows in (alone, found["names"]):
        assert [row["candidates"] for row in rows] == [
            [f"model.{name}" for name in names] for names in expected
        ]
    assert found["evidence"]["trust"] == "strong"


def test_numbers_that_name_some_of_the_unchanged(tmp_path: Path) -> None:
    """The bias in front of BatchNorm is the same too, and the sentence says so."""
    run(tmp_path, 3, set(), {2})
    new = torch.load(tmp_path / "new.pt")
    new["model"]["layers.1.bias"] = torch.load(tmp_path / "old.pt")["model"][
        "layers.1.bias"
    ]
    torch.save(new, tmp_path / "new.pt")
    texts = [
        row["text"]
        for row in answered(tmp_path, [3, 4], "old.pt", "new.pt")["statements"]
    ]
    assert any(
        text.endswith(
            "The numbers name 2 of them, and the step of the other one was zero or too "
            "small to see."
        )
        for text in texts
    ), texts


class Momentum(nn.Module):
    """A momentum encoder in front of the encoder that it follows, each with a head that
    forward does not use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, 2)})
        self.quick = nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, 2)})
        self.slow.load_state_dict(self.quick.state_dict())
        self.slow.requires_grad_(False)

    def train_once(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step, and let the slow encoder follow the quick one."""
        optimizer.zero_grad()
        self.quick["body"](torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            pairs = zip(self.slow.parameters(), self.quick.parameters(), strict=True)
            for slow, quick in pairs:
                slow.lerp_(quick, 0.1)


def save_momentum(folder: Path) -> None:
    torch.manual_seed(1)
    model = Momentum()
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.Adam(trained, 0.01)
    for name in ("old.pt", "new.pt"):
        model.train_once(optimizer)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states, folder / name)


def test_an_average_changes_without_a_gradient(tmp_path: Path) -> None:
    """The encoder of the average stands first, so its changes shifted the numbers."""
    save_momentum(tmp_path)

    answer = answered(tmp_path, [2, 3], "old.pt", "new.pt")

    index = answer["index"]
    by_number = {row["index"]: row["candidates"] for row in index["names"]}
    assert "model.quick.head.weight" in by_number[2]
    assert "model.quick.head.bias" in by_number[3]
    listed = {name for names in by_number.values() for name in names}
    assert all(".head." in name for name in listed)  # the bodies changed
    said = " ".join(part["text"] for part in answer["statements"])
    assert "more than the optimizer stepped" in said
    assert index["parameters"] >= 4

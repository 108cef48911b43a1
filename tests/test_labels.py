"""Labels: what tells the names of a set of files apart."""

from __future__ import annotations

import random

import pytest

from ckpt.model.names import common_pattern, findable_labels, short_labels

SERIES = [
    f"RFB-Epoch-{epoch}-Loss-{2.9 - epoch / 1000:.15f}.pth"
    for epoch in range(100, 230, 5)
]
SETS: dict[str, tuple[list[str], list[str], str]] = {
    "a series": (
        SERIES[:3],
        ["Epoch-100", "Epoch-105", "Epoch-110"],
        "RFB-Epoch-*-Loss-*.pth",
    ),
    "a series and its best": (
        [*SERIES[:2], "best.pth"],
        ["Epoch-100", "Epoch-105", "best"],
        "*.pth",
    ),
    "a counter behind a date": (
        ["20240102-1200_epoch_1.pth", "20240102-1300_epoch_2.pth"],
        ["epoch_1", "epoch_2"],
        "20240102-*_epoch_*.pth",
    ),
    "the same epoch in two folders": (
        ["a/epoch_1.pth", "a/epoch_2.pth", "b/epoch_1.pth"],
        ["a/epoch_1", "a/epoch_2", "b/epoch_1"],
        "*/epoch_*.pth",
    ),
    "files of several folders": (
        [
            "mix/a/evil.pt",
            "mix/b/run_1/ddp.pt",
            "mix/b/run_1/epoch_3.pt",
            "mix/b/run_2/nan.pt",
        ],
        ["a/evil", "b/run_1/ddp", "b/run_1/epoch_3", "run_2"],
        "mix/*.pt",
    ),
    "names that begin alike": (
        [
            "runs/legacy.pth",
            "runs/legacy_python2.pth",
            "runs/llama_bf16.pth",
            "runs/tied_and_bloated.pth",
        ],
        ["legacy", "legacy_python2", "llama", "tied_and_bloated"],
        "runs/*.pth",
    ),
    "folders": (["a/model.pth", "b/model.pth"], ["a", "b"], "*/model.pth"),
    "steps of the Trainer": (
        ["checkpoint-500/pytorch_model.bin", "checkpoint-1000/pytorch_model.bin"],
        ["checkpoint-500", "checkpoint-1000"],
        "checkpoint-*/pytorch_model.bin",
    ),
    "Lightning": (
        ["epoch=1-step=100.ckpt", "epoch=2-step=200.ckpt", "last.ckpt"],
        ["epoch=1", "epoch=2", "last"],
        "*.ckpt",
    ),
    "a number or a word": (
        ["epoch_1.pth", "epoch_last.pth"],
        ["epoch_1", "epoch_last"],
        "epoch_*.pth",
    ),
    "a number at a word": (
        ["epoch1.pth", "epoch10.pth"],
        ["epoch1", "epoch10"],
        "epoch*.pth",
    ),
    "words": (["bert-base.pth", "bert-large.pth"], ["base", "large"], "bert-*.pth"),
    "small numbers": (
        ["x-1e-05.pth", "x-1e-04.pth"],
        ["x-1e-05", "x-1e-04"],
        "x-*.pth",
    ),
    "two columns": (
        [
            "lr-0.1-wd-0.05-epoch-1.pth",
            "lr-0.2-wd-0.05-epoch-1.pth",
            "lr-0.1-wd-0.05-epoch-2.pth",
        ],
        ["lr-0.1…epoch-1", "lr-0.2…epoch-1", "lr-0.1…epoch-2"],
        "lr-*-wd-0.05-epoch-*.pth",
    ),
    "two series": (
        ["a-epoch-1.pth", "a-epoch-2.pth", "b_c-epoch-1.pth", "b_c-epoch-3.pth"],
        ["a-epoch-1", "a-epoch-2", "b_c-epoch-1", "b_c-epoch-3"],
        "*.pth",
    ),
    "a number that counts no saves": (
        ["7b-v-1.pth", "13b-v-2.pth"],
        ["7b", "13b"],
        "*-v-*.pth",
    ),
    "a word before the counter": (
        ["G_epoch_0.pth", "D_epoch_1.pth", "G_epoch_2.pth"],
        ["G_epoch_0", "D_epoch_1", "G_epoch_2"],
        "*_epoch_*.pth",
    ),
    "folds before the counter": (
        ["fold1_epoch_10.pth", "fold2_epoch_12.pth"],
        ["fold1_epoch_10", "fold2_epoch_12"],
        "fold*_epoch_*.pth",
    ),
    "nothing before the mark": (
        ["_model.pth", "old_model.pth"],
        ["_model.pth", "old"],
        "*_model.pth",
    ),
    "backups": (
        ["model.pth", "model.pth.bak", "model.pth.old"],
        ["model.pth", "model.pth.bak", "model.pth.old"],
        "model.*",
    ),
    "dates": (
        ["run_2024-01-01.pth", "run_2024-02-01.pth"],
        ["2024-01", "2024-02"],
        "run_2024-*-01.pth",
    ),
    "one letter more": (
        ["a" * 50 + ".pth", "a" * 51 + ".pth"],
        ["a" * 50, "a" * 51],
        "*.pth",
    ),
    "endings": (
        ["epoch_1.pth", "epoch_1.pt"],
        ["epoch_1.pth", "epoch_1.pt"],
        "epoch_1.*",
    ),
    "one long word": (
        ["x" * 90 + "a" + "y" * 90, "x" * 90 + "b" + "y" * 90],
        ["…a…", "…b…"],
        "*",
    ),
    "no mark in common": (["1", "1-1", "1_1"], ["1", "1-1", "1_1"], "*"),
    "one name": (["epoch_1.pth"], ["epoch_1.pth"], "epoch_1.pth"),
    "a name twice": (
        ["epoch_1.pth", "epoch_1.pth"],
        ["epoch_1.pth", "epoch_1.pth"],
        "epoch_1.pth",
    ),
    "a name that is a label": (
        ["e-1-x", "e-2-x", "e-1"],
        ["e-1-x", "e-2", "e-1"],
        "e-*",
    ),
    "two endings": (
        ["a.fp16.bin", "b_2.fp16.bin"],
        ["a.fp16", "b_2.fp16"],
        "*.fp16.bin",
    ),
    "a common ending": (
        ["checkpoint-1.bin", "checkpoint-final-2.bin"],
        ["checkpoint-1", "checkpoint-final-2"],
        "checkpoint-*.bin",
    ),
    "a number in a word": (
        ["s4_0.pt", "s4_1.pt", "s4_2.pt"],
        ["s4_0", "s4_1", "s4_2"],
        "s4_*.pt",
    ),
    "nothing": ([], [], "*"),
}


@pytest.mark.parametrize("kind", SETS)
def test_labels_say_what_differs(kind: str) -> None:
    names, expected, common = SETS[kind]

    assert short_labels(names) == expected
    assert common_pattern(names) == common


def test_labels_of_300_files_are_short() -> None:
    long = "a_name_of_an_experiment_" * 8
    names = [
        f"{long}-epoch_{epoch:04d}-loss_{1 / (epoch + 3):.12f}.pth"
        for epoch in range(300)
    ]

    assert short_labels(names) == [f"epoch_{epoch:04d}" for epoch in range(300)]


@pytest.mark.parametrize("seed", range(200))
def test_different_names_have_different_labels(seed: int) -> None:
    rng = random.Random(seed)
    words = [
        "epoch",
        "loss",
        "best",
        "1",
        "12",
        "0.5",
        "1e-05",
        "v2",
        "x" * 50,
        "",
        "模型",
    ]
    marks = ["-", "_", ".", "/", "=", " ", ""]
    names = [
        "".join(rng.choice(words) + rng.choice(marks) for _ in range(rng.randint(1, 5)))
        + ".pth"
        for _ in range(rng.randint(2, 30))
    ]
    found = short_labels(names)

    assert len(found) == len(names)
    assert len(set(found)) == len(set(names))
    assert all(
        len(label) <= len(name) for label, name in zip(found, names, strict=True)
    )
    assert all((one == two) == (a == b) for one, a in zip(found, names, strict=True) for two, b in zip(found, names, strict=True))  # fmt: skip


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["peft-merged", "gguf-merged"], ["peft-merged", "gguf-merged"]),
        (["out/lora-merged.pt", "out/full-merged.pt"], ["lora-merged", "full-merged"]),
        (["base", "peft-merged", "tuned"], ["base", "peft-merged", "tuned"]),
        (["run_a/model.pth", "run_b/model.pth"], ["run_a/model", "run_b/model"]),
        (["x/step_100.pt", "x/step_200.pt"], ["step_100", "step_200"]),
        (["a/one.pt"], ["a/one.pt"]),
    ],
)
def test_a_label_to_find_a_file_by_has_no_word_cut_out(
    names: list[str], expected: list[str]
) -> None:
    assert findable_labels(names) == expected

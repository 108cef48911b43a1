"""What a checkpoint answers to errors that torch raises here, and to messages of a run
that it cannot raise.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import pytest
import rewriting
import torch
from process import ROOT, check_error, ckpt
from torch import nn

from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.ext.explain import Case, Explanation, explain, explain_with, pages
from ckpt.model.findings import Way

pytestmark = oracle.QUIET
SAMPLES = ROOT / "sample_checkpoints"


def raised(act: Callable[[], Any]) -> str:
    """The text of the error that torch raises."""
    with pytest.raises(Exception) as caught:
        act()
    return f"{caught.type.__name__}: {caught.value}"


def answered(text: str, path: Path | str, *options: str) -> Any:
    done = ckpt("explain", text, str(path), "--json", *options)
    assert done.code == 0, done.err
    return json.loads(done.out)


def statements(text: str, path: Path | str) -> list[tuple[str, str | None]]:
    return [
        (row["text"], row["command"])
        for row in answered(text, path)["answer"]["statements"]
    ]


def run(command: str | None, folder: Path) -> None:
    """Run a command that an answer prints, as a user pastes it."""
    assert command is not None
    program, *words = shlex.split(command)
    assert program == "ckpt"
    done = ckpt(*words, cwd=folder)
    assert done.code == 0, done.err


class Net(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 6))
        self.head = nn.Linear(6, classes)


def test_wrapped_keys_are_stripped_by_the_command(tmp_path: Path) -> None:
    source = rewriting.saved(nn.DataParallel(Net()).state_dict(), tmp_path / "a.pth")
    text = raised(lambda: Net().load_state_dict(torch.load(source, weights_only=True)))

    ((said, command),) = statements(text, source)

    assert said == "10 of the 10 missing keys are there by other names: module.* → *."
    run(command, tmp_path)
    Net().load_state_dict(torch.load(tmp_path / "a.stripped.pth", weights_only=True))


def test_a_part_of_the_list_speaks_for_all_wrapped_keys(tmp_path: Path) -> None:
    """Nobody pastes a thousand names: the file has the others under the prefix
    as well.
    """
    source = rewriting.saved(nn.DataParallel(Net()).state_dict(), tmp_path / "a.pth")
    text = (
        "Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "
        '"body.0.weight", "body.0.bias",'
        ' "tail.weight". Unexpected key(s) in state_dict: "module.body.0.weight".'
    )

    (first, second, *_) = statements(text, source)

    assert first[0] == "2 of the 3 missing keys are there by other names: module.* → *."
    assert second[0].startswith("1 missing key is not in this file")
    run(first[1], tmp_path)
    assert "body.0.bias" in torch.load(tmp_path / "a.stripped.pth", weights_only=True)


def test_other_names_are_renamed_by_the_command(tmp_path: Path) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Module()
            self.backbone.encoder = Net().body

    source = rewriting.saved(Other().state_dict(), tmp_path / "a.pth")
    text = raised(lambda: Net().load_state_dict(torch.load(source, weights_only=True)))

    rows = statements(text, source)

    assert rows[0][0].endswith(
        "8 of the 10 missing keys are there by other names: backbone.encoder.* → "
        "body.*."
    )
    run(rows[0][1], tmp_path)
    result = Net().load_state_dict(
        torch.load(tmp_path / "a.renamed.pth", weights_only=True), strict=False
    )
    assert (
        result.missing_keys == ["head.weight", "head.bias"]
        and not result.unexpected_keys
    )
    absent = answered(text, source)["answer"]["statements"][1]
    assert absent["names"] == ["head.weight", "head.bias"]
    assert (
        absent["text"]
        == "2 missing keys are not in this file under a name that ckpt can match."
    )


def test_a_whole_checkpoint_that_was_loaded(tmp_path: Path) -> None:
    source = rewriting.saved(
        {"model": Net().state_dict(), "epoch": 3}, tmp_path / "a.pth"
    )
    text = raised(lambda: Net().load_state_dict(torch.load(source, weights_only=True)))

    ((said, command),) = statements(text, source)

    assert said == (
        "The whole checkpoint was loaded into the model. The weights are in model, "
        "which has 10 of the 10 missing keys."
    )
    assert command is not None
    Net().load_state_dict(eval(command, {"torch": torch}))


def test_shapes_that_differ(tmp_path: Path) -> None:
    source = rewriting.saved(Net(10).state_dict(), tmp_path / "a.pth")
    text = raised(lambda: Net(4).load_state_dict(torch.load(source, weights_only=True)))

    document = answered(text, source)

    assert document["message"]["kind"] == "sizes"
    assert document["answer"]["shapes"] == [
        {"name": "head.weight", "checkpoint": [10, 6], "model": [4, 6]},
        {"name": "head.bias", "checkpoint": [10], "model": [4]},
    ]
    reason, live = document["answer"]["statements"]
    assert reason["text"].startswith(
        "The checkpoint has 10 outputs where the model has 4: another number of "
        "classes."
    )
    model = Net(4)
    exec(live["command"], {"model": model})
    assert torch.equal(
        model.body[0].weight, torch.load(source, weights_only=True)["body.0.weight"]
    )
    other = rewriting.saved(Net(7).state_dict(), tmp_path / "b.pth")
    assert statements(text, other)[0][0] == (
        "2 tensors have another shape in this file than in the message. Is it the file "
        "that was loaded?"
    )


def test_keys_of_another_file(tmp_path: Path) -> None:
    source = rewriting.saved(
        OrderedDict(x=torch.ones(2), y=torch.ones(3)), tmp_path / "a.pth"
    )
    text = (
        'Missing key(s) in state_dict: "p.q". \n Unexpected key(s) in state_dict: '
        '"r.s", "r.t".'
    )

    rows = statements(text, source)

    assert rows[0][0] == (
        "None of the 2 unexpected keys is in this file. Is it the file that was loaded?"
    )


def test_an_optimizer_that_does_not_fit(tmp_path: Path) -> None:
    net = Net()
    old = torch.optim.Adam(
        [{"params": net.body.parameters()}, {"params": net.head.parameters()}]
    )
    source = rewriting.saved(
        {"model": net.state_dict(), "optimizer": old.state_dict()}, tmp_path / "a.pth"
    )
    other = torch.optim.Adam(
        [{"params": net.body.parameters()}, {"params": [net.head.weight]}]
    )
    single = torch.optim.Adam(net.parameters())

    for new in (other, single):
        text = raised(lambda new=new: new.load_state_dict(old.state_dict()))
        rows = statements(text, source)
        assert rows[0][0] == "optimizer has 2 groups of 6, 2 parameters, 8 in all."


def test_what_weights_only_refuses(tmp_path: Path) -> None:
    thing = {"model": Net().state_dict(), "args": argparse.Namespace(lr=0.1)}
    source = rewriting.saved(thing, tmp_path / "a.pth")
    text = raised(lambda: torch.load(source, weights_only=True))

    rows = statements(text, source)

    assert rows[0][0] == "The file names argparse.Namespace at args."
    run(rows[-1][1], tmp_path)
    torch.load(tmp_path / "a.plain.pth", weights_only=True)
    plain = rewriting.saved(Net().state_dict(), tmp_path / "b.pth")
    assert [row[0] for row in statements(text, plain)] == [
        "The file does not name argparse.Namespace.",
        "weights_only=True loads this file.",
    ]


@pytest.mark.parametrize(
    "text",
    ["Attempting to deserialize object on CUDA device 1 but", "CUDA out of memory."],
)
def test_devices(text: str) -> None:
    rows = statements(text, SAMPLES / "train_cuda.pth")

    assert [said for said, _ in rows][:2] == [
        "92 storages with 46.2 KiB are saved on cuda:0.",
        "23 storages with 92 B are saved on cuda:1.",
    ]
    assert any(command and command.startswith("ckpt rehome ") for _, command in rows)
    assert (
        "No tensor of this file is saved on a GPU"
        in statements(text, SAMPLES / "ddp_after.pth")[0][0]
    )


def test_the_copy_for_a_machine_without_a_gpu_is_one_that_weights_only_loads(
    tmp_path: Path,
) -> None:
    shutil.copy(SAMPLES / "train_cuda.pth", tmp_path / "a.pth")
    text = (
        "Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False."
    )
    rows = dict(statements(text, tmp_path / "a.pth"))
    (refusal,) = (
        said for said in rows if said.startswith("weights_only=True, the default")
    )
    command = rows[refusal]
    assert command is not None and "--plain --to cpu" in command
    run(command, tmp_path)
    torch.load(tmp_path / "a.plain.pth", weights_only=True)
    plain = rewriting.saved({"a.weight": torch.ones(2)}, tmp_path / "b.pth")
    assert not any("weights_only" in said for said, _ in statements(text, plain))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("truncated.pth", marks=pytest.mark.needs("salvage")),
        "html_page.pth",
        "lfs_pointer.pth",
    ],
)
def test_files_that_do_not_open(name: str, tmp_path: Path) -> None:
    text = raised(lambda: torch.load(SAMPLES / name, weights_only=True))

    (said, command), *more = statements(text, SAMPLES / name)

    assert [further for _, further in more] == (
        [f"ckpt salvage {SAMPLES / name} -o {SAMPLES / 'truncated.whole.pth'}"]
        if "truncated" in name
        else []
    )
    assert command is not None and command.startswith("ckpt verify ")
    assert said[0].isupper() and len(said) > 20
    whole = rewriting.saved(Net().state_dict(), tmp_path / "a.pth")
    assert statements(text, whole)[0][0].startswith("This file is whole (PyTorch zip; ")
    check_error(ckpt("explain", "CUDA out of memory.", str(SAMPLES / name)), name)


def test_python_2(tmp_path: Path) -> None:
    text = (
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xa4 in position 1: "
        "invalid start byte"
    )

    rows = statements(text, SAMPLES / "legacy_python2.pth")

    assert (
        rows[0][0] == "Python 2 wrote this file. Its texts load with encoding='latin1'."
    )
    assert rows[1][1] is not None and "--encoding latin1" in rows[1][1]
    assert "needs another encoding" in statements(text, SAMPLES / "ddp_after.pth")[0][0]


@pytest.mark.needs("dcp")
def test_keys_that_a_distributed_checkpoint_lacks() -> None:
    text = (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optim.state.nothing.weight.step."
    )

    rows = answered(text, SAMPLES / "dcp")["answer"]["statements"]

    assert rows[0]["names"] == ["optim.state.nothing.weight.step"]
    assert rows[0]["text"] == "1 key is not in this checkpoint."
    assert rows[-1]["text"].startswith(
        "The checkpoint has no parameters of these names either"
    )
    text = (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optim.state.aux_head.weight.step."
    )
    rows = answered(text, SAMPLES / "dcp")["answer"]["statements"]
    assert rows[1]["text"].startswith("The optimizer saved no state")
    assert "--complete-optimizer" in rows[2]["command"]


def test_the_numbers_of_ddp() -> None:
    text = "Parameter indices which did not receive grad for rank 1: 10 11"

    document = answered(text, SAMPLES / "ddp_after.pth")

    assert [row["name"] for row in document["answer"]["index"]["names"]] == [
        "model.module.fc3.weight",
        "model.module.fc3.bias",
    ]
    assert document["answer"]["index"]["assumes"] is None
    done = ckpt("explain", text, str(SAMPLES / "ddp_after.pth"))
    assert "   10  model.module.fc3.weight  [10, 32]  float32  never" in done.lines
    piped = ckpt(
        "explain",
        "-",
        str(SAMPLES / "ddp_after.pth"),
        input=f"x\r\n[rank1]: {text}\n".encode(),
    )
    assert piped.out == done.out
    check_error(
        ckpt("explain", text, str(SAMPLES / "weights.safetensors")), "keeps no order"
    )


def test_names_and_ready_twice() -> None:
    source = SAMPLES / "ddp_after.pth"
    twice = (
        "Parameter at index 3 with name conv2.weight has been marked as ready twice."
    )
    document = answered(twice, source)
    assert [row["name"] for row in document["answer"]["index"]["names"]] == [
        "model.module.conv2.weight"
    ]
    assert document["answer"]["index"]["evidence"]["trust"] == "certain"
    assert "several backward passes" in document["answer"]["statements"][0]["text"]
    rows = statements(
        "Expected to have finished reduction in the prior iteration", source
    )
    assert (
        rows[0][0].startswith("The text has no numbers")
        and "fc3.{weight,bias}" in rows[1][0]
    )


def test_a_finding_of_a_file() -> None:
    rows = answered("unused", SAMPLES / "ddp_after.pth")["answer"]["statements"]
    assert rows[0]["names"] == ["model.module.fc3.weight", "model.module.fc3.bias"]
    assert statements("nan", SAMPLES / "ddp_after.pth")[0][0].endswith(
        "makes this finding."
    )
    assert (
        "does not have the finding"
        in statements("incomplete", SAMPLES / "ddp_after.pth")[0][0]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "message",
    [text for page in pages() if page.code is None for text in page.messages],
    ids=lambda text: text[:60],
)
def test_each_message_of_the_page_is_answered_for_a_file(message: str) -> None:
    others = (
        ()
        if "rank 1: 10 11" in message or "index 3" in message
        else ("whole_model.pth", "dcp")
    )
    for name in ("ddp_after.pth", "train_cuda.pth", *others):
        rows = answered(message, SAMPLES / name)["answer"]
        assert rows["statements"] or rows["index"]
        assert all(
            row["text"] and not row["text"].endswith(" ")
            for row in rows["statements"]
            if not row["command"]
        )


def test_modules_in_lists() -> None:
    text = (
        "Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cuda:1!"
    )
    assert "not registered" in statements(text, SAMPLES / "whole_model.pth")[0][0]
    assert (
        statements(text, SAMPLES / "ddp_after.pth")[0][1]
        == "ckpt lint --model FILE.py:FACTORY"
    )


def test_keys_that_are_there(tmp_path: Path) -> None:
    source = rewriting.saved(Net().state_dict(), tmp_path / "a.pth")
    rows = answered(
        'Missing key(s) in state_dict: "head.weight", "gone.weight".', source
    )["answer"]["statements"]
    assert [(row["text"], row["names"]) for row in rows[:2]] == [
        (
            (
                "1 missing key is in this file: another file, or another dict of it, "
                "was loaded."
            ),
            ["head.weight"],
        ),
        (
            "1 missing key is not in this file under a name that ckpt can match.",
            ["gone.weight"],
        ),
    ]


def test_the_only_renamed_model_of_two(tmp_path: Path) -> None:
    states = {f"backbone.{name}": value for name, value in Net().state_dict().items()}
    source = rewriting.saved(
        {"one": states, "two": nn.Linear(2, 2).state_dict()}, tmp_path / "a.pth"
    )
    keys = ", ".join(
        f'"{name}"' for name in Net().state_dict() if "num_batches" not in name
    )
    text = (
        f"Missing key(s) in state_dict: {keys}.\n Unexpected key(s) in state_dict: "
        f"{keys.replace(chr(34) + 'b', chr(34) + 'backbone.b').replace(chr(34) + 'h', chr(34) + 'backbone.h')}."
    )
    command = statements(text, source)[0][1]
    assert command is not None and " --section one " in command
    run(command, tmp_path)


def test_further_refusals_and_devices_are_named(tmp_path: Path) -> None:
    thing = {
        "args": argparse.Namespace(),
        "act": torch.nn.functional.relu,
        "w": torch.ones(2),
    }
    source = rewriting.saved(thing, tmp_path / "a.pth")
    text = (
        "Unsupported global: GLOBAL argparse.Namespace was not an allowed global by "
        "default."
    )
    assert any(
        row[0].startswith("weights_only=True refuses 2 things in this file: ")
        for row in statements(text, source)
    )
    text = (
        "Attempting to deserialize object on CUDA device 5 but "
        "torch.cuda.device_count() is 1."
    )
    assert ("None is saved on cuda:5, which the message names.", None) in statements(
        text, SAMPLES / "train_cuda.pth"
    )


def test_names_alone_say_the_rule() -> None:
    found = explain(
        'Missing key(s) in state_dict: "a.w", "a.b".\nUnexpected key(s) in state_dict: '
        '"module.a.w", "module.a.b".'
    )
    assert found.answer is not None
    assert [row.command for row in found.answer.statements] == [
        "ckpt strip FILE -o OUT"
    ]
    assert explain('Missing key(s) in state_dict: "a".').answer is None


def test_words_and_paths(tmp_path: Path) -> None:
    check_error(
        ckpt("explain", "CUDA out of memory", str(tmp_path / "nope.pth")),
        "no such file",
    )
    check_error(
        ckpt("explain", "unused", "--section", "model"), "--section needs the path"
    )
    check_error(ckpt("explain", "-", input=b" \n"), "stdin is empty")
    done = ckpt("explain", "-", input=b"epoch 3\nFooError: all is lost\n")
    check_error(done, "no page for this")


def test_the_api(tmp_path: Path) -> None:
    source = rewriting.saved(nn.DataParallel(Net()).state_dict(), tmp_path / "a.pth")
    with formats.open(str(source)) as checkpoint:
        case = Case(Survey(checkpoint), lambda words: Way(None))
        found: Explanation = explain_with(explain("prefix"), case)
    assert found.answer is not None and "module." in found.answer.statements[0].text


def test_a_place_at_the_root_has_a_name(tmp_path: Path) -> None:
    source = tmp_path / "a.pth"
    torch.save(argparse.Namespace(a=1), source)
    text = raised(lambda: torch.load(source, weights_only=True))
    assert statements(text, source)[0][0].startswith(
        "The file names argparse.Namespace at the root."
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["0.weight"], "the missing key"),
        (["x"], "no missing key"),
        (["x", "y"], "none of the 2 missing keys"),
    ],
)
def test_numbers_are_words_where_they_are_none_or_one(
    names: list[str], said: str, tmp_path: Path
) -> None:
    source = rewriting.saved(
        {"model": {"0.weight": torch.ones(2, 2)}, "epoch": 3}, tmp_path / "a.pth"
    )
    keys = ", ".join(f'"{name}"' for name in names)
    text = (
        f"Missing key(s) in state_dict: {keys}. \n\tUnexpected key(s) in state_dict: "
        '"model", "epoch". '
    )
    assert (
        f"The weights are in model, which has {said}." in statements(text, source)[0][0]
    )


@pytest.mark.parametrize(
    "unexpected",
    [
        "",
        ' Unexpected key(s) in state_dict: "module.head.weight".',
        ' Unexpected key(s) in state_dict: "module.head.weight", "module.head.bias".',
    ],
)
@pytest.mark.parametrize("others", ["", ', "tail.weight"', ', "crf.start", "crf.end"'])
def test_one_key_behind_a_wrapper_is_there(
    unexpected: str, others: str, tmp_path: Path
) -> None:
    source = rewriting.saved(nn.DataParallel(Net()).state_dict(), tmp_path / "a.pth")
    text = f'Missing key(s) in state_dict: "head.weight"{others}.{unexpected}'

    rows = statements(text, source)

    said, command = rows[0]
    few = "The missing key is there by another name: "
    some = f"1 of the {1 + others.count('.')} missing keys is there by other names: "
    assert said.startswith(some if others else few)
    run(command, tmp_path)
    written = torch.load(tmp_path / "a.stripped.pth", weights_only=True)
    assert "head.weight" in written
    lacking = [row["names"] for row in answered(text, source)["answer"]["statements"]]
    assert not any("head.weight" in names for names in lacking)


def test_a_key_that_no_wrapper_hides_is_missing(tmp_path: Path) -> None:
    source = rewriting.saved(nn.DataParallel(Net()).state_dict(), tmp_path / "a.pth")
    rows = statements('Missing key(s) in state_dict: "tail.weight".', source)
    assert rows[0][0].startswith("1 missing key is not in this file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB.", "No tensor of this file"),
        ("Unsupported global: GLOBAL __main__.Args was not", "The file does not name"),
        ("cannot instantiate 'PosixPath' on your system", "The file holds no path"),
    ],
)
def test_a_file_that_is_not_the_cause_does_not_have_the_title(
    text: str, said: str, tmp_path: Path
) -> None:
    rewriting.saved(Net().state_dict(), tmp_path / "a.pth")

    done = ckpt("explain", text, "a.pth", cwd=tmp_path)

    assert done.code == 0
    assert not done.lines[0].startswith("a.pth")
    assert done.lines[2].startswith(f"a.pth: {said}")
    assert not answered(text, tmp_path / "a.pth")["answer"]["explains"]


def test_a_text_without_an_error_is_called_none(tmp_path: Path) -> None:
    rewriting.saved(nn.DataParallel(Net()).state_dict(), tmp_path / "a.pth")
    begin = "a.pth: No error in this text that a page knows."
    for text in ("0", "epoch 3, loss 0.2", "done"):
        done = ckpt("explain", "-", "a.pth", input=text.encode(), cwd=tmp_path)
        assert done.code == 0 and done.lines[0].startswith(begin), text
    done = ckpt("explain", "KeyError: 'lr'", "a.pth", cwd=tmp_path)
    assert "No error" not in done.lines[0]


def test_a_class_of_another_module_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    # A script that is run and a script that is imported have one class by two names.
    sources = types.ModuleType("make")
    own = type("Net", (nn.Linear,), {"__module__": "make"})
    sources.__dict__["Net"] = own
    with mock.patch.dict(sys.modules, make=sources):
        rewriting.saved({"model": own(2, 2)}, tmp_path / "a.pth")
    for text in (
        "Unsupported global: GLOBAL __main__.Net was not an allowed global",
        "AttributeError: Can't get attribute 'Net' on <module '__main__' (built-in)>",
    ):
        done = ckpt("explain", text, "a.pth", cwd=tmp_path)
        assert " ".join(done.lines[2:4]) == (
            "The file names make.Net at model, and not __main__.Net: the message is "
            "about another save."
        )
        assert "lay in the script" not in done.out.decode()


def test_a_file_that_needs_other_code_has_the_title(tmp_path: Path) -> None:
    rewriting.saved({"a": argparse.Namespace(lr=0.1)}, tmp_path / "a.pth")

    done = ckpt(
        "explain",
        "Unsupported global: GLOBAL __main__.Args was not",
        "a.pth",
        cwd=tmp_path,
    )

    assert done.lines[0].startswith("a.pth: ")
    assert done.lines[2] == "The file does not name __main__.Args."


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("probability tensor contains either `inf`, `nan`", "only tensor of this file"),
        ('\tMissing key(s) in state_dict: "fc._orig_mod.w".', "missing key is in this"),
        ('\tMissing key(s) in state_dict: "fc.conv.w".', "missing key is in this file"),
    ],
)
def test_one_tensor_and_one_key_are_spoken_of_as_one(
    message: str, says: str, tmp_path: Path
) -> None:
    torch.save({"fc.w": torch.ones(2, 2)}, tmp_path / "a.pth")
    if "Missing" in message:
        message = f"RuntimeError: Error(s) in loading state_dict for Net:\n{message}"

    done = ckpt("explain", message, "a.pth", cwd=tmp_path)
    assert done.code == 0
    assert f"\nThe {says} " in done.out.decode()

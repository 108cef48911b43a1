"""Every command and every `load:` line that ckpt prints works when it is pasted."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import hostile
import oracle
import pytest
import safetensors.torch
import shapes
import torch
from inside import inside
from needs import skip_without
from printed import check_commands, commands_in, paste, words_of
from process import SAMPLES, as_nobody, ckpt, terminal

import ckpt as package
from ckpt import formats
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.text import pasted_path, shell_word
from ckpt.surface.api.advice import Ways, _is_plain
from ckpt.surface.api.plans import changed_by
from ckpt.surface.cli import output

pytestmark = [*oracle.QUIET, pytest.mark.usefixtures("fresh_torch")]
SAMPLE_NAMES = sorted(
    path.name
    for path in SAMPLES.iterdir()
    if path.suffix not in (".md", ".py") and path.name[0] != "_"
)
LOAD = re.compile(
    r"^(?:  loads? +)(.*)\n {2,}((?:torch|safetensors)\..*|\{.*)$", re.MULTILINE
)
"""How a file loads, and below it the expression."""
LOADS_PLAIN = ("slim", "--plain")


def said(*arguments: str, cwd: Path) -> str:
    done = inside(*arguments, cwd=cwd)
    return (done.out + done.err).decode()


def loaded(path: Path) -> Any:
    if path.suffix == ".dcp":
        check_filled(
            f"torch.distributed.checkpoint.load(state, checkpoint_id={str(path)!r})"
        )
        return True
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, weights_only=True, map_location="cpu")


def check_results(wrote: dict[str, list[Path]]) -> None:
    """Assert that what a command wrote so that it loads with weights_only does."""
    for command, paths in wrote.items():
        files = list(
            dict.fromkeys(
                path.parent if path.parent.suffix == ".dcp" else path for path in paths
            )
        )
        if any(word in command.split() for word in LOADS_PLAIN):
            assert [loaded(file) is not None for file in files] == [True], command


LOADERS = {
    "torch": torch,
    "safetensors": safetensors,
    "zipfile": zipfile,
    "tarfile": tarfile,
}


def check_load(text: str, folder: Path) -> None:
    """Assert that the expression gives an object, where what it imports is here."""
    for line in LOAD.finditer(text):
        note, expression = line[1], line[2]
        if "; needs " not in note:
            with warnings.catch_warnings(), mock.patch.dict(os.environ):
                warnings.simplefilter("ignore")
                before = os.getcwd()
                os.chdir(folder)
                try:
                    if "checkpoint_id=" in expression:
                        assert note.startswith("import torch.distributed.checkpoint;")
                        check_filled(expression)
                    else:
                        assert eval(expression, LOADERS) is not None
                finally:
                    os.chdir(before)


def check_filled(expression: str) -> None:
    """Assert that a loader fills a state dict of the right names and sizes."""
    import torch.distributed.checkpoint  # as the note says

    (path,) = re.findall(r"checkpoint_id=(.+)\)$", expression)
    with package.open(eval(path)) as checkpoint:
        tensors = {name: ref.torch() for name, ref in checkpoint.items()}
    state = {name: torch.full_like(tensor, 77) for name, tensor in tensors.items()}
    eval(expression, {**LOADERS, "state": state})
    assert state and all(
        torch.equal(state[name], tensor) for name, tensor in tensors.items()
    )


# --- the law --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_what_is_printed_about_a_shape_works(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    shapes.make(name, folder)
    for command in ("inspect", "lint", "verify", "stats", "get"):
        text = said(
            command,
            name,
            *(["nothing.of.this"] if command == "get" else []),
            cwd=folder,
        )
        check_results(check_commands(text, folder, tmp_path / "scratch"))
        check_load(text, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_what_is_printed_about_a_sample_works(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    (shutil.copytree if (SAMPLES / name).is_dir() else shutil.copy)(
        SAMPLES / name, folder / name
    )
    for command in ("inspect", "lint", "verify", "stats", "get", "diff"):
        more = {"get": ["nothing.of.this"], "diff": [name]}.get(command, [])
        text = said(command, name, *more, cwd=folder)
        check_results(check_commands(text, folder, tmp_path / "scratch"))
        if name != "scripted.pt":
            check_load(text, folder)


@pytest.mark.parametrize("name", ["train_cuda.pth", "whole_model.pth"])
def test_a_terminal_shows_the_same_commands(name: str, tmp_path: Path) -> None:
    assert commands_in(
        terminal("inspect", name, columns=40, NO_COLOR="1")
    ) == commands_in(said("inspect", name, cwd=SAMPLES))


EXPECTED = {
    "fsdp_rank0.pth": [],
    "fsdp_alone.pth": ["ckpt convert fsdp_alone.pth --plain -o fsdp_alone.plain.pth"],
    "torchao_only.pth": [
        "ckpt convert torchao_only.pth --plain -o torchao_only.plain.pth"
    ],
    "torchao.pth": ["ckpt convert torchao.pth --plain -o torchao.plain.pth"],
    "meta_tensor.pth": [
        "ckpt slim meta_tensor.pth -o meta_tensor.slim.pth",
        "ckpt convert meta_tensor.pth --plain -o meta_tensor.plain.pth",
    ],
    "mmengine.pth": [
        "ckpt convert mmengine.pth --plain -o mmengine.plain.pth",
        "ckpt slim mmengine.pth -o mmengine.slim.pth",
    ],
    "whole_of_others.pth": [
        "ckpt convert whole_of_others.pth --plain -o whole_of_others.plain.pth"
    ],
    "dynamic_whole.pth": [
        "ckpt convert dynamic_whole.pth --plain -o dynamic_whole.plain.pth"
    ],
    "lazy_state.pth": ["ckpt slim lazy_state.pth -o lazy_state.slim.pth"],
    "lazy_only.pth": [],
    "gan.pth": [
        "ckpt strip gan.pth -o gan.stripped.pth",
        "ckpt slim gan.pth --section G --keep D -o gan.slim.pth",
    ],
    "gan_with_foreign.pth": [
        "ckpt convert gan_with_foreign.pth --plain -o gan_with_foreign.plain.pth"
    ],
    "training.pth.tar": [
        "ckpt convert training.pth.tar --plain -o training.plain.pth.tar",
        "ckpt strip training.pth.tar -o training.stripped.pth.tar",
        "ckpt slim training.pth.tar -o training.slim.pth.tar",
    ],
    "zip.safetensors": [
        "ckpt convert zip.safetensors --plain -o zip.plain.pth",
        "ckpt strip zip.safetensors -o zip.stripped.pth",
    ],
    "no_ending": [
        "ckpt convert no_ending --plain -o no_ending.plain.pth",
        "ckpt strip no_ending -o no_ending.stripped",
    ],
    "shards": ["ckpt strip shards -o shards.stripped.safetensors"],
    "shards_of_pickles": [
        "ckpt strip shards_of_pickles -o shards_of_pickles.stripped.pth"
    ],
    "bloat.pth": ["ckpt slim bloat.pth -o bloat.slim.pth"],
    "clash.pth": [],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_command_that_works_is_printed(name: str, tmp_path: Path) -> None:
    """Commands that cannot be had today are not printed: a change that makes them
    possible changes this list.
    """
    shapes.make(name, tmp_path)
    if (tmp_path / name).is_dir():
        skip_without("folders")
    text = said("inspect", name, cwd=tmp_path)
    printed = [
        command for command in commands_in(text) if not command.endswith("--imports")
    ]
    assert printed == EXPECTED[name], text


def test_without_a_command_the_reason_is_printed(tmp_path: Path) -> None:
    shapes.make("fsdp_rank0.pth", tmp_path)
    text = said("inspect", "fsdp_rank0.pth", cwd=tmp_path)
    assert (
        "holds parts of 2 tensors, those of rank 0 (the folder with the files of all "
        "ranks is one checkpoint)" in text
    )


def test_text_of_python_2_is_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    path = folder / "old.pth"
    torch.save(
        {"w": torch.ones(2), "name": "NAME", "args": {1: 2}},
        path,
        _use_new_zipfile_serialization=False,
    )
    old = path.read_bytes()
    new = old.replace(b"X\x04\x00\x00\x00NAME", b"U\x04N\xe9ME")
    path.write_bytes(new.replace(b"X\x04\x00\x00\x00args", b"X\x04\x00\x00\x00args"))
    text = said("inspect", "old.pth", cwd=folder)
    check_results(check_commands(text, folder, tmp_path / "scratch"))


# --- names ----------------------------------------------------------------------------

ODD_NAMES = [
    "a b.pth",
    "-x.pth",
    "it's.pth",
    'say "hi".pth',
    "größe 模型.pth",
    "back\\slash.pth",
    "$HOME `id`.pth",
    "tab\tnewline\n.pth",
    "esc\x1b[31m.pth",
    "##[group]x.pth",
    "::x::.pth",
    "(bracket).pth",
    "a\u202eb.pth",
    "bad\udcff.pth",
    "x" * 240 + ".pth",
    "v1.5",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_are_pasted(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    try:
        shapes.make("training.pth.tar", folder, name)
    except (OSError, RuntimeError):
        (folder / "plain").unlink(missing_ok=True)
        shapes.make("training.pth.tar", folder, "plain")
        os.rename(folder / "plain", folder / name)
    given = f"./{name}" if name.startswith("-") else name
    text = said("inspect", given, cwd=folder)
    wrote = check_commands(text, folder, tmp_path / "scratch")
    assert [command.split()[1] for command in wrote] == ["convert", "strip", "slim"]
    check_results(wrote)
    check_load(text, folder)


def test_odd_sections_are_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    both = {
        "my G": shapes.wrapped(),
        "-D\x07": shapes.state(),
        "args": shapes.argparse.Namespace(a=1),
    }
    torch.save(
        {
            **both,
            "opt": shapes.trained()[1].state_dict(),
            "opt2": shapes.trained()[1].state_dict(),
        },
        folder / "a.pth",
    )
    text = said("inspect", "a.pth", cwd=folder)
    check_results(check_commands(text, folder, tmp_path / "scratch"))
    both_models = "--section 'my G' --keep $'-D\\007'"
    assert f"ckpt slim a.pth {both_models} -o a.slim.pth" in commands_in(text)
    error = said("slim", "a.pth", "-o", "b.pth", cwd=folder)
    assert "(--section 'my G', or --section $'-D\\007'; all: --section 'my G' " in error
    for choice in ("'my G'", "$'-D\\007'"):
        assert (
            paste(
                f"ckpt slim a.pth --section {choice} -o b.pth", folder, tmp_path / "s"
            )[0].code
            == 0
        )


def test_the_words_of_a_shell(tmp_path: Path) -> None:
    for name in (*ODD_NAMES, "", "~", "a#b", "!", "a\x7f", "\u2028", "é"):
        word = shell_word(name)
        assert word is not None
        assert words_of(f"$'' {word}", tmp_path)[1] == name
    assert shell_word("a\0b") is None
    assert shell_word("\ud800") is None
    assert pasted_path("-x") == "./-x"
    assert pasted_path("x") == "x"


def test_results_are_named_beside_the_file_and_are_free(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    shapes.make("ema_only.pth", tmp_path / "runs", "a.pth")
    assert commands_in(said("inspect", "runs/a.pth", cwd=tmp_path)) == [
        "ckpt strip runs/a.pth -o runs/a.stripped.pth"
    ]
    (tmp_path / "runs/a.stripped.pth").mkdir()
    (tmp_path / "runs/a.stripped.2.pth").symlink_to("nowhere")
    text = said("inspect", "runs/a.pth", cwd=tmp_path)
    assert commands_in(text) == ["ckpt strip runs/a.pth -o runs/a.stripped.3.pth"]
    inside_it = said("inspect", "a.pth", cwd=tmp_path / "runs")
    assert commands_in(inside_it) == ["ckpt strip a.pth -o a.stripped.3.pth"]


@pytest.mark.needs("folders")
@pytest.mark.parametrize(
    "given", [".", "../shards", "./", "model.safetensors.index.json"]
)
def test_a_folder_gets_its_result_beside_it(given: str, tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    shapes.make("shards", tmp_path / "it")
    before = os.listdir(tmp_path / "it/shards")
    (command,) = commands_in(said("inspect", given, cwd=tmp_path / "it/shards"))
    done = inside(*words_of(command, tmp_path)[1:], cwd=tmp_path / "it/shards")
    assert done.code == 0, (command, done.err)
    assert inside("inspect", given, cwd=tmp_path / "it/shards").code == 0
    if not given.endswith(".json"):
        assert os.listdir(tmp_path / "it/shards") == before


def test_a_read_only_folder_gets_its_result_in_the_working_folder(
    folder_of_all: Path,
) -> None:
    (folder_of_all / "given").mkdir()
    (folder_of_all / "work").mkdir(mode=0o777)
    (folder_of_all / "work").chmod(0o777)
    shapes.make("ema_only.pth", folder_of_all / "given", "a.pth").chmod(0o644)
    (folder_of_all / "given").chmod(0o555)
    work = folder_of_all / "work"
    done = as_nobody("inspect", "../given/a.pth", cwd=work)
    (command,) = commands_in(done.out.decode())
    assert command == "ckpt strip ../given/a.pth -o a.stripped.pth"
    assert as_nobody(*words_of(command, work)[1:], cwd=work).code == 0
    work.chmod(0o555)
    assert (
        commands_in(as_nobody("inspect", "../given/a.pth", cwd=work).out.decode()) == []
    )
    (folder_of_all / "given").chmod(0o755)


def test_what_comes_once_gets_no_command(tmp_path: Path) -> None:
    path = shapes.make("ema_only.pth", tmp_path)
    with path.open("rb") as stream, mock.patch("sys.stdin", stream):
        text = said("inspect", f"/dev/fd/{stream.fileno()}", cwd=tmp_path)
    assert "! prefix" in text
    assert commands_in(text) == []


# --- what is planned ------------------------------------------------------------------


@pytest.mark.parametrize("name", [*shapes.SHAPES, *SAMPLE_NAMES])
def test_a_proof_is_never_wrong(name: str, tmp_path: Path) -> None:
    """What is said of large files without a plan is what the plan says."""
    path = SAMPLES / name if name in SAMPLE_NAMES else shapes.make(name, tmp_path)
    try:
        checkpoint = formats.open(str(path))
    except CkptError:
        return
    with checkpoint:
        survey = Survey(checkpoint)
        if not checkpoint.traits.is_pickle:
            return
        sections = [("slim", "--section", part.name) for part in survey.models]
        for words in (
            ("slim",),
            ("convert", "--plain"),
            ("strip",),
            ("rehome",),
            *sections,
        ):
            sure = _is_plain(survey, words)
            out = formats.out_beside(
                checkpoint, ".x", same_format=words[0] != "convert"
            )
            try:
                changed_by(survey, words, str(out), Limits())
            except CkptError as error:
                nothing = re.match(
                    "nothing to move|nothing to strip|is torch-zip already", str(error)
                )
                assert not sure or nothing, (words, error)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama_bf16.pth", ("rehome",)),
        ("ddp_after.pth", ("strip",)),
        ("ddp_after.pth", ("slim",)),
        ("tied_and_bloated.pth", ("slim",)),
        ("train_cuda.pth", ("rehome",)),
        ("train_cuda.pth", ("strip",)),
        ("train_cuda.pth", ("slim",)),
        ("yolo_style.pt", ("rehome",)),
    ],
)
def test_usual_files_need_nothing_that_writes(
    name: str, words: tuple[str, ...]
) -> None:
    with formats.open(str(SAMPLES / name)) as checkpoint:
        assert _is_plain(Survey(checkpoint), words)
        assert not _is_plain(Survey(checkpoint), ("convert", "--plain"))


def test_tables_plan_nothing(tmp_path: Path) -> None:
    shapes.make("training.pth.tar", tmp_path)
    with mock.patch.object(Ways, "way", side_effect=AssertionError):
        assert inside("inspect", "training.pth.tar", "--tsv", cwd=tmp_path).code == 0
        assert inside("lint", "training.pth.tar", cwd=tmp_path).code == 1
        with pytest.raises(AssertionError):
            inside("inspect", "training.pth.tar", cwd=tmp_path)


def test_json_has_the_commands_too(tmp_path: Path) -> None:
    shapes.make("ema_only.pth", tmp_path)
    hint = '"hint":"ckpt strip ema_only.pth -o ema_only.stripped.pth"'
    for command in ("inspect", "lint"):
        assert hint in said(command, "ema_only.pth", "--json", cwd=tmp_path).replace(
            ": ", ":"
        )


# --- errors ---------------------------------------------------------------------------

ERRORS = [
    ("scripted.pt", ("rename", "{}", "--sub", "s/a/b/", "-o", "out.pt")),
    ("scripted.pt", ("strip", "{}", "-o", "out.pt")),
    ("whole_model.pth", ("rename", "{}", "--sub", "s/0/first/", "-o", "out.pth")),
    ("lazy_whole.pth", ("rename", "{}", "--sub", "s/1/first/", "-o", "out.pth")),
    ("gan.pth", ("convert", "{}", "--section", "G", "-o", "out.pth")),
    ("numpy.pth", ("get", "{}", "zzz")),
    ("no_ending", ("{}",)),
    ("training.pth.tar", ("{}",)),
    ("a b.pth", ("{}",)),
]


@pytest.mark.parametrize(("name", "arguments"), ERRORS)
def test_commands_in_errors_work(
    name: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "it"
    folder.mkdir()
    shapes.make(name if name in shapes.SHAPES else "training.pth.tar", folder, name)
    done = inside(*(word.format(name) for word in arguments), cwd=folder)
    assert done.code == 2
    text = done.err.decode()
    if commands_in(text) or "(" in text:
        wrote = check_commands(text, folder, tmp_path / "scratch")
        assert wrote, text


@pytest.mark.parametrize("command", ["slim", "convert", "strip", "rehome"])
@pytest.mark.parametrize(
    "name",
    [
        "gan.pth",
        "ddp.safetensors",
        "shards",
        "shards_of_pickles",
        "legacy.pth",
        "scripted.pt",
    ],
)
def test_the_place_that_is_suggested_can_be_written(
    command: str, name: str, tmp_path: Path
) -> None:
    shapes.make(name, tmp_path)
    if (tmp_path / name).is_dir():
        skip_without("folders")
    more = (
        ["--section", "D"]
        if name == "gan.pth" and command in ("slim", "convert")
        else []
    )
    done = inside(command, name, *more, cwd=tmp_path)
    assert done.code == 2
    found = re.search(r"\(-o (\S+?)(, or --in-place)?\)$", done.err.decode().strip())
    assert found, done.err
    out = [command, name, *more, "-o", found[1]]
    done = inside(*out, cwd=tmp_path)
    assert done.code == 0 or "not rewritten" in done.err.decode(), done.err


@pytest.mark.parametrize(
    "name", ["fsdp_rank0.pth", "torchao_only.pth", "lazy_only.pth", "dynamic_whole.pth"]
)
@pytest.mark.parametrize("command", [("slim",), ("convert", "--plain")])
def test_drop_other_is_named_only_where_it_helps(
    command: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    shapes.make(name, tmp_path)
    done = inside(*command, name, "-o", "out.pth", cwd=tmp_path)
    if done.code:
        again = inside(*command, name, "--drop-other", "-o", "out.pth", cwd=tmp_path)
        assert ("--drop-other" in done.err.decode()) == (again.code == 0), (
            done.err,
            again.err,
        )


def test_a_target_of_several_models_names_its_own_option(tmp_path: Path) -> None:
    shapes.make("gan.pth", tmp_path)
    torch.save(shapes.state(), tmp_path / "given.pth")
    error = said(
        "warmstart", "given.pth", "--into", "gan.pth", "-o", "out.pth", cwd=tmp_path
    )
    assert "(--into-section G, or --into-section D)" in error
    error = said(
        "warmstart", "gan.pth", "--into", "given.pth", "-o", "out.pth", cwd=tmp_path
    )
    assert "(--section G, or --section D)" in error


def test_a_mistyped_name_means_the_file_with_its_ending(tmp_path: Path) -> None:
    for name in ("seg.html", "seg.json", "seg.png", "seg.pth", "lm.html", "lm.pt"):
        (tmp_path / name).touch()
    for typed, meant in (
        ("segg.pth", "seg.pth"),
        ("segg.png", "seg.png"),
        ("segg.safetensors", "seg.pth"),
        ("seg.pt", "seg.pth"),
        ("lmm.pth", "lm.pt"),
    ):
        error = said("inspect", typed, cwd=tmp_path)
        assert f"(did you mean {meant}?)" in error, typed


def test_the_weights_of_a_folder_keep_their_config(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    safetensors.torch.save_file(shapes.state(), run / "model.safetensors")
    torch.save(shapes.trained()[1].state_dict(), run / "optimizer.pt")
    (run / "trainer_state.json").write_text('{"global_step": 3, "epoch": 1.0}')
    (run / "config.json").write_text('{"model_type": "qwen2"}')
    (run / "tokenizer.json").write_text("{}")
    command = "ckpt slim run --with-config -o run.slim"
    assert command in commands_in(said("inspect", "run", cwd=tmp_path))
    assert ckpt(*command.split()[1:], cwd=tmp_path).code == 0
    names = sorted(path.name for path in (tmp_path / "run.slim").iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    # Without a config there is one file.
    (run / "config.json").unlink()
    shutil.rmtree(tmp_path / "run.slim")
    command = "ckpt slim run -o run.slim.safetensors"
    assert command in commands_in(said("inspect", "run", cwd=tmp_path))


def test_a_path_is_no_part_of_a_placeholder(tmp_path: Path) -> None:
    shapes.make("ema_only.pth", tmp_path, "ddp.pth")
    for arguments in (
        ("warmstart", "ddp.pth", "-o", "x.pth"),
        ("lint",),
        ("inspect", "ddp.pth", "--model", "ddp.pth"),
    ):
        assert "ddp.pth.py" not in said(*arguments, cwd=tmp_path)


def test_an_unreadable_file_without_a_command_says_why(tmp_path: Path) -> None:
    (tmp_path / "page.pth").write_text("<!doctype html>")
    assert (
        said("page.pth", cwd=tmp_path)
        == "ckpt: page.pth: not a checkpoint: an HTML page (a failed download?)\n"
    )


@pytest.mark.parametrize("name", ["cut.pth", "it's cut?.pth"])
def test_the_error_of_a_file_that_is_cut_off_names_verify(
    name: str, tmp_path: Path
) -> None:
    whole = (SAMPLES / "llama_bf16.pth").read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    command = f"ckpt verify {shell_word(name)}"
    guess = "an unfinished download or save?"

    for words in (("inspect", name), ("diff", name, name)):
        done = inside(*words, cwd=tmp_path)
        (line,) = done.complaints
        assert line.endswith(f"({guess} {command} names what is lost)"), line
    done = inside("rehome", name, "-o", "out.pth", cwd=tmp_path)
    assert "--partial writes the whole tensors only" in done.complaints[0]
    # Only the directory of the archive is gone: --partial has nothing to leave out.
    (tmp_path / name).write_bytes(whole[: whole.index(b"PK\x01\x02") + 9])
    done = inside("rehome", name, "-o", "out.pth", cwd=tmp_path)
    assert done.complaints[0].endswith(f"{command} names what is lost)")
    document = json.loads(inside("inspect", name, "--json", cwd=tmp_path).out)
    assert document["error"]["hint"] == f"{guess} {command} names what is lost"

    # The command does not name itself, and a file object has no path.
    said = inside("verify", name, cwd=tmp_path).out.decode()
    assert f"({guess})" in said and "names what is lost" not in said
    with pytest.raises(CkptError) as caught:
        package.open(whole[: len(whole) // 2])
    assert caught.value.hint == guess


def test_the_end_of_a_torn_rewrite_names_undo(tmp_path: Path) -> None:
    folder = tmp_path / "it dir"
    folder.mkdir()
    shutil.copy(SAMPLES / "train_cuda.pth", folder / "my a.pth")
    text = said("rehome", "my a.pth", "--in-place", cwd=folder)
    assert commands_in(text) == ["ckpt rehome --undo 'my a.pth'"]
    check_commands(text, folder, tmp_path / "scratch")
    (folder / "my a.pth").write_bytes((folder / "my a.pth").read_bytes()[:-40])
    text = said("inspect", "my a.pth", cwd=folder)
    assert commands_in(text) == ["ckpt rehome --undo --dry-run 'my a.pth'"]
    check_commands(text, folder, tmp_path / "scratch")


# --- the helper, and colour -----------------------------------------------------------


def test_commands_are_found_in_texts() -> None:
    assert commands_in(
        "  (ckpt slim 'a )b' -o c)\nckpt: x: y (--k; for it: ckpt get x y)\nckpt "
        "inspect a"
    ) == [
        "ckpt slim 'a )b' -o c",
        "ckpt get x y",
        "ckpt inspect a",
    ]
    assert commands_in("(to do it: ckpt rehome $'a\\')b' -o x) tail") == [
        "ckpt rehome $'a\\')b' -o x"
    ]
    assert commands_in("ckpt cannot; see ckpt.snapshot (ckpt reads it)") == []


@pytest.mark.parametrize(
    ("variables", "tty", "colour"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_one_decision_about_colour(
    variables: dict[str, str],
    tty: bool,
    colour: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import sys

    with mock.patch.dict(os.environ, {"TERM": "xterm", **variables}):
        for name in {"NO_COLOR", "FORCE_COLOR"} - variables.keys():
            os.environ.pop(name, None)
        with (
            mock.patch.object(sys.stderr, "isatty", lambda: tty),
            mock.patch.object(sys.stdout, "isatty", lambda: tty),
        ):
            assert output.has_colour() == colour
            output.write_alarm("DANGER")
    assert ("\x1b[1;31m" in capsys.readouterr().err) == colour


@pytest.mark.parametrize("name", ["nemo/evil.nemo", "nemo/good.nemo"])
@pytest.mark.parametrize("command", ["inspect", "ls", "lint"])
def test_a_member_of_an_archive_is_no_file_of_its_own(
    command: str, name: str, tmp_path: Path
) -> None:
    """What weights_only refuses in a member has no command of its own: the archive is
    planned as a whole.
    """
    (case,) = (case for case in hostile.CASES if case.name == name)
    file = case.build(tmp_path)
    done = inside(command, file.name, "--json", cwd=tmp_path)

    assert done.code < 2, done.err
    document = json.loads(done.out)
    findings = (
        document.get("findings", [])
        or document.get("files", [{"findings": []}])[0]["findings"]
    )
    refused = {row["code"]: row["hint"] for row in findings}
    assert ("called-on-load" in refused) == (name == "nemo/evil.nemo")
    assert (
        refused.get("weights-only") is None
    )  # no model is found in it, so no command works


def test_the_command_prints_what_the_process_prints(tmp_path: Path) -> None:
    shapes.make("ema_only.pth", tmp_path)
    shown = ckpt("inspect", "ema_only.pth", cwd=tmp_path).out.decode()
    assert shown.strip() == said("inspect", "ema_only.pth", cwd=tmp_path).strip()


@pytest.mark.slow
def test_advice_about_a_dcp_keeps_it_one(tmp_path: Path) -> None:
    """Its loader takes no other format, so each command that writes one proposes to."""
    folder = tmp_path / "it"
    folder.mkdir()
    shutil.copy(SAMPLES / "train_cuda.pth", folder / "train.pth")
    made = ("convert", "train.pth", "--format", "dcp", "--optimizer-keys", "numbers")
    for name in ("d.dcp", "e"):
        assert inside(*made, "-o", name, cwd=folder).code == 0
        renamed = inside(
            "rename",
            name,
            "--sub",
            "s/^module/net/",
            "-o",
            f"other.{name}.dcp",
            cwd=folder,
        )
        assert renamed.code == 0, renamed
    (folder / "train.pth").unlink()
    proposed = set()
    for path in ("d.dcp", "e", "e/.metadata"):
        for words in (
            ("inspect", path),
            ("lint", path),
            ("verify", path),
            ("diff", path, "other.d.dcp.dcp"),
        ):
            text = said(*words, cwd=folder)
            check_results(check_commands(text, folder, tmp_path / "scratch"))
            proposed |= set(commands_in(text))
        message = (
            'Missing key(s) in state_dict: "conv1.weight". Unexpected key(s): '
            '"module.conv1.weight".'
        )
        text = said("explain", message, path, cwd=folder)
        check_results(check_commands(text, folder, tmp_path / "scratch"))
        proposed |= set(commands_in(text))
        for words in (
            ("strip",),
            ("slim",),
            ("rename", "--sub", "s/^module/x/"),
            ("convert", "--plain"),
        ):
            (out,) = re.findall(r"\(-o (\S+?)[,)]", said(*words, path, cwd=folder))
            assert (
                out.endswith(".dcp")
                and inside(*words, path, "-o", out, cwd=folder).code == 0
            )
            shutil.rmtree(folder / out)
    outs = {command.split()[-1] for command in proposed if " -o " in command}
    assert {"d.stripped.dcp", "e.stripped.dcp"} <= outs
    assert all(out.endswith(".dcp") for out in outs), proposed


def test_the_path_of_a_folder_is_in_the_hint(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a b").mkdir(parents=True)
    for number in (1, 2):
        torch.save({"w": torch.ones(2)}, tmp_path / "runs" / "a b" / f"e_{number}.pt")
    done = inside("get", "runs/a b", "epoch", cwd=tmp_path)
    assert "name one, such as 'runs/a b/e_1.pt'" in done.err.decode(), done
    assert done.code == 2


def test_an_option_is_found_by_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for typed, meant in (
        ("--format", "--output-format"),
        ("--intact", "--hide-intact"),
    ):
        words = ["lint" if meant == "--output-format" else "verify", typed, "."]
        monkeypatch.setattr(sys, "argv", ["ckpt", *words])
        done = inside(*words, cwd=tmp_path)
        assert f"no option {typed} (did you mean {meant}?)" in done.err.decode(), done


def test_a_count_is_no_name_of_a_value(tmp_path: Path) -> None:
    done = inside("prune", ".", "--keep-best", "2", cwd=tmp_path)
    assert done.complaints == [
        "ckpt: --keep-best 2: takes the name of a value, not a number "
        "(--keep-best val_loss:min)"
    ]


def test_lint_says_that_values_were_not_read(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.full((3, 2), float("nan"))}, tmp_path / "a.pt")
    done = inside("lint", "a.pt", cwd=tmp_path)
    assert done.code == 0
    assert done.complaints == ["no finding in 1 file · values not read (--read-values)"]
    done = inside("lint", "a.pt", "--read-values", cwd=tmp_path)
    assert done.code == 1 and "values not read" not in done.err.decode()


def test_a_folder_counts_all_its_checkpoints(tmp_path: Path) -> None:
    """Names with other endings count too: `ls` lists them in the same folder."""
    (tmp_path / "run" / "below.tar").mkdir(parents=True)
    (tmp_path / "run" / "notes.txt").write_text("x")
    state = {"w": torch.ones(2)}
    for name in ("best.pth", "epoch_1.pth.tar", "epoch_2", "last.tar"):
        torch.save(state, tmp_path / "run" / name)
    old = {"_use_new_zipfile_serialization": False}
    torch.save(state, tmp_path / "run" / "old.th", **old)
    assert len(inside("ls", "run", "--tsv", cwd=tmp_path).out.splitlines()) == 1 + 5
    done = inside("slim", "run", "-o", "x.pth", cwd=tmp_path)
    assert "holds 5 checkpoint files" in done.complaints[0]


def test_a_folder_of_saves_without_a_usual_ending_is_no_empty_one(
    tmp_path: Path,
) -> None:
    """`ls` finds them by their bytes, so no command says that there is none."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "a.txt").write_text("x")
    for epoch in (1, 2):
        torch.save({"epoch": epoch}, tmp_path / "run" / f"epoch_{epoch}.tar")
    done = inside("get", "run", "epoch", cwd=tmp_path)
    assert done.complaints == [
        "ckpt: run: a directory without an index; it holds 2 checkpoint files "
        "(name one, such as run/epoch_1.tar)"
    ]
    (tmp_path / "run" / "epoch_1.tar").unlink()
    (tmp_path / "run" / "epoch_2.tar").unlink()
    done = inside("get", "run", "epoch", cwd=tmp_path)
    assert "no checkpoint lies right in this directory" in done.err.decode()

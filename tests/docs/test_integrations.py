"""What docs/integrations.md says, and the files that it names, done for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from process import ROOT, SAMPLES, TIMEOUT, environment
from torch import nn

import ckpt
from ckpt import formats
from ckpt.evidence.survey import Survey

PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
GATE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def block(word: str, page: str = PAGE) -> str:
    """The block of a page that holds a word."""
    (found,) = (
        text
        for text in re.findall(r"```\w+\n(.*?)```", page, re.DOTALL)
        if word in text
    )
    return str(found)


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH begins with a folder that has `ckpt`."""
    folder = tmp_path / "programs"
    executable(folder / "ckpt", f'exec "{sys.executable}" -m ckpt "$@"')
    return environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")


def executable(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def shell(text: str, folder: Path, env: Mapping[str, str], code: int | None = 0) -> str:
    """What a script prints on stdout."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", text],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=TIMEOUT,
    )
    assert code is None or done.returncode == code, (done.returncode, done.stderr)
    return done.stdout


# --------------------------------------------------------------------------------------
# pre-commit, GitHub


def test_the_hook_of_pre_commit_checks_checkpoints(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    said = dict(
        re.findall(r"^(?:- |  )(\w+): ([^#\n]+?)(?:  #.*)?$", HOOKS, re.MULTILINE)
    )
    args = re.search(r"- id: ([\w-]+)\n +args: \[(.+)\]", PAGE)

    assert (
        args is not None
        and said["id"] == args[1] == "ckpt-lint"
        and said["language"] == "python"
    )
    assert "files" not in said  # ckpt decides by first bytes
    assert said["args"] == "[--]" and args[2].endswith(", --")  # what follows is a name
    options = args[2].replace(",", "").removesuffix(" --")
    entry = f"{said['entry']} {options} --"
    assert shell(f"{entry} llama_bf16.pth zoo.pkl", SAMPLES, programs) == ""
    assert "called-on-load" in shell(
        f"{entry} hostile.pth llama_bf16.pth", SAMPLES, programs, 1
    )
    shell(f"{entry} lfs_pointer.pth", SAMPLES, programs, 2)
    (tmp_path / "notes.md").write_text("# Notes")
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "notes.txt")
    assert shell(f"{entry} notes.md", tmp_path, programs) == ""
    assert "called-on-load" in shell(
        f"{entry} notes.md notes.txt", tmp_path, programs, 1
    )
    shell(
        f"{said['entry']} {options} --skip-unreadable -- lfs_pointer.pth",
        SAMPLES,
        programs,
        0,
    )


@pytest.mark.parametrize("args", ["--", "--level error --", "--level error"])
@pytest.mark.parametrize(
    "names",
    [
        ["--ignore=called-on-load,weights-only"],
        ["--level=error", "--ignore=called-on-load"],
        ["--level", "error"],
        ["--select=cuda"],
        ["--model=evil.py:build"],
        ["--help"],
        ["-h"],
        ["--files-from=evil.py"],
        ["--", "--select=cuda"],
        ["--model=sub/evil.py:build"],
        ["-"],
    ],
    ids=" ".join,
)
def test_no_name_of_a_commit_is_an_option(
    args: str, names: list[str], tmp_path: Path, programs: dict[str, str]
) -> None:
    (entry,) = re.findall(r"^  entry: (.+)$", HOOKS, re.MULTILINE)
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "hostile.pth")
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    for folder in (tmp_path, tmp_path / "sub", tmp_path / "--model=sub"):
        folder.mkdir(exist_ok=True)
        (folder / "evil.py").write_text(code)
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    every = " ".join(map(shlex.quote, sorted([*names, "hostile.pth", "evil.py"])))

    shell(
        f"{entry} {args} {every} > said || test $? -ne 0 -a $? -le 2",
        tmp_path,
        programs,
    )

    assert not (tmp_path / "ran").exists()
    if args.endswith("--") and not set(names) & set(
        args.split()[:-1]
    ):  # else it is refused as a whole
        assert "called-on-load" in (tmp_path / "said").read_text()


def test_git_gives_no_option_to_textconv(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    (line,) = re.findall(r'textconv "(ckpt .+)"', PAGE)
    name = "--model=evil.py:build"
    shutil.copy(SAMPLES / "weights.safetensors", tmp_path / name)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")

    assert "format safetensors" in shell(f"{line} {name}", tmp_path, programs)
    assert not (tmp_path / "ran").exists()


def steps() -> list[str]:
    """The scripts of the steps, each on one line or in a block."""
    found = re.findall(
        r"^      run: (?:\|\n((?: {8}.+\n)+)|(.+)$)", ACTION, re.MULTILINE
    )
    return [textwrap.dedent(block) or line for block, line in found]


def test_the_action_installs_itself_and_prints_annotations(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    install, lint = steps()
    runner = tmp_path / "runner's place"
    executable(
        tmp_path / "programs" / "python3",
        f'echo "$@" >> "{tmp_path}/log"; mkdir -p "$4/bin"',
    )
    installed = runner / "ckpt" / "bin" / "python"
    executable(installed, f'echo "$@" >> "{tmp_path}/log"')
    env = {**programs, "RUNNER_TEMP": str(runner), "GITHUB_ACTION_PATH": "/the action"}

    shell(install, tmp_path, env)
    log = (tmp_path / "log").read_text()
    assert log == f"-I -m venv {runner}/ckpt\n-I -m pip install --quiet /the action\n"
    executable(installed, f'exec "{sys.executable}" "$@"')

    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "my file.pth")
    shutil.copy(SAMPLES / "weights.safetensors", tmp_path)
    paths = "my file.pth\nweights.safetensors\n"
    printed = shell(
        lint, tmp_path, {**env, "CKPT_PATHS": paths, "CKPT_ARGS": "--level error"}, 1
    )
    assert (
        printed.startswith("::error file=my file.pth::called-on-load ")
        and printed.count("\n") == 1
    )
    assert (
        shell(
            lint,
            tmp_path,
            {**env, "CKPT_PATHS": "weights.safetensors", "CKPT_ARGS": ""},
        )
        == ""
    )
    evil = {**env, "CKPT_PATHS": "$(touch x)", "CKPT_ARGS": "; touch x"}
    shell(lint, tmp_path, evil, 2)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_action_runs_nothing_of_the_checkout(tmp_path: Path) -> None:
    """Python puts the current folder before all others, and PYTHONPATH behind it."""
    install, lint = steps()
    place = re.findall(r"^      working-directory: (\S+ \S+ \S+)", ACTION, re.MULTILINE)
    assert place == ["${{ runner.temp }}"], "of the first step"
    runner, checkout = tmp_path / "runner", tmp_path / "checkout"
    (runner / "ckpt" / "bin").mkdir(parents=True)
    executable(runner / "ckpt" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    checkout.mkdir()
    for name in (
        "venv",
        "pip",
        "ckpt",
        "typer",
        "ensurepip",
        "json",
        "sitecustomize",
        "usercustomize",
        "encodings",
    ):
        (checkout / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(0)\n"
        )
    shutil.copy(SAMPLES / "hostile.pth", checkout)
    env = environment(
        RUNNER_TEMP=str(runner), GITHUB_ACTION_PATH="/nowhere", PYTHONPATH="."
    )

    shell(
        install.partition("&&")[0],
        checkout,
        {**env, "RUNNER_TEMP": str(tmp_path / "other")},
    )
    shell(lint, checkout, {**env, "CKPT_PATHS": ".", "CKPT_ARGS": "--level error"}, 1)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("args", ["", "--level error", "--select *"])
def test_no_name_of_the_checkout_is_an_option_of_the_action(
    args: str, tmp_path: Path
) -> None:
    _, lint = steps()
    executable(tmp_path / "ckpt" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(SAMPLES / "hostile.pth", checkout / "called-on-load")
    names = ["--ignore=called-on-load", "--select=cuda", "*", " "]
    for name in names:
        shutil.copy(SAMPLES / "hostile.pth", checkout / name)
    env = environment(RUNNER_TEMP=str(tmp_path), CKPT_ARGS=args)

    for paths in (".", *(f"{name}" for name in names)):
        done = shell(
            f"({lint}\n) || test $? -eq 1 -o $? -eq 2",
            checkout,
            {**env, "CKPT_PATHS": paths},
        )
        assert "called-on-load" in done or args == "--select *", paths
        shell(f"! ({lint}\n)", checkout, {**env, "CKPT_PATHS": paths})


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_action_has_outputs_and_a_sarif_file(
    is_wanted: bool, tmp_path: Path
) -> None:
    _, lint = steps()
    executable(tmp_path / "ckpt" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    env = environment(
        RUNNER_TEMP=str(tmp_path),
        GITHUB_OUTPUT=str(tmp_path / "outputs"),
        CKPT_SARIF="true" if is_wanted else "",
        CKPT_ARGS="--level error",
        CKPT_PATHS="hostile.pth\nlfs_pointer.pth\nweights.safetensors",
    )

    printed = shell(lint, SAMPLES, env, 2)

    outputs = dict(
        line.split("=", 1) for line in (tmp_path / "outputs").read_text().splitlines()
    )
    assert (
        outputs["exit-code"] == "2"
        and outputs["findings"] == str(printed.count("\n")) == "2"
    )
    assert bool(outputs["sarif"]) == is_wanted == bool(list(tmp_path.glob("*.sarif")))
    if is_wanted:
        document = json.loads(Path(outputs["sarif"]).read_text())
        assert (
            document["version"] == "2.1.0" and len(document["runs"][0]["results"]) == 1
        )
    assert set(outputs) == set(
        re.findall(
            r"^    value: .* steps\.lint\.outputs\.([\w-]+) ", ACTION, re.MULTILINE
        )
    )


def test_no_text_of_a_workflow_becomes_code_of_the_action() -> None:
    inputs = re.findall(
        r"^  (\w+):\n    description: .+\n    default: ", ACTION, re.MULTILINE
    )
    used = re.findall(
        r"^        CKPT_\w+: \$\{\{ inputs\.(\w+) \}\}$", ACTION, re.MULTILINE
    )

    assert inputs == used == ["paths", "args", "sarif"]
    assert len(steps()) == ACTION.count("- name:") == ACTION.count("shell: bash") == 2
    assert not any("${{" in step for step in steps())
    assert re.findall(r"^      (\w+):", block("OWNER/REPOSITORY"), re.MULTILINE) == [
        "lfs",
        "paths",
        "args",
        "sarif",
        "sarif_file",
    ]


# --------------------------------------------------------------------------------------
# git, DVC, Slurm, the hub


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_git_diffs_checkpoints_as_text(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    env = {
        **programs,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "HOME": str(tmp_path),
    }
    folder = tmp_path / "repository"
    folder.mkdir()
    shell(
        "git init -q . && git config user.name a && git config user.email a@b",
        folder,
        env,
    )
    shell(block("git config"), folder, env)
    for name in ("ddp_before.pth", "lfs_pointer.pth", "truncated.pth"):
        shutil.copy(SAMPLES / name, folder)
    shell("git add -A && git commit -qm before", folder, env)
    shutil.copy(SAMPLES / "ddp_after.pth", folder / "ddp_before.pth")
    pointer = folder / "lfs_pointer.pth"
    pointer.write_text(pointer.read_text().replace("oid sha256:5", "oid sha256:6"))
    (folder / "truncated.pth").write_bytes(b"")

    def changed(revisions: str = "") -> list[str]:
        lines = shell(f"git --no-pager diff -U0 {revisions}", folder, env).splitlines()
        return [line for line in lines if re.match(r"[-+](?![-+])", line)]

    found = changed()
    assert "-value epoch = 0" in found and "+value epoch = 1" in found
    tensors = {line.split()[1] for line in found if line.startswith("+tensor")}
    assert (
        "model.module.fc1.weight" in tensors
        and "model.module.fc3.weight" not in tensors
    )
    pointers = [
        line for line in found if "Git LFS pointer to 102,530,333 bytes" in line
    ]
    assert [(line[0], line.partition("sha256 ")[2][:6]) for line in pointers] == [
        ("-", "5f70bf"),
        ("+", "6f70bf"),
    ]
    assert any(line.startswith("-not read: cut off") for line in found)
    assert "+not read: an empty file" in found
    assert not any(str(tmp_path) in line for line in found)

    shell("git add -A && git commit -qm after", folder, env)
    assert changed("HEAD~1 HEAD") == found, "from the cache, or from other paths"


def test_a_stage_of_dvc_stops_at_findings(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    (line,) = re.findall(r"cmd: (.+)", block("stages:"))
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "best.pth")
    shell(line, tmp_path, programs, 1)
    assert not (tmp_path / "best.sums").exists()

    shutil.copy(SAMPLES / "llama_bf16.pth", tmp_path / "best.pth")
    shell(line, tmp_path, programs)
    shell("ckpt verify best.pth --sums best.sums", tmp_path, programs)


def test_the_script_for_slurm_resumes_from_what_is_whole(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    executable(tmp_path / "programs" / "srun", 'echo "srun $@"')

    def ran() -> str:
        return shell(block("#SBATCH"), tmp_path, programs).splitlines()[-1]

    assert ran() == "srun python train.py"
    shutil.copy(SAMPLES / "truncated.pth", tmp_path / "last.pth")
    assert ran() == "srun python train.py"
    shutil.copy(SAMPLES / "ddp_before.pth", tmp_path / "previous.pth")
    assert ran() == "srun python train.py --resume previous.pth"
    shutil.copy(SAMPLES / "ddp_after.pth", tmp_path / "last.pth")
    assert ran() == "srun python train.py --resume last.pth"


def test_the_script_at_the_door_lets_in_what_is_whole_and_runs_nothing(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    incoming, registry = tmp_path / "in coming", tmp_path / "registry"
    incoming.mkdir()
    registry.mkdir()
    good = ["ddp_after.pth", "weights.safetensors", "objects.pth"]
    bad = ["hostile.pth", "truncated.pth", "html_page.pth", "lfs_pointer.pth"]
    for name in (*good, *bad):
        shutil.copy(SAMPLES / name, incoming)
    shutil.copy(SAMPLES / "hostile.pth", incoming / ".HIDDEN")
    bad.append(".HIDDEN")
    damaged = bytearray((SAMPLES / "ddp_before.pth").read_bytes())
    damaged[damaged.index(b"data/0FB") + 200] ^= 1
    (incoming / "damaged.pth").write_bytes(damaged)
    executable(tmp_path / "accept.sh", block("accept.sh", GATE))

    shell('./accept.sh "in coming" registry', tmp_path, programs)

    assert {path.name for path in registry.iterdir()} == {
        *good,
        *(f"{name}.sums" for name in good),
    }
    assert {path.name for path in incoming.iterdir()} == {*bad, "damaged.pth"}
    for name in good:
        shell(
            f"ckpt verify registry/{name} --sums registry/{name}.sums",
            tmp_path,
            programs,
        )


def test_the_rules_of_a_gate_are_rules(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    for name in ("whole_model.pth", "compiled.pth"):
        shutil.copy(SAMPLES / name, tmp_path)
    (tmp_path / "pyproject.toml").write_text(block("[tool.ckpt.lint]", GATE))
    said = shell("ckpt lint . --no-summary", tmp_path, programs, code=1)

    assert "unknown-import" in said and "weights-only" in said
    assert "prefix" not in said and "list-modules" not in said


def test_a_download_of_the_hub_is_looked_at(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    executable(
        tmp_path / "programs" / "hf",
        f'mkdir "$4" && cp "{SAMPLES}"/weights.safetensors "$4"',
    )
    assert "weights.safetensors" in shell(block("hf download"), tmp_path, programs)

    cache = tmp_path / "snapshots" / "0a1b"
    cache.mkdir(parents=True)
    shutil.copy(SAMPLES / "hostile.pth", tmp_path / "blob")
    (cache / "pytorch_model.bin").symlink_to(tmp_path / "blob")
    assert "RUNS CODE" in shell("ckpt ls snapshots/0a1b", tmp_path, programs)


# --------------------------------------------------------------------------------------
# Lightning, Docker


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(given)
        return out


def test_the_callback_of_lightning_takes_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning's own order of hooks: a step runs zero_grad and backward before the
    optimizer's step.
    """
    stub = ModuleType("lightning.pytorch")
    stub.__dict__["Callback"] = type("Callback", (), {})
    made: dict[str, Any] = {}
    with mock.patch.dict(
        sys.modules, {"lightning": ModuleType("lightning"), "lightning.pytorch": stub}
    ):
        exec(block("class Snapshots"), made)
    monkeypatch.chdir(tmp_path)
    callback, net = made["Snapshots"](), Net()
    optimizer = torch.optim.Adam(net.parameters())
    trainer = SimpleNamespace(global_step=0, current_epoch=0, optimizers=[optimizer])
    for number in range(2):
        batch = torch.ones(1, 3)
        callback.on_train_batch_start(trainer, net, batch, number)
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, net, None, batch, number)

    report = ckpt.diff("before.pth", "after.pth")
    (frozen,) = (finding for finding in report.findings if finding.code == "frozen")
    assert sorted(frozen.tensors) == [
        "state_dict.unused.bias",
        "state_dict.unused.weight",
    ] or sorted(frozen.tensors) == ["unused.bias", "unused.weight"]
    with formats.open("after.pth") as checkpoint:
        match = Survey(checkpoint).record
        assert match is not None and len(match.record.optimizers) == 1
    with ckpt.open("after.pth") as after:
        assert not torch.equal(
            next(t.torch() for n, t in after.items() if n.endswith("used.weight")),
            net.used.weight,
        )


def test_the_image_is_built_from_what_is_there_and_has_no_torch() -> None:
    lines = [
        line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")
    ]
    words = [line.split() for line in lines]
    bases = [row[1] for row in words if row[0] == "FROM"]
    copied = [
        name
        for row in words
        if row[0] == "COPY" and "--from=build" not in row
        for name in row[1:-1]
    ]
    kept = (ROOT / ".dockerignore").read_text().splitlines()

    assert len(bases) == 2 and all(
        re.fullmatch(r"python:3\.1[0-9]-slim", base) for base in bases
    )
    assert all((ROOT / name).exists() for name in copied)
    # What the wheel is built from: tools/release.py looks at the same.
    assert sorted(copied) == ["LICENSE", "README.md", "ckpt", "pyproject.toml"]
    assert (
        sorted(name[1:] for name in kept if name.startswith("!")) == sorted(copied)
        and kept[0] == "*"
    )
    assert {row[0] for row in words} == {
        "FROM",
        "COPY",
        "RUN",
        "USER",
        "WORKDIR",
        "ENTRYPOINT",
        "CMD",
    }
    (install,) = (row for row in words if row[0] == "RUN")
    assert (
        install[1:3] == ["pip", "install"]
        and install[-1] == "/source"
        and "torch" not in " ".join(install)
    )
    assert 'ENTRYPOINT ["ckpt"]' in lines and lines.index(
        "USER 65534:65534"
    ) > lines.index("FROM " + bases[1])
    comment = DOCKERFILE.splitlines()[0]
    assert all(line in comment for line in block("docker build").splitlines())

"""What ckpt says about one file, statement by statement, against the truth that its
writer recorded.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import shlex
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from inside import folder_of, inside
from process import Done
from torch.nn.parameter import UninitializedTensorMixin

COMMAND = re.compile(
    r"\bckpt (?:inspect|get|diff|rehome|strip|rename|slim|convert|warmstart|verify|sum"
    r"|stats|lint) [^()\n]*"
)
"""A command that is printed to be pasted."""
TAIL = re.compile(
    r" (?:lists|shows|makes|gets|extracts|loads|writes|takes|keeps|prints|records"
    r"|removes) .*$| loads$"
)
_SEPARATOR = re.compile(r"[;#→]|\s\|\s")


class Wrong(list[str]):
    """Statements that the truth contradicts, and how many were checked."""

    def __init__(self) -> None:
        super().__init__()
        self.checked: Counter[str] = Counter()

    def check(self, area: str, holds: object, text: str) -> None:
        self.checked[area] += 1
        if not holds:
            self.append(f"{area}: {text}")


class Written:
    """One file, its truth, and what ckpt says about it."""

    def __init__(self, truth: Path, wrong: Wrong, scratch: Path) -> None:
        self.truth: dict[str, Any] = json.loads(truth.read_text())
        self.folder = truth.parent.parent
        self.name = self.truth["file"]
        self.path = self.folder / self.name
        self.live_path = truth.with_suffix(".live")
        self.wrong, self.scratch = wrong, scratch
        self.section_rows: dict[str, dict[str, Any]] = self.truth["sections"]

    def run(self, *arguments: str) -> Done:
        return inside(*arguments, cwd=self.folder)

    def out(self, name: str) -> str:
        return str(self.scratch / name)

    @cached_property
    def live(self) -> dict[str, dict[str, torch.Tensor]]:
        return (
            torch.load(self.live_path, map_location="cpu", weights_only=False)
            if self.live_path.exists()
            else {}
        )

    @cached_property
    def loaded(self) -> Any:
        return torch.load(self.path, map_location="cpu", weights_only=False)

    @cached_property
    def report(self) -> dict[str, Any]:
        done = self.run("inspect", "--json", self.name)
        self.wrong.check(
            "inspect", done.code == 0, f"exit {done.code}: {done.err.decode()[:300]}"
        )
        report = json.loads(done.out) if done.code == 0 else {}
        self._name_sections(report)
        return report

    def _name_sections(self, report: dict[str, Any]) -> None:
        """`?KIND` stands for the section of that kind: what it is called is ckpt's own
        choice (a folder of files).
        """
        for row in report.get("sections", ()):
            mark = "?" + row["kind"]
            if mark in self.section_rows and row["name"] not in self.section_rows:
                self.section_rows[row["name"]] = self.section_rows.pop(mark)

    @cached_property
    def gradients(self) -> dict[str, int]:
        """`model:name` → steps in which an optimizer was given a gradient for it."""
        return {
            n: c
            for row in self.truth["optimizers"] or []
            for n, c in row["gradients"].items()
        }

    @cached_property
    def steps(self) -> dict[str, int]:
        return {
            n: row["steps"]
            for row in self.truth["optimizers"] or []
            for n in row["gradients"]
        }

    @cached_property
    def held(self) -> set[str]:
        return {
            name
            for row in self.truth["optimizers"] or []
            for group in row["groups"]
            for name in group
        }

    def first_name(self, model: str, name: str) -> str:
        """`model:name` by the first name of a tied parameter."""
        for names in self.truth["models"][model]["tied"]:
            if name in names:
                return f"{model}:{names[0]}"
        return f"{model}:{name}"

    def live_name(self, section: str | None, name: str) -> tuple[str, str] | None:
        """The model and the name in it of a tensor of a section; None where the truth
        does not say.
        """
        row = self.section_rows.get(section if section is not None else "")
        if row is None or row["model"] is None:
            return None
        relative = name[len(section) + 1 :] if section else name
        prefix = row["prefix"]
        if not relative.startswith(prefix):
            return None
        return row["model"], relative[len(prefix) :]

    def kind_of(self, model: str, name: str) -> str | None:
        truth = self.truth["models"][model]
        if name in truth["parameters"]:
            return "parameter"
        return "buffer" if name in truth["buffers"] else None

    def by_name(self, name: str) -> tuple[str, str] | None:
        """The model and the name in it of any tensor of the file."""
        row = next((row for row in self.report["tensors"] if row["name"] == name), None)
        return self.live_name(row["section"], name) if row else None


def below(name: str, parent: str) -> bool:
    return bool(parent) and name.startswith(parent + ".")


def inspected(file: Written) -> None:
    """Sections, roles, `in_optimizer`, prefixes and findings."""
    wrong, report = file.wrong, file.report
    if not report:
        return
    kinds = {row["name"]: row["kind"] for row in report["sections"]}
    for name, row in file.section_rows.items():
        said = kinds.get(name)
        fine = said == row["kind"] or (
            row["kind"] == "average" and said in ("ema", "other")
        )
        fine = fine or any(
            below(other, name) and kind == row["kind"] for other, kind in kinds.items()
        )
        wrong.check(
            "sections", fine, f"{name or '(root)'} is {row['kind']}, said: {said}"
        )
    for name, kind in kinds.items():
        if kind in ("model", "ema", "optimizer"):
            known = name in file.section_rows or any(
                below(name, other) and kind == row["kind"]
                for other, row in file.section_rows.items()
            )
            wrong.check("sections", known, f"{name or '(root)'} is called {kind}")
    for row in report["tensors"]:
        found = file.live_name(row["section"], row["name"])
        if found is None:
            continue
        kind, trust = file.kind_of(*found), row["evidence"]["trust"]
        if kind is None and not row["registered"]:  # a plain attribute of a module
            continue
        if kind is None:
            wrong.check("roles", False, f"{row['name']}: not in the model")
            continue
        if row["role"] in ("parameter", "buffer"):
            wrong.check(
                "roles",
                row["role"] == kind,
                f"{row['name']} is a {kind}, said: {row['role']} ({trust})",
            )
        else:
            wrong.check(
                "roles",
                row["role"] == "unknown",
                f"{row['name']} is a {kind}, said: {row['role']}",
            )
        if row["in_optimizer"] is not None and file.truth["optimizers"] is not None:
            holds = file.first_name(*found) in file.held
            wrong.check(
                "in_optimizer",
                row["in_optimizer"] == holds,
                f"{row['name']}: held: {holds}",
            )
    for row in report["prefixes"]:
        fine = any(
            told["prefix"].startswith(row["prefix"]) or row["prefix"] in told["prefix"]
            for name, told in file.section_rows.items()
            if name == row["section"]
        ) or any(
            row["prefix"].strip(".") in n
            for m in file.truth["models"].values()
            for n in m["parameters"]
        )
        wrong.check(
            "prefixes",
            fine,
            f"{row['prefix']!r} of {row['writer']} in {row['section']}",
        )
    stated(file, report["findings"])


def stated(file: Written, findings: list[dict[str, Any]]) -> None:
    """The findings about gradients and ties that a report makes."""
    wrong = file.wrong
    for finding in findings:
        code, text = finding["code"], finding["message"]
        for name in (
            finding["tensors"] if code in ("unused", "sometimes-unused") else ()
        ):
            found = file.by_name(name)
            if found is None:
                continue
            if file.kind_of(*found) != "parameter":
                wrong.check(code, False, f"{name} is no parameter")
                continue
            first = file.first_name(*found)
            given, steps = file.gradients.get(first), file.steps.get(first, 0)
            fine = (
                not given if code == "unused" else given is not None and given < steps
            )
            wrong.check(
                code, fine, f"{name} had a gradient in {given} of {steps} steps: {text}"
            )
        if code == "called-on-load":
            wrong.check(code, "DANGER" not in text, text)
        if code == "tied":
            names = [file.by_name(name) for name in finding["tensors"]]
            known = [found for found in names if found]
            truth = {
                file.first_name(*found)
                for found in known
                if file.kind_of(*found) == "parameter"
            }
            tied = {
                f"{m}:{names[0]}"
                for m, row in file.truth["models"].items()
                for names in row["tied"]
            }
            wrong.check("tied", known and truth <= tied, f"{finding['tensors'][:6]}")
        if code in (
            "bloat",
            "container",
            "trailing-data",
            "shards",
            "ambiguous-name",
            "registered-twice",
            "nan",
            "inf",
            "plain-tensor",
        ):
            wrong.check(code, False, text)


def indexed(file: Written) -> None:
    """`--index`: DDP numbers the parameters that require a gradient, in the order of
    the model.
    """
    models = [
        row
        for row in file.section_rows.values()
        if row["kind"] == "model" and row["model"]
    ]
    if len(models) != 1 or not file.report:
        return
    truth = file.truth["models"][models[0]["model"]]
    unique = [name for name in truth["unique"] if truth["parameters"][name]]
    done = file.run("inspect", "--json", "--index", f"0-{len(unique) - 1}", file.name)
    if done.code:
        return
    index = json.loads(done.out)["index"]
    if index is None:
        return
    for row in index["names"]:
        real = unique[row["index"]] if row["index"] < len(unique) else None
        said = [row["name"]] if row["name"] else row["candidates"]
        short = [found[1] if (found := file.by_name(name)) else name for name in said]
        holds = real in short or index["assumes"] is not None
        file.wrong.check(
            "index",
            holds,
            (
                f"{row['index']} is {real}, said: {short[:4]} ({index['evidence']}; "
                f"{index['assumes']})"
            ),
        )


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_sparse or b.is_sparse or a.layout != torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    a, b = a.detach().contiguous(), b.detach().contiguous()
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a DTensor that are here: without a process group there are no
    others.
    """
    return getattr(tensor, "_local_tensor", tensor)


def leaves(
    node: Any, path: tuple[Any, ...] = (), seen: frozenset[int] = frozenset()
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """The tensors of plain containers, by path."""
    if isinstance(node, torch.Tensor):
        yield path, node
    elif id(node) in seen:
        return
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key), seen | {id(node)})
    elif isinstance(node, list | tuple):
        for key, value in enumerate(node):
            yield from leaves(value, (*path, key), seen | {id(node)})


def kept(
    file: Written,
    area: str,
    tensors: dict[str, torch.Tensor],
    *,
    sections: tuple[str, ...] = ("model",),
) -> None:
    """Each tensor of the live models is in `tensors`, under its name, with or without
    the section's, bit for bit.
    """
    for section, row in file.section_rows.items():
        if row["kind"] not in sections or row["model"] not in file.live:
            continue
        for name, value in file.live[row["model"]].items():
            if type(value) is not torch.Tensor or value.layout != torch.strided:
                continue
            names = (f"{section}.{row['prefix']}{name}", f"{row['prefix']}{name}", name)
            got = next((tensors[each] for each in names if each in tensors), None)
            if got is None:  # tied: the name of another
                tied = next(
                    (
                        n
                        for n in file.truth["models"]
                        .get(row["model"], {})
                        .get("tied", ())
                        if name in n
                    ),
                    (),
                )
                got = next(
                    (
                        tensors[f"{p}{n}"]
                        for n in tied
                        for p in ("", row["prefix"], f"{section}.{row['prefix']}")
                        if f"{p}{n}" in tensors
                    ),
                    None,
                )
            file.wrong.check(
                area,
                got is not None,
                f"{name} of {section or 'the root'} is not in the result",
            )
            if got is not None:
                file.wrong.check(area, equal(got, value), f"{name} has other values")


def rewritten(file: Written) -> None:
    """`slim`, `convert` and `convert --plain`: bit for bit, loadable with
    weights_only=True, or refused with a way out.
    """
    wrong = file.wrong
    models = [name for name, row in file.section_rows.items() if row["kind"] == "model"]
    several = len(models) > 1
    for area, arguments, suffix in (
        ("slim", ("slim",), ".pth"),
        ("convert", ("convert",), ".safetensors"),
        ("plain", ("convert", "--plain"), ".pth"),
    ):
        out = file.out(area + suffix)
        done = file.run(arguments[0], file.name, *arguments[1:], "-o", out)
        if done.code == 0 and not Path(out).exists():
            continue
        if done.code:
            text = done.err.decode()
            fine = (
                done.code == 2
                and "Traceback" not in text
                and (not models or several or "(" in text)
            )
            wrong.check(area, fine, f"exit {done.code}: {text[:300]}")
            if models and not several:
                file.refused.append(f"{area}: {text.strip()[:200]}") if hasattr(
                    file, "refused"
                ) else None
            continue
        try:
            if suffix == ".safetensors":
                tensors = safetensors.torch.load_file(out)
            else:
                # A checkpoint written by a framework may hold tensors of the
                # framework's own classes.
                torch.serialization.clear_safe_globals()
                result = torch.load(out, map_location="cpu", weights_only=True)
                tensors = {
                    ".".join(map(str, path)): tensor for path, tensor in leaves(result)
                }
        except Exception as error:
            wrong.check(
                area,
                False,
                f"does not load: {type(error).__name__}: {str(error)[:200]}",
            )
            continue
        if Path(out).stat().st_size and models and not several:
            kept(file, area, tensors)
        if area == "plain" and file.path.is_file():
            with contextlib.suppress(Exception):
                for path, tensor in leaves(file.loaded):
                    if (
                        type(tensor) in (torch.Tensor, torch.nn.Parameter)
                        and tensor.device.type != "meta"
                    ):
                        got = tensors.get(".".join(map(str, path)))
                        wrong.check(
                            "plain",
                            got is not None and equal(got, tensor.data),
                            f"{path}: {'missing' if got is None else 'differs'}",
                        )
        again = inside("verify", out, cwd=file.folder)
        wrong.check(
            area,
            again.code == 0,
            (
                "verify of the result: "
                f"{again.out.decode()[:200]}{again.err.decode()[:200]}"
            ),
        )


LOADERS = {
    "torch": torch,
    "safetensors": safetensors,
    "zipfile": zipfile,
    "tarfile": tarfile,
}
"""What a `load:` line may need."""


def loads(file: Written) -> None:
    """The `load:` line works in torch and gives the model, and what is said of
    weights_only is true.
    """
    wrong, report = file.wrong, file.report
    if not report:
        return
    said = report["weights_only"]
    if said is not None and file.path.is_file():
        torch.serialization.clear_safe_globals()
        try:
            torch.load(file.path, map_location="cpu", weights_only=True)
            real, why = True, ""
        except Exception as error:
            real, why = False, str(error)
        wrong.check(
            "weights_only",
            said["loads"] == real,
            f"said {said['loads']}: {said['reasons'][:2]} {why[:300]}",
        )
    if report["load"] is None:
        wrong.check(
            "load",
            report["load_note"] or not report["tensors"],
            "neither an expression nor a reason",
        )
        return
    import safetensors.torch as loaders  # noqa: F401

    if report["load"].startswith(
        "llama_cpp."
    ):  # it builds a model, and takes none as small as these
        return
    models = [
        (n, r)
        for n, r in file.section_rows.items()
        if r["kind"] == "model" and r["model"] in file.live
    ]
    try:
        with folder_of(file.folder), contextlib.redirect_stdout(io.StringIO()):
            names = dict(LOADERS)
            names["state"] = state = {
                name: {
                    row["prefix"] + key: tensor.clone()
                    for key, tensor in file.live[row["model"]].items()
                }
                for name, row in models
            }
            needed = (report["load_note"] or "").partition(";")[0]
            if needed.startswith(("from ", "import ")):
                exec(needed, names)
            value = eval(report["load"], names)
            if (
                value is None and len(models) == 1
            ):  # what fills a state dict that is given
                value = state[models[0][0]]
    except Exception as error:
        wrong.check(
            "load",
            False,
            f"{report['load']}: {type(error).__name__}: {str(error)[:200]}",
        )
        return
    wrong.check("load", True, "")
    if len(models) == 1 and isinstance(value, torch.nn.Module | dict):
        state = value.state_dict() if isinstance(value, torch.nn.Module) else value
        live, prefix = file.live[models[0][1]["model"]], models[0][1]["prefix"]
        tied = {
            name
            for names in file.truth["models"][models[0][1]["model"]]["tied"]
            for name in names
        }
        missing = [
            name for name in live if prefix + name not in state and name not in tied
        ]
        wrong.check("load", not missing, f"{report['load']} gives no {missing[:3]}")


def placed(file: Written) -> None:
    """On a GPU: tensors have the devices that torch gives them, and of what `rehome`
    wrote nothing is loaded onto it.
    """
    if not torch.cuda.is_available() or not file.path.is_file() or not file.report:
        return
    try:
        loaded = torch.load(file.path, weights_only=False)
    except Exception:  # not of torch, or a program
        return
    found = dict(
        leaves(loaded.state_dict() if isinstance(loaded, torch.nn.Module) else loaded)
    )
    rows = {tuple(row["path"]): row for row in file.report["tensors"]}
    for path, tensor in found.items():
        if tensor.layout == torch.strided and path in rows:
            said = rows[path]["device"]
            file.wrong.check(
                "devices",
                said == str(tensor.device),
                f"{path} is on {tensor.device}, said: {said}",
            )
    on_gpu = any(tensor.is_cuda for tensor in found.values())
    codes = [finding["code"] for finding in file.report["findings"]]
    file.wrong.check(
        "devices", ("cuda" in codes) == on_gpu, f"on a GPU: {on_gpu}, findings: {codes}"
    )
    if not on_gpu:
        return
    out = file.out("rehomed.pth")
    done = file.run("rehome", file.name, "--to", "cpu", "-o", out)
    file.wrong.check(
        "rehome", done.code == 0, f"exit {done.code}: {done.err.decode()[:300]}"
    )
    if done.code:
        return
    loaded = found = tensor = None
    gc.collect()
    allocated = torch.cuda.memory_allocated()
    moved = torch.load(out, weights_only=False)
    file.wrong.check(
        "rehome",
        torch.cuda.memory_allocated() == allocated,
        "loading the result takes memory of the GPU",
    )
    before = dict(leaves(file.loaded))
    for path, tensor in leaves(moved):
        if isinstance(tensor, UninitializedTensorMixin):
            continue
        fine = tensor.device.type in ("cpu", "meta") and (
            tensor.is_meta or equal(local(tensor), local(before[path]))
        )
        file.wrong.check("rehome", fine, f"{path} on {tensor.device} has other values")


def commands(text: str) -> list[str]:
    """The commands that a text tells to paste."""
    found = []
    for match in COMMAND.finditer(text):
        command = TAIL.sub("", _SEPARATOR.split(match[0])[0]).strip().rstrip(".,)")
        # A name alone is the subject of a sentence: `ckpt slim keeps the format`.
        if command.count(" ") > 1 and command not in found:
            found.append(command)
    return found


def printed(file: Written) -> None:
    """Every command that is printed runs: those of `inspect`, `lint`, and of what is
    refused.
    """
    asked: list[tuple[str, ...]] = [
        ("inspect", file.name),
        ("inspect", "--values", file.name),
        ("lint", file.name),
        ("slim", file.name, "--dry-run", "-o", file.out("x.pth")),
        ("convert", file.name, "--dry-run", "-o", file.out("x.safetensors")),
        ("strip", file.name, "--dry-run", "-o", file.out("x.pth")),
        ("stats", file.name),
        ("sum", file.name),
    ]
    texts = []
    for arguments in asked:
        done = file.run(*arguments)
        text = (done.out + done.err).decode()
        file.wrong.check(
            "runs",
            "Traceback" not in text and "bug" not in done.err.decode(),
            f"{arguments}: {text[-300:]}",
        )
        texts.append(text)
    for command in commands("\n".join(texts)):
        arguments = shlex.split(command)[1:]
        if any(
            word
            in (
                "A",
                "B",
                "BEFORE",
                "AFTER",
                "TARGET",
                "PRETRAINED",
                "NAME",
                "PATH",
                "K=V",
            )
            for word in arguments
        ):
            continue
        shutil.rmtree(file.scratch / "pasted", ignore_errors=True)
        (file.scratch / "pasted").mkdir()
        suffix = ".safetensors" if "safetensors" in command else ".pth"
        words = [
            file.name
            if word == "FILE"
            else file.out("pasted/out" + suffix)
            if word == "OUT"
            else word.replace("OUT", file.out("pasted/out"))
            for word in arguments
        ]
        done = file.run(*words)
        good = (0, 1) if words[0] in ("lint", "verify", "diff") else (0,)
        file.wrong.check(
            "commands",
            done.code in good,
            f"{command}: exit {done.code}: {done.err.decode()[:300]}",
        )


def checked(file: Written) -> None:
    """`verify`, `lint`, `sum` and `stats`: no error, and sums that verify accepts."""
    wrong = file.wrong
    done = file.run("verify", file.name)
    wrong.check("verify", done.code == 0, f"{(done.out + done.err).decode()[:300]}")
    done = file.run("lint", "--read-values", "--json", file.name)
    wrong.check(
        "lint", done.code in (0, 1), f"exit {done.code} {done.err.decode()[:300]}"
    )
    if done.code in (0, 1):
        for row in json.loads(done.out)["files"]:
            wrong.check("lint", row["error"] is None, str(row["error"]))
            stated(file, row["findings"]) if file.report else None
    models = [row for row in file.section_rows.values() if row["kind"] == "model"]
    for command in ("sum", "stats"):
        done = file.run(command, file.name)
        if done.code == 2 and not file.report.get(
            "tensors"
        ):  # nothing to sum or to measure
            continue
        if len(models) > 1 and done.code == 2:
            wrong.check(command, "holds" in done.err.decode(), done.err.decode()[:200])
            continue
        wrong.check(
            command, done.code == 0, f"exit {done.code}: {done.err.decode()[:300]}"
        )
        if command == "sum" and done.code == 0:
            sums = file.out("sums")
            Path(sums).write_bytes(done.out)
            again = file.run("verify", file.name, "--sums", sums)
            wrong.check(
                "sum",
                again.code == 0,
                f"verify --sums: {(again.out + again.err).decode()[:300]}",
            )


def values(file: Written) -> None:
    for name, value in file.truth["values"].items():
        done = file.run("get", "--json", file.name, name)
        wrong = file.wrong
        wrong.check("get", done.code == 0, f"{name}: {done.err.decode()[:200]}")
        if done.code == 0:
            said = json.loads(done.out)["value"]
            wrong.check("get", said == value, f"{name} is {value}, said: {said}")


def warmstarted(file: Written) -> None:
    """`warmstart` of the file into a fresh state dict of the model loads every
    tensor.
    """
    models = [
        row
        for row in file.section_rows.values()
        if row["kind"] == "model" and row["model"] in file.live
    ]
    if len(models) != 1:
        return
    live = file.live[models[0]["model"]]
    if (
        not live
        or file.truth["models"][models[0]["model"]]["tied"]
        or any(type(value) is not torch.Tensor for value in live.values())
    ):
        return
    target, out = file.out("target.pth"), file.out("warm.pth")
    torch.save({name: torch.zeros_like(value) for name, value in live.items()}, target)
    done = file.run("warmstart", file.name, "--into", target, "-o", out)
    if done.code:
        text = done.err.decode() + done.out.decode()
        file.wrong.check("warmstart", False, f"exit {done.code}: {text[:300]}")
        return
    result = torch.load(out, weights_only=True)
    for name, value in live.items():
        file.wrong.check(
            "warmstart", equal(result[name], value), f"{name} was not loaded"
        )


def differed(before: Written, after: Written) -> None:
    """Two files of one run: each row, each reason and each finding, against both files
    as torch loads them.
    """
    wrong = after.wrong
    done = after.run("diff", "--json", before.name, after.name)
    wrong.check(
        "diff", done.code in (0, 1), f"exit {done.code}: {done.err.decode()[:300]}"
    )
    if done.code not in (0, 1):
        return
    report = json.loads(done.out)
    for row in report["tensors"]:
        found = after.by_name(row["after"]) if row["after"] else None
        if (
            found is None
            or row["before"] is None
            or found[0] not in before.live
            or found[0] not in after.live
        ):
            continue
        if (
            after.section_rows.get(
                next(
                    r["section"]
                    for r in after.report["tensors"]
                    if r["name"] == row["after"]
                )
                or "",
                {},
            ).get("kind")
            != "model"
        ):
            continue
        name = found[1]
        if name not in before.live[found[0]] or name not in after.live[found[0]]:
            continue
        same = equal(before.live[found[0]][name], after.live[found[0]][name])
        wrong.check(
            "diff",
            (row["status"] == "same") == same,
            f"{row['after']} {row['status']}, same: {same}",
        )
        first = after.first_name(*found)
        given = after.gradients.get(first, 0) - before.gradients.get(first, 0)
        cause = row["cause"]
        if cause is None or after.kind_of(*found) != "parameter":
            continue
        truth = {
            "frozen": not after.truth["models"][found[0]]["parameters"][name],
            "never": after.gradients.get(first, 0) == 0,
            "no-gradient": given == 0,
            "not-in-optimizer": first not in after.held,
            "not-stepped": given == 0,
            "stepped": given > 0,
        }.get(cause, True)
        wrong.check(
            "diff",
            truth,
            f"{row['after']}: {row['reason']} ({cause}), given {given} gradients",
        )
    moved = {row["after"] for row in report["tensors"] if row["status"] != "same"}
    for finding in report["findings"]:
        if finding["code"] == "frozen":
            bad = [
                name
                for name in finding["tensors"]
                if name in moved
                or (
                    (f := after.by_name(name))
                    and after.kind_of(*f) == "buffer"
                    and "may be" not in (finding["consequence"] or "")
                )
            ]
            wrong.check("diff", not bad, f"frozen: {bad[:4]}")
        elif finding["code"] in (
            "step-skipped",
            "changed-without-state",
            "ranks-differ",
        ):
            wrong.check("diff", False, finding["message"])
        elif finding["code"] == "buffers-in-frozen":
            wrong.check(
                "diff",
                set(finding["tensors"])
                <= moved
                | {
                    r["after"]
                    for r in report["tensors"]
                    if r["role"] == "parameter" and r["status"] == "same"
                },
                finding["message"],
            )


def all_checks(truth: Path, scratch: Path) -> Wrong:
    """Every check of one file."""
    wrong = Wrong()
    file = Written(truth, wrong, scratch)
    if refusal := file.truth.get("refusal"):
        done = file.run("inspect", file.name)
        if done.code == 2:
            wrong.check(
                "refused", refusal in done.err.decode(), done.err.decode()[:300]
            )
            return wrong
    for check in (
        inspected,
        indexed,
        loads,
        placed,
        checked,
        values,
        printed,
        rewritten,
        warmstarted,
    ):
        try:
            check(file)
        except Exception as error:
            wrong.check(
                check.__name__,
                False,
                f"the check failed: {type(error).__name__}: {str(error)[:300]}",
            )
    if file.truth["after"]:
        for other in truth.parent.glob("*.json"):
            if json.loads(other.read_text())["file"] == file.truth["after"]:
                before = Written(other, wrong, scratch)
                _ = before.report
                differed(before, file)
    gc.collect()
    return wrong

"""The truth about a training run, by torch itself: who had a gradient at each
`optimizer.step()`, and what the model holds.

A writer watches its modules, trains with the framework's own code, and calls `wrote`
for each file. Beside the file lies its truth: the names of parameters and buffers, what
the optimizers hold, and the live state dicts.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin
from torch.optim.optimizer import register_optimizer_step_pre_hook


class Recorder:
    """One run: the modules it watches, and the gradients that the optimizers were
    given.
    """

    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.steps: dict[int, int] = {}
        self.given: dict[tuple[int, int], int] = {}
        self.nonzero: dict[tuple[int, int], int] = {}
        self.last: dict[int, set[int]] = {}
        self.handle = register_optimizer_step_pre_hook(self._before_step)

    def watch(self, name: str, model: nn.Module) -> nn.Module:
        self.models[name] = model
        return model

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: object, kwargs: object
    ) -> None:
        optimizer = getattr(optimizer, "_truth_of", optimizer)
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
            self._forget(id(optimizer))  # of one that is gone
        key = id(optimizer)
        self.steps[key] = self.steps.get(key, 0) + 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                had = parameter.grad is not None
                self.given[key, id(parameter)] = (
                    self.given.get((key, id(parameter)), 0) + had
                )
                dense = (
                    parameter.grad.to_dense()
                    if had and parameter.grad.is_sparse
                    else parameter.grad
                )
                self.nonzero[key, id(parameter)] = self.nonzero.get(
                    (key, id(parameter)), 0
                ) + bool(had and dense.count_nonzero())

    def _forget(self, key: int) -> None:
        self.steps.pop(key, None)
        for counts in (self.given, self.nonzero):
            for pair in [pair for pair in counts if pair[0] == key]:
                del counts[pair]

    def close(self) -> None:
        self.handle.remove()

    def names(self) -> dict[int, str]:
        """`model.name` of each parameter by its id. A tied parameter has the first of
        its names.
        """
        found: dict[int, str] = {}
        for model, module in self.models.items():
            for name, parameter in module.named_parameters():
                found.setdefault(id(parameter), f"{model}:{name}")
        return found

    def model_truth(self, module: nn.Module) -> dict[str, Any]:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        by_id: dict[int, list[str]] = {}
        for name, parameter in parameters.items():
            by_id.setdefault(id(parameter), []).append(name)
        return {
            "parameters": {
                name: parameter.requires_grad for name, parameter in parameters.items()
            },
            "unique": [name for name, _ in module.named_parameters()],
            "buffers": [
                name for name, _ in module.named_buffers(remove_duplicate=False)
            ],
            "tied": [names for names in by_id.values() if len(names) > 1],
        }

    def optimizer_truth(self) -> list[dict[str, Any]]:
        names = self.names()
        rows = []
        for optimizer in self.optimizers:
            key = id(optimizer)
            groups = [
                [names.get(id(parameter), "?") for parameter in group["params"]]
                for group in optimizer.param_groups
            ]
            known = {
                names.get(id(parameter), "?"): (
                    self.given[key, id(parameter)],
                    self.nonzero[key, id(parameter)],
                )
                for group in optimizer.param_groups
                for parameter in group["params"]
                if (key, id(parameter)) in self.given
            }
            rows.append(
                {
                    "class": type(optimizer).__name__,
                    "groups": groups,
                    "steps": self.steps[key],
                    "gradients": {name: given for name, (given, _) in known.items()},
                    "nonzero": {name: nonzero for name, (_, nonzero) in known.items()},
                }
            )
        return rows


class Case:
    """A folder for the files of one case, and the run that makes them."""

    def __init__(self, folder: Path, package: str, name: str) -> None:
        self.package, self.name = package, name
        self.folder = folder / f"{package}-{name}".replace("/", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder()
        self.number = 0

    def watch(self, name: str, model: nn.Module) -> nn.Module:
        return self.recorder.watch(name, model)

    def path(self, name: str) -> Path:
        return self.folder / name

    def wrote(
        self,
        path: Path,
        sections: dict[str, Any],
        *,
        values: dict[str, object] | None = None,
        live: dict[str, dict[str, Any]] | None = None,
        optimizers: bool = True,
        after: Path | None = None,
        refusal: str = "",
    ) -> None:
        """Keeps the truth about a file that has just been written.

        `sections` maps the name of each section of the file to its kind, or to (kind,
        model, prefix of its names). `after` is an earlier file of the same run. With
        `refusal`, ckpt may say this and not read the file.
        """
        self.number += 1
        told = {}
        for section, row in sections.items():
            kind, model, prefix = (row, None, "") if isinstance(row, str) else row
            told[section] = {"kind": kind, "model": model, "prefix": prefix}
        states = {
            name: {
                key: value.detach().clone()
                for key, value in tensors(module.state_dict()).items()
            }
            for name, module in self.recorder.models.items()
        }
        states.update({name: tensors(state) for name, state in (live or {}).items()})
        truth = self.folder / ".truth" / f"{self.number}.json"
        truth.parent.mkdir(exist_ok=True)
        try:
            torch.save(states, truth.with_suffix(".live"))
        except Exception:  # tensor subclasses that only their package can copy
            truth.with_suffix(".live").unlink(missing_ok=True)
        truth.write_text(
            json.dumps(
                {
                    "file": path.relative_to(self.folder).as_posix(),
                    "package": self.package,
                    "version": version(self.package),
                    "case": self.name,
                    "sections": told,
                    "models": {
                        name: self.recorder.model_truth(module)
                        for name, module in self.recorder.models.items()
                    },
                    "optimizers": self.recorder.optimizer_truth()
                    if optimizers
                    else None,
                    "values": values or {},
                    "refusal": refusal,
                    "after": after.relative_to(self.folder).as_posix()
                    if after
                    else None,
                },
                indent=1,
            )
        )


def tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        str(name): value
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
        and not isinstance(value, UninitializedTensorMixin)
    }


def run(folder: Path, package: str, cases: Iterable[Callable[..., None]]) -> int:
    """Writes all cases of a package. A case that fails is told, and the others
    go on.
    """
    failed = 0
    for write in cases:
        name = write.__name__.replace("_", "-")
        torch.manual_seed(0)
        case = Case(folder, package, name)
        try:
            write(case)
        except Exception:
            failed += 1
            (case.folder / "FAILED").write_text(traceback.format_exc())
            print(
                f"{package} {name}: {traceback.format_exc().strip().splitlines()[-1]}"
            )
        finally:
            case.recorder.close()
    return failed

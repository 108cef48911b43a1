"""Networks that were pickled with the source text of their classes, as StyleGAN2-ADA,
StyleGAN3, EG3D and EDM save them.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from inside import inside
from torch import nn

import ckpt

pytestmark = oracle.QUIET

SOURCE = "import torch\n\nclass Generator(torch.nn.Module):\n    pass\n"


def rebuild(meta: dict[str, Any]) -> None:
    """Stand for NVIDIA's function, which runs the source text. Nobody calls it here."""
    raise AssertionError("the function of the file was called")


class Persistent(nn.Module):
    """A module that is pickled as `torch_utils.persistence` does it, through a function
    of a module that readers lack.
    """

    def __reduce__(self) -> Any:
        state = dict(self.__dict__)
        kind = type(self).__name__
        meta = {
            "type": "class",
            "version": 6,
            "module_src": SOURCE,
            "class_name": kind,
            "state": state,
        }
        return rebuild, (meta,)


class Layer(Persistent):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.register_buffer("noise", torch.randn(3))
        self.names = ["a", "b"]


class Generator(Persistent):
    def __init__(self) -> None:
        super().__init__()
        self.mapping = nn.ModuleDict({"fc0": Layer(4), "fc1": nn.Linear(4, 4)})
        self.register_buffer("w_avg", torch.zeros(4))
        self.synthesis = nn.Sequential(nn.Conv2d(4, 3, 3), Layer(3))
        self._init_kwargs = {"z_dim": 4}


@pytest.fixture(params=["torch_utils.persistence", "eg3d.torch_utils.persistence"])
def module(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Name the module of the function while files are written."""
    name = str(request.param)
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        package = ".".join(parts[:count])
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setattr(rebuild, "__module__", name)
    monkeypatch.setattr(rebuild, "__name__", "_reconstruct_persistent_obj")
    monkeypatch.setattr(rebuild, "__qualname__", "_reconstruct_persistent_obj")
    monkeypatch.setattr(
        sys.modules[name], "_reconstruct_persistent_obj", rebuild, raising=False
    )
    yield name


@pytest.mark.parametrize("protocol", range(6))
def test_the_weights_of_a_network(module: str, protocol: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ema, path, out = Generator(), tmp_path / "network.pkl", tmp_path / "ema.pth"
    content = {
        "G": Generator(),
        "D": nn.Linear(4, 1),
        "G_ema": ema,
        "augment_pipe": None,
    }
    path.write_bytes(pickle.dumps(content, protocol))

    ckpt.slim(path, section="G_ema", out=str(out))
    written, expected = torch.load(out), ema.state_dict()
    assert list(written) == list(expected)
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    with ckpt.open(path) as checkpoint:
        kinds = {part.name: part.kind for part in checkpoint.sections}
        assert kinds == {"G": "model", "D": "model", "G_ema": "ema"}


def test_the_source_text_is_code_inside(module: str, tmp_path: Path) -> None:
    path = tmp_path / "network.pkl"
    path.write_bytes(pickle.dumps({"a": {"b": {"G": Generator()}}}))
    done = inside("inspect", path, cwd=tmp_path)
    assert (
        b"DANGER  loading this file runs the Python source that it holds, for "
        b"Generator, Layer."
    ) in done.out
    assert (
        inside("get", path, "a.b.G.module_src", cwd=tmp_path)
        .out.decode()
        .startswith("import torch")
    )
    (finding,) = (
        row for row in ckpt.inspect(path).findings if row.code == "code-inside"
    )
    assert finding.level == "error" and finding.where[0] == "a.b.G"
    assert finding.hint is not None and finding.hint.endswith(" a.b.G.module_src")
    assert inside(*finding.hint.split()[1:], cwd=tmp_path).code == 0


def test_a_network_and_its_average_are_one_object(module: str, tmp_path: Path) -> None:
    """A first snapshot has no average yet."""
    whole, path, out = Generator(), tmp_path / "network.pkl", tmp_path / "ema.pth"
    path.write_bytes(pickle.dumps({"G": whole, "G_ema": whole}))
    ckpt.slim(path, section="G_ema", out=str(out))
    assert list(torch.load(out)) == list(whole.state_dict())


def test_a_module_of_torch_that_stands_twice(tmp_path: Path) -> None:
    whole, path, out = nn.Linear(2, 2), tmp_path / "x.pth", tmp_path / "ema.pth"
    torch.save({"model": whole, "ema": whole}, path)
    ckpt.slim(path, section="ema", out=str(out))
    assert torch.equal(torch.load(out)["weight"], whole.weight)


def test_objects_that_are_no_modules_and_other_calls(
    module: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pkl"

    class Call:
        def __init__(self, meta: object) -> None:
            self.meta = meta

        def __reduce__(self) -> Any:
            return rebuild, (self.meta,)

    state = {"w": torch.ones(2), "gain": 2.0}
    content = [
        Call(
            {
                "type": "class",
                "module_src": "x = 1",
                "class_name": "Loss",
                "state": state,
            }
        ),
        Call({"class_name": 3, "state": state}),
        Call({"class_name": "Odd", "state": [state]}),
        Call(7),
    ]
    path.write_bytes(pickle.dumps(content))
    with ckpt.open(path) as checkpoint:
        names = list(checkpoint)
        assert names[0] == "0.w" and len(names) == 3
        assert checkpoint.value("0.gain") == 2.0
    assert inside("inspect", path, cwd=tmp_path).code == 0

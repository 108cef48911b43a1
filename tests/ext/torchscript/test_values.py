"""Values that torch.jit.save writes in ways of its own: enums, sparse tensors, meta,
bytecode, constants, lowered modules.
"""

from __future__ import annotations

import enum
import json
import pickle
import zipfile
from pathlib import Path

import oracle
import pytest
import safetensors.torch
import torch
from process import check_error, ckpt
from torch import nn

from ckpt.commands.inspect.inspect import inspect
from ckpt.evidence.survey import Survey
from ckpt.formats import open

pytestmark = oracle.QUIET


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Word(enum.Enum):
    A = "a"
    B = "b"


class WithEnums(nn.Module):
    """A module with members of enums as attributes and in a list."""

    def __init__(self, color: Color, word: Word) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.color = color
        self.word = word
        self.colors = [color]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Color, Word]:
        return self.fc(x), self.color, self.word


class WithBuffer(nn.Module):
    """A module with one buffer."""

    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("w", w)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.w, x)


def saved(module: nn.Module, path: Path) -> Path:
    torch.jit.script(module).save(path)
    return path


def slimmed(path: Path) -> dict[str, torch.Tensor]:
    """The weights that ckpt takes out."""
    out = path.with_name("slim.pth")
    done = ckpt("slim", path, "-o", out)
    assert done.code == 0, done.err
    loaded: dict[str, torch.Tensor] = torch.load(out, weights_only=True)
    return loaded


def codes(path: Path) -> set[str]:
    with open(str(path)) as checkpoint:
        return {row.code for row in inspect(Survey(checkpoint)).findings}


def test_members_of_enums_are_values(tmp_path: Path) -> None:
    path = saved(WithEnums(Color.RED, Word.B), tmp_path / "a.pt")
    expected = torch.jit.load(path).state_dict()

    assert codes(path) == {"weights-only"}
    assert ckpt("get", path, "word").code == ckpt("get", path, "colors").code == 0
    assert ckpt("get", path, "color").out == b"1\n"
    assert ckpt("convert", path, "-o", tmp_path / "a.safetensors").code == 0
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert ckpt("rehome", path, "-o", tmp_path / "b.pt").code == 0
    assert torch.jit.load(tmp_path / "b.pt").color == Color.RED


def test_a_call_of_a_scalar_is_refused_elsewhere(tmp_path: Path) -> None:
    """Python refuses it, and so do torch.load and the other formats."""
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x02c__torch__\nColor\nK\x01R.")
    with pytest.raises(TypeError), pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            __import__("sys").modules, "__torch__", type("M", (), {"Color": Color})
        )
        pickle.loads(path.read_bytes())
    check_error(ckpt("inspect", path), "a call has a scalar as arguments")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_read(layout: torch.layout, tmp_path: Path) -> None:
    w = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])
    path = saved(
        WithBuffer(w.to_sparse() if layout is torch.sparse_coo else w.to_sparse_csr()),
        tmp_path / "a.pt",
    )
    expected = torch.jit.load(path).state_dict()["w"]

    assert codes(path) == {"weights-only"}
    with open(str(path)) as checkpoint:
        [entry] = checkpoint.tensors
        assert (entry.name, entry.tensor.shape, entry.kind) == ("w", (2, 3), "buffer")
        assert f"torch.{entry.tensor.layout}" == str(layout)
    found = slimmed(path)["w"]
    assert found.layout is layout
    assert torch.equal(found.to_dense(), expected.to_dense())


def test_a_module_on_meta_is_read(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Linear(2, 3, device="meta"),
        nn.Linear(3, 3),
        nn.Linear(3, 1, device="meta").half(),
    )
    path = saved(module, tmp_path / "a.pt")
    expected = torch.jit.load(path).state_dict()
    found = slimmed(path)

    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert (found[name].device, found[name].dtype) == (tensor.device, tensor.dtype)
        assert found[name].shape == tensor.shape
        assert tensor.is_meta or torch.equal(found[name], tensor)
    assert ckpt("verify", path).code == 0
    assert ckpt("rehome", path, "-o", tmp_path / "b.pt").code == 0
    assert torch.jit.load(tmp_path / "b.pt").state_dict()["0.weight"].is_meta


def test_a_short_storage_that_is_not_on_meta_is_refused(tmp_path: Path) -> None:
    path = saved(nn.Linear(2, 3, device="meta"), tmp_path / "a.pt")
    other = changed(
        path, lambda name, data: data.replace(b"X\x04\0\0\0meta", b"X\x04\0\0\0cuda")
    )
    check_error(ckpt("inspect", other), "has 0 bytes, its tensors need 24")


def changed(path: Path, change: object) -> Path:
    """A copy of an archive with changed records."""
    assert callable(change)
    other = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            after.writestr(name, change(name, before.read(name)))
    return other


def tensor(key: bytes) -> bytes:
    """The opcodes of a tensor of two doubles as C++ writes them."""
    name = b"X" + len(key).to_bytes(4, "little") + key
    return (
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"
            b"DoubleStorage\n"
        )
        + name
        + (
            b"X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n"
            b")RtR"
        )
    )


CODE = """class M(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  def forward(self: __torch__.M, x: Tensor) -> Tensor:
    return torch.add(x, CONSTANTS.c0)
"""


@pytest.mark.parametrize("key", [b"0", b"constants/0"])
def test_bytecode_names_constants_in_two_ways(key: bytes, tmp_path: Path) -> None:
    """Since version 5 of the bytecode with the folder, which torch 1.9 wrote."""
    path = tmp_path / "a.ptl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "m/data.pkl", b"\x80\x02c__torch__\nM\n)\x81}X\x08\0\0\0training\x89sb."
        )
        archive.writestr("m/code/__torch__.py", CODE)
        archive.writestr(
            "m/constants/0",
            torch.tensor([1.5, 2.5], dtype=torch.float64).numpy().tobytes(),
        )
        archive.writestr("m/constants.pkl", b"\x80\x02" + tensor(b"0") + b"\x85.")
        archive.writestr("m/bytecode.pkl", b"\x80\x02K\x05" + tensor(key) + b"\x86.")
        archive.writestr("m/version", "3\n")

    assert torch.jit.load(path)(torch.zeros(2, dtype=torch.float64)).tolist() == [
        1.5,
        2.5,
    ]
    assert b"1.5" in ckpt("get", path, "constants.0").out
    with open(str(path)) as checkpoint:
        assert [entry.name for entry in checkpoint.tensors] == ["constants.0"]
        assert len(checkpoint.storages) == 1
    assert ckpt("verify", path).code == 0


@torch.jit.script
class Pair:
    """A class of TorchScript."""

    def __init__(self, x: int, y: int) -> None:
        self.x = x
        self.y = y


class Inner(nn.Module):
    """A module with an object of a class of TorchScript."""

    __annotations__ = {"pair": Pair}

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(2, 3)

    def forward(self):  # type: ignore[no-untyped-def]
        return self.pair


def test_get_finds_the_constants_that_inspect_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.freeze(torch.jit.script(Inner().eval())).save(path)

    assert b"constants.0.x" in ckpt("inspect", "--values", path).out
    assert ckpt("get", path, "constants.0.x", "constants.0.y").out == b"2\n3\n"
    assert b"Pair" in ckpt("get", path, "constants.0").out


LOWERED = """class coremlLoweredModule(Module):
  __parameters__ = []
  __buffers__ = []
  __method_compile_spec : Dict[str, Any]
  __processed_module : Any
  __backend : __torch__.torch.classes.__backends__.coreml
  __handles : Dict[str, Any]
  training : bool
  def __setstate__(self: torch.jit.coremlLoweredModule,
    state: Tuple[Dict[str, Any], Any, bool]) -> NoneType:
    self.__method_compile_spec = (state)[0]
    self.__processed_module = (state)[1]
    if (state)[2]:
      _0 = (self).__create_backend()
    else:
      pass
    __backend = self.__backend
    if (__backend).is_available():
      __backend0 = self.__backend
      _1 = (__backend0).compile(self.__processed_module, self.__method_compile_spec, )
      self.__handles = _1
    else:
      ops.prim.RaiseException("Backend is not available.")
    return None
  def __create_backend(self: torch.jit.coremlLoweredModule) -> NoneType:
    _2 = __torch__.torch.classes.__backends__.coreml.__new__(__torch__.torch.classes.__backends__.coreml)
    _3 = (_2).__init__()
    self.__backend = _2
    return None
  def forward(self: torch.jit.coremlLoweredModule, x: Tensor) -> Tensor:
    return x
"""


@pytest.mark.parametrize("file", ["torch/jit.py", "torch/jit/___torch_mangle_3.py"])
def test_a_lowered_module_is_no_alarm(file: str, tmp_path: Path) -> None:
    module = file.removesuffix(".py").replace("/", ".")
    path = tmp_path / "a.ptl"
    with zipfile.ZipFile(path, "w") as archive:
        data = f"{module}\ncoremlLoweredModule\n".encode()
        archive.writestr("m/data.pkl", b"\x80\x02c" + data + b")\x81(}N\x89tb.")
        archive.writestr(f"m/code/{file}", LOWERED.replace("torch.jit.", f"{module}."))
        archive.writestr("m/constants.pkl", pickle.dumps((), 2))
        archive.writestr("m/version", "3\n")

    assert codes(path) == {"weights-only", "runs-setstate"}
    assert ckpt("lint", "--level", "error", path).code == 0
    with open(str(path)) as checkpoint:
        assert inspect(Survey(checkpoint)).load.expression is not None


@pytest.mark.parametrize(
    "call", [b"ctorch.jit\nload\n)R", b"cposix\nsystem\nX\x01\0\0\0x\x85R"]
)
def test_a_call_with_the_name_of_a_class_of_the_code_stays_an_alarm(
    call: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02" + call + b".")
        archive.writestr(
            "m/code/posix.py", "class system(Module):\n  training : bool\n"
        )
        archive.writestr(
            "m/code/torch/jit.py", "class load(Module):\n  training : bool\n"
        )
        archive.writestr("m/constants.pkl", pickle.dumps((), 2))
        archive.writestr("m/version", "3\n")
    assert "called-on-load" in codes(path)


def test_big_endian_bytes_that_torch_does_not_turn_are_refused(tmp_path: Path) -> None:
    path = saved(nn.Linear(2, 2), tmp_path / "a.pt")
    weight = torch.jit.load(path).weight

    path = changed(
        path, lambda name, data: b"big" if name.endswith("/byteorder") else data
    )

    assert torch.equal(torch.jit.load(path).weight, weight)
    check_error(
        ckpt("inspect", path), "big-endian, and torch.jit.load does not turn them"
    )


def test_second_names_of_parameters_are_no_more_parameters(tmp_path: Path) -> None:
    """A scripted GRU lists its weights once more in `_flat_weights`."""
    module = nn.GRU(3, 4)
    path = tmp_path / "gru.pt"
    torch.jit.script(module).save(path)
    count = sum(weight.numel() for weight in module.parameters())

    done = ckpt("inspect", path, "--json")

    totals = json.loads(done.out)["totals"]
    assert (totals["parameters"], totals["unknown"]) == (count, 0)


def test_what_is_left_out_for_one_reason_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gru.pt"
    torch.jit.script(nn.GRU(3, 4, num_layers=2)).save(path)

    done = ckpt("convert", path, "-o", tmp_path / "out.safetensors")

    left = [line for line in done.lines if line.startswith("left out: ")]
    assert len(left) == 2
    assert left[0].startswith("left out: _flat_weights.0-7 ×8: neither parameter nor")

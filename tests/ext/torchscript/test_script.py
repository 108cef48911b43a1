"""The code that torch.jit.load runs: torch runs each attack, and ckpt has said it
before. Usual code is no finding.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import oracle
import pytest
import torch
from opcodes import build, call, get, glob, pickled, put, value
from process import TIMEOUT, check_error, ckpt
from torch import nn

from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import ls
from ckpt.evidence.survey import Survey
from ckpt.ext.torchscript.operators import OPERATORS, touches_files
from ckpt.formats import open

pytestmark = oracle.QUIET

CLASS = """class M(Module):
  __parameters__ = ["w", ]
  __buffers__ = []
  w : Tensor
  training : bool
  helper : __torch__.Helper
  other : __torch__.Inner
  name : str
  def forward(self: __torch__.M, x: Tensor) -> Tensor:
    return torch.add(x, self.w)
  def __getstate__(self: __torch__.M) -> Tuple[Tensor, bool, __torch__.Helper, __torch__.Inner, str]:
    return (self.w, self.training, self.helper, self.other, self.name)
  def __setstate__(self: __torch__.M,
    state: Tuple[Tensor, bool, __torch__.Helper, __torch__.Inner, str]) -> NoneType:
    self.w = (state)[0]
    self.training = (state)[1]
    self.helper = (state)[2]
    self.other = (state)[3]
    self.name = (state)[4]
    w = self.w
    LINE
    return None
  def late(self: __torch__.M, w: Tensor) -> Tensor:
    METHOD
    return w
class Helper:
  x : int
  def __init__(self: __torch__.Helper, x: int) -> NoneType:
    self.x = x
    INIT
    return None
  def __len__(self: __torch__.Helper) -> int:
    LEN
    return 1
  def __add__(self: __torch__.Helper, other: int) -> int:
    ADD
    return 1
  def run(self: __torch__.Helper) -> int:
    RUN
    return 1
class Inner(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  def forward(self: __torch__.Inner) -> int:
    FORWARD
    return 1
def free(w: Tensor) -> int:
  FREE
  return 1
FURTHER"""
"""A program whose `__setstate__` runs LINE. The other words stand for code that LINE
may reach.
"""
SAVE = 'torch.save(1, "CANARY")'
MAP = 'torch.zero_(torch.from_file("CANARY", True, 8))'


def make(path: Path, **code: str) -> Path:
    """Write a program with code in the place of the words of CLASS."""
    source = CLASS
    for word in ("LINE", "METHOD", "INIT", "LEN", "ADD", "RUN", "FORWARD", "FREE"):
        source = source.replace(word, code.pop(word.lower(), "pass"))
    source = source.replace("FURTHER", code.pop("further", ""))
    for old, new in code.items():
        source = source.replace(OLD[old], new)
    module = nn.Module()
    module.w = nn.Parameter(torch.ones(2))
    torch.jit.script(Plain()).save(path)
    with zipfile.ZipFile(path) as archive:
        rows = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in rows.items():
            if name.endswith(".py"):
                archive.writestr(f"{name.partition('/')[0]}/code/__torch__.py", source)
            elif name.endswith("data.pkl"):
                archive.writestr(name, STATE)
            elif not name.endswith(".debug_pkl"):
                archive.writestr(name, data)
    return path


class Plain(nn.Module):
    """A module with one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


OLD = {
    "forwards": "def forward(self: __torch__.M, x: Tensor)",
    "field": "  name : str\n",
}
STATE = (
    b"\x80\x02c__torch__\nM\n)\x81(ctorch._utils\n_rebuild_tensor_v2\n"
    b"((X\x07\0\0\0storagectorch\nFloatStorage\n"
    b"X\x01\0\0\x000X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89ccollections\n"
    b"OrderedDict\n)RtR\x89"
    b"c__torch__\nHelper\n)\x81}X\x01\0\0\0xK\x01sb"
    b"c__torch__\nInner\n)\x81}X\x08\0\0\0training\x89sbX\x06\0\0\0CANARYtb."
)


def named_method(name: str) -> str:
    """The code of a class whose method has the name of an operator."""
    return (
        "class Box:\n  x : int\n  def __init__(self: __torch__.Box) -> NoneType:\n    "
        "self.x = 1\n    return None\n"
        f"  def {name}(self: __torch__.Box, n: int) -> int:\n    {SAVE}\n    return 1\n"
    )


NAMED = {
    "an item of a list": "u = [__torch__.Box()][0].{name}(1)",
    "an item of a dict": 'u = {{"a": __torch__.Box()}}["a"].{name}(1)',
    "an item of a tuple": "u = (__torch__.Box(), 1)[0].{name}(1)",
    "a part of a tuple": "a, b = (__torch__.Box(), 1)\n    u = a.{name}(1)",
    "a name of two values": (
        "if self.training:\n      h = __torch__.Box()\n    else:\n      h = "
        "[__torch__.Box()][0]\n    u = h.{name}(1)"
    ),
    "an item, by getattr": 'u = getattr([__torch__.Box()][0], "{name}")(1)',
}
"""Values whose class the code does not say where their method is called."""


def guard(enter: str, exit: str) -> str:
    """The class of an object for `with`."""
    return (
        "class Guard:\n  a : int\n"
        "  def __init__(self: __torch__.Guard) -> NoneType:\n"
        "    self.a = 1\n    return None\n"
        "  def __enter__(self: __torch__.Guard) -> NoneType:\n"
        f"    {enter}\n    return None\n"
        "  def __exit__(self: __torch__.Guard,\n    kind: Any,\n    value: Any,\n"
        f"    traceback: Any) -> NoneType:\n    {exit}\n    return None\n"
    )


WITH = "u = __torch__.Guard()\n    with u:\n      h = 1"

SPELLINGS: dict[str, dict[str, str]] = {
    "as it is": {"line": SAVE},
    "a space": {"line": 'torch.save (w, "CANARY")'},
    "spaces": {"line": 'torch . save(w, "CANARY")'},
    "a tab": {"line": 'torch\t.\tsave\t(w, "CANARY")'},
    "a form feed": {"line": 'torch\f.\vsave\r(w, "CANARY")'},
    "a broken line": {"line": 'torch.\\\nsave(w, "CANARY")'},
    "two broken lines": {"line": 'torch\\\n\\\n.save\\\n(w, "CANARY")'},
    "brackets": {"line": '(torch.save)(w, "CANARY")'},
    "more brackets": {"line": '((torch.save))(w, "CANARY")'},
    "brackets around torch": {"line": '(torch).save(w, "CANARY")'},
    "brackets around both": {"line": '((torch).save)(w, "CANARY")'},
    "brackets over lines": {"line": '(torch\n.\nsave\n)(w, "CANARY")'},
    "a comment between": {"line": '(torch # x\n.save)(w, "CANARY")'},
    "a string with a comment": {
        "line": 'u = "#"; torch.save(w, "CANARY")'.replace("; ", "\n    ")
    },
    "a long string before": {"line": 'u = """\n"\n"""\n    torch.save(w, "CANARY")'},
    "a string that ends with a backslash": {
        "line": "u = 'a\\\\'\n    torch.save(w, \"CANARY\")"
    },
    "a string with quotes": {"line": 'u = "\\"#\\""\n    torch.save(w, \'CANARY\')'},
    "the namespace": {"line": 'ops.aten.save(w, "CANARY")'},
    "the namespace with spaces": {"line": 'ops . aten . save (w, "CANARY")'},
    "brackets around the namespace": {"line": '((ops).aten).save(w, "CANARY")'},
    "the namespace as a name": {"line": 'a = ops.aten\n    a.save(w, "CANARY")'},
    "torch as a name": {"line": 't = torch\n    t.save(w, "CANARY")'},
    "the operator as a name": {"line": 'f = torch.save\n    f(w, "CANARY")'},
    "the operator as a pair": {"line": 'f, g = torch.save, 1\n    f(w, "CANARY")'},
    "autograd": {"line": 'torch.autograd.save(w, "CANARY")'},
    "a method": {"line": 'w.save("CANARY")'},
    "a method with brackets": {"line": '(w).save ("CANARY")'},
    "a method in brackets": {"line": '(w.save)("CANARY")'},
    "a method as a name": {"line": 'f = w.save\n    f("CANARY")'},
    "a method of a call": {"line": 'torch.add(w, 1).save("CANARY")'},
    "a method of an item": {"line": '[w][0].save("CANARY")'},
    "a method of a text": {"line": '"x".save("CANARY")'},
    "a method of an attribute": {"line": 'self.w.save("CANARY")'},
    "getattr": {"line": 'getattr(w, "save")("CANARY")'},
    "getattr as a name": {"line": 'f = getattr(w, "save")\n    f("CANARY")'},
    "getattr with two texts": {"line": 'getattr(w, "sa" "ve")("CANARY")'},
    "getattr with an escape": {"line": 'getattr(w, "sa\\166e")("CANARY")'},
    "named arguments": {"line": 'torch.save(item=w, filename="CANARY")'},
    "an argument of another call": {
        "line": 'self.w = torch.add(torch.from_file("CANARY", True, 8), 1)'
    },
    "in a list": {"line": f"u = [{MAP}]"},
    "in a condition": {"line": f'if {MAP}.numel() > 1:\n      self.name = "x"'},
    "in an else": {"line": f"if False:\n      pass\n    else:\n      {SAVE}"},
    "in an elif": {"line": f"if False:\n      pass\n    elif True:\n      {SAVE}"},
    "in an assert": {"line": f"assert {MAP}.numel() > 1"},
    "in a subscript": {"line": f"u = [1][{MAP}.numel() - 8]"},
    "in a for": {"line": f"for i in range(1):\n      {SAVE}"},
    "in a comprehension": {"line": f"u = [{MAP} for i in [1]]"},
    "in a with": {"line": f"with torch.no_grad():\n      {SAVE}"},
    "the way into a with": {"line": WITH, "further": guard(SAVE, "pass")},
    "the way out of a with": {"line": WITH, "further": guard("pass", SAVE)},
    "in an inner function": {
        "line": f"def g(x: int) -> int:\n      {SAVE}\n      return 1\n    u = g(1)"
    },
    "fork": {"line": 'u = fork(w.save, "CANARY")'},
    "another method": {"line": "u = self.late(w)", "method": SAVE},
    "another method in brackets": {"line": "u = (self).late(w)", "method": SAVE},
    "another method as a name": {"line": "f = self.late\n    u = f(w)", "method": SAVE},
    "another method by getattr": {
        "line": 'u = getattr(self, "late")(w)',
        "method": SAVE,
    },
    "a free function": {"line": "u = __torch__.free(w)", "free": SAVE},
    "a free function as a name": {
        "line": "f = __torch__.free\n    u = f(w)",
        "free": SAVE,
    },
    "a free function with spaces": {"line": "u = (__torch__ . free) (w)", "free": SAVE},
    "a constructor": {"line": "u = __torch__.Helper(1)", "init": SAVE},
    "a constructor in two steps": {
        "line": (
            "u = __torch__.Helper.__new__(__torch__.Helper)\n    _0 = (u).__init__(1, )"
        ),
        "init": SAVE,
    },
    "a method of another class": {"line": "u = self.helper.run()", "run": SAVE},
    "a method of a new object": {"line": "u = __torch__.Helper(1).run()", "run": SAVE},
    "a method of an object from a list": {
        "line": "u = [self.helper][0].run()",
        "run": SAVE,
    },
    "a method of an object from a tuple": {
        "line": "a, b = (self.helper, 1)\n    u = a.run()",
        "run": SAVE,
    },
    "a submodule": {"line": "u = (self.other).forward()", "forward": SAVE},
    "a submodule that is called": {"line": "u = self.other()", "forward": SAVE},
    **{
        f"a method named {name} of {what}": {
            "line": line.format(name=name),
            "further": named_method(name),
        }
        for name in ("add", "get", "copy", "update", "item")
        for what, line in NAMED.items()
    },
    "len": {"line": "u = len(self.helper)", "len": SAVE},
    "plus": {"line": "u = self.helper + 1", "add": SAVE},
    "a name of two objects": {
        "line": (
            "if self.training:\n      h = self.helper\n    else:\n      h = "
            "__torch__.Helper(1)\n    u = h.run()"
        ),
        "run": SAVE,
    },
    "a default": {
        "forwards": f"def forward(self: __torch__.M, x: Tensor, y: Tensor={MAP})"
    },
    "a default after a list": {
        "forwards": (
            "def forward(self: __torch__.M, x: Tensor, z: List[int]=[1, 2], y: Tensor "
            f"= {MAP})"
        )
    },
    "a default with spaces": {
        "forwards": "def forward(self: __torch__.M, x: Tensor, y: Tensor=(torch) . zero_("
        'ops . aten . from_file ("CANARY", True, 8)))'
    },
    "a constant": {"field": f"  name : str\n  z : Final[Tensor] = {MAP}\n"},
    "a default of a named tuple": {
        "further": f"class NT(NamedTuple):\n  a : Tensor = {MAP}\n",
        "field": "  name : str\n  nt : Optional[__torch__.NT]\n",
    },
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bool]]:
    """Each program with whether torch.jit.load ran its attack, all in one child."""
    folder = tmp_path_factory.mktemp("spellings")
    paths = {
        name: make(folder / f"{index}.pt", **dict(code))
        for index, (name, code) in enumerate(SPELLINGS.items())
    }
    child = (
        "import os, sys, torch\n"
        "for path in sys.argv[1:]:\n"
        "    folder = path + '.d'\n"
        "    os.mkdir(folder)\n"
        "    os.chdir(folder)\n"
        "    try:\n"
        "        torch.jit.load(path)\n"
        "    except Exception as error:\n"
        "        open('ERROR', 'w').write(str(error))\n"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", child, *map(str, paths.values())]
    subprocess.run(arguments, check=True, timeout=TIMEOUT, capture_output=True)
    return {
        name: (path, Path(f"{path}.d/CANARY").exists()) for name, path in paths.items()
    }


REFUSED = frozenset(
    (
        "the operator as a pair",
        "a method",
        "a method with brackets",
        "a method in brackets",
        "a method as a name",
        "a method of a call",
        "a method of an item",
        "a method of a text",
        "a method of an attribute",
        "getattr",
        "getattr as a name",
        "getattr with two texts",
        "getattr with an escape",
        "in a subscript",
        "in a with",
        "in an inner function",
        "fork",
        "a submodule that is called",
        "a default of a named tuple",
    )
)
"""Spellings that torch 2.13 does not run. What ckpt says of them is no less."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SPELLINGS)
def test_torch_runs_it_and_ckpt_says_it(
    name: str, ran: dict[str, tuple[Path, bool]]
) -> None:
    path, did = ran[name]

    assert did is (name not in REFUSED), name
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
        assert ls(Survey(checkpoint)).loads == "RUNS CODE"
    codes = {row.code for row in report.findings}
    assert report.load.expression is None
    assert codes & {"code-inside", "unknown-operator"} and "runs-setstate" not in codes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"), [("/code/", "/CODE/"), ("/code/", "/codE/"), (".py", ".PY")]
)
def test_code_in_other_letters_is_refused(old: str, new: str, tmp_path: Path) -> None:
    """torch finds records in letters of any case, and runs what is in them."""
    made = make(tmp_path / "made.pt", line=SAVE.replace("CANARY", "RAN"))
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(made) as archive, zipfile.ZipFile(path, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name.replace(old, new), archive.read(name))
    child = "import sys, torch; torch.jit.load(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", child, str(path)],
        check=True,
        timeout=TIMEOUT,
        capture_output=True,
        cwd=tmp_path,
    )

    assert (tmp_path / "RAN").exists(), "the attack does not work"
    check_error(ckpt("inspect", path), "code in other letters than torch writes")


UNLISTED = "torch.manual_seed(7)"


@pytest.mark.parametrize("name", sorted(SPELLINGS.keys() - REFUSED))
def test_an_operator_that_is_not_listed_is_said_where_a_load_reaches_it(
    name: str, tmp_path: Path
) -> None:
    """The operators on files are looked for everywhere, so these programs have none."""
    code = {
        word: text.replace(SAVE, UNLISTED) for word, text in SPELLINGS[name].items()
    }
    if code == SPELLINGS[name]:
        pytest.skip("it calls another operator")
    with open(str(make(tmp_path / "a.pt", **code))) as checkpoint:
        report = inspect(Survey(checkpoint))
        assert ls(Survey(checkpoint)).loads == "RUNS CODE"
    found = {row.code: row for row in report.findings}
    assert found["unknown-operator"].level == "warning"
    assert (
        "torch.manual_seed at code/__torch__.py:" in found["unknown-operator"].message
    )
    assert (report.load.expression, report.load.reason) == (
        None,
        "loading it runs operators that ckpt does not know",
    )


@pytest.mark.parametrize(
    "code",
    [
        {},
        {"method": UNLISTED},
        {"method": UNLISTED, "line": "u = self.helper.run()"},
        {"free": UNLISTED, "line": 'u = "__torch__.free(w)"'},
        {"init": UNLISTED, "line": "u = self.helper.x"},
        {"line": f"u = 1  # {UNLISTED}"},
        {"line": f'u = """\n    {UNLISTED}\n    """'},
        {"line": "for i in range(10):\n      u = torch.dim(w)"},
        {
            "line": (
                "if torch.gt(torch.numel(w), 3):\n      self.w = w\n    else:\n      "
                "w0, b0 = w, 1\n      self.w = w0"
            )
        },
        {
            "line": (
                'u = torch.add("a", torch.format("{}", 3))\n    '
                "ops.prim.RaiseException(u)"
            )
        },
        {
            "line": (
                "u = annotate(Dict[str, List[int]], {})\n    v : Optional[Tensor] = w"
            )
        },
        {
            "line": (
                'u = torch.eq(self.name, "zeros")\n    v = torch.max(w)\n    x = [1, '
                "2][-1]"
            )
        },
        {
            "line": (
                "u = annotate(List[int], [])\n    _0 = torch.append(u, 1)\n    v = u[0]"
            )
        },
        {
            "forwards": (
                "def forward(self: __torch__.M, x: Tensor, y: float=-1e-05, z: "
                'str="a=b", n: List[int]=[1, 2])'
            )
        },
        {"field": "  name : str\n  z : Final[int] = 3\n"},
        {
            "line": (
                'u = torch.to(w, torch.device("cpu"), 5, False, False, None)\n    '
                "v = torch.zeros_like(w, dtype=ops.prim.dtype(u), layout=0, "
                'device=torch.device("cpu"))\n    '
                "x = torch.sum(torch.view(w, [-1, 1]), [-1], False, dtype=6)\n    "
                "self.w = torch.to(x, dtype=(6))"
            )
        },
        {"method": "u = torch.promote_types(ops.prim.dtype(w), 6)"},
        {"method": "u = torch.to(w, torch.dim(w))"},
    ],
)
def test_what_a_load_does_not_reach_is_no_finding(
    code: dict[str, str], tmp_path: Path
) -> None:
    path = make(tmp_path / "a.pt", **code)
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "unknown-operator" not in {row.code for row in report.findings}
    assert report.load.expression == f'torch.jit.load("{path}", map_location="cpu")'


ROUNDS = "for i in range(1000):\n"
ENDLESS: dict[str, dict[str, str]] = {
    "while": {"line": "while self.training:\n      pass"},
    "a large range": {"line": "for i in range(9223372036854775806):\n      pass"},
    "a hexadecimal range": {"line": "for i in range(0x7fffffffffff):\n      pass"},
    "a range of a name": {"line": "n = 1000000000\n    for i in range(n):\n      pass"},
    "a range from below": {"line": "for i in range(-9000000000, 0):\n      pass"},
    "a product": {"line": "for i in range(9 * 1000000000):\n      pass"},
    "range as a name": {"line": "r = range\n    for i in r(1000000000):\n      pass"},
    "range in brackets": {"line": "for i in (range)(1000000000):\n      pass"},
    "an enumeration": {"line": "for i, j in enumerate(range(1000000000)):\n      pass"},
    "a comprehension": {"line": "u = [i for i in range(1000000000)]"},
    "loops in loops": {
        "line": ROUNDS + "      " + ROUNDS + "        " + ROUNDS + "          pass"
    },
    "loops through calls": {
        "line": ROUNDS + "      u = self.late(w)",
        "method": ROUNDS + "      u = __torch__.free(w)",
        "free": "for i in range(1000):\n    u = 1",
    },
    "a circle": {"line": "u = self.late(w)", "method": "u = self.late(w)"},
    "a circle through an interface": {
        "line": "u = self.late(w)",
        "method": "r = self.ring\n    u = r.late(w)",
        "field": "  name : str\n  ring : __torch__.Ring\n",
        "further": (
            "class Ring(ModuleInterface):\n  def late(self, w: Tensor) -> Tensor:\n    "
            "pass\n"
        ),
    },
    "a default": {
        "forwards": (
            "def forward(self: __torch__.M, x: Tensor, y: int=len([i for i in "
            "range(10000000000)]))"
        )
    },
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_load_that_may_never_end_is_said(name: str, tmp_path: Path) -> None:
    with open(str(make(tmp_path / "a.pt", **dict(ENDLESS[name])))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert report.load.expression is None
    assert next(
        row for row in report.findings if row.code == "code-inside"
    ).message.startswith("DANGER: loading ")


TEN = "for i in range(10):\n      "
GROWS = {
    "add of lists": "l = [1]\n    " + TEN + "l = torch.add(l, l)",
    "add of texts": 'l = "a"\n    ' + TEN + "l = torch.add(l, l)",
    "add of a text": 'l = "a"\n    ' + TEN + 'l = torch.add(l, "aaaaaaaa")',
    "add in a row": "l = [1]" + "\n    l = torch.add(l, l)" * 40,
    "add once": "l = torch.add(w, torch.t(w))",
    "add with alpha": "l = torch.add(w, torch.t(w), alpha=1)",
    "a method": "l = w.add(w.t())",
    "extend in a loop": "l = [1]\n    " + TEN + "torch.extend(l, l)",
    "extend in a row": "l = [1]" + "\n    torch.extend(l, l)" * 40,
    "extend as a method": "l = [1]" + "\n    l.extend(l)" * 40,
    "format in a row": 'l = "a"' + '\n    l = torch.format("{}{}", l, l)' * 40,
    "replace": 'l = torch.replace("aaaa", "a", "aaaa", -1)',
    "join": 'l = torch.join("a", ["b"])',
    "cat": "l = torch.cat([w, w])",
    "stack": "l = torch.stack([w, w])",
    "matmul": "l = torch.matmul(w, torch.t(w))",
    "mul of a list": "l = torch.mul([1], 3000000000)",
    "expand_as": "l = torch.contiguous(torch.expand_as(w, w))",
    "the sign of a product": "l = [1] * 10000000000",
    "the sign of a sum": "l = [1]\n    " + TEN + "l = l + l",
    "the sign of a change": "l = [1]\n    " + TEN + "l += l",
    "copies in a loop": "l = [w]\n    " + TEN + "_0 = torch.append(l, torch.clone(w))",
    "copies in a row": "l = [w]" + "\n    _0 = torch.append(l, torch.clone(w))" * 200,
    "calls": "u = self.late(w)" + "\n    u = self.late(w)" * 200,
    "a format of escapes": 'l = torch.format("\\x7b}\\x7b}", "a", "a")',
    "a format of a value": 'l = torch.format(self.name, "a")',
    "add of a long text": f'l = torch.add(self.name, "{"a" * 1000}")',
    "a tensor as an index": "l = w[torch.to(w, 4)]",
    "a slice": "l = [1][0:1]",
    "find in a loop": TEN + 'u = torch.find(self.name, "a", 0, -1)',
    "neg in a loop": TEN + "u = torch.neg(w)",
}


@pytest.mark.parametrize("name", GROWS)
def test_values_that_grow_are_said(name: str, tmp_path: Path) -> None:
    """Each makes much of little: memory and time are out of proportion to the file."""
    method = "l = torch.clone(w)"
    with open(
        str(make(tmp_path / "a.pt", line=GROWS[name], method=method))
    ) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "unknown-operator" in {row.code for row in report.findings}
    assert report.load.expression is None


NO_DTYPES = {
    "to": "u = torch.to(w, -2)",
    "to, as a method": "u = w.to(-2)",
    "to, behind a device": 'u = torch.to(w, torch.device("cpu"), -2)',
    "to, by its name": "u = torch.to(w, dtype=-2)",
    "in brackets": "u = torch.to(w, (-2))",
    "too large": "u = torch.to(w, 100)",
    "a name": "d = -2\n    u = torch.to(w, d)",
    "a name that changes in a loop": (
        "d = 5\n    for i in range(2):\n      u = torch.to(w, d)\n      d = -2"
    ),
    "an attribute": "u = torch.to(w, self.helper.x)",
    "a choice": "u = torch.to(w, 5 if self.training else -2)",
    "a choice of a name": "u = torch.to(w, self.helper.x if self.training else 5)",
    "a call": 'u = torch.to(w, int("-2"))',
    "the operator as a name": "f = torch.to\n    u = f(w, -2)",
    "view": "u = torch.view(w, -2)",
    "sum": "u = torch.sum(w, dtype=-2)",
    "zeros_like": "u = torch.zeros_like(w, dtype=-2)",
    "quantize_per_tensor": "u = torch.quantize_per_tensor(w, 0.5, 0, -2)",
}


@pytest.mark.parametrize("name", NO_DTYPES)
def test_numbers_of_no_dtype_are_said(name: str, tmp_path: Path) -> None:
    """torch looks them up outside of its table, and the process ends."""
    with open(str(make(tmp_path / "a.pt", line=NO_DTYPES[name]))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "with a dtype that is no literal" in next(
        row.message for row in report.findings if row.code == "unknown-operator"
    )
    assert report.load.expression is None


PACK = (
    "q = torch.quantize_per_tensor(torch.reshape(w, [1, 1, 1, 2]), 0.5, 0, 12)\n    "
    "r = ops.quantized.conv_transpose2d_prepack("
    "q, None, [1, 1], [0, 0], [0, 0], [1, 1], {})"
)
GROUPS = {
    "0": PACK.format("0"),
    "a large number": PACK.format("4611686018427387904"),
    "a name": f"n = 0\n    {PACK.format('n')}",
    "a name of the quantized layers": f"groups = 0\n    {PACK.format('groups')}",
    "an attribute": PACK.format("self.helper.x"),
    "a sum": PACK.format("torch.sub(1, 1)"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_that_may_be_0_are_said(name: str, tmp_path: Path) -> None:
    """torch divides by them, and the process ends."""
    with open(str(make(tmp_path / "a.pt", line=GROUPS[name]))) as checkpoint:
        report = inspect(Survey(checkpoint))
    said = next(
        row.message for row in report.findings if row.code == "unknown-operator"
    )
    assert "groups that" in said or "sizes of a layer" in said
    assert report.load.expression is None


@pytest.mark.parametrize(("groups", "dilation"), [(1, 1), (0, 1), (1, 1 << 62)])
def test_groups_of_a_quantized_layer_are_looked_at(
    groups: int, dilation: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    made = torch.ao.nn.quantized.ConvTranspose2d(2, 2, 1)
    made.groups, made.dilation = groups, (dilation, 1)
    torch.jit.script(made).save(path)
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    is_odd = (groups, dilation) != (1, 1)
    assert (report.load.expression is None) is is_odd
    assert ("code-inside" in {row.code for row in report.findings}) is is_odd


def test_layers_of_all_kinds_beside_each_other(tmp_path: Path) -> None:
    layers = torch.ao.nn.quantized
    kinds = (
        layers.Conv1d(2, 2, 3, padding=1, padding_mode="reflect"),
        layers.Conv2d(2, 2, 3, dilation=2),
        layers.Conv3d(2, 2, 1),
        layers.ConvTranspose1d(2, 2, 1),
        layers.ConvTranspose2d(2, 2, 3, groups=2),
        layers.ConvTranspose3d(2, 2, 1),
        layers.Linear(2, 2),
        layers.Embedding(4, 4),
        layers.dynamic.GRU(4, 4),
    )
    torch.jit.script(nn.ModuleList(kinds)).save(tmp_path / "a.pt")
    with open(str(tmp_path / "a.pt")) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert report.load.expression is not None
    assert {row.code for row in report.findings} == {"weights-only", "runs-setstate"}


CONV = "ops.quantized.conv_transpose2d_prepack"
SIZES = {
    "a computed dilation": (
        f"d = torch.sub(0, 1)\n    r = {CONV}(w, None, [1, 1], [0, 0], [0, 0], [d, d], 1)"
    ),
    "a large dilation": (
        f"r = {CONV}(w, None, [1, 1], [0, 0], [0, 0], [4294967296, 1], 1)"
    ),
    "a stride of another object": (
        f"d = self.helper.x\n    r = {CONV}(w, None, [d, d], [0, 0], [0, 0], [1, 1], 1)"
    ),
    "a weight without elements": (
        "v = torch.narrow(w, 0, 0, 0)\n    r = ops.quantized.linear_prepack(v, None)"
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_what_is_packed_by_sizes_is_as_torch_writes_it(
    name: str, tmp_path: Path
) -> None:
    with open(str(make(tmp_path / "a.pt", line=SIZES[name]))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "unknown-operator" in {row.code for row in report.findings}
    assert report.load.expression is None


SETTER = "  def __setstate__(self: __torch__.Sized, state: int) -> NoneType:\n    {}\n"
SIZED = (
    "class Sized(Module):\n  __parameters__ = []\n  __buffers__ = []\n  "
    "dilation : Tuple[int, int]\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "self.dilation = (state, state)",
        "self.dilation, x = (state, state), 1",
        "(self.\n      dilation) = (state, state)",
        "d = self.dilation\n    d[0] = 4294967296",
        "d = self.dilation\n    x = torch._set_item(d, 0, 4294967296)",
        "d = self.dilation\n    x = d.append(4294967296)",
    ],
)
def test_a_size_that_is_not_of_the_state_is_said(line: str, tmp_path: Path) -> None:
    """Only where a layer is packed: elsewhere these are names as any other."""
    further = SIZED + SETTER.format(f"{line}\n    return None")
    pack = f"r = {CONV}(w, None, [1, 1], [0, 0], [0, 0], [1, 1], 1)"
    for code, is_said in ((pack, True), ("pass", False)):
        path = make(tmp_path / "a.pt", line=code, further=further)
        with open(str(path)) as checkpoint:
            said = [row.message for row in inspect(Survey(checkpoint)).findings]
        assert any("sizes of a layer" in line for line in said) is is_said


@pytest.mark.parametrize(
    ("head", "is_odd"),
    [
        ("class Other", False),
        ("class Other(Module)", False),
        ("class Other()", True),
        ("class Other Module", True),
        ("class Other[Module]", True),
        ("class Other(1)", True),
    ],
)
def test_a_head_of_a_class_that_torch_does_not_write_is_said(
    head: str, is_odd: bool, tmp_path: Path
) -> None:
    path = make(tmp_path / "a.pt", line="pass", further=f"{head}:\n  x : int\n")
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))

    assert (report.load.expression is None) is is_odd
    said = [row.message for row in report.findings]
    assert any("code that ckpt cannot read" in line for line in said) is is_odd


EMPTY = {
    "an argument": {"forwards": "def forward(self: __torch__.M, x: Optional[])"},
    "an argument with a blank": {
        "forwards": "def forward(self: __torch__.M, x: Optional [\n ])"
    },
    "an argument of a list": {
        "forwards": "def forward(self: __torch__.M, x: List[Optional[]])"
    },
    "a cast": {"line": "r = annotate(Optional[], w)"},
    "a field": {"field": "  name : str\n  z : Optional[]\n"},
    "a result": {
        "further": "def f(x: Tensor) -> Optional[]:\n  return x\n",
    },
}


@pytest.mark.parametrize("name", EMPTY)
def test_brackets_of_a_type_with_nothing_in_them_are_said(
    name: str, tmp_path: Path
) -> None:
    """torch reads the first part of `Optional[]`, and dies where it finds none."""
    with open(str(make(tmp_path / "a.pt", **EMPTY[name]))) as checkpoint:
        report = inspect(Survey(checkpoint))

    assert report.load.expression is None
    assert any("code that ckpt cannot read" in row.message for row in report.findings)


def test_empty_lists_and_tuples_are_no_brackets_of_a_type(tmp_path: Path) -> None:
    usual = "r = annotate(List[int], [])\n    if True:\n      u : Tuple[()] = ()"
    path = make(tmp_path / "a.pt", method=f"{usual}\n    l = []")
    with open(str(path)) as checkpoint:
        said = [row.message for row in inspect(Survey(checkpoint)).findings]

    assert not any("code that ckpt cannot read" in line for line in said)


@pytest.mark.parametrize("head", ["def", "  def"])
def test_a_function_without_a_name_is_said(head: str, tmp_path: Path) -> None:
    further = f"class Other:\n  def\n{head}\n"
    with open(str(make(tmp_path / "a.pt", further=further))) as checkpoint:
        report = inspect(Survey(checkpoint))

    assert report.load.expression is None
    assert any("code that ckpt cannot read" in row.message for row in report.findings)


def test_the_quantized_input_of_a_trace_is_no_pickle_of_a_stranger(
    tmp_path: Path,
) -> None:
    """torch keeps the inputs of a trace beside the code, and reads them never again."""
    x = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(nn.Identity(), x), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        names = [row for row in archive.namelist() if row.endswith("traced_inputs.pkl")]
        assert b"per_tensor_affine" in archive.read(names[0])

    with open(str(tmp_path / "a.pt")) as checkpoint:
        report = inspect(Survey(checkpoint))

    assert report.load.expression is not None
    assert {row.code for row in report.findings} == {"weights-only"}


class Packed(nn.Module):
    """A module with a packed layer of C++, and one with quantized weights."""

    def __init__(self, packed: object, weight: object) -> None:
        super().__init__()
        self.packed = packed
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def per_channel(*shape: int) -> torch.Tensor:
    count = shape[0]
    zeros = torch.zeros(count, dtype=torch.long)
    return torch.quantize_per_channel(
        torch.ones(shape), torch.ones(count), zeros, 0, torch.qint8
    )


def packed_program(path: Path, old: bytes = b"", new: bytes = b"") -> Path:
    """Write a program with a packed convolution, with other bytes in one record."""
    weight = torch.quantize_per_tensor(torch.ones(2, 3, 1, 1), 0.5, 0, torch.qint8)
    packed = torch.ops.quantized.conv_transpose2d_prepack(
        weight, None, [1, 1], [0, 0], [0, 0], [1, 1], 1
    )
    torch.jit.script(Packed(packed, 1)).save(path)
    with zipfile.ZipFile(path) as archive:
        rows = {name: archive.read(name) for name in archive.namelist()}
    assert not old or sum(old in data for data in rows.values()) == 1
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in rows.items():
            archive.writestr(name, data.replace(old, new) if old else data)
    return path


NUMBERS = b"".join(
    number.to_bytes(2, "little") for number in (2, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1)
)
SIZE = b"(K\x02K\x03K\x01K\x01t"
PACKS = {
    "no groups": (NUMBERS, NUMBERS[:-4] + b"\0\0" + NUMBERS[-2:]),
    "negative groups": (NUMBERS, NUMBERS[:-4] + b"\xff\xff" + NUMBERS[-2:]),
    "no elements": (SIZE, b"(K\x02K\0K\x01K\x01t"),
    "sizes of another type": (b"ctorch\nShortStorage", b"ctorch\nHalfStorage"),
    "another version": (b"X\x01\0\0\x002q", b"X\x01\0\0\x004q"),
    "another class": (
        b".quantized\nConv2dPackedParamsBase",
        b".quantized\nConv9dPackedParamsBase",
    ),
}


def test_a_packed_layer_is_loaded(tmp_path: Path) -> None:
    with open(str(packed_program(tmp_path / "a.pt"))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert report.load.expression is not None
    assert not {"code-inside", "unknown-operator"} & {
        row.code for row in report.findings
    }


@pytest.mark.parametrize("name", PACKS)
def test_a_packed_layer_is_looked_at(name: str, tmp_path: Path) -> None:
    """torch packs it again when it loads it, and divides by its sizes."""
    with open(str(packed_program(tmp_path / "a.pt", *PACKS[name]))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert report.load.expression is None
    assert {"code-inside", "unknown-operator"} & {row.code for row in report.findings}


LARGE = (2, 1, 1, 0, 0, 1 << 32, 1, 0, 0, 1, 1)


@pytest.mark.parametrize("numbers", [LARGE, (*LARGE[:5], 1, *LARGE[6:])])
def test_a_packed_layer_with_a_list_of_sizes(
    numbers: tuple[int, ...], tmp_path: Path
) -> None:
    """torch 1.11 and later read it too. One of 2**32 ends the process."""
    path = packed_program(tmp_path / "a.pt")
    with zipfile.ZipFile(path) as archive:
        rows = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in rows if name.endswith("data.pkl"))
    data = rows[name]
    start = data.index(b"X\x01\0\0\x002q")
    sizes = b"".join(b"\x8a\x08" + number.to_bytes(8, "little") for number in numbers)
    lists = b"ctorch.jit._pickle\nbuild_intlist\n(](" + sizes + b"etR"
    end = data.index(b"ctorch.jit._pickle\nrestore_type_tag")
    weight = (
        b"ctorch._utils\n_rebuild_qtensor\n("
        b"(X\x07\0\0\0storagectorch\nQInt8Storage\nX\x01\0\0\x001X\x03\0\0\0cpuK\x06tQ"
        b"K\0(K\x02K\x03K\x01K\x01t(K\x03K\x01K\x01K\x01t"
        b"(ctorch\nper_tensor_affine\nG\x3f\xe0\0\0\0\0\0\0K\0t\x89"
        b"ccollections\nOrderedDict\n)RtR"
    )
    tag = b"X\x16\0\0\0List[Optional[Tensor]]\x86R"
    tensors = b"ctorch.jit._pickle\nrestore_type_tag\n](N" + weight + b"Ne" + tag
    rest = data[data.index(b"\x87", end) :]
    rows[name] = data[:start] + b"K\x03" + lists + tensors + rest
    with zipfile.ZipFile(path, "w") as archive:
        for row, content in rows.items():
            archive.writestr(row, content)
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    is_odd = numbers == LARGE
    assert (report.load.expression is None) is is_odd
    assert ("code-inside" in {row.code for row in report.findings}) is is_odd
    if not is_odd:
        torch.jit.load(path)


@pytest.mark.parametrize(
    "line",
    [
        "v = torch.select(w, 0, 0)",
        "v = torch.unbind(w)",
        "v = w[0]",
        "v = (w)[0]",
        "v = w.reshape([4])",
    ],
)
@pytest.mark.parametrize("is_quantized", [True, False])
def test_shapes_of_tensors_quantized_per_channel(
    line: str, is_quantized: bool, tmp_path: Path
) -> None:
    """torch up to 2.12 reads a scale for each channel, also for one that is gone."""
    path = make(tmp_path / "a.pt", line=line)
    other = tmp_path / "b.pt"
    weight = per_channel(2, 3, 4)
    torch.jit.script(Packed(1, weight if is_quantized else torch.ones(2))).save(other)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(other) as quantized:
        rows = {name: archive.read(name) for name in archive.namelist()}
        for name in quantized.namelist():
            inner = name.partition("/")[2]
            if inner == "data.pkl" or inner.startswith("data/"):
                row = f"a/{'constants' + inner[4:]}"
                rows[row] = quantized.read(name)
    data = rows["a/constants.pkl"]
    rows["a/constants.pkl"] = data[:-1] + b"0(K\x01t."
    with zipfile.ZipFile(path, "w") as archive:
        for row, content in rows.items():
            archive.writestr(row, content)
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    said = any("beside quantized" in row.message for row in report.findings)
    assert said is is_quantized


TEXT = 's = "aaaa"\n    '
COMPUTED = {
    "promote_types": "u = torch.promote_types(100, 90)",
    "promote_types of a name": "d = 100\n    u = torch.promote_types(d, 90)",
    "can_cast": "u = torch.can_cast(100, 90)",
    "add of texts": TEXT + "s = torch.add(s, s)\n    s = torch.add(s, s)",
    "str of a pair": TEXT + "t = (s, s)\n    u = str(t)",
    "ljust": 'u = torch.ljust("a", 7000000000, " ")',
    "zfill": 'u = torch.zfill("a", 7000000000)',
    "center": 'u = torch.center("a", 3000000000, " ")',
    "expandtabs": 'u = torch.expandtabs("\\t", 2000000000)',
    "factorial": "u = torch.factorial(2000000000000)",
    "count": 'u = torch.count("aaa", "", 0, 3)',
    "count, as a method": 'u = "aaa".count("", 0, 3)',
    "count, of a name": TEXT + 'u = s.count("", 0, 3)',
    "replace": 'u = torch.replace("aaa", "", "bb", -1)',
    "remainder": "u = torch.remainder(5, 0)",
    "remainder by -1": "u = torch.remainder(-9223372036854775807, -1)",
    "floordiv by a name": "n = 0\n    u = torch.floordiv(5, n)",
    "floordiv by a branch": (
        "if self.training:\n      n = 0\n    else:\n      n = torch.dim(w)\n    u = "
        "torch.floordiv(5, n)"
    ),
    "floordiv by the end of a pair": "a, b = (w, 0)\n    u = torch.floordiv(5, b)",
    "floordiv by an item of a pair": "p = (w, 0)\n    u = torch.floordiv(5, (p)[1])",
    "floordiv by what the compiler knows": (
        "u = torch.floordiv(5, int(isinstance(w, int)))"
    ),
    "floordiv by a constant": "u = torch.floordiv(5, CONSTANTS.c0)",
    "floordiv by an item of a named tuple": (
        "u = torch.floordiv(5, __torch__.NT(w, 0).b)"
    ),
    "floordiv by an argument with a name": "u = torch.floordiv(5, b=0)",
    "divmod": "u = divmod(1, 0)",
    "the sign of a remainder": "u = 5 % 0",
    "the sign of a division": "u = 5 // 0",
    "the sign of a sum": TEXT + "s = s + s",
    "torch as a name": "t = torch\n    u = t.remainder(5, 0)",
    "the operator as a name": "f = torch.remainder\n    u = f(5, 0)",
    "the namespace": "u = ops.aten.remainder(5, 0)",
    "a range": "u = torch.__range_length(0, 5, 0)",
    "an operator that is new": "u = torch.never_heard_of(1)",
    "in an argument": "u = torch.add(w, torch.remainder(5, 0))",
    "in a condition": "if torch.eq(torch.remainder(5, 0), 1):\n      pass",
    "in a loop": "for i in range(3):\n      u = torch.remainder(5, 0)",
    "in a list": "u = [torch.remainder(5, 0)]",
}
"""Code of a method that nobody calls. torch computes it when it compiles the method."""
NT = "class NT(NamedTuple):\n  a : Tensor\n  b : int\n"


@pytest.mark.parametrize("name", COMPUTED)
def test_what_a_load_computes_of_constants_is_said(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / "a.pt", method=COMPUTED[name], further=NT)
    with zipfile.ZipFile(path) as archive:
        rows = {row: archive.read(row) for row in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for row, data in rows.items():
            archive.writestr(
                row, b"\x80\x02K\0\x85." if row.endswith("constants.pkl") else data
            )
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "unknown-operator" in {row.code for row in report.findings}
    assert report.load.expression is None


@pytest.mark.parametrize(
    "code",
    [
        "u = torch.remainder(5, 3)\n    v = torch.floordiv(9, 0x10)",
        (
            "u = torch.floordiv(torch.dim(w), torch.size(w, 0))\n    v = "
            "torch.remainder(5, u)"
        ),
        "h, n = torch.size(w, 0), 4\n    u = torch.remainder(h, n)",
        "for i in range(3):\n      u = torch.floordiv(5, i)",
        (
            "u = torch.arange(10)\n    v = torch.linspace(0, 1, 10)\n    x = "
            "torch.tensor(0.5)\n    y = torch.add(x, v)"
        ),
        'm = "found {} of {}"\n    ops.prim.RaiseException(torch.format(m, "a", 3))',
        "f = __torch__.free\n    u = torch.add(w, f(w))",
        (
            "u = None\n    if self.training:\n      u0 : Optional[Tensor] = w\n    "
            "else:\n      u0 = u\n    v = torch.dim(unchecked_cast(Tensor, u0))"
        ),
        "u = torch.add(torch.len([1, 2]), 1)\n    v = torch.add(u, u)",
        'a = self.name\n    u = torch.add(a, a)\n    v = torch.format("{}{}", u, u)',
        "u = torch.slice(w, 0, 0, 9223372036854775807)\n    v = [1, -1][0]",
    ],
)
def test_what_methods_usually_have_is_no_finding(code: str, tmp_path: Path) -> None:
    with open(str(make(tmp_path / "a.pt", method=code))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert "unknown-operator" not in {row.code for row in report.findings}, (
        report.findings
    )
    assert report.load.expression is not None


STATED = {
    "remainder": "u = torch.remainder(torch.dim(w), torch.numel(w))",
    "floordiv": "u = torch.floordiv(torch.dim(w), torch.sub(torch.dim(w), 1))",
    "floordiv by -1": "u = torch.floordiv(torch.dim(w), -1)",
    "floordiv by 0": "u = torch.floordiv(torch.dim(w), 0)",
    "a method": "u = torch.dim(w).remainder(0)",
    "a choice": "u = torch.remainder(torch.dim(w), 2 if self.training else 0)",
    "divmod": "u = divmod(torch.dim(w), torch.dim(w))",
    "count": 'u = torch.count(self.name, "", 0, 3)',
}


@pytest.mark.parametrize("name", STATED)
def test_operators_that_die_are_said_where_a_load_runs_them(
    name: str, tmp_path: Path
) -> None:
    with open(str(make(tmp_path / "a.pt", line=STATED[name]))) as checkpoint:
        assert inspect(Survey(checkpoint)).load.expression is None
    with open(
        str(make(tmp_path / "b.pt", line="u = torch.remainder(torch.dim(w), 2)"))
    ) as checkpoint:
        assert inspect(Survey(checkpoint)).load.expression is not None


def test_calls_that_double_are_counted(tmp_path: Path) -> None:
    """Each function calls the next one twice: 40 functions run a trillion times."""
    calls = "".join(
        (
            f"def f{n}(w: Tensor) -> int:\n  u = __torch__.f{n + 1}(w)\n  u = "
            f"__torch__.f{n + 1}(w)\n  return 1\n"
        )
        for n in range(40)
    )
    further = f"{calls}def f40(w: Tensor) -> int:\n  return 1\n"
    path = make(tmp_path / "a.pt", line="u = __torch__.f0(w)", further=further)
    assert b"more than 10,000,000 steps" in ckpt("inspect", path).out


DOUBLING = {
    "tuples": "({0}, {0})",
    "numbers": "({0}, {0})",
    "lists": "[({0}, {0})]",
    "dicts": "{{1: ({0}, {0})}}",
    "items": "(([{0}])[0], ([{0}])[0])",
    "an operator": "(torch.__getitem__([{0}], 0), {0})",
    "a type": "(annotate(int, {0}), {0})",
    "a choice": "(w, w) if True else ({0}, {0})",
}


@pytest.mark.parametrize("name", DOUBLING)
def test_tuples_that_double_are_said(name: str, tmp_path: Path) -> None:
    """torch spells out the type of each: 30 lines make a type of a billion names."""
    lines = [f"t0 = {'(1, 1)' if name == 'numbers' else '(w, w)'}"]
    lines += [f"t{n + 1} = {DOUBLING[name].format(f't{n}')}" for n in range(30)]
    path = make(tmp_path / "a.pt", line="\n    ".join(lines))
    assert b"a tuple of many others" in b" ".join(ckpt("inspect", path).out.split())


DEEPER = {
    "tuples": lambda n: [f"t{i + 1} = (t{i},)" for i in range(n)],
    "lists": lambda n: [f"t{i + 1} = [t{i}]" for i in range(n)],
    "lists of one tuple": lambda n: [
        f"t1 = ({', '.join(['w'] * n)},)",
        *(f"u{i} = [t1]" for i in range(n)),
    ],
}


@pytest.mark.parametrize("name", DEEPER)
def test_tuples_that_are_made_of_each_other_many_times_are_said(
    name: str, tmp_path: Path
) -> None:
    """torch looks at the whole type of each: 200 kB of code take it a minute."""
    for count, is_said in ((40, False), (4_000, True)):
        lines = ["t0 = (w, w)", *DEEPER[name](count)]
        path = make(tmp_path / "a.pt", method="\n    ".join(lines))
        words = b" ".join(ckpt("inspect", path).out.split())
        assert (b"a tuple of many others" in words) is is_said


def nested(depth: int, head: str, *lines: str) -> str:
    """Return lines of a body that stand in blocks inside of each other, with the
    indentation of `forward`.
    """
    rows = [f"{'  ' * level}{head.format(level)}" for level in range(depth)]
    rows += [f"{'  ' * depth}{line}" for line in lines]
    return "\n    ".join(rows)


ITEMS = ", ".join("1" * 10)
NAMES = "\n    ".join(f"a{n} = 1" for n in range(60))
DEAR = {
    "loops over tuples": (
        "a loop over a value",
        nested(6, f"for i{{0}} in ({ITEMS}):", "y = i0"),
    ),
    "a loop in an expression": ("a loop over a value", f"y = [i for i in ({ITEMS})]"),
    "branches that hand on names": (
        "blocks that hand on many names",
        f"{NAMES}\n    {nested(90, 'if True:', *(f'a{n} = 2' for n in range(60)))}",
    ),
    "loops that hand on names": (
        "blocks that hand on many names",
        (
            f"{NAMES}\n    "
            f"{nested(90, 'for i{0} in range(2):', *(f'a{n} = 2' for n in range(60)))}"
        ),
    ),
    "returns in blocks": (
        "a return in a block",
        "\n    ".join(["if True:\n      return x"] * 3),
    ),
    "a return before the end": ("a return before the end", "return x\n    y = 1"),
    "breaks": ("a break", "for i in range(2):\n      break"),
    "continues": ("a continue", "for i in range(2):\n      continue"),
}


def with_forward(path: Path, body: str, members: str = "") -> Path:
    """Write a program with a body of `forward`, and more members of its class, and no
    `__setstate__`.
    """
    torch.jit.script(Plain()).save(path)
    with zipfile.ZipFile(path) as archive:
        rows = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in rows.items():
            if name.endswith(".py"):
                head, line, rest = data.decode().partition("    return")
                method, _, _ = head.rpartition("  def forward")
                data = (
                    f"{method}{members}{head[len(method) :]}    {body}\n{line}{rest}"
                ).encode()
            if not name.endswith(".debug_pkl"):
                archive.writestr(name, data)
    return path


@pytest.mark.parametrize("name", DEAR)
def test_blocks_that_take_torch_far_longer_than_their_text_are_said(
    name: str, tmp_path: Path
) -> None:
    """torch compiles every method of a program when it is loaded, whether somebody
    calls it or not.
    """
    said, body = DEAR[name]
    done = ckpt("inspect", with_forward(tmp_path / "a.pt", body))
    text = b" ".join(done.out.split())
    assert said.encode() in text and b"torch.jit.load(" not in text


def test_a_class_of_many_attributes_is_said(tmp_path: Path) -> None:
    """torch looks through all of them for each."""
    members = "".join(f"  q{n} : int\n" for n in range(20_001))
    done = ckpt("inspect", with_forward(tmp_path / "a.pt", "y = 1", members))
    assert b"a class of over 20,000 attributes" in b" ".join(done.out.split())


def test_blocks_of_usual_methods_are_no_finding(tmp_path: Path) -> None:
    body = nested(6, "for i{0} in range(9):", "if True:", "  y = i0", "else:", "  pass")
    done = ckpt("inspect", with_forward(tmp_path / "a.pt", body))
    assert b"unknown-operator" not in done.out and b"torch.jit.load(" in done.out


STEADY = {
    "tuples that are taken apart": "a{0}, b{0}, = t{0}\n    t{1} = (b{0}, a{0})",
    "items of tuples": "t{1} = ((t{0})[1], (t{0})[0])",
    "tuples with more": "t{1} = ((t{0})[1], w)",
    "results of calls": (
        "a{0}, b{0}, = torch.unbind((t{0})[0])\n    t{1} = (a{0}, b{0})"
    ),
}


@pytest.mark.parametrize("name", STEADY)
def test_tuples_that_stay_small_are_no_finding(name: str, tmp_path: Path) -> None:
    lines = ["t0 = (w, w)", *(STEADY[name].format(n, n + 1) for n in range(30))]
    path = make(tmp_path / "a.pt", line="\n    ".join(lines))
    assert b"a tuple of many" not in b" ".join(ckpt("inspect", path).out.split())


def test_the_list_holds_operators_of_torch_and_none_that_takes_the_name_of_a_file() -> (
    None
):
    schemas = torch._C._jit_get_all_schemas()
    known = {schema.name for schema in schemas}
    listed = {
        f"{space}::{name}" for space, names in OPERATORS.items() for name in names
    }

    assert len(listed & known) > 250
    for schema in schemas:
        if schema.name in listed:
            assert not touches_files(schema.name.partition("::")[2])
            assert not {argument.name for argument in schema.arguments} & {
                "filename",
                "path",
                "file",
            }
    assert {"aten::save", "aten::from_file", "prim::rpc_sync"} <= known - listed


QUANTIZED = {
    "linear": lambda: torch.ao.nn.quantized.Linear(4, 4),
    "conv1d": lambda: torch.ao.nn.quantized.Conv1d(2, 2, 1),
    "conv2d": lambda: torch.ao.nn.quantized.Conv2d(2, 2, 1),
    "conv3d": lambda: torch.ao.nn.quantized.Conv3d(2, 2, 1),
    "transposed": lambda: torch.ao.nn.quantized.ConvTranspose2d(2, 2, 1),
    "embedding": lambda: torch.ao.nn.quantized.Embedding(10, 12),
    "relu": lambda: torch.ao.nn.intrinsic.quantized.ConvReLU2d(2, 2, 1),
    "sparse": lambda: torch.ao.nn.sparse.quantized.Linear(4, 4, 1, 4),
    "dynamic": lambda: torch.ao.nn.quantized.dynamic.Conv2d(2, 2, 1),
    "lstm": lambda: torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.LSTM(4, 4)), {nn.LSTM}
    ),
    "gru": lambda: torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.GRU(4, 4)), {nn.GRU}
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_modules_of_torch_are_no_alarm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")
    path = tmp_path / "q.pt"
    torch.jit.save(torch.jit.script(QUANTIZED[name]()), path)
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert {row.code for row in report.findings} <= {"weights-only", "runs-setstate"}
    assert report.load.expression is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "$",
        "u = 'a",
        'u = """a',
        'u = "' + '\\"' * 100_000,
        "u = " + '"""a' * 99_999,
        "x = torch.add(w, 1)\n    " * 9_000,
    ],
)
def test_code_that_torch_cannot_cut_is_said_and_costs_little(
    code: str, tmp_path: Path
) -> None:
    """Each of many open quotes was looked for its end, up to the end of the file."""
    with open(str(make(tmp_path / "a.pt", method=code))) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert (report.load.expression is None) is not code.startswith("x")


DEEP: dict[str, Callable[[int], dict[str, str]]] = {
    "brackets": lambda n: {"method": f"u = {'(' * n}1{')' * n}"},
    "calls": lambda n: {"method": f"u = {'torch.neg(' * n}1{')' * n}"},
    "calls with commas": lambda n: {"method": f"u = {'torch.add(1, ' * n}1{')' * n}"},
    "signs": lambda n: {"method": f"u = {'- ' * n}1"},
    "signs inside of brackets": lambda n: {
        "method": f"u = {'(1, - - - -' * (n // 5 + 1)}1{')' * (n // 5 + 1)}"
    },
    "words": lambda n: {"method": f"u = {'not ' * n}True"},
    "choices": lambda n: {"method": f"u = {'1 if True else ' * n}1"},
    "sums": lambda n: {"method": f"u = {'1 + ' * n}1"},
    "dots": lambda n: {"method": f"u = w{'.T' * n}"},
    "items": lambda n: {"method": f"u = w{'[0]' * n}"},
    "blocks": lambda n: {
        "method": "\n".join("    " + " " * i + "if True:" for i in range(n))[4:]
        + f"\n{' ' * (n + 4)}u = 1"
    },
    "branches": lambda n: {
        "method": "if True:\n      u = 1" + "\n    elif True:\n      u = 1" * n
    },
    "a type": lambda n: {"field": f"  name : str\n  z : {'List[' * n}int{']' * n}\n"},
    "a type of an argument": lambda n: {
        "method": f"u = annotate({'List[' * n}int{']' * n}, [])"
    },
}


@pytest.mark.parametrize("name", DEEP)
def test_code_that_is_nested_too_deep_for_torch_is_refused(
    name: str, tmp_path: Path
) -> None:
    """torch.jit.load calls itself for each level, and the process ends at some thousand
    of them.
    """
    run = ckpt("inspect", make(tmp_path / "a.pt", **DEEP[name](310)))

    check_error(run, "is nested deeper than torch can read")
    with open(str(make(tmp_path / "b.pt", **DEEP[name](40)))):
        pass  # real code has twenty levels


def test_a_type_in_a_pickle_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.pt")
    with zipfile.ZipFile(path) as archive:
        rows = {row: archive.read(row) for row in archive.namelist()}
    for depth, code in ((40, 0), (400, 2)):
        text = (b"List[" * depth) + b"int" + b"]" * depth
        tagged = (
            b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n(]X"
            + len(text).to_bytes(4, "little")
            + text
            + b"tR\x85."
        )
        with zipfile.ZipFile(path, "w") as archive:
            for row, data in rows.items():
                archive.writestr(row, tagged if row.endswith("constants.pkl") else data)
        assert ckpt("inspect", path).code == code


ODD_TYPES: dict[str, Callable[[int], str]] = {
    "dots": lambda n: "a" + ".a" * n,
    "signs": lambda n: "-" * n + "1",
    "round brackets": lambda n: "(" * n + "a" + ")" * n,
    "words": lambda n: "not " * n + "a",
    "choices": lambda n: "a" + " if a else a" * n,
    "powers": lambda n: "a**" * n + "a",
    "items": lambda n: "a" + "[a]" * n,
}
USUAL_TYPES = (
    "List[int]",
    "Dict[str, List[Tensor]]",
    "List[Tuple[int, Optional[str]]]",
    "List[Tuple[()]]",
    "List[__torch__.a.___torch_mangle_0.B]",
)


def tagged(path: Path, *kinds: str) -> Path:
    """A program whose constants are lists with these types."""
    tags = (
        call(glob("torch.jit._pickle", "restore_type_tag"), [], kind) for kind in kinds
    )
    return replaced(make(path), "constants.pkl", pickled(tuple(tags)))


def replaced(path: Path, name: str, data: bytes) -> Path:
    """Put another record in place of one of a program."""
    with zipfile.ZipFile(path) as archive:
        rows = {row: archive.read(row) for row in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for row, old in rows.items():
            archive.writestr(row, data if row.endswith(f"/{name}") else old)
    return path


@pytest.mark.parametrize("name", ODD_TYPES)
def test_a_type_in_a_pickle_that_torch_does_not_write_is_refused(
    name: str, tmp_path: Path
) -> None:
    """torch parses it as an expression, and calls itself for each sign."""
    for count in (1, 200_000):
        run = ckpt("inspect", tagged(tmp_path / "a.pt", ODD_TYPES[name](count)))
        if count > 1 or name not in ("dots", "items"):
            check_error(run, "its type is not written as torch writes types")


def test_types_in_a_pickle_as_torch_writes_them_are_read(tmp_path: Path) -> None:
    assert ckpt("inspect", tagged(tmp_path / "a.pt", *USUAL_TYPES)).code == 0


BOX = b"c__torch__\nInner\n)\x81}X\x08\0\0\0training\x89sb"
HELPER = b"c__torch__\nHelper\n)\x81}X\x01\0\0\0xK\x01sb"
CONFUSED: dict[str, Callable[[bytes], bytes]] = {
    "an object of another class": lambda data: data.replace(HELPER, BOX),
    "an attribute of another type": lambda data: data.replace(b"xK\x01sb", b"x\x89sb"),
    "a number for an object": lambda data: data.replace(BOX, b"K\x01"),
    "a number for a text": lambda data: data.replace(b"X\x06\0\0\0CANARY", b"K\x01"),
    "a text for a bool": lambda data: data.replace(b")RtR\x89", b")RtRX\x01\0\0\0a"),
    "a short tuple": lambda data: data.replace(b"X\x06\0\0\0CANARY", b""),
    "a list for a tuple": lambda data: data.replace(b"\x81(c", b"\x81](c").replace(
        b"CANARYtb", b"CANARYeb"
    ),
}


@pytest.mark.parametrize("name", CONFUSED)
def test_a_value_of_another_type_than_the_code_declares_is_said(
    name: str, tmp_path: Path
) -> None:
    """torch does not compare them, and reads memory that is not its own."""
    path = make(tmp_path / "a.pt")
    with zipfile.ZipFile(path) as archive:
        rows = {row: archive.read(row) for row in archive.namelist()}
    for change, is_wrong in ((lambda data: data, False), (CONFUSED[name], True)):
        with zipfile.ZipFile(path, "w") as archive:
            for row, data in rows.items():
                archive.writestr(
                    row, change(data) if row.endswith("data.pkl") else data
                )
        with open(str(path)) as checkpoint:
            report = inspect(Survey(checkpoint))
        assert (report.load.expression is None) is is_wrong
        assert ("code-inside" in {row.code for row in report.findings}) is is_wrong


@pytest.mark.parametrize(
    "kind",
    ["__torch__.Inner", "List[__torch__.Inner]", "Tuple[int, int]", "Dict[str, int]"],
)
def test_a_cast_that_nobody_checks_is_said_where_a_load_runs_it(
    kind: str, tmp_path: Path
) -> None:
    for target, is_strange in ((kind, True), ("Tensor", False)):
        with open(
            str(make(tmp_path / "a.pt", line=f"u = unchecked_cast({target}, w)"))
        ) as checkpoint:
            assert (inspect(Survey(checkpoint)).load.expression is None) is is_strange


HOLDER = """class N(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
class M(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  n : __torch__.N
  a : Any
"""
INNER = glob("__torch__", "N") + b")\x81"
NUMBERS: dict[str, tuple[bytes, bytes, str]] = {
    "a storage that is called": (
        INNER + value({"training": True}) + build(),
        glob("torch", "CharStorage") + b")\x81" + value((1, 2)) + build(),
        "is called at byte",
    ),
    "a storage as a value": (
        INNER + value({"training": True}) + build(),
        glob("torch", "CharStorage"),
        "torch.charstorage is a value",
    ),
    "a name in a list": (
        INNER + value({"training": True}) + build(),
        value([1, glob("collections", "OrderedDict")]),
        "collections.ordereddict is a value",
    ),
    "an object before its state": (
        INNER + put(9) + value({"training": True}) + build(),
        get(9),
        "is kept before it has its state",
    ),
    "an object behind its state": (
        INNER + value({"training": True}) + build() + put(9),
        get(9),
        "",
    ),
    "bytes that look like one before its state": (
        INNER + value({"training": True}) + build(),
        value("\u0141q"),
        "",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_torch_takes_for_a_number_is_refused(name: str, tmp_path: Path) -> None:
    """In C++ a name is a number, and so is an object until its state is set: a call of
    the storage of int8, which is 1, makes an object of the second class.
    """
    inner, further, problem = NUMBERS[name]
    state = value({"training": True, "n": inner, "a": further})
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/code/__torch__.py", HOLDER)
        data = glob("__torch__", "M") + b")\x81" + state + build()
        archive.writestr("a/data.pkl", pickled(data))
        archive.writestr("a/constants.pkl", pickled(()))
        archive.writestr("a/version", b"3\n")
    run = ckpt("inspect", path)
    if problem:
        check_error(run, problem)
    else:
        assert run.code == 0
        assert torch.jit.load(path).a is not None


def shared(depth: int) -> dict[str, bytes]:
    """A program whose modules hold one module under two names, level by level."""
    head = "  __parameters__ = []\n  __buffers__ = []\n  training : bool\n"
    code, state = "", b""
    for level in range(depth + 1):
        inner = (
            f"  a : __torch__.L{level - 1}\n  b : __torch__.L{level - 1}\n"
            if level
            else ""
        )
        code += f"class L{level}(Module):\n{head}{inner}"
        code += (
            f"  def forward(self: __torch__.L{level}, x: Tensor) -> Tensor:\n    "
            "return x\n"
        )
        both = (
            b"X\1\0\0\0a" + state + b"q%cX\1\0\0\0bh%c" % (level, level)
            if level
            else b""
        )
        state = b"c__torch__\nL%d\n)\x81}(X\x08\0\0\0training\x88%sub" % (level, both)
    return {"code/__torch__.py": code.encode(), "data.pkl": b"\x80\2" + state + b"."}


@pytest.mark.parametrize("depth", [4, 40])
def test_modules_that_are_shared_level_by_level_are_refused(
    depth: int, tmp_path: Path
) -> None:
    """torch.jit.load makes a module of Python for each way through them."""
    rows = {**shared(depth), "constants.pkl": b"\x80\2).", "version": b"3\n"}
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name, data in rows.items():
            archive.writestr(f"a/{name}", data)
    run = ckpt("inspect", tmp_path / "a.pt")

    assert run.code == (0 if depth == 4 else 2)
    if depth == 40:
        check_error(run, "share each other more often than torch can count")


@pytest.mark.parametrize("depth", [3, 40])
def test_named_tuples_that_hold_each_other_are_refused(
    depth: int, tmp_path: Path
) -> None:
    further = "class P0(NamedTuple):\n  a : int\n"
    for level in range(1, depth + 1):
        further += (
            f"class P{level}(NamedTuple):\n  a : __torch__.P{level - 1}\n  b : "
            f"List[__torch__.P{level - 1}]\n"
        )
    run = ckpt("inspect", make(tmp_path / "a.pt", further=further))

    assert run.code == (0 if depth == 3 else 2)
    if depth == 40:
        check_error(run, "hold each other more often than torch can count")


# --- what C++ reads beside the code ---------------------------------------------------

DEEP_LISTS = b"]" * 30_000 + b"a" * 29_999
"""C++ frees each list inside of the one around it, until its stack ends."""
EMPTY_HOOKS = b"ccollections\nOrderedDict\n)R"
LEFT: dict[str, Callable[[bytes], bytes]] = {
    "values that nobody holds": lambda state: state[:2] + DEEP_LISTS + state[2:],
    "the hooks of a tensor": lambda state: state.replace(EMPTY_HOOKS, DEEP_LISTS),
    "the id of a storage": lambda state: state.replace(b"cpuK\x02", b"cpuK\x02" + DEEP_LISTS),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_values_that_are_nested_too_deep_for_cpp_are_refused(
    name: str, tmp_path: Path
) -> None:
    """They stand where the tree of the file has nothing of them."""
    assert EMPTY_HOOKS in STATE
    path = replaced(make(tmp_path / "a.pt"), "data.pkl", LEFT[name](STATE))
    is_left = name == "values that nobody holds"
    text = "torch refuses in c++" if is_left else "nested deeper than torch can read"
    check_error(ckpt("inspect", path), text)
    constants = pickled(DEEP_LISTS + call(glob("torch", "device"), "cpu"))
    path = replaced(make(tmp_path / "b.pt"), "constants.pkl", constants)
    assert ckpt("inspect", path).code == 2


class Stated(nn.Module):
    """A module whose loader fails, which torch says with the lines of the author."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return (self.w, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.w = state[0].view([5, 7])
        self.training = state[1]


def table(
    texts: list[str],
    pieces: object,
    file: object = 0,
    line: object = 1,
    place: object = 0,
) -> bytes:
    """A table of one place of code, as torch writes it, with other numbers."""
    numbers = call(glob("torch.jit._pickle", "build_intlist"), pieces)
    row = (0, ((numbers, file, line), place, 3), 0)
    return pickled(("FORMAT_WITH_STRING_TABLE", tuple(texts), (row,)))


TABLES: dict[str, tuple[bytes, bool]] = {
    "as torch writes it": (table(["a.py", "x = 1\n"], [1, 0]), True),
    "without a text": (table(["a.py"], []), True),
    "of an old torch": (pickled(((0, (("x = 1", "a.py", 1), 0, 3)),)), True),
    "a text that is not there": (table(["a.py"], [2**40]), False),
    "a text before the first": (table(["a.py"], [-1_000_000]), False),
    "a file that is not there": (table(["a.py"], [0], 5), False),
    "a place before the first": (table(["a.py"], [0], place=-5), False),
    "a line that is a text": (table(["a.py"], [0], line="1"), False),
    "one text many times": (table(["x" * 20_000], [0] * 10_000), False),
    "no numbers": (table(["a.py"], "a"), False),
    "deep lists": (b"\x80\x02" + DEEP_LISTS + table(["a.py"], [0])[2:], False),
    "another call": (pickled(call(glob("torch", "device"), "cpu")), False),
    "a number": (pickled(1), False),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_places_that_torch_does_not_write_is_refused(
    name: str, tmp_path: Path
) -> None:
    """torch 2.13 reads a text behind the last one, and dies."""
    torch.jit.script(Stated()).save(str(tmp_path / "a.pt"))
    assert ckpt("inspect", tmp_path / "a.pt").code == 0
    data, is_fine = TABLES[name]
    path = replaced(tmp_path / "a.pt", "test_script.py.debug_pkl", data)
    with zipfile.ZipFile(path) as archive:
        assert data in map(archive.read, archive.namelist())
    run = ckpt("inspect", path)
    assert run.code == (0 if is_fine else 2), run.err


NOTHING = torch.zeros(0)


def test_a_with_is_run_only_where_it_stands(tmp_path: Path) -> None:
    """Nothing but a `with` calls `__enter__`: no_grad() in a method that no load runs."""

    class Guarded(nn.Module):
        def forward(
            self, x: torch.Tensor, state: torch.Tensor = NOTHING
        ) -> torch.Tensor:
            with torch.no_grad():
                return x if len(state) else x + 1

    torch.jit.script(Guarded()).save(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        names = [row for row in archive.namelist() if row.endswith(".py")]
        code = b"".join(map(archive.read, names))
    # A load evaluates the default of an argument.
    assert b"set_grad_enabled" in code and b"Tensor=CONSTANTS.c0" in code

    with open(str(tmp_path / "a.pt")) as checkpoint:
        report = inspect(Survey(checkpoint))

    assert report.load.expression is not None
    assert {row.code for row in report.findings} == {"weights-only"}

"""What torch.export.load evaluates and imports: torch runs each attack, and ckpt has
said it before.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import opcodes as op
import oracle
import pytest
import sympy
import torch
from process import TIMEOUT, check_error, ckpt
from torch.export.pt2_archive._package import PT2ArchiveReader, _load_state_dict
from torch.utils._sympy import functions

from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import ls
from ckpt.evidence.survey import Survey
from ckpt.ext.pt2.expressions import is_expression
from ckpt.formats import open

pytestmark = oracle.QUIET

RUNG = "__import__('os').system('touch CANARY')"
Rows = dict[str, bytes]


class Net(torch.nn.Module):
    """A program with sizes that depend on its inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y])[: x.shape[0]] * (y.shape[0] // 3)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    shapes = (
        {0: torch.export.Dim("a", min=2, max=100)},
        {0: torch.export.Dim("b", min=3, max=300)},
    )
    inputs = (torch.ones(3, 4), torch.ones(7, 4))
    torch.export.save(torch.export.export(Net(), inputs, dynamic_shapes=shapes), path)
    return path


def expressions(text: Any) -> Callable[[dict[str, Any], Rows], None]:
    """Put a text into the place of each expression."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        todo: list[Any] = [document]
        while todo:
            node = todo.pop()
            if isinstance(node, dict) and "expr_str" in node:
                node["expr_str"] = text
            todo += (
                node.values()
                if isinstance(node, dict)
                else node
                if isinstance(node, list)
                else []
            )

    return change


def tree(
    spec: dict[str, Any], field: str = "in_spec"
) -> Callable[[dict[str, Any], Rows], None]:
    """Put another tree of the inputs or outputs in."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        signature[field] = json.dumps([1, spec])

    return change


def leaf(kind: str, context: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": []}


FACTORY = {
    "default_factory_module": "rung",
    "default_factory_name": "x",
    "dict_context": [],
}
ENUM = json.dumps([{"__enum__": True, "fqn": "rung:X.y", "name": "z"}])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch CANARY",)


def row_of(record: str, *, dtype: int, is_param: bool) -> dict[str, Any]:
    """The row of four values in a record, as torch.export writes it."""
    meta = {
        "dtype": dtype,
        "sizes": [{"as_int": 4}],
        "strides": [{"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "layout": 7,
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
    }
    return {
        "path_name": record,
        "is_param": is_param,
        "use_pickle": False,
        "tensor_meta": meta,
    }


def opaque(document: dict[str, Any], rows: Rows) -> None:
    """Add a constant that is said to be bytes, which torch unpickles because of its
    name.
    """
    row = row_of("opaque_obj_0", dtype=1, is_param=False)
    root = next(iter(rows)).partition("/")[0]
    rows[f"{root}/data/constants/opaque_obj_0"] = pickle.dumps(Evil())
    rows[f"{root}/data/constants/model_constants_config.json"] = json.dumps(
        {"config": {"c": row}}
    ).encode()


def named(
    name: str, rows_of: str = "tensor_values"
) -> Callable[[dict[str, Any], Rows], None]:
    """Give an input another name, and put an expression into its row."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        text = json.dumps(document).replace('"x"', json.dumps(name))
        document.clear()
        document.update(json.loads(text))
        graph = document["graph_module"]["graph"]
        if rows_of == "tensor_values":
            expressions(RUNG)(graph[rows_of][name], rows)
        else:
            graph[rows_of][name] = {
                "as_expr": {"expr_str": RUNG, "hint": {"as_int": 4}}
            }

    return change


ARGUMENT = "x=__import__('os').system('touch CANARY')):\n    \"\"\"#"


def arguments(*names: Any) -> Callable[[dict[str, Any], Rows], None]:
    """Give the arguments of the program other names."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        document["graph_module"]["module_call_graph"][0]["signature"][
            "forward_arg_names"
        ] = list(names)

    return change


def keywords(*names: Any) -> Callable[[dict[str, Any], Rows], None]:
    """Hand the inputs over as keyword arguments with other names."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        empty = {"type": None, "context": None, "children_spec": []}
        kwargs = {
            "type": "builtins.dict",
            "context": json.dumps(names),
            "children_spec": [empty] * len(names),
        }
        args = {"type": "builtins.tuple", "context": "null", "children_spec": []}
        tree(
            {
                "type": "builtins.tuple",
                "context": "null",
                "children_spec": [args, kwargs],
            }
        )(document, rows)
        signature["forward_arg_names"] = None

    return change


def path_named(name: str) -> Callable[[dict[str, Any], Rows], None]:
    """Give the program a buffer, whose name torch writes between quotes."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        spec = document["graph_module"]["signature"]["input_specs"][0]
        spec["buffer"] = {
            "arg": {"name": "x"},
            "buffer_name": name,
            "persistent": False,
        }

    return change


def came_from(
    *functions: str, field: str = "source_fn_stack"
) -> Callable[[dict[str, Any], Rows], None]:
    """Let the first node come from functions of Python."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        document["graph_module"]["graph"]["nodes"][0]["metadata"][field] = ";".join(
            f"x,{function}" for function in functions
        )

    return change


ATTACKS: dict[str, tuple[Callable[[dict[str, Any], Rows], None], str]] = {
    "an expression": (expressions(RUNG), "code-inside"),
    "a text in an expression": (expressions(f'Max(1, "{RUNG}")'), "code-inside"),
    "sympify in an expression": (
        expressions(f'Add(Symbol("s0"), sympify("{RUNG}"))'),
        "code-inside",
    ),
    "S in an expression": (expressions(f'S("{RUNG}")'), "code-inside"),
    "lambdify": (expressions(f'lambdify((), "{RUNG}")()'), "code-inside"),
    "escapes": (
        expressions("S(\"__imp\\x6frt__('os').system('touch CANARY')\")"),
        "code-inside",
    ),
    "a list": (expressions(f"[{RUNG}]"), "code-inside"),
    "a lambda": (expressions(f"(lambda: {RUNG})()"), "code-inside"),
    "a line break": (expressions(f"(\n{RUNG}\n)"), "code-inside"),
    "a default of a dict": (
        tree(leaf("collections.defaultdict", FACTORY)),
        "unknown-import",
    ),
    "an enum": (tree(leaf("builtins.dict", ENUM)), "unknown-import"),
    "an enum with an escape": (
        tree(leaf("builtins.dict", ENUM.replace("__enum__", "_\\u005fenum__"))),
        "unknown-import",
    ),
    "an enum of the outputs": (
        tree(leaf("builtins.dict", ENUM), "out_spec"),
        "unknown-import",
    ),
    "an enum inside": (
        tree(
            {
                "type": "builtins.tuple",
                "context": "null",
                "children_spec": [leaf("builtins.dict", ENUM)],
            }
        ),
        "unknown-import",
    ),
    "a tensor named metadata": (named("metadata"), "code-inside"),
    "a tensor named in_spec": (named("in_spec"), "code-inside"),
    "a tensor named out_spec": (named("out_spec"), "code-inside"),
    "a tensor named range_constraints": (named("range_constraints"), "code-inside"),
    "a tensor named guards_code": (named("guards_code"), "code-inside"),
    "a tensor named target": (named("target"), "code-inside"),
    "a tensor named name": (named("name"), "code-inside"),
    "a tensor named tensor_values": (named("tensor_values"), "code-inside"),
    "a number named metadata": (named("metadata", "sym_int_values"), "code-inside"),
    "a number named range_constraints": (
        named("range_constraints", "sym_int_values"),
        "code-inside",
    ),
    "the name of an argument": (arguments(ARGUMENT, "y"), "code-inside"),
    "an object with the row of a tensor": (opaque, "called-on-load"),
    "a library": (came_from("torch.ctypes.cdll./rung"), "code-inside"),
    "a library behind another root": (
        came_from("torch.cat", "torchrung.ctypes.cdll.rung"),
        "code-inside",
    ),
}


def rows_of_weights(
    change: Callable[[dict[str, Any], Rows, str], None],
) -> Callable[[dict[str, Any], Rows], None]:
    """Give the program the weights `w` and `v`, which are one record, and change their
    rows.
    """

    def changed(document: dict[str, Any], rows: Rows) -> None:
        data = f"{next(iter(rows)).partition('/')[0]}/data/weights"
        config = {
            name: row_of("weight_0", dtype=7, is_param=True) for name in ("w", "v")
        }
        rows[f"{data}/weight_0"] = bytes(16)
        change(config, rows, data)
        rows[f"{data}/model_weights_config.json"] = json.dumps(
            {"config": config}
        ).encode()

    return changed


def evil_record() -> bytes:
    out = io.BytesIO()
    torch.save(Evil(), out)
    return out.getvalue()


def truthy(config: dict[str, Any], rows: Rows, data: str) -> None:
    """Say by 1 instead of true that a weight is pickled."""
    config["v"] |= {"path_name": "weight_1", "use_pickle": 1}
    rows[f"{data}/weight_1"] = evil_record()


def capitals(config: dict[str, Any], rows: Rows, data: str) -> None:
    """Add the older file of weights in other letters: torch does not see it, and goes
    by the list.
    """
    config["v"] |= {"path_name": "weight_1", "use_pickle": True}
    rows[f"{data}/weight_1"] = evil_record()
    out = io.BytesIO()
    torch.save({"w": torch.ones(4)}, out)
    rows[f"{data}/MODEL.pt"] = out.getvalue()


class Writes(torch.nn.Module):
    """A program whose `__setstate__` writes a file."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return (self.w, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.w = state[0]
        self.training = state[1]
        torch.save(self.w, "CANARY")


def script_of_samples(document: dict[str, Any], rows: Rows) -> None:
    """Put a TorchScript archive into the place of the sample inputs."""
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(Writes()), out)
    rows[next(name for name in rows if name.endswith("sample_inputs/model.pt"))] = (
        out.getvalue()
    )


REFUSED: dict[str, tuple[Callable[[dict[str, Any], Rows], None], str]] = {
    "a flag that is a number": (rows_of_weights(truthy), "not a list of tensors"),
    "an older file in other letters": (
        rows_of_weights(capitals),
        "does not hold a tensor",
    ),
    "a program among the samples": (script_of_samples, "is a torchscript archive"),
}


def written(
    program: Path, path: Path, change: Callable[[dict[str, Any], Rows], object]
) -> Path:
    with zipfile.ZipFile(program) as archive:
        rows = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in rows if name.endswith("models/model.json"))
    document = json.loads(rows[name])
    change(document, rows)
    rows[name] = json.dumps(document).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in rows.items():
            archive.writestr(name, data)
    return path


@pytest.fixture(scope="module")
def ran(
    program: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, bool]]:
    """Each archive with whether torch.export.load ran its attack, all in one child."""
    folder = tmp_path_factory.mktemp("attacks")
    paths = {
        name: written(program, folder / f"{index}.pt2", change)
        for index, (name, (change, _)) in enumerate((ATTACKS | REFUSED).items())
    }
    (folder / "rung.py").write_text('open("CANARY", "w").close()\nx = int\n')
    child = (
        "import os, sys, torch\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        "def hook(event, arguments):\n"
        "    if event == 'ctypes.dlopen' and 'rung' in str(arguments[0]):\n"
        "        open('CANARY', 'w').close()\n"
        "sys.addaudithook(hook)\n"
        "for path in sys.argv[1:]:\n"
        "    sys.modules.pop('rung', None)\n"
        "    os.mkdir(path + '.d')\n"
        "    os.chdir(path + '.d')\n"
        "    try:\n"
        "        torch.export.load(path).module()\n"
        "    except BaseException:\n"
        "        pass\n"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", child, *map(str, paths.values())]
    subprocess.run(arguments, check=True, timeout=TIMEOUT, capture_output=True)
    return {
        name: (path, Path(f"{path}.d/CANARY").exists()) for name, path in paths.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_torch_runs_it_and_ckpt_refuses_it(
    name: str, ran: dict[str, tuple[Path, bool]]
) -> None:
    path, did = ran[name]

    assert did
    check_error(ckpt("inspect", path), REFUSED[name][1])


def test_a_record_with_two_dtypes_is_refused(program: Path, tmp_path: Path) -> None:
    """torch gives a second tensor of a record the dtype of the first."""

    def change(config: dict[str, Any], rows: Rows, data: str) -> None:
        config["v"]["tensor_meta"]["dtype"] = 4

    path = written(program, tmp_path / "x.pt2", rows_of_weights(change))
    read = _load_state_dict(PT2ArchiveReader(str(path)), "model")

    assert isinstance(read, dict)
    assert read["v"].dtype == torch.float32
    check_error(ckpt("inspect", path), "torch reads its record as float32")


def constant_of_cpp(program: bytes) -> Callable[[dict[str, Any], Rows], None]:
    """Add a constant of a class of C++, whose pickle is this."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        constants = f"{next(iter(rows)).partition('/')[0]}/data/constants"
        row = row_of("custom_obj_0", dtype=1, is_param=False)
        row |= {"use_pickle": True, "tensor_meta": None}
        rows[f"{constants}/custom_obj_0"] = op.torch_zip(op.pickled(program))
        rows[f"{constants}/model_constants_config.json"] = json.dumps(
            {"config": {"c": row}}
        ).encode()

    return change


def loaded_in_a_child(path: Path) -> subprocess.CompletedProcess[str]:
    """The value that torch makes of the constant `c`, in a process of its own."""
    child = "import torch, sys; print(torch.export.load(sys.argv[1]).constants['c'])"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", child, str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.slow
def test_a_constant_that_is_no_object_of_cpp_is_refused(
    program: Path, tmp_path: Path
) -> None:
    """torch reads it in C++, whose lists hold themselves until the process dies, and
    whose names are numbers.
    """
    itself = b"]q\x05h\x05a"
    path = written(program, tmp_path / "x.pt2", constant_of_cpp(itself))
    assert loaded_in_a_child(path).returncode < 0
    check_error(ckpt("inspect", path), "does not hold an object of c++")

    name = op.glob("collections", "OrderedDict")
    path = written(program, tmp_path / "y.pt2", constant_of_cpp(name))
    assert loaded_in_a_child(path).stdout == "0\n"
    check_error(ckpt("inspect", path), "does not hold an object of c++")


def test_an_object_of_cpp_is_an_import(program: Path, tmp_path: Path) -> None:
    made = op.glob("__torch__.torch.classes.shop", "Box") + op.value(()) + op.newobj()
    change = constant_of_cpp(made + op.value((1,)) + op.build())
    path = written(program, tmp_path / "x.pt2", change)

    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
    assert report.load.expression is None
    assert "unknown-import" in {row.code for row in report.findings}


def test_a_tensor_on_meta_is_refused(program: Path, tmp_path: Path) -> None:
    """torch throws away the bytes of its record."""

    def change(config: dict[str, Any], rows: Rows, data: str) -> None:
        config["v"]["path_name"] = "weight_1"
        config["v"]["tensor_meta"]["device"]["type"] = "meta"
        rows[f"{data}/weight_1"] = bytes(16)

    path = written(program, tmp_path / "x.pt2", rows_of_weights(change))
    read = _load_state_dict(PT2ArchiveReader(str(path)), "model")

    assert isinstance(read, dict)
    assert read["v"].is_meta
    check_error(
        ckpt("inspect", path), "v is on meta: torch.export.load gives it no values"
    )


def test_big_endian_bytes_that_torch_does_not_turn_are_refused(
    program: Path, tmp_path: Path
) -> None:
    def change(document: dict[str, Any], rows: Rows) -> None:
        rows[next(name for name in rows if name.endswith("/byteorder"))] = b"big"
        rows_of_weights(lambda config, rows, data: None)(document, rows)
        name = next(name for name in rows if name.endswith("/weight_0"))
        rows[name] = np.arange(4, dtype="<f4").tobytes()

    path = written(program, tmp_path / "x.pt2", change)
    read = _load_state_dict(PT2ArchiveReader(str(path)), "model")

    assert isinstance(read, dict)
    assert read["w"].tolist() == [0, 1, 2, 3]
    check_error(
        ckpt("inspect", path), "big-endian, and torch.export.load does not turn them"
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_torch_runs_it_and_ckpt_says_it(
    name: str, ran: dict[str, tuple[Path, bool]]
) -> None:
    path, did = ran[name]

    assert did
    with open(str(path)) as checkpoint:
        report = inspect(Survey(checkpoint))
        loads = ls(Survey(checkpoint)).loads
    found = {row.code: row for row in report.findings}
    code = ATTACKS[name][1]
    assert report.load.expression is None
    assert code in found
    if code == "code-inside":
        assert found[code].message.startswith(
            tuple(
                f"DANGER: loading this file {what} "
                for what in ("evaluates", "looks up", "makes code")
            )
        )
    assert loads == "RUNS CODE"


def to(path: str, value: Any) -> Callable[[dict[str, Any], Rows], None]:
    """Change one field of the graph or the program."""

    def change(document: dict[str, Any], rows: Rows) -> None:
        node: Any = document
        *steps, last = path.split(".")
        for step in steps:
            node = node[int(step)] if step.isdigit() else node[step]
        node[last] = value

    return change


GRAPH = "graph_module.graph"
SUM = "s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7"
LIST = SUM.replace(" +", ",")
SURDS = "+".join(
    f"sqrt({left + right}+2*sqrt({left * right}))-sqrt({left})-sqrt({right})"
    for left, right in ((2, 3), (5, 7))
)
"""A number that is 0 once its roots are taken out of each other, for which sympy makes
a polynomial of all.
"""
COUNTED = (
    "u9_000_000",
    "u 9000000",
    "u\uff19" * 7,
    "zuf+9000000",
    "u9000000",
    "u",
    "u-1",
)
"""Keys whose letters torch cuts off, to count up to the number that `int` makes of the
rest.
"""
COSTLY = (
    "Float('0.1', 2000000000)",
    "Float('0.1', 10000)",
    "Float('0.1', Integer(100000000000))",
    "Float('0.1', 9999*9999)",
    "Float('0.1', 9 + 99999999)",
    "Float('0.1', Max(1, 99999999))",
    "Float('0.1', 15, precision=9*99999999)",
    "Float('0.1', precision=Integer(99999999))",
    "Float('0.1', precision=9*99999999)",
    "Float(Float('0.1', 2000000000))",
    "Max(1, Float('0.1', 2000000000))",
    "Pow(Integer(9), Integer(9999999999), True)",
    "Pow(Integer(9), Integer(9999999999), s0)",
    "RShift(Integer(9), Integer(9999999999))",
    "RoundDecimal(Integer(9), Integer(-9999999999))",
    "RoundDecimal(Integer(9), -9999999999)",
    (
        "Pow(Integer(9), Symbol('a', zero=True, zero=True, zero=True, zero=True, "
        "zero=True) + 99999999)"
    ),
    "s0 % s1",
    f"({SUM})**40",
    f"Pow({SUM}, Integer(40))",
    f"PowByNatural(Max({SUM}), Integer(40))",
    f"({SUM})*({SUM})*({SUM})*({SUM})",
    f"2*({SUM})**2*(({SUM})*({SUM}) - 1)",
    f"Mul(Add({LIST}), Add({LIST}), Add({LIST}), Add({LIST}))",
    f"ModularIndexing(({SUM})**2, s8, s9)",
    f"FloorDiv(({SUM})**2, s9)",
    f"Max({LIST}, s8)",
    f"Max(Max(s0, s1, s2, s3) + 1, Min({LIST}))",
    *(
        form.format(SURDS)
        for form in ("floor({}+3)", "ceiling({}+3)", "Abs({})", "Gt({}, s0)", "{}")
    ),
    "floor(OpaqueUnaryFn_exp(96273517210147740594041430117098124547))",
    "floor(FloatPow(9, 96273517210147740594041430117098124547))",
    "Gt(29, Identity(22))",
    "29 > Identity(22)",
    "Piecewise(ExprCondPair(3, Gt(29, Identity(22))), ExprCondPair(1, True))",
    "Piecewise((3, 29 > Identity(22)), (1, True))",
    "ModularIndexing(ToFloat(1), s0, 7)",
    "ModularIndexing(2.5, s0, 7)",
    "ModularIndexing(7, s0, 3*E)",
    "ModularIndexing(s0, 2, Add(sqrt(2), sqrt(7)))",
    "ModularIndexing(s0, 5, Pow(Integer(7), Rational(1, 8)))",
    "CeilDiv(s2**5, OpaqueUnaryFn_exp(777))",
)
"""Short expressions whose value is long, or takes long."""

LOOKED_UP = (
    "torch.ctypes.cdll./rung",
    "torch.ctypes.cdll.rung",
    "torchrung.ctypes.cdll.rung",
    "torch.nn.functional.torch.ctypes.cdll.rung",
    "torch.ao.nn.modules.torch.ctypes.cdll.rung",
    "torch.a/b",
)
"""Paths that lead out of torch, where a name may be a library that is loaded."""
WRITTEN = (
    "torch.nn.modules.linear.Linear",
    "torch.nn.functional.relu",
    "torch.ao.nn.quantized.modules.linear.Linear",
    "torch.functional.einsum",
    "torch.cat",
    "torch._C._nn.scaled_dot_product_attention",
    "torch._C._fft.fft_fft",
    "torch.ops.higher_order.cond",
    "torchvision.ops.misc.FrozenBatchNorm2d",
    "torchvision.models.resnet.BasicBlock",
    "transformers.models.llama.modeling_llama.LlamaRMSNorm",
    "builtins.getattr",
    "_operator.getitem",
    "math.sqrt",
    "view",
    "<lambda>",
)
"""The functions that nodes come from, as torch writes them."""


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (expressions("9**9**9"), "code-inside"),
        (expressions("Pow(Integer(9), Pow(Integer(9), Integer(9)))"), "code-inside"),
        (
            expressions("Pow(Integer(9), Mul(Integer(999999), Integer(999999)))"),
            "code-inside",
        ),
        (expressions("Float('0.1', precision=999999999)"), "code-inside"),
        *((expressions(text), "code-inside") for text in COSTLY),
        (expressions("(" * 90 + "1" + ")" * 90), "code-inside"),
        (expressions("1 +" * 20_000 + "1"), "code-inside"),
        (expressions(7), "code-inside"),
        (
            to("range_constraints", {"u99999999999": {"min_val": 2, "max_val": 3}}),
            "code-inside",
        ),
        *(
            (
                to("range_constraints", {key: {"min_val": 2, "max_val": 3}}),
                "code-inside",
            )
            for key in COUNTED
        ),
        (
            to(f"{GRAPH}.nodes.0.name", "x=1)\nimport os;os.system('touch CANARY')\n#"),
            "code-inside",
        ),
        (to(f"{GRAPH}.inputs.0.as_tensor.name", "x=print(1)"), "code-inside"),
        (
            to(
                f"{GRAPH}.custom_obj_values",
                {"metadata": {"name": "x=1", "class_fqn": "y"}},
            ),
            "code-inside",
        ),
        (keywords("y", ARGUMENT), "code-inside"),
        (keywords("y", [RUNG]), "code-inside"),
        (keywords("y", "a-b"), "code-inside"),
        (arguments("x", "y: print(1)"), "code-inside"),
        (path_named('w")\nprint(1)\n("'), "code-inside"),
        (to(f"{GRAPH}.nodes.0.target", "torch.os.system"), "unknown-operator"),
        (to(f"{GRAPH}.nodes.0.target", "_operator.__builtins__"), "unknown-operator"),
        *((came_from(path), "code-inside") for path in LOOKED_UP),
        (came_from("torch.cat", LOOKED_UP[0]), "code-inside"),
        (came_from(LOOKED_UP[0], field="source_fn"), "code-inside"),
        (came_from("torch.hub.os.path.join"), "unknown-operator"),
        (came_from("_operator.add.rung"), "unknown-operator"),
        (came_from("(" * 20_000, field="nn_module_stack"), "unknown-operator"),
        (to("guards_code", [RUNG]), "unknown-operator"),
        (to("guards_code", ["L['x'].__class__"]), "unknown-operator"),
    ],
)
def test_what_torch_would_count_or_name_is_said(
    change: Callable[[dict[str, Any], Rows], None],
    code: str,
    program: Path,
    tmp_path: Path,
) -> None:
    with open(str(written(program, tmp_path / "x.pt2", change))) as checkpoint:
        report = inspect(Survey(checkpoint))
        assert ls(Survey(checkpoint)).loads == "RUNS CODE"
    assert code in {row.code for row in report.findings}
    assert report.load.expression is None


def test_what_torch_writes_is_no_finding(program: Path, tmp_path: Path) -> None:
    guards = [
        "((L['x'].size()[0]*L['x'].size()[0]) % 7) <= L['x'].size()[1]",
        "not (L['y'].stride()[0] == 1)",
    ]
    usual = (
        lambda document, rows: None,
        to("guards_code", guards),
        keywords("x", "y"),
        arguments("x", "größe"),
        came_from(*WRITTEN),
    )
    for change in (*usual, path_named("a-b.größe ü")):
        with open(str(written(program, tmp_path / "x.pt2", change))) as checkpoint:
            report = inspect(Survey(checkpoint))
        assert {row.code for row in report.findings} == {"weights-only"}
        assert report.load.expression is not None


def expression_samples() -> list[sympy.Basic]:
    a = sympy.Symbol("s77", positive=True, integer=True)
    b = sympy.Symbol("s0", integer=True, nonnegative=True)
    u, f = sympy.Symbol("u0", integer=True), sympy.Symbol("zuf0")
    return [
        a,
        sympy.Float("0.1", 15),
        sympy.Float("0.1", 30),
        functions.RoundDecimal(f, 2),
        functions.RoundDecimal(f, -2),
        functions.RShift(a, 2),
        2 * a * b - 3,
        a**2,
        1 / a,
        sympy.sqrt(a),
        sympy.Rational(-1, 2) * a,
        sympy.Eq(a, 3),
        sympy.And(a > 3, b <= 4),
        sympy.Or(a > 3, sympy.Not(sympy.Eq(b, 4))),
        sympy.Piecewise((a, b > 2), (b, True)),
        sympy.true,
        sympy.Float("1e-30"),
        sympy.ceiling(f),
        functions.FloorDiv(a, 3),
        functions.Mod(a, b),
        functions.PythonMod(u, 3),
        functions.CleanDiv(a, 2),
        functions.Max(a, b, 2),
        functions.Min(u, 5),
        functions.PowByNatural(u, b),
        functions.FloatPow(f, sympy.Float(0.5)),
        functions.LShift(a, 2),
        functions.Where(a > 2, a, b),
        functions.ModularIndexing(a, 2, 3),
        functions.ToFloat(a),
        functions.TruncToInt(f),
        functions.OpaqueUnaryFn_sqrt(a),
        sympy.sqrt(2 * a) + sympy.sqrt(3 * b),
        functions.FloorDiv(sympy.floor(sympy.sqrt(a)), 2),
        functions.FloorDiv(
            functions.TruncToInt(functions.OpaqueUnaryFn_sqrt(functions.ToFloat(a))), 2
        ),
        sympy.Piecewise((1, sympy.Eq(functions.Mod(u, 3), 0)), (0, True)),
        functions.FloorDiv(
            functions.FloorDiv(functions.FloorDiv(a - 1, 2) + 1, 2) + 1, 2
        )
        ** 2
        * (a + b) ** 3,
        a * functions.Max(1, b) * functions.Max(1, u) * functions.Max(1, a),
        sum((a * sympy.Symbol(f"s{index}") + index for index in range(60)), u),
    ]


def test_expressions_of_sympy_are_allowed() -> None:
    """torch writes `srepr`; up to torch 2.4 it wrote `str`."""
    for sample in expression_samples():
        assert is_expression(sympy.srepr(sample)), sample
        assert is_expression(str(sample)), sample


def test_two_programs_in_two_places_are_refused(program: Path, tmp_path: Path) -> None:
    """torch reads all below `models/`, whatever the names end in, and the older place
    only when that fails.
    """

    def other(name: str) -> Callable[[dict[str, Any], Rows], None]:
        def change(document: dict[str, Any], rows: Rows) -> None:
            root = next(iter(rows)).partition("/")[0]
            model = next(row for row in rows if row.endswith("models/model.json"))
            rows[name.format(root=root)] = rows[model]

        return change

    path = written(program, tmp_path / "x.pt2", other("{root}/models/model.jsox"))
    check_error(ckpt("inspect", path), "models/model.jsox")
    path = written(
        program, tmp_path / "x.pt2", other("serialized_exported_program.json")
    )
    assert ckpt("inspect", path).code == 2


@pytest.mark.parametrize(
    "name",
    ["model.wrapper.cpp", "model.wrapper_compile_flags.json", "a_linker_flags.json"],
)
def test_sources_that_torch_compiles_are_code(
    name: str, program: Path, tmp_path: Path
) -> None:
    def change(document: dict[str, Any], rows: Rows) -> None:
        rows[f"{next(iter(rows)).partition('/')[0]}/data/aotinductor/model/{name}"] = (
            b"{}"
        )

    with open(str(written(program, tmp_path / "x.pt2", change))) as checkpoint:
        assert "code-inside" in {notice.code for notice in checkpoint.account.notices}

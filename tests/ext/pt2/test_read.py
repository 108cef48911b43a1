"""PT2 archives: torch writes and loads the reference, and older layouts are rebuilt
from its records.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exported
import families
import opcodes as op
import pytest
import safetensors.torch
import torch
from process import check_error, ckpt

from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.ls.ls import ls
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError

LAYOUTS = {"2.13": exported.pt2, "2.8": exported.pt2_of_2_8, "2.5": exported.pt2_of_2_5}
ROOT = "archive"


@pytest.fixture(params=LAYOUTS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return exported.written(tmp_path, "net.pt2", LAYOUTS[request.param]())


def changed(change: Callable[[dict[str, bytes]], object]) -> bytes:
    """The archive with changed records, below one root."""
    rows = {
        f"{ROOT}/{name.partition('/')[2]}": data
        for name, data in exported.records(exported.pt2()).items()
    }
    change(rows)
    return op.zip_file(rows)


def configured(
    change: Callable[[dict[str, Any]], object], which: str = "weights"
) -> bytes:
    """The archive with a changed list of tensors."""

    def edit(rows: dict[str, bytes]) -> None:
        name = f"{ROOT}/data/{which}/model_{which}_config.json"
        document = json.loads(rows[name])
        change(document["config"])
        rows[name] = json.dumps(document).encode()

    return changed(edit)


def opened(tmp_path: Path, data: bytes) -> Any:
    return formats.open(str(exported.written(tmp_path, "x.pt2", data)))


def test_a_class_of_another_package_in_a_program_is_an_import(tmp_path: Path) -> None:
    """It was taken for a class of the program's own code, of which a PT2 archive has
    none.
    """
    write = families.FAMILIES["pt2 of 2.13"].write
    with formats.open(str(write(tmp_path, op.glob("shop", "Net")))) as checkpoint:
        report = inspect(Survey(checkpoint))
        assert ls(Survey(checkpoint)).loads == "needs shop"
    assert "unknown-import" in {row.code for row in report.findings}
    assert (report.load.expression, report.load.reason) == (
        None,
        "needs shop.Net from the author's code",
    )


# --- what is in it --------------------------------------------------------------------


def test_the_program_tells_what_each_tensor_is(file: Path) -> None:
    program = exported.program()
    with formats.open(str(file)) as checkpoint:
        rows = {entry.name: entry for entry in checkpoint.tensors}
        roles = {
            e.name: r
            for e, r in zip(checkpoint.tensors, Survey(checkpoint).roles, strict=True)
        }
    kinds = {name: row.kind for name, row in rows.items()}

    assert {name for name, kind in kinds.items() if kind == "parameter"} == {
        n for n, _ in program.named_parameters()
    }
    assert {name for name, kind in kinds.items() if kind == "buffer"} == {
        n for n, _ in program.named_buffers()
    }
    assert not rows["scale"].persistent and rows["bn.running_mean"].persistent
    assert not rows["shift"].registered and roles["shift"].role == "other"
    assert rows["sample_inputs.0.0"].tensor.shape == (2, 4)
    assert {role.trust for role in roles.values()} == {"certain"}
    assert rows["fc.weight"].tensor.storage is rows["tied.weight"].tensor.storage


def test_convert_gives_the_state_dict(file: Path, tmp_path: Path) -> None:
    expected = dict(exported.program().state_dict)
    for name in ("a.safetensors", "a.pth"):
        done = ckpt("convert", file, "-o", tmp_path / name)
        assert done.code == 0, done.err
        assert (
            b"left out: shift: neither parameter nor buffer of the program" in done.out
        )
        assert b"left out: scale: a buffer that is not saved" in done.out

    loaded = torch.load(tmp_path / "a.pth", weights_only=True)

    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    flat = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert flat.keys() == expected.keys() - {"tied.weight"}
    assert all(torch.equal(flat[name], expected[name]) for name in flat)


def test_the_commands_take_it(file: Path, tmp_path: Path) -> None:
    assert (
        ckpt("verify", file).code
        == ckpt("sum", file).code
        == ckpt("ls", file).code
        == 0
    )
    assert ckpt("get", file, "program.inputs").out == b"['x']\n"
    assert ckpt("slim", file, "-o", tmp_path / "s.pth").code == 0
    assert ckpt("diff", file, tmp_path / "s.pth", "--json").code in (0, 1)
    inspected = ckpt("inspect", file).out.decode()
    assert (
        'torch.export.load("' in inspected
        and "a PT2 program, which torch.export.load reads" in inspected
    )
    check_error(ckpt("rehome", file, "-o", tmp_path / "r.pth"), "pt2 is not moved")


def test_texts_beside_the_program_are_values(tmp_path: Path) -> None:
    path = exported.written(tmp_path, "net.pt2", exported.pt2())

    with formats.open(str(path)) as checkpoint:
        assert {value.name: value.node for value in checkpoint.values}[
            "extra.note.txt"
        ] == "from a test"


def test_verify_names_the_damaged_tensor(tmp_path: Path) -> None:
    data = exported.pt2()
    weight = exported.records(data)[
        next(n for n in exported.records(data) if n.endswith("/weights/weight_0"))
    ]
    at = data.index(weight)
    path = exported.written(
        tmp_path, "net.pt2", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    )

    done = ckpt("verify", path)

    assert done.code == 1 and b"fc.weight" in done.out


def test_two_programs_keep_their_names_apart(tmp_path: Path) -> None:
    def twice(rows: dict[str, bytes]) -> None:
        for name, data in list(rows.items()):
            if "/model" in name:
                rows[
                    name.replace("/model.", "/other.").replace("/model_", "/other_")
                ] = data

    with opened(tmp_path, changed(twice)) as checkpoint:
        names = {entry.name for entry in checkpoint.tensors}

    assert {"model.fc.weight", "other.fc.weight"} <= names


# --- what is in it and could run ------------------------------------------------------


def test_native_code_is_named_and_never_loaded(tmp_path: Path) -> None:
    def compiled(rows: dict[str, bytes]) -> None:
        rows[f"{ROOT}/data/aotinductor/model/kernel.so"] = b"\x7fELF" + bytes(60)
        rows[f"{ROOT}/data/aotinductor/model/kernel.cpp"] = b"text"

    with opened(tmp_path, changed(compiled)) as checkpoint:
        found = [
            row
            for row in inspect(Survey(checkpoint)).findings
            if row.code == "code-inside"
        ]
        values = {value.name for value in checkpoint.values}
    assert (
        "DANGER: loading this file runs native code: data/aotinductor/model/kernel.so"
        in found[0].message
    )
    assert "aotinductor.model/kernel.so" in values
    assert ckpt("lint", tmp_path / "x.pt2").code == 1
    assert b"RUNS CODE" in ckpt("ls", tmp_path / "x.pt2").out


@pytest.mark.parametrize(
    "name", ["a.dll", "a.cubin", "a.o", "x_metadata.json", "a.so.txt"]
)
def test_whatever_torch_unpacks_for_a_compiled_model_is_native_code(
    name: str, tmp_path: Path
) -> None:
    """The loader of compiled models unpacks every record and takes the library from the
    folder.
    """

    def compiled(rows: dict[str, bytes]) -> None:
        rows[f"{ROOT}/data/aotinductor/model/{name}"] = bytes(60)

    with opened(tmp_path, changed(compiled)) as checkpoint:
        assert any(row.code == "code-inside" for row in checkpoint.account.notices)


@pytest.mark.parametrize(
    "name",
    [
        "../a",
        "model/../../a",
        "model/..",
        "model//etc/../a",
        "..\\a",
        "model\\a",
        "/a",
        "C:/a",
        "c:a",
    ],
)
@pytest.mark.parametrize("folder", ["", "data/aotinductor/", "extra/"])
def test_a_name_that_leads_out_of_its_folder_is_refused(
    folder: str, name: str, tmp_path: Path
) -> None:
    if folder and name in ("/a", "C:/a", "c:a"):
        return  # these lead out only where they begin

    def out(rows: dict[str, bytes]) -> None:
        rows[f"{ROOT}/{folder}{name}"] = b"x"

    with (
        pytest.raises(CkptError, match="leads out of the archive"),
        opened(tmp_path, changed(out)),
    ):
        pass


@pytest.mark.parametrize("what", ["state_dict", "constants"])
def test_two_records_of_which_torch_takes_the_last_are_refused(
    what: str, tmp_path: Path
) -> None:
    rows = exported.records(exported.pt2_of_2_5())
    rows[f"serialized_{what}.json"] = rows[f"serialized_{what}.pt"]
    data = op.zip_file(rows)

    with pytest.raises(
        CkptError, match=rf"both serialized_{what}\.pt and serialized_{what}\.json"
    ):
        opened(tmp_path, data)


def test_a_record_that_nobody_needs_and_that_inflates_is_refused(
    tmp_path: Path,
) -> None:
    rows = [
        op.Record(name, data) for name, data in exported.records(exported.pt2()).items()
    ]
    root = next(iter(exported.records(exported.pt2()))).partition("/")[0]
    bomb = op.Record(f"{root}/extra/x", bytes(80 << 20), deflate=True)

    with pytest.raises(CkptError, match="inflate to"):
        opened(tmp_path, op.zip_file([*rows, bomb]))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return __import__("os").system, ("touch /tmp/never",)


@pytest.mark.parametrize("record", ["opaque_obj_0", "custom_obj_0"])
def test_a_pickled_object_is_not_run(record: str, tmp_path: Path) -> None:
    evil = (
        pickle.dumps(Evil()) if record == "opaque_obj_0" else exported.saved({"w": 1})
    )
    row = {
        "path_name": record,
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }
    if record == "custom_obj_0":
        called = op.call(op.glob("posix", "system"), "touch x")
        made = (
            op.glob("__torch__.torch.classes.shop", "Box") + op.value(()) + op.newobj()
        )
        evil = op.torch_zip(op.pickled(made + op.value((called,)) + op.build()))

    def add(rows: dict[str, bytes]) -> None:
        name = f"{ROOT}/data/constants/model_constants_config.json"
        document = json.loads(rows[name])
        document["config"]["thing"] = row
        rows[name] = json.dumps(document).encode()
        rows[f"{ROOT}/data/constants/{record}"] = evil

    with opened(tmp_path, changed(add)) as checkpoint:
        assert [row.name for row in checkpoint.imports if row.group == "called"] == [
            "system"
        ]


# --- damaged --------------------------------------------------------------------------


def meta(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["fc.weight"]["tensor_meta"].update(fields)


def sizes(*numbers: Any) -> list[dict[str, Any]]:
    return [{"as_int": number} for number in numbers]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "another format": (
        lambda: changed(lambda rows: rows.update({f"{ROOT}/archive_format": b"pt3"})),
        "pt3",
    ),
    "a record that is a path": (
        lambda: configured(
            lambda config: config["fc.bias"].update(path_name="../models/model.json")
        ),
        "not a plain name",
    ),
    "a record that is not there": (
        lambda: configured(
            lambda config: config["fc.bias"].update(path_name="weight_99")
        ),
        "has no record",
    ),
    "a shape beyond the record": (
        lambda: configured(meta(sizes=sizes(300, 4))),
        "its record has 48",
    ),
    "an offset beyond the record": (
        lambda: configured(meta(storage_offset={"as_int": 1})),
        "needs 52 bytes",
    ),
    "a huge shape": (lambda: configured(meta(sizes=sizes(2**62, 2**62))), "do not fit"),
    "more than 64 bits before a size of 0": (
        lambda: configured(meta(sizes=sizes(2**62, 8, 0), strides=sizes(1, 1, 1))),
        "more elements than torch counts",
    ),
    "a negative stride": (
        lambda: configured(meta(strides=sizes(-4, 1))),
        "not a whole number",
    ),
    "a size that is true": (
        lambda: configured(meta(sizes=sizes(True, 4))),
        "not a whole number",
    ),
    "a symbol": (
        lambda: configured(meta(sizes=[{"as_expr": {"expr_str": "s0"}}] * 2)),
        "not a whole number",
    ),
    "sizes without strides": (lambda: configured(meta(strides=sizes(1))), "do not fit"),
    "many dimensions": (
        lambda: configured(meta(sizes=sizes(*[1] * 65), strides=sizes(*[1] * 65))),
        "do not fit",
    ),
    "an unknown dtype": (lambda: configured(meta(dtype=99)), "unknown dtype"),
    "an unknown layout": (lambda: configured(meta(layout=1)), "unknown layout"),
    "a device that is none": (
        lambda: configured(meta(device=3)),
        "not a list of tensors",
    ),
    "a list that is none": (
        lambda: changed(
            lambda rows: rows.update(
                {f"{ROOT}/data/weights/model_weights_config.json": b'{"config": []}'}
            )
        ),
        "not a list of tensors",
    ),
    "a graph that is none": (
        lambda: changed(lambda rows: rows.update({f"{ROOT}/models/model.json": b"{}"})),
        "not an exported program",
    ),
    "a graph in depth": (
        lambda: changed(
            lambda rows: rows.update({f"{ROOT}/models/model.json": b"[" * 100_000})
        ),
        "nested too deep",
    ),
    "a weight that is a constant too": (
        lambda: configured(
            lambda config: config.update({"fc.bias": config["shift"]}), "constants"
        ),
        "twice",
    ),
    "no weights": (
        lambda: changed(
            lambda rows: rows.pop(f"{ROOT}/data/weights/model_weights_config.json")
        ),
        "lacks the weights",
    ),
    "weights that are no file of torch": (
        lambda: changed(
            lambda rows: rows.update({f"{ROOT}/data/weights/model.pt": b"PK\3\4"})
        ),
        "cut off",
    ),
    "weights that are a list": (
        lambda: changed(
            lambda rows: rows.update(
                {f"{ROOT}/data/weights/model.pt": exported.saved([1])}
            )
        ),
        "does not map names",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_one_is_refused(name: str, tmp_path: Path) -> None:
    make, problem = BAD[name]

    with pytest.raises(CkptError, match=problem):
        opened(tmp_path, make())


@pytest.mark.slow
def test_an_inflating_record_is_refused(tmp_path: Path) -> None:
    bomb = op.Record(f"{ROOT}/models/model.json", b" " * (80 << 20), deflate=True)
    rows = [op.Record(f"{ROOT}/archive_format", b"pt2"), bomb]
    rows += [
        op.Record(f"{ROOT}/data/{kind}/model_{kind}_config.json", b"{}")
        for kind in ("weights", "constants")
    ]
    with pytest.raises(CkptError, match="limits="):
        opened(tmp_path, op.zip_file(rows))

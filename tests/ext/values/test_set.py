"""`ckpt set`: values set and deleted through the command line and `ckpt.set`; torch
loads what was asked for and all else as before.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from process import Run
from rewriting import saved
from safetensors import safe_open
from safetensors.torch import save_file

import ckpt as library
from ckpt.ext.values import edit
from ckpt.model.errors import UsageError
from ckpt.tree import find as find_module


def run_state() -> dict[str, Any]:
    """The usual state of a training run."""
    return {
        "model": OrderedDict(w=torch.arange(6.0).reshape(2, 3), b=torch.ones(2)),
        "optimizer": {
            "state": {},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}],
        },
        "epoch": 3,
        "best": 0.5,
        "amp": True,
        "note": "first",
        "nothing": None,
        "args": argparse.Namespace(lr=0.1, data="/old"),
        "seen": [1, 2, 3],
        "a.b": 7,
    }


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return saved(run_state(), tmp_path / "run.pth")


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def assert_same_tensors(path: Path) -> None:
    model = loaded(path)["model"]
    for name, tensor in run_state()["model"].items():
        assert torch.equal(model[name], tensor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "reach", "value"),
    [
        ("epoch=0", lambda state: state["epoch"], 0),
        ("epoch=-12", lambda state: state["epoch"], -12),
        ("best=1", lambda state: state["best"], 1.0),
        ("best=1e-5", lambda state: state["best"], 1e-5),
        ("amp=false", lambda state: state["amp"], False),
        ("note=", lambda state: state["note"], ""),
        ("note=a=b", lambda state: state["note"], "a=b"),
        ("note=7", lambda state: state["note"], "7"),
        (
            "optimizer.param_groups.0.lr=0.25",
            lambda state: state["optimizer"]["param_groups"][0]["lr"],
            0.25,
        ),
        (
            "optimizer.param_groups.0.betas.1=0.5",
            lambda state: state["optimizer"]["param_groups"][0]["betas"],
            (0.9, 0.5),
        ),
        (
            "optimizer.param_groups.0.betas:=[1.0,2]",
            lambda state: state["optimizer"]["param_groups"][0]["betas"],
            (1.0, 2),
        ),
        ("args.data=/new", lambda state: state["args"].data, "/new"),
        ("args.more:=3", lambda state: state["args"].more, 3),
        ("seen.1=20", lambda state: state["seen"], [1, 20, 3]),
        ("seen:=[]", lambda state: state["seen"], []),
        (
            'nothing:={"a": [1, null, true]}',
            lambda state: state["nothing"],
            {"a": [1, None, True]},
        ),
        ('fresh:="text"', lambda state: state["fresh"], "text"),
        ("a.b=8", lambda state: state["a.b"], 8),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_value_is_set_as_the_type_that_is_there(
    ckpt: Run,
    run_path: Path,
    tmp_path: Path,
    word: str,
    reach: Any,
    value: Any,
    in_place: bool,
) -> None:
    out = run_path if in_place else tmp_path / "out.pth"

    done = ckpt(
        "set", str(run_path), word, *(["--in-place"] if in_place else ["-o", str(out)])
    )

    assert done.returncode == 0, done.stderr
    found = reach(loaded(out))
    assert found == value and type(found) is type(value)
    assert_same_tensors(out)


def test_all_that_nobody_named_stays(ckpt: Run, run_path: Path, tmp_path: Path) -> None:
    assert (
        ckpt(
            "set", str(run_path), "epoch=4", "-o", str(tmp_path / "out.pth")
        ).returncode
        == 0
    )

    before, after = loaded(run_path), loaded(tmp_path / "out.pth")

    for state in (before, after):
        del state["model"], state["epoch"]
    assert before == after and list(before) == list(after)


def test_undo_gives_the_old_values_back(ckpt: Run, run_path: Path) -> None:
    data = run_path.read_bytes()

    assert (
        ckpt(
            "set", str(run_path), "epoch=4", "-d", "optimizer", "--in-place"
        ).returncode
        == 0
    )
    assert "optimizer" not in loaded(run_path)
    assert ckpt("rehome", "--undo", str(run_path)).returncode == 0

    assert run_path.read_bytes() == data


def test_names_are_deleted_with_what_lies_below(
    ckpt: Run, run_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.pth"
    words = ["-d", "args.lr", "-d", "seen.0", "-d", "model.b", "-d", "a.b"]

    done = ckpt("set", str(run_path), *words, "-o", str(out))

    assert done.returncode == 0 and "model.b: 1 tensor, deleted" in done.stdout
    state = loaded(out)
    assert vars(state["args"]) == {"data": "/old"} and state["seen"] == [2, 3]
    assert list(state["model"]) == ["w"] and "a.b" not in state


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["epoch=x"], "epoch is an int, and x is none"),
        (["epoch=1.5"], "epoch is an int, and 1.5 is none"),
        (["best=high"], "best is a float, and high is none"),
        (["best=1e999"], "beyond the range of float"),
        (["amp=2"], "amp is a bool, and 2 is none (true or false)"),
        (
            ["nothing=1"],
            "nothing is None, which has no type (nothing:=JSON replaces it)",
        ),
        (["seen=1"], "seen is a list (seen:=JSON replaces it)"),
        (["model.w=1"], "model.w is a tensor (ckpt set changes values)"),
        (["model:=1"], "model holds 2 tensors (-d model deletes them)"),
        (["epoc=1"], "no value called epoc (did you mean epoch?)"),
        (["optimizr.lr:=1"], "no value called optimizr.lr"),
        (["licence=mit"], "no value called licence (licence:=JSON adds it)"),
        (["args.zz=1"], "no value called args.zz (args.zz:=JSON adds it)"),
        (["-d", "licence"], "no value called licence\n"),
        (["-d", "epoc"], "no value called epoc (did you mean epoch?)"),
        (["epoch"], "epoch: no value (NAME=VALUE, NAME:=JSON, or -d NAME)"),
        (["=1"], "no value"),
        (["note:=abc"], "not JSON behind := (text stands in quotes"),
        (["best:=NaN"], "not JSON behind :="),
        (["best:=1e400"], "1e400 is beyond the range of float"),
        (["best:=[0, -1e999]"], "-1e999 is beyond the range of float"),
        (['note:={"a": 1, "b": 2, "a": 3}'], "the key a stands twice"),
        (['note:=[{"a": {"": 1, "": 1}}]'], "the key (empty) stands twice"),
        (["epoch=1", "epoch=2"], "epoch stands twice"),
        (["epoch=1", "-d", "epoch"], "epoch stands twice"),
        (["args.lr=1", "-d", "args"], "args.lr and args: one lies in the other"),
        (["args:=1", "-d", "args.lr"], "args and args.lr: one lies in the other"),
        ([], "what to set?"),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_is_written(
    ckpt: Run, run_path: Path, tmp_path: Path, words: list[str], says: str
) -> None:
    out = tmp_path / "out.pth"

    done = ckpt("set", str(run_path), *words, "-o", str(out))

    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
    assert not out.exists()


def test_a_value_that_is_there_already_is_no_change(ckpt: Run, run_path: Path) -> None:
    data = run_path.read_bytes()

    done = ckpt("set", str(run_path), "epoch=3", "best=0.5", "--in-place")

    assert done.returncode == 0 and "these values are there already" in done.stdout
    assert run_path.read_bytes() == data


def test_other_names_of_one_object_are_listed(ckpt: Run, tmp_path: Path) -> None:
    shared = {"lr": 0.1}
    path = saved(
        {"a": shared, "b": shared, "w": torch.ones(1)}, tmp_path / "shared.pth"
    )

    done = ckpt("set", str(path), "a.lr=0.2", "-o", str(tmp_path / "out.pth"))

    assert done.returncode == 0 and "left alone: b" in done.stdout
    state = loaded(tmp_path / "out.pth")
    assert state["a"] is state["b"] and state["b"] == {"lr": 0.2}


def test_other_names_are_listed_although_an_item_of_a_list_is_deleted(
    ckpt: Run, tmp_path: Path
) -> None:
    shared = {"lr": 0.1}
    path = saved(
        {"a": shared, "b": shared, "seen": [1, 2], "w": torch.ones(1)},
        tmp_path / "shared.pth",
    )

    done = ckpt(
        "set", str(path), "a.lr=0.2", "-d", "seen.0", "-o", str(tmp_path / "out.pth")
    )

    assert (
        done.returncode == 0
        and "left alone: b" in done.stdout
        and "left alone: seen" not in done.stdout
    )
    state = loaded(tmp_path / "out.pth")
    assert state["b"] == {"lr": 0.2} and state["seen"] == [2]


def test_metadata_of_safetensors_is_text(ckpt: Run, tmp_path: Path) -> None:
    path, out = tmp_path / "a.safetensors", tmp_path / "out.safetensors"
    save_file({"w": torch.arange(4.0)}, path)

    done = ckpt(
        "set",
        str(path),
        "__metadata__.license=mit",
        "__metadata__.steps=12",
        "-o",
        str(out),
    )
    again = ckpt(
        "set",
        str(out),
        "__metadata__.license=bsd",
        "-d",
        "__metadata__.steps",
        "-o",
        str(path),
        "--force",
    )

    assert done.returncode == again.returncode == 0
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"license": "mit", "steps": "12", "format": "pt"}
        assert torch.equal(file.get_tensor("w"), torch.arange(4.0))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"license": "bsd", "format": "pt"}
    refused = ckpt(
        "set",
        str(out),
        "__metadata__.license:=3",
        "-o",
        str(tmp_path / "x.safetensors"),
    )
    assert refused.returncode == 2 and "holds text" in refused.stderr


def test_the_document_names_each_value(ckpt: Run, run_path: Path) -> None:
    library_report = library.set(
        run_path, {"epoch": 9, "new": [1]}, delete="best", dry_run=True
    )

    rows = [
        (row["kind"], row["name"], row["from"], row["to"])
        for row in library_report.to_json()["changes"]
    ]  # type: ignore[union-attr,index,call-overload]

    assert rows == [
        ("value", "epoch", "3", "9"),
        ("value", "new", None, "[1]"),
        ("deleted", "best", "0.5", None),
    ]


def test_python_takes_plain_values_alone(run_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Tensor is not a plain value"):
        library.set(run_path, {"epoch": torch.ones(1)}, out=tmp_path / "out.pth")
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(UsageError, match="nested too deep"):
        library.set(run_path, {"epoch": nested}, out=tmp_path / "out.pth")


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(value=plain_values)
def test_any_plain_value_loads_as_it_was_given(
    value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("plain")
    path = saved({"x": 1, "w": torch.ones(2)}, folder / "a.pth")

    library.set(path, {"x": value}, out=folder / "out.pth")

    state = torch.load(folder / "out.pth", weights_only=True)
    assert state["x"] == value and type(state["x"]) is type(value)
    assert torch.equal(state["w"], torch.ones(2))


def test_config_json_of_a_folder_is_left_to_an_editor(
    ckpt: Run, tmp_path: Path
) -> None:
    """`ckpt get` shows it as `config`, but set changes the file of the weights."""
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"hidden_size": 2}')
    assert ckpt("get", tmp_path, "config.hidden_size").stdout == "2\n"
    done = ckpt("set", tmp_path, "config.hidden_size=4", "-o", tmp_path / "out")
    assert done.returncode == 2
    hint = "(ckpt set changes the file of the weights; config.json is for an editor)"
    assert done.stderr.endswith(f"no value called config.hidden_size {hint}\n")
    (tmp_path / "trainer_state.json").write_text('{"epoch": 2}')
    done = ckpt("set", tmp_path, "trainer_state.epoch=4", "--in-place")
    assert done.returncode == 2
    assert "trainer_state.json is for an editor" in done.stderr


def test_many_values_are_set_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No work grows with values × values: a look at all of a dict is made once."""
    words = {f"word{row}": row for row in range(300)}
    torch.save({"words": words, "w": torch.ones(2)}, tmp_path / "in.pth")
    looks: list[str] = []

    def counted(name: str) -> Any:
        call = getattr(edit, name)
        return lambda *given: (looks.append(name), call(*given))[1]

    for name in ("find_nodes", "children_of", "_is_below"):
        monkeypatch.setattr(edit, name, counted(name))
    values = {f"words.word{row}": -row for row in range(300)}
    library.set(tmp_path / "in.pth", values, out=tmp_path / "out.pth")

    loaded = torch.load(tmp_path / "out.pth")
    assert loaded["words"] == {name: -value for name, value in words.items()}
    # Once in the tree as it was, and once in the new one.
    assert looks.count("find_nodes") == 300 and looks.count("children_of") <= 4
    assert looks.count("_is_below") < 1000


def test_values_in_many_dicts_are_set_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dict that holds the dicts is taken apart once, not for each name."""
    rows = {f"row{row}": {"x": row} for row in range(300)}
    torch.save({"rows": rows, "w": torch.ones(2)}, tmp_path / "in.pth")
    children: list[int] = []

    def counted(module: Any) -> None:
        of = module.children_of

        def count_children(node: Any) -> Any:
            found = of(node)
            children.append(len(found))
            return found

        monkeypatch.setattr(module, "children_of", count_children)

    counted(edit)
    counted(find_module)
    values = {f"rows.row{row}.x": -row for row in range(300)}
    library.set(tmp_path / "in.pth", values, out=tmp_path / "out.pth")

    assert torch.load(tmp_path / "out.pth")["rows"]["row7"] == {"x": -7}
    assert sum(children) < 5_000


def test_equal_values_of_other_types_are_changes(ckpt: Run, tmp_path: Path) -> None:
    """True, 1 and 1.0 are equal in Python, and three values in a file."""
    path = saved({"amp": True, "lr": 1.0, "w": torch.ones(2)}, tmp_path / "in.pth")
    out = tmp_path / "out.pth"
    assert ckpt("set", path, "amp:=1", "lr:=1", "-o", out).returncode == 0
    state = loaded(out)
    assert type(state["amp"]) is int and type(state["lr"]) is int


def test_infinity_is_a_float_in_words(ckpt: Run, run_path: Path) -> None:
    for word, value in (("inf", inf), ("-inf", -inf), ("+Infinity", inf)):
        done = ckpt("set", run_path, f"best={word}", "--in-place")
        assert done.returncode == 0, done.stderr
        assert loaded(run_path)["best"] == value


def test_a_name_that_holds_one_tensor_is_not_replaced(
    ckpt: Run, tmp_path: Path
) -> None:
    path = saved({"net": {"w": torch.ones(2)}, "epoch": 1}, tmp_path / "in.pth")
    done = ckpt("set", path, "net:=1", "-o", tmp_path / "out.pth")
    assert done.returncode == 2
    assert "net holds 1 tensor (-d net deletes them)" in done.stderr


def test_a_pickle_has_no_metadata_to_add_to(ckpt: Run, run_path: Path) -> None:
    done = ckpt("set", run_path, "__metadata__.license=mit", "--in-place")
    assert done.returncode == 2
    assert "no value called __metadata__.license" in done.stderr


def test_what_moves_behind_a_deleted_item_is_no_other_change(
    ckpt: Run, tmp_path: Path
) -> None:
    path = saved({"log": [{"x": 1}, {"x": 2}], "w": torch.ones(2)}, tmp_path / "a.pth")
    done = ckpt("set", path, "-d", "log.0", "-o", tmp_path / "out.pth")
    assert done.returncode == 0 and "left alone" not in done.stdout


def test_python_is_told_in_its_own_words(tmp_path: Path) -> None:
    path = saved(run_state(), tmp_path / "a.pth")
    with pytest.raises(TypeError, match="epoch"):
        library.set(path, epoch=4, out=tmp_path / "b.pth")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="what to set") as caught:
        library.set(path, out=tmp_path / "b.pth")
    assert "-d NAME" not in str(caught.value) and 'delete="NAME"' in str(caught.value)


def test_a_value_of_another_file_of_a_folder_names_that_file(
    ckpt: Run, tmp_path: Path
) -> None:
    """`inspect` shows the folder as one checkpoint, and `set` changes one file."""
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    model = torch.nn.Linear(2, 2)
    save_file(model.state_dict(), folder / "model.safetensors")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 10}')

    done = ckpt(
        "set", "checkpoint-10", "optimizer.param_groups.0.lr=1", "-o", "x", cwd=tmp_path
    )

    assert done.returncode == 2
    way = "ckpt set checkpoint-10/optimizer.pt param_groups.0.lr=VALUE"
    assert way in done.stderr


def test_a_change_of_one_value_shows_its_name(run_path: Path, tmp_path: Path) -> None:
    report = library.set(run_path, {"epoch": 9}, out=tmp_path / "x.pt")

    (change,) = report.changes
    assert repr(change) == f"<Change value epoch: {change.before} → 9>"

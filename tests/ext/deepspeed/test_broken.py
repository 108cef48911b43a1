"""DeepSpeed's folders that are incomplete, of two saves, or made to hurt: one clear
error, or what is left.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import deepspeeds
import hostile
import pytest
import torch
from deepspeeds import TAG, Saved, saved
from inside import inside
from opcodes import torch_zip

import ckpt
from ckpt import formats
from ckpt.commands.inspect.inspect import inspect
from ckpt.commands.inspect.text import inspect_lines
from ckpt.commands.verify import verify
from ckpt.evidence.survey import Survey
from ckpt.ext.deepspeed.partitions import ranks_text
from ckpt.model.account import UNREAD
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.errors import CkptError
from ckpt.model.limits import Limits
from ckpt.model.places import Range

Z2 = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def opened(path: Path) -> Checkpoint:
    with formats.open(str(path)) as checkpoint:
        return checkpoint


def names(checkpoint: Checkpoint, section: str) -> set[str]:
    return {
        str(entry.path[1]) for entry in checkpoint.tensors if entry.path[0] == section
    }


# --- ranks that are missing -----------------------------------------------------------


@pytest.mark.parametrize(
    "harm", [os.remove, lambda path: path.write_bytes(path.read_bytes()[:700])]
)
def test_a_rank_of_zero_2_is_missing(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """The second rank holds the end of each group: what begins in the first rank and
    ends there is whole.
    """
    folder = deepspeeds.write(tmp_path / "run", 2)
    harm(folder / TAG / Z2.format(1))
    found = opened(folder)
    lost = {"up.weight", "unused.weight", "up.bias", "scale"}
    codes = {notice.code: notice for notice in found.account.notices}
    notice = codes["incomplete"]
    assert set(notice.tensors) == lost
    assert notice.message == (
        "the optimizer states of rank 1 of 2 are missing: the fp32 weights of 4 of 5 "
        "parameters are lost: up.weight, unused.weight, up.bias and 1 more"
    )
    every = set(deepspeeds.Live().weights())
    assert names(found, "model") == every - lost
    # The tensors that are gone count among all, as `ckpt salvage` counts them.
    for quick in (False, True):
        report = ckpt.verify(folder, quick=quick)
        assert report.lost is not None and set(report.lost) == lost
    assert names(found, "module") == every
    assert {
        entry.path[2] for entry in found.tensors if entry.path[0] == "optimizer"
    } == {"emb.weight"}
    with ckpt.open(folder) as checkpoint:
        assert torch.equal(
            checkpoint["model.emb.weight"].torch(),
            deepspeeds.Live().trained["emb.weight"],
        )


def test_the_module_is_cut_off(tmp_path: Path) -> None:
    """Half of the file is gone: the trained parameters are in the optimizer states, and
    the others are nowhere.
    """
    folder = deepspeeds.write(tmp_path / "run", 2)
    file = folder / TAG / "mp_rank_00_model_states.pt"
    os.truncate(file, file.stat().st_size // 2)

    with formats.open(str(folder), partial=True) as found:
        notices = {notice.code: notice for notice in found.account.notices}

    notice = notices["incomplete"]
    live = deepspeeds.Live()
    module = {f"module.{name}" for name in live.weights()}
    # The head is tied to the embedding, which is trained.
    there = {*live.trained, "head.weight"}
    untrained = set(live.weights()) - there
    assert set(notice.tensors) == module | {f"model.{name}" for name in untrained}
    assert notice.message == (
        "the module is cut off: emb.weight, up.weight, up.bias and 7 more"
    )
    assert names(found, "model") == there


def test_a_rank_of_zero_3_is_missing(tmp_path: Path) -> None:
    """Every parameter has a part in each rank. The last rank may have none of a small
    one.
    """
    folder = deepspeeds.write(tmp_path / "run", 3)
    os.remove(folder / TAG / Z2.format(1))
    (notice,) = opened(folder).account.notices
    assert set(notice.tensors) == {
        "emb.weight",
        "up.weight",
        "unused.weight",
        "up.bias",
    }
    assert names(opened(folder), "model") == set(deepspeeds.Live().weights()) - set(
        notice.tensors
    ) - {"head.weight"}


def test_the_model_states_of_a_rank_are_missing(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 3)
    os.remove(folder / TAG / "zero_pp_rank_1_mp_rank_00_model_states.pt")
    (notice,) = opened(folder).account.notices
    assert (notice.code, notice.tensors) == (
        "incomplete",
        ("frozen.bias", "frozen.weight"),
    )


def test_commands_on_what_is_not_whole(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    os.remove(folder / TAG / Z2.format(1))
    done = inside("verify", "run", cwd=tmp_path)
    assert done.code == 1 and "rank 1 of 2" in done.out.decode()
    done = inside("inspect", "run", "--fail-on", "error", cwd=tmp_path)
    assert done.code == 1 and "unused" not in done.out.decode().replace(
        "unused.weight", ""
    ), "state is lost, not unused"
    for command, option in (
        ("convert", "--weights module"),
        ("slim", "--section module"),
    ):
        done = inside(command, "run", "-o", "x.pth", cwd=tmp_path)
        assert done.code == 2 and not (tmp_path / "x.pth").exists()
        (line,) = done.complaints
        assert line.endswith(f"({option})"), line
        assert (
            inside(command, "run", *option.split(), "-o", "x.pth", cwd=tmp_path).code
            == 0
        )
        with ckpt.open(tmp_path / "x.pth") as checkpoint:
            assert any(name.endswith("up.weight") for name in checkpoint)
        os.remove(tmp_path / "x.pth")
    assert (
        inside(
            "convert", "run", "--drop-other", "-o", "x.safetensors", cwd=tmp_path
        ).code
        == 2
    )
    assert (
        inside("convert", "run", "--partial", "-o", "x.safetensors", cwd=tmp_path).code
        == 1
    )
    with ckpt.open(tmp_path / "x.safetensors") as checkpoint:
        assert "up.weight" not in checkpoint and "emb.weight" in checkpoint


@pytest.mark.parametrize("command", ["convert", "slim", "strip", "rehome"])
@pytest.mark.parametrize("stage", [2, 3])
def test_what_is_lost_is_told_by_who_writes(
    command: str, stage: int, tmp_path: Path
) -> None:
    folder = deepspeeds.write(tmp_path / "run", stage)
    os.remove(folder / TAG / Z2.format(1))
    assert inside(command, "run", "-o", "x.pth", cwd=tmp_path).code == 2
    done = inside(command, "run", "--partial", "-o", "x.pth", cwd=tmp_path)
    assert (
        done.code == 1
        and "left out: (unread): the optimizer states of rank 1 of 2"
        in done.out.decode()
    )
    assert b"left out: up.weight: not whole" in done.out


def test_the_other_tensor_parallel_rank_is_missing(tmp_path: Path) -> None:
    """Half of each weight must not look like a model."""
    made = saved(1)
    model(made)["mp_world_size"] = 2
    found = opened(made.write(tmp_path / "run"))
    (notice,) = found.account.notices
    assert (notice.code, notice.message) == (
        "incomplete",
        "the files of 1 of 2 model-parallel ranks are missing",
    )
    assert "model" not in {entry.path[0] for entry in found.tensors}


def test_all_optimizer_states_are_missing(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 1)
    for rank in range(2):
        os.remove(folder / TAG / Z2.format(rank))
    found = opened(folder)
    assert [notice.code for notice in found.account.notices] == ["incomplete"]
    assert names(found, "module") == set(deepspeeds.Live().weights())


def test_files_of_an_older_save_with_more_ranks(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 1, 2)
    older = deepspeeds.write(tmp_path / "older", 1, 4, seed=1)
    for rank in (2, 3):
        shutil.copy(older / TAG / Z2.format(rank), folder / TAG)
    found = opened(folder)
    (notice,) = found.account.notices
    assert notice.code == "unread-file"
    assert (
        notice.message
        == "files of ranks 2, 3 are left from a save with more ranks and were not read"
    )
    with ckpt.open(folder) as checkpoint:
        assert torch.equal(
            checkpoint["model.up.weight"].torch(),
            deepspeeds.Live().trained["up.weight"],
        )


# --- files that contradict each other -------------------------------------------------


def state(made: Saved, rank: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = made.states[rank]
    return found


def model(made: Saved) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(made.models.values()))
    return found


def set_in(holder: dict[str, Any], **values: object) -> None:
    holder.update(values)


def grow(made: Saved) -> None:
    shapes = model(made)["param_shapes"]
    shapes[0]["up.weight"] = torch.Size([9, 5000])
    model(made)["module"]["up.weight"] = torch.zeros(1).expand(9, 5000)


def shrink(made: Saved) -> None:
    del model(made)["param_shapes"][0]["up.weight"]


def move(made: Saved) -> None:
    state(made)["param_slice_mappings"][0]["up.weight"] = deepspeeds.fragment_address(
        28, 1
    )


def swap(made: Saved) -> None:
    shapes = model(made)["param_shapes"]
    shapes[0] = dict(reversed(list(shapes[0].items())))


def pad(made: Saved) -> None:
    for each in made.states:
        each["single_partition_of_fp32_groups"][1] = torch.zeros(26)
        each["param_slice_mappings"] = each["group_paddings"] = None


WRONG: dict[str, tuple[int, Callable[[Saved], object], str]] = {
    "a shape too large": (2, grow, "group 0"),
    "a shape too small": (2, shrink, "2 parameters and 3 alignment paddings"),
    "another order": (2, swap, "rank 0 puts"),
    "a fragment elsewhere": (
        2,
        move,
        (
            "rank 1 puts up.weight at elements 1 to 29, by the shapes it lies at "
            "elements 0 to 28"
        ),
    ),
    "groups": (
        2,
        lambda made: state(made)["single_partition_of_fp32_groups"].pop(),
        "groups of weights is 2 for rank 0, 1",
    ),
    "groups of shapes": (
        2,
        lambda made: model(made)["param_shapes"].pop(),
        "the optimizer has 2 groups",
    ),
    "count": (
        2,
        lambda made: set_in(state(made), partition_count=[3, 3]),
        "partition_count is (2, 2) for rank 0, (3, 3)",
    ),
    "version": (
        2,
        lambda made: made.optimizers[Z2.format(1)].update(ds_version="0.9"),
        "ds_version is 0.19.8",
    ),
    "version of the model": (
        2,
        lambda made: set_in(model(made), ds_version="0.9"),
        "DeepSpeed 0.19.8 and 0.9",
    ),
    "stage": (
        2,
        lambda made: set_in(state(made), zero_stage=1),
        "ZeRO stage is 2 for rank 0, 1 for rank 1",
    ),
    "dtypes": (
        2,
        lambda made: state(made)["single_partition_of_fp32_groups"].__setitem__(
            0, torch.zeros(49, dtype=torch.float16)
        ),
        "several dtypes: float16 and float32",
    ),
    "a module of another shape": (
        2,
        lambda made: model(made)["module"].__setitem__("up.bias", torch.zeros(8)),
        "up.bias has shape [9] in param_shapes, [8] in the module",
    ),
    "a rank too long": (
        3,
        lambda made: state(made)["fp32_flat_groups"].__setitem__(0, torch.zeros(53)),
        "rank 1 holds 59 elements, its parts of the parameters need 58",
    ),
    "other parameters": (
        3,
        lambda made: list(made.models.values())[1]["param_shapes"][0].popitem(),
        "rank 1 has other parameters than rank 0",
    ),
    "a name twice": (
        2,
        lambda made: set_in(
            model(made)["param_shapes"][1], **{"up.weight": torch.Size([1])}
        ),
        "two groups",
    ),
    "a negative size": (
        2,
        lambda made: set_in(model(made)["param_shapes"][0], x=[-1]),
        "the shape of x is invalid",
    ),
    "a size of bool": (
        2,
        lambda made: set_in(model(made)["param_shapes"][0], x=[True]),
        "the shape of x is invalid",
    ),
    "a huge size": (
        2,
        lambda made: set_in(model(made)["param_shapes"][0], x=[2**40, 2**40]),
        "the shape of x is too large",
    ),
    "many dimensions": (
        2,
        lambda made: set_in(model(made)["param_shapes"][0], x=[1] * 65),
        "the shape of x is invalid",
    ),
    "shapes that are none": (
        2,
        lambda made: set_in(model(made), param_shapes=7),
        "param_shapes is not a list",
    ),
    "a group that is none": (
        2,
        lambda made: set_in(
            state(made, 0), single_partition_of_fp32_groups=[torch.zeros(2, 2), 1]
        ),
        "something else than flat tensors",
    ),
    "a fragment that is none": (
        2,
        lambda made: set_in(
            state(made)["param_slice_mappings"][0],
            **{"up.weight": deepspeeds.fragment_address(-1, 0)},
        ),
        "param_slice_mappings of up.weight is invalid",
    ),
    "no ranks": (
        2,
        lambda made: [set_in(each, partition_count=0) for each in made.states],
        "not a number of ranks",
    ),
    "too many ranks": (
        2,
        lambda made: [set_in(each, partition_count=2**60) for each in made.states],
        "ckpt.Limits(shards=",
    ),
    "elements that no parameter needs": (
        2,
        pad,
        "group 1 holds 52 elements, its parameters need 10",
    ),
    "no module": (2, lambda made: model(made).pop("module"), "has no module"),
    "no flat weights": (
        2,
        lambda made: state(made, 0).pop("single_partition_of_fp32_groups"),
        "has no flat fp32 weights",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_contradicts_itself_is_refused(what: str, tmp_path: Path) -> None:
    stage, harm, says = WRONG[what]
    made = saved(stage)
    harm(made)
    folder = made.write(tmp_path / "run")
    with pytest.raises(CkptError) as caught:
        opened(folder)
    assert says in str(caught.value), str(caught.value)
    done = inside("verify", "run", cwd=tmp_path)
    assert done.code in (1, 2) and len(done.complaints) <= 1


def test_a_universal_state_of_another_size(tmp_path: Path) -> None:
    folder = deepspeeds.universal(saved(3), tmp_path / "run")
    torch.save(torch.zeros(8), folder / f"{TAG}_universal/zero/up.bias/exp_avg.pt")
    with pytest.raises(
        CkptError, match=r"up\.bias/exp_avg\.pt holds 8 elements, its parameter has 9"
    ):
        opened(folder)


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    shutil.copy(folder / TAG / Z2.format(0), folder / TAG / f"bf16_{Z2.format(0)}")
    with pytest.raises(CkptError, match="two files for rank 0"):
        opened(folder)


def test_a_group_of_a_thousand_ranks_of_which_one_is_there(tmp_path: Path) -> None:
    made = saved(2)
    for each in made.states:
        each |= {
            "partition_count": [9_999, 9_999],
            "param_slice_mappings": None,
            "group_paddings": None,
        }
    found = opened(made.write(tmp_path / "run"))
    assert [notice.code for notice in found.account.notices] == ["incomplete"]


# --- `latest` and the folders ---------------------------------------------------------

POINTERS = {
    "../x": "which is not a plain name",
    "/etc": "which is not a plain name",
    "": "latest is empty: it names no folder",
    "..": "which is not a plain name",
    "a\0b": "which is not a plain name",
    "global_step9": (
        "names global_step9, which is not a folder here (the folder holds global_step3)"
    ),
    "x" * 5_000: "latest is not the name of a folder",
    "\udcff": "latest is not the name of a folder",
}


@pytest.mark.parametrize("tag", POINTERS, ids=range(len(POINTERS)))
def test_a_pointer_that_leads_elsewhere(tag: str, tmp_path: Path) -> None:
    made = saved(1)
    (tmp_path / "x").mkdir()
    folder = made.write(tmp_path / "run")
    (folder / "latest").write_bytes(tag.encode("utf-8", "surrogateescape"))
    with pytest.raises(CkptError) as caught:
        opened(folder)
    assert POINTERS[tag] in str(caught.value)
    (line,) = inside("inspect", "run", cwd=tmp_path).complaints
    assert line.startswith("ckpt: run: ")


def test_no_pointer(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 1)
    os.remove(folder / "latest")
    with pytest.raises(
        CkptError, match=r"the save was interrupted \(name a tag: .*global_step3\)"
    ):
        opened(folder)


@pytest.mark.parametrize("what", ["latest", TAG, f"{TAG}/{Z2.format(0)}"])
def test_links_are_not_followed(what: str, tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 1)
    os.rename(folder / what, tmp_path / "elsewhere")
    (folder / what).symlink_to(tmp_path / "elsewhere")
    if what.endswith(".pt"):
        found = opened(folder)
        assert [notice.code for notice in found.account.notices] == [
            "damaged-file",
            "incomplete",
        ]
        assert found.account.unread == (
            *found.account.left_out,
            (UNREAD, found.account.notices[0].message),
        )
        done = inside("sum", "run", "--all", "--json", cwd=tmp_path)
        assert done.code == 2 and json.loads(done.out)["unread"][-1] == {
            "name": "(unread)",
            "why": found.account.notices[0].message,
        }
    else:
        with pytest.raises(CkptError):
            opened(folder)


@pytest.mark.parametrize(
    "what", ["latest", f"{TAG}/{Z2.format(0)}", f"{TAG}/mp_rank_00_model_states.pt"]
)
def test_a_pipe_does_not_hang(what: str, tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 1)
    os.remove(folder / what)
    os.mkfifo(folder / what)
    with pytest.raises(CkptError, match="regular"):
        opened(folder)


def test_a_link_below_a_universal_checkpoint(tmp_path: Path) -> None:
    folder = deepspeeds.universal(saved(2), tmp_path / "run")
    below = folder / f"{TAG}_universal" / "zero"
    os.rename(below / "scale", tmp_path / "scale")
    (below / "scale").symlink_to(tmp_path / "scale")
    with pytest.raises(CkptError, match="scale"):
        opened(folder)


# --- pickles --------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["mp_rank_00_model_states.pt", Z2.format(1)])
def test_a_call_in_a_file_is_not_made(file: str, tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 1)
    add_call(folder / TAG / file)
    found = opened(folder)
    assert any(row.group == "called" for row in found.imports)
    done = inside("inspect", "run", cwd=tmp_path)
    assert done.out.decode().lstrip().startswith(f"DANGER  loading {file} runs ")
    assert not hostile.CANARY.exists()


def add_call(path: Path) -> None:
    """Put a call beside everything that a file holds."""

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (hostile.COMMAND,)

    with deepspeeds.standing_in():
        state = torch.load(path, weights_only=False)
        state["payload"] = Payload()
        if "optimizer_state_dict" in state:
            state["optimizer_state_dict"]["payload"] = state.pop("payload")
        torch.save(state, path)


@pytest.mark.parametrize("file", ["mp_rank_00_model_states.pt", Z2.format(1)])
def test_a_flipped_bit_is_found(file: str, tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    path = folder / TAG / file
    data = bytearray(path.read_bytes())
    with formats.open(str(path)) as single:
        place = single.storages[-1].place
        assert isinstance(place, Range)
        data[place.offset] ^= 1
    path.write_bytes(data)
    done = inside("verify", "run", cwd=tmp_path)
    assert done.code == 1 and f"{TAG}/{file}: record " in done.out.decode()
    assert inside("verify", "run", "--quick", cwd=tmp_path).code == 0


def test_an_empty_file_and_one_of_zeros(tmp_path: Path) -> None:
    for number, data in enumerate((b"", bytes(5_000), torch_zip(b"N."))):
        folder = deepspeeds.write(tmp_path / str(number), 1)
        (folder / TAG / "mp_rank_00_model_states.pt").write_bytes(data)
        with pytest.raises(CkptError):
            opened(folder)


def test_ls_and_lint_give_one_row(tmp_path: Path) -> None:
    deepspeeds.write(tmp_path / "runs" / "a", 2)
    bad = deepspeeds.write(tmp_path / "runs" / "b", 3)
    (bad / "latest").write_text("../x")
    done = inside("ls", "runs", "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.out.splitlines()]
    paths = [row["path"] for row in rows if row["schema"]["name"] == "ckpt.ls"]
    assert paths == ["runs/a", "runs/b", f"runs/b/{TAG}"]
    assert (
        inside("lint", "runs/a", "-q", cwd=tmp_path).code == 1
    )  # weights_only refuses DeepSpeed's own classes


def test_files_are_limited(tmp_path: Path) -> None:
    folder = deepspeeds.write(tmp_path / "run", 3, 5)
    with (
        pytest.raises(CkptError, match=r"ckpt\.Limits\(shards="),
        formats.open(str(folder), Limits(shards=9)),
    ):
        pass


def test_groups_of_an_optimizer_that_are_none(tmp_path: Path) -> None:
    made = saved(2)
    state(made, 0)["base_optimizer_state"]["param_groups"] = [
        [1, 2],
        {"params": [0, 7, "x"]},
    ]
    with ckpt.open(made.write(tmp_path / "run")) as checkpoint:
        assert checkpoint.value("optimizer.param_groups") == [
            [1, 2],
            {"params": ["emb.weight", "up.weight", "unused.weight"]},
        ]


# --- anything in place of anything ----------------------------------------------------

ODD: list[Any] = [
    None,
    True,
    -1,
    2**40,
    10**400,
    1.5,
    "",
    "x",
    b"\xff",
    [],
    {},
    [[]],
    {"a": 1},
    {1: {}},
    torch.zeros(0),
    torch.zeros(3, 2),
    torch.tensor(1),
    torch.zeros(50)[::2],
    torch.zeros(7, dtype=torch.int8),
    torch.eye(3).to_sparse(),
    torch.zeros(3, device="meta"),
    torch.Size([2, 2]),
]


def places(node: Any, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The paths of everything in a tree."""
    rows: list[tuple[object, ...]] = []
    pairs = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if type(node) is list
        else ()
    )
    for key, child in pairs:
        rows += [(*path, key), *places(child, (*path, key))]
    return rows


def put(root: Any, path: tuple[object, ...], value: object) -> None:
    for key in path[:-1]:
        root = root[key]
    root[path[-1]] = value


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_any_value_in_any_place(stage: int, tmp_path: Path) -> None:
    """It opens, or there is one error that says what is wrong; `inspect` prints what
    opens.
    """
    random = Random(stage)
    made = saved(stage)
    folder = made.write(tmp_path / "run")
    opens = 0
    for _ in range(150):
        name, state = random.choice([*made.models.items(), *made.optimizers.items()])
        with deepspeeds.standing_in():
            changed = copy.deepcopy(state)
            path = random.choice(places(changed))
            put(changed, path, random.choice(ODD))
            before = (folder / TAG / name).read_bytes()
            torch.save(changed, folder / TAG / name)
        try:
            with formats.open(str(folder)) as checkpoint:
                lines = inspect_lines(inspect(Survey(checkpoint)))
                verify.judge_structure(checkpoint)
            assert lines
            opens += 1
        except CkptError as error:
            assert len(str(error)) < 2_000
        (folder / TAG / name).write_bytes(before)
    assert 20 < opens < 149


def test_one_rank_is_a_rank_and_several_are_ranks() -> None:
    assert [ranks_text(range(count), 4) for count in (1, 2, 6)] == [
        "rank 0",
        "ranks 0, 1",
        "ranks 0, 1, 2, 3 and 2 more",
    ]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_weights_that_are_lost_with_a_file_are_missed(
    stage: int, tmp_path: Path
) -> None:
    """sum gave 6 of 10 sums, exit code 0, and not a word; what is left then verified as
    intact.
    """
    folder = deepspeeds.write(tmp_path / "run", stage)
    deepspeeds.write(tmp_path / "other", stage)
    for command in ("sum", "stats"):
        assert inside(command, "run", "-q", cwd=tmp_path).code == 0
    for file in folder.glob(f"{TAG}/*pp_rank_0_*optim_states.pt"):
        file.unlink()

    for command, what in (("sum", "read"), ("stats", "measured")):
        done = inside(command, "run", cwd=tmp_path)
        assert done.code == 2 and done.complaints[-1].startswith(
            f"ckpt: run: not {what}: emb.weight, "
        ), done
        assert inside(command, "run", "-q", cwd=tmp_path).code == 2
        is_whole = stage < 3  # every file of stage 3 has a part of the 16-bit weights
        if is_whole:
            assert (
                inside(command, "run", "--section", "module", "-q", cwd=tmp_path).code
                == 0
            )
    (tmp_path / "sums").write_bytes(inside("sum", "run", cwd=tmp_path).out)
    done = inside("verify", "run", "--sums", "sums", cwd=tmp_path)
    assert done.code == 1 and done.lines[0].startswith(
        "run: damaged: the optimizer states of rank 0"
    ), done
    assert " tensors are whole, lost: emb.weight, " in done.lines[0]
    for given, into in (("run", "other"), ("other", "run")):
        done = inside("warmstart", given, "--into", into, "-o", "w.pth", cwd=tmp_path)
        assert done.code == 2 and done.complaints[-1].startswith(
            "ckpt: run: the optimizer states"
        ), done
    done = inside("diff", "run", "run", cwd=tmp_path)
    assert done.code == 2 and any(
        "emb.weight" in line and line.endswith("(in run)") for line in done.lines
    )


@pytest.mark.parametrize(
    "view",
    ["--tsv", "--values", "--storages", "--imports", "--bars", "--table=github", None],
)
def test_a_view_without_findings_says_what_is_lost(
    view: str | None, tmp_path: Path
) -> None:
    folder = deepspeeds.write(tmp_path / "run", 2)
    (folder / TAG / Z2.format(0)).unlink()
    done = inside("inspect", "run", *([view] if view else []), cwd=tmp_path)
    line = (
        "ckpt: run: the optimizer states of rank 0 of 2 are missing: the fp32 weights "
        "of 3 of 5 parameters are lost"
    )
    assert done.code == 0 and [each[: len(line)] for each in done.complaints] == (
        [line] if view else []
    ), done

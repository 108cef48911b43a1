"""Archives of libraries: Stable-Baselines3's zip and NeMo's tar, read where their
members lie.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import pickle
import tarfile
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from inside import inside
from opcodes import binary, build, call, glob, mapping, newobj, none, pickled, value
from process import check_error, ckpt
from torch import nn

from ckpt import formats
from ckpt.bytes.source import File
from ckpt.evidence.survey import Survey
from ckpt.model.errors import CkptError, LimitError
from ckpt.model.limits import Limits
from ckpt.model.places import Range
from ckpt.model.tensors import TensorRef


def packed(content: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def agent() -> tuple[nn.Module, torch.optim.Optimizer]:
    policy = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(policy.parameters())
    policy(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    return policy, optimizer


def write_agent(
    path: Path, compression: int = zipfile.ZIP_STORED, **more: bytes
) -> dict[str, Any]:
    """What `save_to_zip_file` of Stable-Baselines3 writes: the members in its order,
    streamed into the zip.
    """
    policy, optimizer = agent()
    saved = {
        "pytorch_variables": {},
        "policy": policy.state_dict(),
        "policy.optimizer": optimizer.state_dict(),
    }
    data = {
        "space": {
            ":type:": "<class 'x.Box'>",
            ":serialized:": b64encode(pickle.dumps(1)).decode(),
            "low": "[0]",
        },
        "gamma": 0.99,
    }
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(
            "data", json.dumps(data | {"seed": None, "net_arch": [64, 64]})
        )
        for name, content in saved.items():
            with archive.open(f"{name}.pth", "w", force_zip64=True) as file:
                torch.save(content, file)
        archive.writestr("_stable_baselines3_version", "2.9.2")
        archive.writestr("system_info.txt", "- OS: Linux\n")
        for name, content in more.items():
            archive.writestr(name.replace("__", "."), content)
    return saved


def write_nemo(
    path: Path, content: Any, format: int = tarfile.GNU_FORMAT, mode: str = "w:"
) -> None:
    """What NeMo writes: `tar.add(folder, arcname=".")`."""
    folder = path.parent / "unpacked"
    folder.mkdir()
    (folder / "model_config.yaml").write_text("target: asr\nencoder:\n  d_model: 4\n")
    torch.save(content, folder / "model_weights.ckpt")
    with tarfile.open(str(path), mode, format=format) as archive:  # type: ignore[call-overload]
        archive.add(folder, arcname=".")


def test_each_member_is_a_part_under_its_key(tmp_path: Path) -> None:
    path = tmp_path / "ppo.zip"
    saved = write_agent(path)
    with formats.open(str(path)) as checkpoint:
        survey = Survey(checkpoint)
        assert (checkpoint.format, checkpoint.weights_only) == ("archive", None)
        assert checkpoint.traits.label == "Stable-Baselines3"
        assert checkpoint.parts == (
            "policy.pth",
            "pytorch_variables.pth",
            "policy.optimizer.pth",
        )
        assert {(row.name, row.kind) for row in survey.sections if row.tensors} == {
            ("policy", "model"),
            ("policy.optimizer", "optimizer"),
        }
        assert [
            (match.model and match.model.name, match.indices)
            for match in survey.matches
        ] == [("policy", (0, 1, 2, 3))]
        names = {entry.path: entry.name for entry in checkpoint.tensors}
        assert names["policy", "0.weight"] == "policy.0.weight"
        assert (
            names["policy.optimizer", "state", 0, "exp_avg"]
            == "policy.optimizer.state.0.exp_avg"
        )
        values = {row.name: row.node for row in checkpoint.values}
        assert (
            values["data.space"] == "<class 'x.Box'>"
        )  # what was pickled is not unpickled
        assert (values["data.gamma"], values["data.seed"], values["data.net_arch"]) == (
            0.99,
            None,
            [64, 64],
        )
        assert values["_stable_baselines3_version"] == "2.9.2"
        assert values["system_info"] == "- OS: Linux\n"
        roles = [(role.role, role.trust) for role in survey.roles[:4]]
        assert roles == [("parameter", "strong")] * 4
    assert set(saved["policy"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_values_are_those_of_torch(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "ppo.zip"
    saved = write_agent(path, compression)
    assert ckpt("convert", path, "-o", tmp_path / "all.pth").code == 0
    loaded = torch.load(tmp_path / "all.pth", weights_only=True)
    torch.testing.assert_close(loaded["policy"], dict(saved["policy"]), rtol=0, atol=0)
    state = loaded["policy.optimizer"]["state"]
    torch.testing.assert_close(
        state, saved["policy.optimizer"]["state"], rtol=0, atol=0
    )
    assert loaded["data"]["net_arch"] == [64, 64]
    assert (
        "all of 3 members read, all checksums match"
        in ckpt("verify", path).out.decode()
    )


def test_stored_members_are_ranges_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.zip"
    state = {f"layers.{i}.weight": torch.full((100_000,), float(i)) for i in range(20)}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", packed(state))
    with formats.open(str(path)) as checkpoint:
        first = checkpoint.tensors[0].tensor
        assert isinstance(first, TensorRef)
        place = first.storage.place
        assert isinstance(place, Range)
        assert isinstance(
            place.source, File
        )  # so that the kernel copies it, and any process can read it
        assert place.source.bytes_read < 40_000
        assert checkpoint.sources == (place.source,)


@pytest.mark.parametrize(
    "format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_nemo(tmp_path: Path, format: int) -> None:
    policy, _ = agent()
    path = tmp_path / "asr.nemo"
    write_nemo(path, policy.state_dict(), format)
    with formats.open(str(path)) as checkpoint:
        assert checkpoint.traits.label == "NeMo"
        assert [entry.name for entry in checkpoint.tensors][:1] == [
            "model_weights.0.weight"
        ]
        assert {row.name: row.node for row in checkpoint.values} == {
            "model_config": "target: asr\nencoder:\n  d_model: 4\n"
        }
    assert ckpt("slim", path, "-o", tmp_path / "slim.pth").code == 0
    torch.testing.assert_close(
        torch.load(tmp_path / "slim.pth"), dict(policy.state_dict()), rtol=0, atol=0
    )
    assert "intact" in ckpt("verify", path).out.decode()


def test_a_compressed_nemo_names_the_command_that_unpacks_it(tmp_path: Path) -> None:
    write_nemo(tmp_path / "asr.nemo", agent()[0].state_dict(), mode="w:gz")
    done = ckpt("inspect", "asr.nemo", cwd=tmp_path)
    check_error(
        done, "asr.nemo: compressed with gzip (gunzip -c asr.nemo > asr.unpacked.nemo)"
    )


@pytest.mark.filterwarnings(
    "ignore:Exception ignored"
)  # a file that the expression leaves open
@pytest.mark.parametrize("kind", ["zip", "nemo", "deeper"])
def test_the_load_line_works(tmp_path: Path, kind: str) -> None:
    policy, optimizer = agent()
    path = tmp_path / ("m.nemo" if kind == "nemo" else "m.zip")
    if kind == "nemo":
        write_nemo(path, policy.state_dict())
    elif kind == "zip":
        write_agent(path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", "{}")
            saved = {"model": policy.state_dict(), "optimizer": optimizer.state_dict()}
            archive.writestr("policy.pth", packed(saved))
    with formats.open(str(path)) as checkpoint:
        load = Survey(checkpoint).load
    assert load.expression is not None
    assert load.note == ("import tarfile" if kind == "nemo" else "import zipfile")
    loaded = eval(
        load.expression, {"torch": torch, "zipfile": zipfile, "tarfile": tarfile}
    )
    assert set(loaded) == set(policy.state_dict())


def test_what_weights_only_refuses_is_said(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", packed({"w": torch.ones(2), "path": Path("x")}))
    with formats.open(str(tmp_path / "m.zip")) as checkpoint:
        load = Survey(checkpoint).load
    assert load.expression is not None
    assert "weights_only=False" in load.expression
    assert load.note is not None
    assert load.note.startswith("import zipfile; weights_only=True refuses pathlib")


def test_diff_of_two_agents_compares_part_with_part(tmp_path: Path) -> None:
    write_agent(tmp_path / "a.zip")
    write_agent(tmp_path / "b.zip")
    done = ckpt("diff", "a.zip", "b.zip", cwd=tmp_path)
    assert (done.code, b"16 tensors each" in done.out) == (1, True)
    assert ckpt("diff", "a.zip", "a.zip", cwd=tmp_path).code == 0
    assert ckpt("slim", "a.zip", "-o", "a.pth", cwd=tmp_path).code == 0
    assert ckpt("diff", "a.zip", "a.pth", cwd=tmp_path).code == 0
    for command in ("sum", "stats", "lint"):
        assert ckpt(command, "a.zip", cwd=tmp_path).code == 0
    assert ckpt("get", "a.zip", "data.gamma", cwd=tmp_path).out == b"0.99\n"


def test_an_archive_is_never_rewritten(tmp_path: Path) -> None:
    write_agent(tmp_path / "a.zip")
    before = (tmp_path / "a.zip").read_bytes()
    done = ckpt("strip", "a.zip", cwd=tmp_path)
    check_error(done, "a.zip: where to write? (-o a.stripped.pth)")
    done = ckpt("rename", "a.zip", "--sub", "s/0/first/", "--in-place", cwd=tmp_path)
    check_error(done, "a.zip: archive files cannot be changed in place (-o out)")
    assert (
        ckpt(
            "rename", "a.zip", "--sub", "s/^0/first/", "-o", "b.pth", cwd=tmp_path
        ).code
        == 0
    )
    assert "first.weight" in torch.load(tmp_path / "b.pth")["policy"]
    assert (tmp_path / "a.zip").read_bytes() == before


def test_verify_names_a_damaged_member(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write_agent(path)
    data = path.read_bytes()
    at = data.index(b"- OS: Linux")
    path.write_bytes(data[:at] + b"+" + data[at + 1 :])
    done = ckpt("verify", path)
    assert (done.code, b"member system_info.txt is damaged" in done.out) == (1, True)


def test_a_member_that_inflates_too_far_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", bytes(30_000_000))
    with pytest.raises(LimitError, match="inflate too far"):
        formats.open(str(path))
    with pytest.raises(LimitError, match="inflates to 30,000,000 bytes"):
        formats.open(str(path), Limits(pickle_bytes=1_000_000))


def test_several_checkpoints_in_an_unknown_zip_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "several.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a.pth", "b.pth"):
            archive.writestr(name, packed({"w": torch.ones(2)}))
    with pytest.raises(CkptError, match="a zip archive of checkpoints"):
        formats.open(str(path))


def test_a_part_never_takes_the_name_of_another(tmp_path: Path) -> None:
    for name in ("data.pth", "sub/policy.pth", "_stable_baselines3_version.pth"):
        path = tmp_path / "twice.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", "{}")
            archive.writestr("_stable_baselines3_version", "1")
            archive.writestr("policy.pth", packed({"w": torch.ones(2)}))
            archive.writestr(name, packed({"w": torch.ones(2)}))
        with pytest.raises(CkptError, match=r"twice|not a plain name"):
            formats.open(str(path))


def with_objects(*things: Any) -> dict[str, Any]:
    return {
        str(number): {":type:": "x", ":serialized:": b64encode(thing).decode()}
        for number, thing in enumerate(things)
    }


def notice_of(path: Path, *things: bytes) -> tuple[str, str] | None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(with_objects(*things)))
        archive.writestr("policy.pth", packed(agent()[0].state_dict()))
    with formats.open(str(path)) as checkpoint:
        (row,) = checkpoint.account.notices or (None,)
        return row and (row.code, row.message)


def test_pickles_in_json_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "ppo.zip"
    state = {"low": np.zeros(3, np.float32), "counts": collections.deque([1], 5)}
    assert notice_of(path, pickle.dumps(state), pickle.dumps(torch.nn.Tanh)) is None
    schedule = cloudpickle.dumps(lambda progress: progress * 0.1)
    code, message = notice_of(path, pickle.dumps(1), schedule) or ("", "")
    assert code == "pickles-inside" and "data holds 2 pickles" in message
    assert "cloudpickle.cloudpickle._make_function" in message
    assert (notice_of(path, pickled(glob("shop", "Box"))) or [""])[
        0
    ] == "pickles-inside"
    system = pickled(call(glob("posix", "system"), "true"))
    assert notice_of(path, schedule, system) == (
        "code-inside",
        "DANGER: who unpickles the objects in data calls posix.system('true').",
    )
    made = schedule[:-1] + b")R."  # calls the function that it made
    reduced = pickled(
        call(glob("functools", "reduce"), glob("builtins", "exec"), ["x=1", {}])
    )
    for run in (
        made,
        reduced,
        pickled(call(glob("cloudpickle.cloudpickle", "subimport"), "os")),
    ):
        assert (notice_of(path, run, schedule) or [""])[0] == "code-inside", (
            "a later pickle hid it"
        )
    for damaged in (system[:-1], b"", b"PK\3\4", packed({"w": torch.ones(2)})):
        assert (notice_of(path, damaged) or [""])[0] == "code-inside"


def test_a_function_of_the_file_takes_no_state_and_no_items(tmp_path: Path) -> None:
    """Both look an attribute up on the function, and call it."""
    made = cloudpickle.dumps(lambda state: state)[:-1]
    for end in (b"}b.", b"K\x05a.", b"(K\x05e."):
        assert (notice_of(tmp_path / "ppo.zip", made + end) or [""])[
            0
        ] == "code-inside", end


def test_a_function_that_is_not_of_the_file_is_not_changed(tmp_path: Path) -> None:
    """cloudpickle sets the code of any function that it is given."""
    honest = cloudpickle.dumps(lambda state: state)
    assert (notice_of(tmp_path / "ppo.zip", honest) or [""])[0] == "pickles-inside"
    state = ({}, {"__globals__": {}, "__closure__": none(), "__doc__": "x"})
    for function in (
        glob("torch.serialization", "_get_layout"),
        glob("cloudpickle.cloudpickle", "_make_function"),
        call(glob("cloudpickle.cloudpickle", "_make_empty_cell")),
    ):
        change = call(
            glob("cloudpickle.cloudpickle", "_function_setstate"), function, state
        )
        assert (notice_of(tmp_path / "ppo.zip", pickled(change)) or [""])[
            0
        ] == "code-inside"


def test_an_object_of_the_library_with_a_raw_state_is_an_import(
    tmp_path: Path,
) -> None:
    """The state of this class is unpickled."""
    path = tmp_path / "ppo.zip"
    name = "stable_baselines3.common.vec_env.base_vec_env"
    for state, count in ((mapping([("var", 1)]), 0), (binary(b"x"), 1)):
        made = glob(name, "CloudpickleWrapper") + value(()) + newobj() + state + build()
        notice_of(path, pickled(made))
        with formats.open(str(path)) as checkpoint:
            names = [row.name for row in checkpoint.imports]
        assert names.count("CloudpickleWrapper") == count


def test_calls_of_other_packages_in_json_are_findings(tmp_path: Path) -> None:
    path = tmp_path / "ppo.zip"
    for thing, code in (
        (pickled(call(glob("shop.parts", "evaluate"), "print()")), b"called-on-load"),
        (pickled(glob("shop.parts", "Box")), b"unknown-import"),
    ):
        notice_of(path, thing)
        assert code in inside("lint", "--level", "info", path, cwd=tmp_path).out


def test_pickles_in_json_that_are_no_base64(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("data", json.dumps({"x": {":serialized:": "a"}}))
        archive.writestr("policy.pth", packed({}))
    with pytest.raises(CkptError, match="no base64"):
        formats.open(str(tmp_path / "a.zip"))


@pytest.mark.parametrize("is_first", [True, False])
def test_weights_beside_a_member_that_torch_unpickles_are_refused(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.load takes the tar for one of torch 0.1, and unpickles this member before
    it asks for the others.
    """
    monkeypatch.chdir(tmp_path)
    members = [
        ("model_weights.ckpt", packed({"w": torch.ones(2)})),
        ("storages", pickled(call(glob("os", "mkdir"), "rung"))),
    ]
    path = tmp_path / "a.nemo"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members[::-1] if is_first else members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with contextlib.suppress(Exception):
        torch.load(path, weights_only=False)
    assert (tmp_path / "rung").exists()
    assert ckpt("lint", "--level", "error", path).code == 2

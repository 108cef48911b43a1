"""`ckpt strip` and `ckpt rename`: names change wherever they stand, and nothing else
does.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import oracle
import pytest
import rewriting
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import inside
from paths import many
from process import check_error, ckpt
from same import difference
from torch import nn

from ckpt import formats
from ckpt.commands.rename.rename import rename, substitution
from ckpt.commands.rewriting.report import RewriteReport
from ckpt.commands.strip.strip import strip
from ckpt.evidence.survey import Survey
from ckpt.evidence.wrappers import unwrapped_name
from ckpt.model.errors import CkptError, LossError, UsageError
from ckpt.model.limits import Limits
from ckpt.model.names import Globs

pytestmark = oracle.QUIET
SAMPLES = Path(__file__).resolve().parents[3] / "sample_checkpoints"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4, 2)


def stripped(thing: Any, tmp_path: Path, **options: Any) -> tuple[Any, RewriteReport]:
    source = rewriting.saved(thing, tmp_path / "a.pt")
    with formats.open(str(source)) as checkpoint:
        report = strip(Survey(checkpoint), Limits(), **options)
        rewriting.write(report.result, tmp_path / "b.pt")
    return rewriting.load(tmp_path / "b.pt"), report


def renamed(thing: Any, tmp_path: Path, *subs: str, **options: Any) -> Any:
    source = rewriting.saved(thing, tmp_path / "a.pt")
    with formats.open(str(source)) as checkpoint:
        report = rename(
            Survey(checkpoint), [substitution(sub) for sub in subs], Limits(), **options
        )
        rewriting.write(report.result, tmp_path / "b.pt")
    return rewriting.load(tmp_path / "b.pt")


def prefixed(state: Any, prefix: str) -> Any:
    """A state dict as a wrapper writes it: its own entries of `_metadata` before those
    of the model.
    """
    made = OrderedDict((prefix + key, value) for key, value in state.items())
    metadata: OrderedDict[str, Any] = OrderedDict()
    parts = prefix.rstrip(".").split(".")
    for depth in range(len(parts)):
        metadata[".".join(parts[:depth])] = {"version": 1}
    for key, value in state._metadata.items():
        metadata[f"{prefix}{key}".rstrip(".")] = value
    made._metadata = metadata  # type: ignore[attr-defined]
    return made


# --- strip ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "_orig_mod.",
        "_orig_mod.module.",
        "module._orig_mod.",
        "module.module.",
        "_fsdp_wrapped_module.",
        "_forward_module.module.",
    ],
)
def test_strip_undoes_a_wrapper(prefix: str, tmp_path: Path) -> None:
    state = Net().state_dict()

    found, report = stripped(prefixed(state, prefix), tmp_path)

    assert difference(state, found) is None, "order and _metadata as well"
    assert [(c.before, c.after, c.number) for c in report.changes] == [
        (f"{prefix}*", "*", len(state))
    ]
    Net().load_state_dict(found, strict=True)


def test_wrappers_of_torch_itself(tmp_path: Path) -> None:
    net = Net()
    for wrapped in (nn.DataParallel(net), nn.DataParallel(nn.DataParallel(net))):
        found, _ = stripped(wrapped.state_dict(), tmp_path)
        assert difference(net.state_dict(), found) is None
        assert (
            found._metadata["bn"] == {"version": 2}
            and found._metadata[""] == net.state_dict()._metadata[""]
        )


def test_wrappers_inside(tmp_path: Path) -> None:
    state = OrderedDict(
        [
            ("blocks.0._orig_mod.attn.weight", torch.ones(1)),
            ("blocks.1._checkpoint_wrapped_module.w", torch.ones(2)),
        ]
    )

    found, report = stripped(state, tmp_path)

    assert list(found) == ["blocks.0.attn.weight", "blocks.1.w"]
    assert [c.before for c in report.changes] == [
        "*._orig_mod.*",
        "*._checkpoint_wrapped_module.*",
    ]


def test_wrappers_with_a_module_between_them(tmp_path: Path) -> None:
    """The pattern matches the names that it stands for."""
    names = ["_fsdp_wrapped_module.0._checkpoint_wrapped_module.w", "a._orig_mod.b"]
    names.append("a._orig_mod.0._checkpoint_wrapped_module.w")
    state = OrderedDict((name, torch.ones(1)) for name in names)

    found, report = stripped(state, tmp_path)

    assert list(found) == ["0.w", "a.b", "a.0.w"]
    patterns = [change.before for change in report.changes]
    assert patterns == [
        "_fsdp_wrapped_module.*._checkpoint_wrapped_module.*",
        "*._orig_mod.*",
        "*._orig_mod.*._checkpoint_wrapped_module.*",
    ]
    assert all(fnmatch(name, patterns[i]) for i, name in enumerate(names))


def test_each_section_has_its_own_prefix(tmp_path: Path) -> None:
    state = Net().state_dict()
    thing = {
        "model": prefixed(state, "module."),
        "model_ema": prefixed(state, "_orig_mod."),
        "epoch": 3,
    }

    found, report = stripped(thing, tmp_path)

    assert list(found["model"]) == list(found["model_ema"]) == list(state)
    assert [(c.section, c.before) for c in report.changes] == [
        ("model", "module.*"),
        ("model_ema", "_orig_mod.*"),
    ]
    only, _ = stripped(thing, tmp_path, section="model")
    assert list(only["model_ema"]) == list(thing["model_ema"])  # type: ignore[call-overload]


def test_names_that_the_optimizer_keeps_follow(tmp_path: Path) -> None:
    net = nn.DataParallel(Net())
    optimizer = torch.optim.AdamW(net.named_parameters())
    names = list(optimizer.state_dict()["param_groups"][0]["param_names"])
    fsdp = {
        "state": {name: {"step": torch.tensor(1.0)} for name in names},
        "param_groups": [{"lr": 0.1, "params": names}],
    }
    thing = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "optim": fsdp,
    }

    found, _ = stripped(thing, tmp_path)

    plain = [name.removeprefix("module.") for name in names]
    assert found["optimizer"]["param_groups"][0]["param_names"] == plain
    assert found["optimizer"]["param_groups"][0]["params"] == list(range(len(names)))
    assert (
        list(found["optim"]["state"])
        == found["optim"]["param_groups"][0]["params"]
        == plain
    )


def test_only_some_names_have_it(tmp_path: Path) -> None:
    state = {
        "n_averaged": torch.tensor(3),
        "module.fc.weight": torch.ones(2, 2),
        "module.fc.bias": torch.ones(2),
    }

    found, report = stripped(state, tmp_path)

    assert list(found) == ["n_averaged", "fc.weight", "fc.bias"], "the order stays"
    assert report.changes[0].number == 2


def test_two_names_never_become_one(tmp_path: Path) -> None:
    state = {
        "module.c.weight": torch.ones(1),
        "c.weight": torch.zeros(1),
        "module.d.weight": torch.ones(1),
    }

    with pytest.raises(
        LossError,
        match=r"module\.c\.weight and c\.weight would both be called c\.weight",
    ):
        stripped(state, tmp_path)
    assert not (tmp_path / "b.pt").exists()


def test_values_beside_tensors_are_renamed_with_them(tmp_path: Path) -> None:
    state = {
        "module.fc.weight": torch.ones(1),
        "module.fc._extra_state": {"scale": 3},
        "module.fc.bias": torch.ones(1),
    }

    found, _ = stripped(state, tmp_path)

    assert list(found) == ["fc.weight", "fc._extra_state", "fc.bias"]


def test_a_given_prefix(tmp_path: Path) -> None:
    state = OrderedDict(
        [
            ("model.fc.weight", torch.ones(1)),
            ("model.model.weight", torch.ones(1)),
            ("head.weight", torch.ones(1)),
        ]
    )

    for prefix in ("model.", "model"):
        found, _ = stripped(state, tmp_path, prefix=prefix)
        assert list(found) == ["fc.weight", "model.weight", "head.weight"], "once"


def test_a_prefix_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="begins with modul") as caught:
        stripped(prefixed(Net().state_dict(), "module."), tmp_path, prefix="modul.")
    assert caught.value.hint == "they begin with module."


def test_nothing_to_strip_is_nothing_done(tmp_path: Path) -> None:
    source = rewriting.saved(Net().state_dict(), tmp_path / "a.pt")

    done = ckpt("strip", source, "--in-place")
    again = ckpt("strip", source, "-o", tmp_path / "b.pt")

    assert done.code == again.code == 0 and b"nothing to strip" in done.out
    assert source.read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_nothing_to_strip_keeps_every_byte_of_a_file_that_is_pickled_otherwise(
    tmp_path: Path,
) -> None:
    source = rewriting.saved(Net().state_dict(), tmp_path / "a.pt", pickle_protocol=4)

    assert ckpt("strip", source, "-o", tmp_path / "b.pt").code == 0
    assert (tmp_path / "b.pt").read_bytes() == source.read_bytes()


def test_nothing_to_strip_of_safetensors_with_ties_is_the_file_itself(
    tmp_path: Path,
) -> None:
    tied = torch.ones(3)
    source = rewriting.saved({"a.weight": tied, "b.weight": tied}, tmp_path / "a.pt")
    assert ckpt("convert", source, "-o", tmp_path / "a.safetensors").code == 0

    with formats.open(str(tmp_path / "a.safetensors")) as checkpoint:
        report = strip(Survey(checkpoint), Limits())

    assert report.result is checkpoint and report.changes == ()


def test_a_name_that_is_nothing_but_the_prefix_stays(tmp_path: Path) -> None:
    found, _ = stripped(
        {"model.": torch.ones(1), "model.w": torch.ones(2)}, tmp_path, prefix="model"
    )

    assert list(found) == ["model.", "w"]


def test_a_word_of_a_wrapper_that_stays_is_not_said_to_go(tmp_path: Path) -> None:
    found, report = stripped({"a.module.b._orig_mod.w": torch.ones(1)}, tmp_path)

    assert list(found) == ["a.module.b.w"]
    assert [change.before for change in report.changes] == ["*._orig_mod.*"]


def test_names_that_are_only_a_wrappers_word_stay(tmp_path: Path) -> None:
    state = {"module": torch.ones(1), "module.weight": torch.ones(2)}

    found, _ = stripped(state, tmp_path)

    assert list(found) == ["module", "weight"]


def test_whole_modules_come_out_of_their_wrapper(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    thing = {"model": nn.DataParallel(nn.DataParallel(net)), "epoch": 2}

    found, report = stripped(thing, tmp_path)

    assert (
        type(found["model"]) is nn.Sequential
        and difference(net, found["model"]) is None
    )
    assert [(c.kind, c.before, c.after) for c in report.changes] == [
        (
            "unwrapped",
            "torch.nn.parallel.data_parallel.DataParallel",
            "torch.nn.modules.container.Sequential",
        )
    ]


def test_safetensors_and_legacy(tmp_path: Path) -> None:
    state = {f"module.{name}": value for name, value in Net().state_dict().items()}
    safetensors.torch.save_file(
        state, tmp_path / "a.safetensors", {"format": "pt", "by": "me"}
    )
    torch.save(state, tmp_path / "a.pth", _use_new_zipfile_serialization=False)

    for name in ("a.safetensors", "a.pth"):
        assert ckpt("strip", tmp_path / name, "-o", tmp_path / f"b{name}").code == 0
        assert ckpt("strip", tmp_path / name, "--in-place").code == 0
        assert (tmp_path / name).read_bytes() == (tmp_path / f"b{name}").read_bytes()
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as opened:
        assert sorted(opened.keys()) == sorted(
            name.removeprefix("module.") for name in state
        )
        assert opened.metadata() == {"format": "pt", "by": "me"}
    assert list(torch.load(tmp_path / "a.pth")) == [
        name.removeprefix("module.") for name in state
    ]


def test_ties_that_safetensors_note_follow(tmp_path: Path) -> None:
    weight = torch.ones(4)
    torch.save(
        {"module.emb.weight": weight, "module.head.weight": weight}, tmp_path / "a.pth"
    )
    assert (
        ckpt("convert", tmp_path / "a.pth", "-o", tmp_path / "a.safetensors").code == 0
    )
    assert (
        ckpt("strip", tmp_path / "a.safetensors", "-o", tmp_path / "b.safetensors").code
        == 0
    )
    assert (
        ckpt("convert", tmp_path / "b.safetensors", "-o", tmp_path / "b.pth").code == 0
    )

    found = torch.load(tmp_path / "b.pth")

    assert list(found) == ["emb.weight", "head.weight"]
    assert found["emb.weight"].data_ptr() == found["head.weight"].data_ptr()


def test_python_2_state_dicts(tmp_path: Path) -> None:
    """OrderedDict([[key, value], …]): the items are an argument, the keys are byte
    strings.
    """
    data = (SAMPLES / "legacy_python2.pth").read_bytes()
    (tmp_path / "a.pth").write_bytes(data)
    with formats.open(str(tmp_path / "a.pth")) as checkpoint:
        before = [entry.name for entry in checkpoint.tensors]
    leading = {name.rpartition(".")[0].partition(".")[0] for name in before}

    done = inside(
        "rename",
        "a.pth",
        "--sub",
        "s/^/new./",
        "-o",
        "b.pth",
        "--verify",
        "torch",
        cwd=tmp_path,
    )

    assert done.code == 0, done
    with formats.open(str(tmp_path / "b.pth")) as checkpoint:
        after = [entry.name for entry in checkpoint.tensors]
        assert checkpoint.encoding == "latin1", "still a file of Python 2"
    assert leading and [name.count("new.") for name in after] == [1] * len(before)


# --- _metadata ------------------------------------------------------------------------


def with_metadata(state: Any, metadata: Any) -> Any:
    """A state dict with another `_metadata`."""
    made = OrderedDict(state)
    made._metadata = metadata  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("is_last", [False, True])
def test_the_entry_of_the_model_replaces_that_of_its_wrapper(
    is_last: bool, tmp_path: Path
) -> None:
    rows = [
        ("", {"version": 7}),
        ("module", {"version": 1}),
        ("module.fc", {"version": 2}),
    ]
    metadata = OrderedDict(reversed(rows) if is_last else rows)

    found, _ = stripped(
        with_metadata({"module.fc.weight": torch.ones(2)}, metadata), tmp_path
    )

    assert dict(found._metadata) == {"": {"version": 1}, "fc": {"version": 2}}


@pytest.mark.parametrize(
    ("sub", "paths"),
    [
        ("s/^/net./", ["net", "net.fc", "net.fc.inner"]),
        (r"s/^fc\./head.0./", ["", "head.0", "head.0.inner"]),
        (r"s/fc\.(?=w|b)/x./", ["", "x", "fc.inner"]),
        (
            "s/weight$/lora.w/",
            ["", "fc", "fc.inner"],
        ),  # no module is renamed where the last part is
        ("s/bias/b/", ["", "fc", "fc.inner"]),
    ],
)
def test_modules_are_renamed_as_their_tensors_are(
    sub: str, paths: list[str], tmp_path: Path
) -> None:
    names = ["fc.weight", "fc.bias", "fc.inner.weight"]
    metadata = OrderedDict(
        (path, {"version": number})
        for number, path in enumerate(["", "fc", "fc.inner"])
    )
    state = with_metadata({name: torch.ones(2) for name in names}, metadata)

    found = renamed(state, tmp_path, sub)

    assert list(found) == [substitution(sub).apply(name) for name in names]
    assert list(found._metadata.items()) == [
        (path, {"version": at}) for at, path in enumerate(paths)
    ]
    assert type(found._metadata) is OrderedDict


def test_modules_of_a_dict_inside_of_a_model(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
    thing = {"model": {"a.weight": torch.ones(2), "enc": inner}, "epoch": 1}

    found = renamed(thing, tmp_path, r"s/^enc\.1\./enc.norm./")

    assert list(found["model"]["enc"])[2:4] == ["norm.weight", "norm.bias"]
    assert list(found["model"]["enc"]._metadata) == ["", "0", "norm"]
    assert found["model"]["enc"]._metadata["norm"] == {"version": 2}


@pytest.mark.parametrize(
    "metadata", [None, [1, 2], {"module.fc": {"version": 1}, 3: "x"}]
)
def test_a_metadata_of_another_kind(metadata: Any, tmp_path: Path) -> None:
    found, _ = stripped(
        with_metadata({"module.fc.weight": torch.ones(2)}, metadata), tmp_path
    )

    expected = (
        {"fc": {"version": 1}, 3: "x"} if isinstance(metadata, dict) else metadata
    )
    assert found._metadata == expected and list(found) == ["fc.weight"]


class ByArgument:
    """A state dict that is pickled as Python 2 does it: its items are an argument."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        items = [list(row) for row in self.state.items()]
        return OrderedDict, (items,), {"_metadata": self.state._metadata}


def test_the_metadata_of_a_state_dict_of_python_2(tmp_path: Path) -> None:
    state = prefixed(Net().state_dict(), "module.")

    found, _ = stripped(ByArgument(state), tmp_path)

    assert difference(Net().state_dict(), found) is not None, "other weights"
    assert list(found) == list(Net().state_dict()) and found._metadata["bn"] == {
        "version": 2
    }
    assert list(found._metadata) == list(Net().state_dict()._metadata)


def test_the_metadata_of_safetensors_keeps_its_keys(tmp_path: Path) -> None:
    safetensors.torch.save_file(
        {"meta.a": torch.ones(2)}, tmp_path / "a.safetensors", {"meta": "x", "a": "y"}
    )
    done = ckpt(
        "rename",
        tmp_path / "a.safetensors",
        "--sub",
        "s/a/o/g",
        "-o",
        tmp_path / "b.safetensors",
    )

    assert done.code == 0, done
    with safetensors.safe_open(tmp_path / "b.safetensors", "pt") as opened:
        assert list(opened.keys()) == ["meto.o"]
        assert opened.metadata() == {"meta": "x", "a": "y", "format": "pt"}


# --- what is beside a model -----------------------------------------------------------


def test_values_beside_a_model_at_the_root_keep_their_keys(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.ones(2)], 0.1).state_dict()
    thing = {
        "a.weight": torch.ones(2),
        "a.bias": torch.ones(2),
        "epoch": 3,
        "optimizer": optimizer,
    }

    found = renamed(thing, tmp_path, "s/^/net./")

    assert list(found) == ["net.a.weight", "net.a.bias", "epoch", "optimizer"]


def test_the_names_of_an_optimizer_stay_where_an_average_keeps_them(
    tmp_path: Path,
) -> None:
    model = {"module.a.weight": torch.ones(2), "module.a.bias": torch.zeros(2)}
    optimizer = {
        "state": {},
        "param_groups": [{"params": [0, 1], "param_names": list(model)}],
    }
    thing = {"model": dict(model), "model_ema": dict(model), "optimizer": optimizer}

    found, _ = stripped(thing, tmp_path, section="model")

    assert list(found["model"]) == ["a.weight", "a.bias"] and list(
        found["model_ema"]
    ) == list(model)
    assert found["optimizer"]["param_groups"][0]["param_names"] == list(model)


@pytest.mark.parametrize("own", ["_parameters", "_buffers"])
def test_a_wrapper_with_a_registered_tensor_of_its_own_stays(
    own: str, tmp_path: Path
) -> None:
    wrapper = nn.DataParallel(nn.Linear(2, 2))
    getattr(wrapper, own)["own"] = nn.Parameter(torch.ones(3))

    found, report = stripped(wrapper, tmp_path)

    assert type(found) is nn.DataParallel and report.changes == ()


def test_of_two_modules_the_wrapped_one_comes_out(tmp_path: Path) -> None:
    thing = {"model": nn.DataParallel(nn.Linear(2, 2)), "model_ema": nn.Linear(2, 2)}

    found, report = stripped(thing, tmp_path)

    assert type(found["model"]) is type(found["model_ema"]) is nn.Linear
    assert [(change.kind, change.section) for change in report.changes] == [
        ("unwrapped", "model")
    ]


def test_a_selection_of_tensors_unwraps_no_module(tmp_path: Path) -> None:
    wrapper = nn.DataParallel(nn.Linear(2, 2))

    found, report = stripped(wrapper, tmp_path, select=Globs(["*bias"], []))

    assert type(found) is nn.DataParallel and report.changes == ()


# --- rename ---------------------------------------------------------------------------


def test_rename_by_substitution(tmp_path: Path) -> None:
    state = Net().state_dict()

    found = renamed(state, tmp_path, "s/^conv\\./stem.0./", "s/^bn\\./stem.1./")

    assert list(found) == [
        name.replace("conv.", "stem.0.").replace("bn.", "stem.1.") for name in state
    ]
    assert found._metadata["stem.1"] == {"version": 2} and "bn" not in found._metadata
    assert list(found._metadata) == ["", "stem.0", "stem.1", "relu", "fc"]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("s/a/b/", "a.a", "b.a"),
        ("s/a/b/g", "a.a", "b.b"),
        ("s|a/b|c|", "xa/b", "xc"),
        ("s/a\\/b/c/", "xa/b", "xc"),
        (r"s/(\w+)\.(\d)/\2_\1/", "layer.3.w", "3_layer.w"),
        ("s,^,module.,", "w", "module.w"),
        (r"s#\.w$##", "a.w", "a"),
        ("s/a/b\\/c/", "xa", "xb/c"),
        ("s/(?i)conv/c/", "Conv.w", "c.w"),
        (
            "s|a\\|b|c|",
            "a|b",
            "c",
        ),  # a separator behind a backslash is that character and no more
        ("s.a\\.b.c\\.d.", "axb a.b", "axb c.d"),
    ],
)
def test_substitutions(text: str, name: str, expected: str) -> None:
    assert substitution(text).apply(name) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "s/a",
        "s/a/b",
        "a/b/c",
        "s/(/b/",
        "s/a/\\1/",
        "s/a/b/x",
        "s/a/b/c/",
        "sabac",
        "sxaxbx",
        "s1a1b1",
        "s\\a\\b\\",
    ],
)
def test_what_is_no_substitution(text: str) -> None:
    with pytest.raises(UsageError, match="sub="):
        substitution(text)


def test_rename_that_matches_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no name matches") as caught:
        renamed(Net().state_dict(), tmp_path, "s/encoder/x/")
    assert caught.value.hint == "names are like conv.weight, conv.bias, bn.weight"


def test_rename_refuses_a_collision_and_an_empty_name(tmp_path: Path) -> None:
    with pytest.raises(
        LossError, match=r"conv\.weight and bn\.weight would both be called weight"
    ):
        renamed(Net().state_dict(), tmp_path, r"s/^(conv|bn)\.//")
    with pytest.raises(CkptError):
        renamed(
            {"a.weight": torch.ones(1), "b.bias": torch.ones(1)}, tmp_path, "s/.*b.*//"
        )


def test_names_of_a_pickled_module_are_not_renamed(tmp_path: Path) -> None:
    with pytest.raises(CkptError, match="pickled module"):
        renamed(nn.Linear(2, 2), tmp_path, "s/weight/w/")


_NAMES = st.lists(
    st.lists(
        st.sampled_from(["module", "a", "b", "_orig_mod", "0", "weight"]),
        min_size=1,
        max_size=4,
    ).map(".".join),
    min_size=1,
    max_size=6,
    unique=True,
)


@given(_NAMES, st.sampled_from(["module.", "_orig_mod.", "_orig_mod.module."]))
@settings(max_examples=many(15, 60))
def test_strip_undoes_rename(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], prefix: str
) -> None:
    """What a rename puts in front, a strip takes away, unless two names meet."""
    folder = tmp_path_factory.mktemp("law")
    state = OrderedDict(
        (f"{name}.weight", torch.tensor([float(i)])) for i, name in enumerate(names)
    )
    wrapped = renamed(state, folder, f"s/^/{prefix}/")
    assert list(wrapped) == [prefix + name for name in state]

    plain = [unwrapped_name(name) for name in wrapped]
    if len(set(plain)) < len(plain):
        with pytest.raises(LossError):
            stripped(wrapped, folder)
    else:
        found, _ = stripped(wrapped, folder)
        assert list(found) == plain
        assert [value.item() for value in found.values()] == [
            float(i) for i in range(len(names))
        ]


def test_the_commands_lines(tmp_path: Path) -> None:
    source = rewriting.saved({"module.a.weight": torch.ones(1)}, tmp_path / "a.pt")

    check_error(
        ckpt("strip", "a.pt", cwd=tmp_path),
        "where to write? (-o a.stripped.pt, or --in-place)",
    )
    check_error(
        ckpt("rename", "a.pt", "--sub", "s/a/b/", cwd=tmp_path),
        "where to write? (-o a.renamed.pt, or --in-place)",
    )
    assert (
        ckpt("strip", source, "-o", tmp_path / "b.pt").lines[0]
        == "module.* → *   1 tensor"
    )
    assert (
        ckpt("rename", source, "--sub", "s/module/m/", "-o", tmp_path / "c.pt").lines[0]
        == "module.a.weight → m.a.weight"
    )


def test_one_section_of_several(tmp_path: Path) -> None:
    """The names that another model's optimizer keeps stay with that model."""
    nets = {
        name: nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
        for name in ("gen", "disc")
    }
    thing: dict[str, Any] = {name: net.state_dict() for name, net in nets.items()}
    thing["disc"] = OrderedDict(
        (f"module.d.{name[-6:]}", value) for name, value in thing["disc"].items()
    )
    for name in nets:
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1).state_dict()
        optimizer["param_groups"][0]["param_names"] = list(thing[name])
        thing[f"{name}_optimizer"] = optimizer

    found, _ = stripped(thing, tmp_path, section="gen")

    assert (
        list(found["gen"]) == found["gen_optimizer"]["param_groups"][0]["param_names"]
    )
    assert (
        list(found["disc"]) == found["disc_optimizer"]["param_groups"][0]["param_names"]
    )
    assert all(name.startswith("module.") for name in found["disc"])


def test_a_dict_that_lies_at_two_places(tmp_path: Path) -> None:
    shared = OrderedDict([("w.weight", torch.ones(2)), ("w.bias", torch.ones(2))])
    thing = {"model": {"a": shared, "b": shared}, "epoch": 1}

    with pytest.raises(CkptError, match="is used elsewhere too"):
        renamed(thing, tmp_path, r"s/^a\.w/a.v/")


def test_a_wrapper_with_tensors_of_its_own_stays(tmp_path: Path) -> None:
    wrapper = nn.DataParallel(nn.Linear(2, 2))
    wrapper.own = torch.ones(3)

    found, report = stripped(wrapper, tmp_path)

    assert (
        type(found) is nn.DataParallel
        and torch.equal(found.own, torch.ones(3))
        and report.changes == ()
    )


def test_names_of_an_optimizer_stay_where_another_model_keeps_them(
    tmp_path: Path,
) -> None:
    """Two models of the same names: nothing says whose the optimizer's are, so one of
    them keeps them right.
    """
    model = {"module.a.weight": torch.ones(2), "module.a.bias": torch.zeros(2)}
    optimizer = {
        "state": {},
        "param_groups": [{"params": [0, 1], "param_names": list(model)}],
    }
    thing = {
        "one": {"state_dict": dict(model)},
        "two": {"state_dict": dict(model)},
        "optimizer": optimizer,
    }

    found, _ = stripped(thing, tmp_path, section="one.state_dict")

    assert list(found["one"]["state_dict"]) == ["a.weight", "a.bias"]
    assert list(found["two"]["state_dict"]) == list(model)
    assert found["optimizer"]["param_groups"][0]["param_names"] == list(model)

    found, _ = stripped(thing, tmp_path)
    assert found["optimizer"]["param_groups"][0]["param_names"] == [
        "a.weight",
        "a.bias",
    ]


def test_names_that_change_alike_are_one_line(tmp_path: Path) -> None:
    names = [f"net.{layer}.attn.{part}" for layer in range(5) for part in "qkv"]
    torch.save({name: torch.ones(2) for name in names}, tmp_path / "a.pt")

    def said(*subs: str) -> list[str]:
        words = [word for sub in subs for word in ("--sub", sub)]
        done = inside("rename", "a.pt", *words, "--dry-run", cwd=tmp_path)
        assert done.code == 0, done
        return done.lines[:-1]

    assert said(r"s/^net\.//") == ["net.* → *   15 tensors"]
    assert said(r"s/attn/attention/") == ["*.attn.* → *.attention.*   15 tensors"]
    assert said(r"s/^net\.//", r"s/attn/a/") == [
        f"net.{layer}.attn.* → {layer}.a.*   3 tensors" for layer in range(5)
    ]
    assert said(r"s/\.q$/.query/") == [
        f"net.{layer}.attn.q → net.{layer}.attn.query" for layer in range(5)
    ]


def test_the_report_has_each_name_of_a_folded_line(tmp_path: Path) -> None:
    torch.save({f"a.{n}": torch.ones(2) for n in range(30)}, tmp_path / "a.pt")
    done = inside(
        "rename", "a.pt", "--sub", r"s/^a\./b./", "--dry-run", "--json", cwd=tmp_path
    )
    assert len(json.loads(done.out)["changes"]) == 30

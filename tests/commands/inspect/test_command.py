"""`ckpt inspect` as people and programs see it: whole screens at 80 columns, and every
other form.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from process import SAMPLES, ckpt, terminal

# What a person sees, 80 columns wide. A trailing blank never stands in a line.
SCREENS = {
    "train_cuda.pth": """\
train_cuda.pth   PyTorch zip · 80.3 KiB · 3.96 K parameters · float32
  saved on cuda:0, cuda:1 (step counters)
  loads      weights_only refuses argparse.Namespace at args. Make it plain:
             ckpt convert train_cuda.pth --plain -o train_cuda.plain.pth
             or, only if you trust its author, with weights_only=False:
  torch.load("train_cuda.pth", map_location="cpu", weights_only=False)["model"]
  model      46 tensors, 16.0 KiB, names begin with module.
  optimizer  Adam-like, 23 of 25 parameters have state, 30.4 KiB, 12 steps,
             lr 0.001
  also       scaler, scheduler (no tensors)
  values     epoch 12 · best_acc 0.7615 · args argparse.Namespace, 12 fields
             args.device = torch.device cuda:0: map_location does not change it

! prefix  all 46 names of model begin with module. (DataParallel or DDP).
          ckpt strip train_cuda.pth -o train_cuda.stripped.pth
! unused  If the optimizer got model.parameters(), module.aux_head.{weight,bias}
          (2 parameters) never had a gradient.
          Unless frozen, DDP stops: "Expected to have finished reduction".
! cuda    A bare torch.load puts 46.2 KiB on cuda:0 and 92 B on cuda:1.
          Each process opens a CUDA context (some hundred MiB). It needs 2 GPUs.
          ckpt rehome train_cuda.pth -o train_cuda.cpu.pth
! optimizer-heavy  The optimizer holds 30.4 KiB, the model 16.0 KiB.
          ckpt slim train_cuda.pth -o train_cuda.slim.pth

NAME                                     SHAPE         DTYPE     NUMEL      SIZE
model.module                                                    4.08 K  16.0 KiB
  conv1.weight                           [8, 3, 3, 3]  float32     216     864 B
  bn1.{weight,bias,running_mean,…}       [8]           float32      32     128 B
  bn1.num_batches_tracked                []            int64         1       8 B
  layers.0-2  ×3                                                3.65 K  14.3 KiB
    {conv1,conv2}.weight                 [8, 8, 3, 3]  float32  3.46 K  13.5 KiB
    bn1.{weight,bias,running_mean,…}     [8]           float32      96     384 B
    {bn1,bn2}.num_batches_tracked        []            int64         6      48 B
    bn2.{weight,bias,running_mean,…}     [8]           float32      96     384 B
  {fc,aux_head}.weight                   [10, 8]       float32     160     640 B
  {fc,aux_head}.bias                     [10]          float32      20      80 B
optimizer                                … 69 tensors           7.77 K  30.4 KiB
""",
    "llama_bf16.pth": """\
llama_bf16.pth   PyTorch zip · 63.4 KiB · 57 tensors · 21.1 K parameters
  bfloat16 · saved on cuda:0
  loads   safe: weights_only=True loads it
          torch.load("llama_bf16.pth", map_location="cpu")

! cuda  A bare torch.load puts 41.2 KiB on cuda:0.
        Each process opens a CUDA context (some hundred MiB).
        ckpt rehome llama_bf16.pth -o llama_bf16.cpu.pth

NAME                                         SHAPE      NUMEL      SIZE
model                                                  20.0 K  39.2 KiB
  embed_tokens.weight                        [64, 16]  1.02 K  2.00 KiB
  layers.0-5  ×6                                       19.0 K  37.1 KiB
    self_attn.{q,k,v,o}_proj.weight          [16, 16]  6.14 K  12.0 KiB
    mlp.{gate,up}_proj.weight                [44, 16]  8.45 K  16.5 KiB
    mlp.down_proj.weight                     [16, 44]  4.22 K  8.25 KiB
    {input,post_attention}_layernorm.weight  [16]         192     384 B
  norm.weight                                [16]          16      32 B
lm_head.weight                               [64, 16]  1.02 K  2.00 KiB
""",
    "hostile.pth": """\
DANGER  loading this file runs posix.system('echo ckpt-sample') (stored at
        version).
        For the weights alone:
        ckpt slim hostile.pth -o hostile.slim.pth
hostile.pth   PyTorch zip · 1.67 KiB · 1 tensor · 16 elements · float32
  saved on cpu
  loads   do not load it
  values  version posix.system('echo ckpt-sample')

! weights-only  weights_only=True refuses posix.system at version.

NAME    SHAPE   NUMEL  SIZE
weight  [4, 4]     16  64 B
""",
    "tied_and_bloated.pth": """\
tied_and_bloated.pth   PyTorch zip · 72.1 KiB · 9 tensors · 1.25 K parameters
  perhaps 128 more · float32 · saved on cpu
  loads   safe: weights_only=True loads it
          torch.load("tied_and_bloated.pth", map_location="cpu")

! bloat  63.0 KiB are stored that no tensor uses: queue in a storage of
         64.0 KiB.
         ckpt slim tied_and_bloated.pth -o tied_and_bloated.slim.pth
! tied   emb.weight = head.weight share their memory.

NAME                 SHAPE      NUMEL      SIZE
{emb,head}.weight    [64, 16]  2.05 K  8.00 KiB
queue                [4, 64]      256  1.00 KiB
lstm                              224     896 B
  weight_ih_l0       [16, 8]      128     512 B
  weight_hh_l0       [16, 4]       64     256 B
  bias_{ih,hh}_l0    [16]          32     128 B
window.{left,right}  [64]         128     512 B
""",
    "sharded": """\
sharded   Hugging Face model, 3 files · 11.2 KiB · 12 tensors
  2.57 K parameters · float32
  loads   safe: a format without code
          {k: v for shard in ["model-00001-of-00002.safetensors",
              "model-00002-of-00002.safetensors"] for k, v in
              safetensors.torch.load_file("sharded/" + shard).items()}
  values  architecture 'TinyEncoder' · config 4 values

NAME                  SHAPE      NUMEL      SIZE
classifier.bias       [5]            5      20 B
classifier.weight     [5, 24]      120     480 B
encoder                         2.45 K  9.56 KiB
  layer.0-3.bias      [24]          96     384 B
  layer.0-3.weight    [24, 24]  2.30 K  9.00 KiB
  norm.{bias,weight}  [24]          48     192 B
""",
    "whole_model.pth": """\
whole_model.pth   PyTorch zip · 9.45 KiB · 16 tensors · 410 parameters · float32
  saved on cpu
  loads   needs my_project.nets.Segmenter from the author's code
  values  module my_project.nets.Segmenter · training True · cells 8 values

! unknown-import  Loading this file imports my_project.nets.Segmenter, which
          ckpt does not know.
          ckpt inspect whole_model.pth --imports
! weights-only  weights_only=True refuses my_project.nets.Segmenter at the root
          and 5 more.
          ckpt convert whole_model.pth --plain -o whole_model.plain.pth
! list-modules  cells[0..1] (Linear) are not registered (2 modules, 4
          parameters).
          state_dict, .to(), the optimizer and DataParallel miss them. Use
          nn.ModuleList or nn.ModuleDict.

NAME                                      SHAPE         DTYPE    NUMEL      SIZE
scale                                     [8, 1, 1]     float32      8      32 B
mean                                      [3]           float32      3      12 B
grid (not persistent)                     [8]           float32      8      32 B
stem                                                               257  1.01 KiB
  0.weight                                [8, 3, 3, 3]  float32    216     864 B
  0.bias                                  [8]           float32      8      32 B
  1.{weight,bias,running_mean,…}          [8]           float32     32     128 B
  1.num_batches_tracked                   []            int64        1       8 B
head.weight                               [2, 8, 1, 1]  float32     16      64 B
head.bias                                 [2]           float32      2       8 B
cells.0-1.weight (unregistered)           [8, 8]        float32    128     512 B
cells.0-1.bias (unregistered)             [8]           float32     16      64 B
""",
}  # fmt: skip


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str) -> None:
    assert terminal("inspect", name, NO_COLOR="1") == SCREENS[name]


# Arguments -> what a pipe gets.
OUTPUTS = {
    "legacy.pth --tsv": """\
name	dtype	shape	device	bytes	role	storage
conv.weight	float32	8x3x3x3	cuda:0	864	parameter	94218604831040
conv.bias	float32	8	cuda:0	32	parameter	94218604831104
bn.weight	float32	8	cuda:0	32	parameter	94218604831168
bn.bias	float32	8	cuda:0	32	parameter	94218604831232
bn.running_mean	float32	8	cuda:0	32	buffer	94218604831296
bn.running_var	float32	8	cuda:0	32	buffer	94218604831360
bn.num_batches_tracked	int64	()	cuda:0	8	buffer	94218604831424
fc.weight	float32	10x288	cuda:0	11520	parameter	94218604831488
fc.bias	float32	10	cuda:0	40	parameter	94218604831552
""",
    "tied_and_bloated.pth --storages": """\
tied_and_bloated.pth   PyTorch zip · 72.1 KiB · 9 tensors · 1.25 K parameters · perhaps 128 more · float32 · saved on cpu

STORAGE  DEVICE  BYTES  USED  KIND         TENSORS
0        cpu      4096  4096  tied         emb.weight head.weight
1        cpu     65536  1024  own          queue
2        cpu       896   896  packed       lstm.weight_ih_l0 lstm.weight_hh_l0 lstm.bias_ih_l0 lstm.bias_hh_l0
3        cpu       384   384  overlapping  window.left window.right
""",
    "hostile.pth --imports": """\
DANGER  loading this file runs posix.system('echo ckpt-sample') (stored at version).
        For the weights alone:
        ckpt slim hostile.pth -o hostile.slim.pth
hostile.pth   PyTorch zip · 1.67 KiB · 1 tensor · 16 elements · float32 · saved on cpu

GROUP   NAME                             WEIGHTS_ONLY  WHERE    CALLS
called  posix.system                     refused       version  posix.system('echo ckpt-sample')
known   torch._utils._rebuild_tensor_v2
known   torch.FloatStorage
known   collections.OrderedDict
""",
    "train_cuda.pth --values --section scaler": """\
train_cuda.pth   PyTorch zip · 0 tensors selected

NAME                    TYPE   VALUE
scaler.scale            float  65536.0
scaler.growth_factor    float  2.0
scaler.backoff_factor   float  0.5
scaler.growth_interval  int    2000
scaler._growth_tracker  int    0
""",
    "weights.safetensors --table github --include bn.*": """\
| name                   | dtype   | shape   | device   | bytes   | role      | storage   |
|------------------------|---------|---------|----------|---------|-----------|-----------|
| bn.bias                | float32 | 8       |          | 32      | parameter | 0         |
| bn.num_batches_tracked | int64   | ()      |          | 8       | buffer    | 1         |
| bn.running_mean        | float32 | 8       |          | 32      | buffer    | 2         |
| bn.running_var         | float32 | 8       |          | 32      | buffer    | 3         |
| bn.weight              | float32 | 8       |          | 32      | parameter | 4         |
""",
    "tied_and_bloated.pth --all --include lstm* --exclude *hh*": """\
tied_and_bloated.pth   PyTorch zip · 2 tensors selected · 144 parameters · 576 B · float32 · saved on cpu
  loads   safe: weights_only=True loads it
          torch.load("tied_and_bloated.pth", map_location="cpu")

! bloat  63.0 KiB are stored that no tensor uses: queue in a storage of 64.0 KiB.
         ckpt slim tied_and_bloated.pth -o tied_and_bloated.slim.pth
! tied   emb.weight = head.weight share their memory.

NAME               SHAPE    NUMEL   SIZE
lstm.weight_ih_l0  [16, 8]    128  512 B
lstm.bias_ih_l0    [16]        16   64 B
""",
}  # fmt: skip


@pytest.mark.parametrize("arguments", OUTPUTS)
def test_output(arguments: str) -> None:
    done = ckpt("inspect", *arguments.split(), cwd=SAMPLES)

    assert (done.code, done.err) == (0, b"")
    assert done.out.decode() == OUTPUTS[arguments]


def opened(*options: str) -> list[str]:
    """The lines of the table of tensors in `train_cuda.pth`, without their columns."""
    lines = ckpt("inspect", "train_cuda.pth", *options, cwd=SAMPLES).lines
    start = next(number for number, line in enumerate(lines) if line.startswith("NAME"))
    table = lines[start + 1 :]
    return [re.split(r"(?<=\S)  ", line)[0] for line in table]


def test_depth_opens_and_shuts() -> None:
    assert opened("--depth", "0") == ["model.module", "optimizer"]
    assert (
        len(opened("--depth", "1"))
        < len(opened("--depth", "2"))
        <= len(opened("--depth", "9"))
    )
    assert "layers.0-2" in " ".join(opened("--depth", "1"))


def test_all_is_a_line_a_tensor() -> None:
    names = [
        line.partition("\t")[0]
        for line in ckpt("inspect", "train_cuda.pth", "--tsv", cwd=SAMPLES).lines
    ]

    assert opened("--all") == names[1:]
    assert len(names) == 116


def test_a_pipe_is_not_cut_and_not_coloured() -> None:
    seen = ckpt("inspect", "train_cuda.pth", cwd=SAMPLES, COLUMNS="40").out.decode()

    assert "\x1b" not in seen
    assert "  bn1.{weight,bias,running_mean,running_var}" in seen


def test_a_terminal_is_coloured_unless_asked_not_to_be() -> None:
    plain = terminal("inspect", "train_cuda.pth", NO_COLOR="1", FORCE_COLOR="1")
    coloured = terminal("inspect", "train_cuda.pth", TERM="xterm")

    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert "\x1b" not in terminal("inspect", "train_cuda.pth", TERM="dumb")
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    piped = ckpt("inspect", "train_cuda.pth", cwd=SAMPLES, FORCE_COLOR="1").out.decode()
    assert "\x1b[" in piped


@pytest.mark.parametrize("columns", [20, 60, 100, 200])
def test_tables_fit_the_terminal(columns: int) -> None:
    seen = terminal(
        "inspect", "train_cuda.pth", columns=columns, NO_COLOR="1"
    ).splitlines()
    if columns == 20:  # there are no rows left
        seen = terminal(
            "inspect", "train_cuda.pth", "--all", columns=columns, NO_COLOR="1"
        ).splitlines()
    start = next(number for number, line in enumerate(seen) if line.startswith("NAME"))
    table = [line for line in seen[start:] if "…" not in line[:2]]

    assert len({len(line) for line in table}) == 1
    assert len(table[0]) <= max(columns, 65)


def test_several_paths_are_told_apart() -> None:
    names = ("legacy.pth", "weights.safetensors")
    rows = [
        line.split("\t") for line in ckpt("inspect", *names, "--tsv", cwd=SAMPLES).lines
    ]
    documents = [
        json.loads(line)
        for line in ckpt("inspect", *names, "--json", cwd=SAMPLES).lines
    ]

    assert rows[0] == [
        "file",
        "name",
        "dtype",
        "shape",
        "device",
        "bytes",
        "role",
        "storage",
    ]
    assert [row[0] for row in rows[1:]] == ["legacy.pth"] * 9 + [
        "weights.safetensors"
    ] * 9
    assert [document["file"]["path"] for document in documents] == list(names)
    assert (
        "file\t"
        not in ckpt("inspect", *names, "--tsv", "--no-header", cwd=SAMPLES).out.decode()
    )


def test_json_is_one_document() -> None:
    document = json.loads(
        ckpt(
            "inspect", "train_cuda.pth", "--json", "--section", "model", cwd=SAMPLES
        ).out
    )

    assert document["schema"] == {"name": "ckpt.inspect", "version": 1}
    assert document["totals"]["tensors"] == len(document["tensors"]) == 46
    assert document["totals"]["devices"] == {"cuda:0": {"tensors": 46, "bytes": 16360}}
    assert document["prefixes"] == [
        {
            "prefix": "module.",
            "writer": "DataParallel or DDP",
            "section": "model",
            "tensors": 46,
            "of": 46,
        }
    ]
    assert document["load"].startswith('torch.load("train_cuda.pth"')


def test_raising_a_limit_lets_a_file_through() -> None:
    refused = ckpt(
        "inspect", "train_cuda.pth", "--limit", "operations=100", cwd=SAMPLES
    )
    line = refused.err.decode()

    assert refused.code == 2
    assert line.startswith("ckpt: train_cuda.pth: ")
    assert "--limit operations=N" in line
    assert (
        ckpt("inspect", "train_cuda.pth", "--limit", "operations=1M", cwd=SAMPLES).code
        == 0
    )


def test_the_state_of_an_optimizer_is_one_row_and_its_section_names_the_parameters() -> (
    None
):
    assert [name for name in opened() if name.startswith("optimizer")] == ["optimizer"]

    names = opened("--section", "optimizer", "--depth", "9")
    assert "  conv1.weight.exp_{avg,avg_sq}" in names
    assert not any("state" in name or "aux_head" in name for name in names)


def test_a_table_is_cut_to_the_rows_that_are_left() -> None:
    heights = {
        rows: terminal("inspect", "train_cuda.pth", rows=rows, NO_COLOR="1")
        for rows in (24, 30, 50)
    }

    assert heights[24].splitlines()[-1] == "… 115 tensors (--all, --depth N)"
    assert all(seen.count("\n") < rows for rows, seen in heights.items() if rows > 24)
    assert "optimizer-heavy" in heights[24]
    llama = terminal("inspect", "llama_bf16.pth", rows=14, NO_COLOR="1")
    assert llama.count("\n") < 14
    assert "more (--all, --depth N)" in llama


def test_a_long_name_leaves_the_numbers_where_they_are(tmp_path: Path) -> None:
    key = "a" * 205
    torch.save(
        {f"{key}.weight": torch.ones(3), "b.weight": torch.ones(4)},
        tmp_path / "long.pth",
    )

    lines = ckpt("inspect", "long.pth", cwd=tmp_path).lines
    table = lines[
        next(number for number, line in enumerate(lines) if line.startswith("NAME")) :
    ]
    assert max(map(len, table)) < 100
    assert key in ckpt("inspect", "long.pth", "--tsv", cwd=tmp_path).out.decode()


def test_parameters_without_a_gradient_are_counted_once(tmp_path: Path) -> None:
    net = torch.nn.ModuleDict(
        {name: torch.nn.Linear(4, 4) for name in ("used", "ctc", "gate")}
    )
    optimizer = torch.optim.Adam(net.parameters())
    net["used"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.save(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        tmp_path / "a.pt",
    )
    text = ckpt("inspect", "a.pt", cwd=tmp_path).out.decode()
    assert "{ctc,gate}.{weight,bias} ×4 never had a gradient" in text


def test_rows_of_long_names_keep_the_part_that_tells_them_apart(tmp_path: Path) -> None:
    """The names differ in their middle, and end with a part of half of the width."""
    stem = (
        "encoder.stage_of_a_very_long_name_for_a_layer.block_{:04}."
        "inner_projection_with_adapter_and_normalisation.submodule_number_weight"
    )
    content = {stem.format(number): torch.ones(1) for number in range(50)}
    torch.save(content, tmp_path / "a.pth")

    done = ckpt("inspect", "a.pth", "--all", cwd=tmp_path)
    rows = {line.split()[0] for line in done.lines if "number_weight" in line}

    assert len(rows) == len(content)
    assert "…block_0007…submodule_number_weight" in rows


def test_sections_of_long_names_are_told_apart(tmp_path: Path) -> None:
    """In a pipe and at each width: the name of a section is what --section takes."""
    whole = {}
    for part in ("student", "teacher"):
        label = f"training_state_of_the_generator_{part}_network_in_the_third_stage"
        whole[label] = {"model_state_dict": {"conv.weight": torch.ones(2, 2)}}
    torch.save(whole, tmp_path / "a.pth")

    piped = ckpt("inspect", "a.pth", cwd=tmp_path).lines
    narrow = terminal(
        "inspect", "a.pth", columns=80, cwd=tmp_path, TERM="dumb", NO_COLOR="1"
    )

    for label in whole:
        assert f"  {label}.model_state_dict" in piped
        assert label in narrow.replace("\r\n", "")
    assert piped.count("          model, 1 tensor, 16 B") == 2


def test_a_part_without_values_says_so(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "a.pth")
    done = ckpt("inspect", "a.pth", "--section", "model", "--values", cwd=tmp_path)
    assert done.lines[-1] == "no values here"
    done = ckpt("inspect", "a.pth", "--values", cwd=tmp_path)
    assert done.lines[-1].split() == ["epoch", "int", "3"]


def test_learning_rates_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    """Gaussian splatting has a group for each of its six tensors."""
    tensors = [torch.nn.Parameter(torch.ones(3)) for _ in range(6)]
    rates = [0.01 * (number + 1) for number in range(6)]
    groups = [
        {"params": [tensor], "lr": rate}
        for tensor, rate in zip(tensors, rates, strict=True)
    ]
    optimizer = torch.optim.Adam(groups)
    for tensor in tensors:
        tensor.grad = torch.ones(3)
    optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "a.pth")

    lines = ckpt("inspect", tmp_path / "a.pth").lines

    (line,) = (line for line in lines if "Adam-like" in line)
    assert line.endswith("lr 0.01, 0.02, 0.03, 0.04 and 2 more")

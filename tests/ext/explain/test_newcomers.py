"""Files and messages of people who come for the first time: parts that were saved each
by itself, a message about another file, and options that a file does not know.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import oracle
import process
import pytest
import torch
import torch.distributed.checkpoint as dcp
from answered import Answered
from inside import folder_of
from torch import Tensor, nn

pytestmark = [*oracle.QUIET, pytest.mark.slow]

State = dict[str, Tensor]


def refusal(missing: list[str], unexpected: list[str], rows: str = "") -> str:
    """The words of load_state_dict."""
    text = "RuntimeError: Error(s) in loading state_dict for Net:\n"
    for kind, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            listed = ", ".join(f'"{name}"' for name in names)
            text += f"\t{kind} key(s) in state_dict: {listed}. \n"
    return text + rows


def mismatches(state: State, model: State) -> str:
    return "".join(
        f"\tsize mismatch for {name}: copying a param with shape {state[name].shape} "
        f"from checkpoint, the shape in current model is {model[name].shape}.\n"
        for name in state
        if name in model and state[name].shape != model[name].shape
    )


def linear(place: str, outputs: int, inputs: int) -> State:
    return {
        f"{place}.weight": torch.randn(outputs, inputs),
        f"{place}.bias": torch.randn(outputs),
    }


def conv(place: str, outputs: int, inputs: int, kernel: int = 3) -> State:
    return {f"{place}.weight": torch.randn(outputs, inputs, kernel, kernel)}


# --- parts that were saved each by itself ---------------------------------------------


class Spotter(nn.Module):
    """A model of three networks."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.recognizer = nn.ModuleDict({"lstm_fc": nn.Linear(4, 6)})
        self.heads = nn.ModuleList([nn.ModuleDict({"score": nn.Conv2d(4, 1, 1)})])


def test_dict_of_state_dicts(tmp_path: Path) -> None:
    saved, model = Spotter(), Spotter()
    parts: dict[str, Any] = {
        "0": saved.shared.state_dict(),
        "1": saved.recognizer.state_dict(),
        "2": saved.heads[0].state_dict(),
        "3": {},
    }
    path = tmp_path / "model_best.pth.tar"
    torch.save({"epoch": 88, "state_dict": parts, "monitor_best": 0.1}, path)
    missing = [name for name in model.state_dict() if "num_batches" not in name]
    found = Answered(refusal(missing, list(parts)), path)
    assert "state_dict of this file is no state dict: it holds 4 parts" in found.said
    assert "is in this file" not in found.said and "Is it the file" not in found.said
    assert len(found.commands) == 3
    with folder_of(tmp_path):
        for command in found.commands:
            eval(command, {"torch": torch, "model": model})
    for name, value in saved.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_keys_beside_a_state_dict_are_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    inner = {"net": linear("fc", 4, 4), "step": 7}
    torch.save({"model": inner, "epoch": 2}, path)
    found = Answered(refusal(["fc.weight", "fc.bias"], ["net", "step"]), path)
    assert "each a state dict of its own" not in found.said


# --- a message about another file -----------------------------------------------------


def backbone(width: int) -> State:
    state = conv("conv1", width, 3, 7)
    for number in range(1, 5):
        state |= conv(f"layer{number}.0.conv2", width * number, width * number)
    return state


def test_message_of_the_weights_that_a_backbone_begins_with(tmp_path: Path) -> None:
    own, published = backbone(4), backbone(16)
    state = {f"backbone.{name}": value for name, value in own.items()}
    state |= linear("bbox_head.fc", 3, 16)
    path = tmp_path / "mv-3ddet.pth"
    torch.save({"meta": {"epoch": 12}, "state_dict": state}, path)
    text = "The model and loaded state dict do not match exactly\n\n"
    text += mismatches(published, own).replace("\t", "")
    found = Answered(text, path)
    assert "are in this file, below backbone, in the shapes of the model" in found.said
    assert "So it is about another file" in found.said
    assert "16 in the checkpoint" not in found.said
    # The file that the message is about gets the answer that it had.
    torch.save(published, tmp_path / "resnet.pth")
    other = Answered(text, tmp_path / "resnet.pth")
    assert "another file" not in other.said and "narrower" in other.said


def test_shapes_of_no_file_and_no_model(tmp_path: Path) -> None:
    # The file has neither of the two shapes, so no reason is of this file.
    torch.save(backbone(8), tmp_path / "a.pth")
    found = Answered(
        refusal([], [], mismatches(backbone(16), backbone(4))), tmp_path / "a.pth"
    )
    assert "Is it the file that was loaded?" in found.said
    assert "size" not in found.said.replace("another shape", "")


# --- sizes ----------------------------------------------------------------------------


def test_blocks_of_detectron2(tmp_path: Path) -> None:
    state: State = conv("backbone.bottom_up.stem.conv1", 8, 3, 7)
    rows = ""
    for number, width in enumerate((8, 16), 2):
        for block in range(2):
            place = f"backbone.bottom_up.res{number}.{block}"
            inputs = 4 * width if block else 2 * width
            state |= conv(f"{place}.conv1", width, inputs, 1)
            state |= conv(f"{place}.conv2", width, width)
            state |= conv(f"{place}.conv3", 4 * width, width, 1)
            rows += (
                f"WARNING:fvcore.common.checkpoint:Skip loading parameter "
                f"'{place}.conv1.weight' to the model due to incompatible shapes: "
                f"({width}, {inputs}, 1, 1) in the checkpoint but ({width}, {width}, "
                "3, 3) in the model! You might want to double check if this is "
                "expected.\n"
            )
    path = tmp_path / "model_final_280758.pkl"
    arrays = {name: value.numpy() for name, value in state.items()}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "Zoo"}))
    found = Answered(rows, path)
    assert "the checkpoint has bottleneck blocks, and the model basic" in found.said


def mesh(width: int, points: tuple[int, int], hidden: int) -> State:
    state = linear("encoder.1.cls_head", width, 32)
    state |= linear("encoder.2.bert.img_embedding", width, 32)
    state |= linear("encoder.2.bert.layer.0.query", width, width)
    state |= linear("upsampling", points[1], points[0])
    return state | linear("cam_param_fc2", hidden, points[0])


def test_linear_layer_that_is_called_an_embedding(tmp_path: Path) -> None:
    body, hand = mesh(16, (431, 1723), 250), mesh(8, (195, 778), 150)
    path = tmp_path / "metro_state_dict.bin"
    torch.save(body, path)
    found = Answered(refusal([], [], mismatches(body, hand)), path)
    assert "16 rows" not in found.said and "symbols" not in found.said
    assert "built by another config" in found.said
    # A load of what fits is not printed beside the sentence that warns of it.
    assert "Load what fits" not in found.page


def test_table_without_a_bias_stays_a_table(tmp_path: Path) -> None:
    one, two = {"speaker_embedding.weight": torch.randn(12, 4)}, linear("fc", 4, 4)
    path = tmp_path / "a.pth"
    torch.save(one | two, path)
    model = {"speaker_embedding.weight": torch.randn(3, 4)} | two
    found = Answered(refusal([], [], mismatches(one, model)), path)
    assert "12 rows in the checkpoint and 3 in the model" in found.said


def test_loss_that_gets_another_embedding(tmp_path: Path) -> None:
    state = linear("wav2vec.query", 24, 24) | {
        "loss_fn.fc_weights": torch.randn(60, 24)
    }
    path = tmp_path / "epoch_12.ckpt"
    settings = {"network": {"stat_pooling_type": "first+cls"}}
    torch.save({"state_dict": state, "hyper_parameters": settings, "epoch": 12}, path)
    model = state | {"loss_fn.fc_weights": torch.randn(60, 48)}
    found = Answered(refusal([], [], mismatches(state, model)), path)
    assert "takes 24 in the checkpoint and 48 in the model, 2 times" in found.said
    assert "does without" not in found.said
    assert found.commands == ["ckpt get epoch_12.ckpt hyper_parameters"]
    # Another number of classes is a loss of another size, and no other embedding.
    model = state | {"loss_fn.fc_weights": torch.randn(90, 24)}
    found = Answered(refusal([], [], mismatches(state, model)), path)
    assert "does without" in found.said and "embedding" not in found.said


def test_layers_of_a_fork_beside_other_shapes(tmp_path: Path) -> None:
    state = linear("roi_heads.box_predictor.bbox_pred", 4, 64)
    state |= linear("roi_heads.car_head.fc", 20, 64)
    state["roi_heads.score_lowres.weight"] = torch.randn(32, 66, 4, 4)
    state["roi_heads.score_lowres.bias"] = torch.randn(66)
    path = tmp_path / "model_final.pth"
    torch.save({"model": state, "iteration": 30000}, path)
    rows = ""
    for name, here, there in (
        ("box_predictor.bbox_pred.weight", "(4, 64)", "(316, 64)"),
        ("box_predictor.bbox_pred.bias", "(4,)", "(316,)"),
        ("score_lowres.weight", "(32, 66, 4, 4)", "(32, 17, 4, 4)"),
        ("score_lowres.bias", "(66,)", "(17,)"),
    ):
        rows += (
            f"Skip loading parameter 'roi_heads.{name}' to the model due to "
            f"incompatible shapes: {here} in the checkpoint but {there} in the model! "
            "You might want to double check if this is expected.\n"
        )
    rows += (
        "Some model parameters or buffers are not found in the checkpoint:\n"
        "roi_heads.box_predictor.bbox_pred.{bias, weight}\n"
        "roi_heads.score_lowres.{bias, weight}\n"
        "The checkpoint state_dict contains keys that are not used by the model:\n"
        "  roi_heads.car_head.fc.{bias, weight}\n"
    )
    found = Answered(rows, path)
    assert "The file has roi_heads.car_head, which the model lacks" in found.said
    assert "or by another version of its code" in found.said
    assert (
        "Beside that roi_heads.score_lowres gives 66 in the checkpoint and 17 in the "
        "model" in found.said
    )


def test_table_of_one_row_by_default(tmp_path: Path) -> None:
    def forecaster(seen: int, kinds: int) -> State:
        return {
            "enc_embedding.y_emb.weight": torch.randn(16, seen),
            "enc_embedding.var_emb.weight": torch.randn(kinds, 16),
        } | linear("encoder.attn.q", 16, 16)

    path = tmp_path / "best.ckpt"
    torch.save({"state_dict": forecaster(43, 18), "epoch": 10}, path)
    text = refusal([], [], mismatches(forecaster(43, 18), forecaster(31, 1)))
    found = Answered(text, path)
    # The default of an argument is one as well, and no file was looked for.
    assert "One row is what a program builds by default" in found.said
    assert "table of one row is that of an empty list" not in found.said


def test_settings_that_are_called_kwargs(tmp_path: Path) -> None:
    state = {"basis_mat.weight": torch.randn(27, 288)} | linear("mlp.0", 8, 8)
    path = tmp_path / "lego.th"
    settings = {"gridSize": [30, 30, 30], "appearance_n_comp": [288]}
    torch.save({"kwargs": settings, "state_dict": state}, path)
    model = state | {"basis_mat.weight": torch.randn(27, 864)}
    found = Answered(refusal([], [], mismatches(state, model)), path)
    assert "(864 is 3 x 288)" in found.said
    assert "ckpt get lego.th kwargs" in found.commands


# --- options that a file does not know ------------------------------------------------

OF_SEGTRAN = """Traceback (most recent call last):
  File "test3d.py", line 311, in load_model
    if (k not in ignored_keys) and (args2.__dict__[k] != cp_args[k]):
KeyError: '{name}'
"""


def test_option_that_the_settings_of_a_file_lack(tmp_path: Path) -> None:
    settings = {"net": "segtran", "num_attractors": 1024, "num_modes": 4}
    path = tmp_path / "iter_8000.pth"
    torch.save({"iter_num": 8000, "model": linear("fc", 4, 4), "args": settings}, path)
    found = Answered(OF_SEGTRAN.format(name="qk_have_bias"), path)
    assert "takes qk_have_bias from cp_args" in found.said
    assert "at args, and have 3 settings, none of them qk_have_bias" in found.said
    assert found.commands == ["ckpt get iter_8000.pth args"]
    done = process.ckpt("get", "iter_8000.pth", "args", cwd=tmp_path)
    assert b"num_attractors" in done.out
    # An option that the settings have was not looked for in this file.
    found = Answered(OF_SEGTRAN.format(name="num_modes"), path)
    assert "none of them" not in found.said


LOOPS = """Traceback (most recent call last):
  File "test.py", line 109, in <module>
    {line}
KeyError: '{name}'
"""


def test_keys_of_a_checkpoint_taken_for_weights(tmp_path: Path) -> None:
    path = tmp_path / "epoch_60_final.pkl"
    state = linear("encode.conv1", 4, 4)
    torch.save({"model_name": "T", "epoch": 60, "model_state_dict": state}, path)
    line = "old = {k: v for k, v in old.items() if model_dict[k].shape == v.shape}"
    for name in ("model_name", "epoch"):
        found = Answered(LOOPS.format(line=line, name=name), path)
        assert f"It came to {name}, which is a key of this file" in found.said
        assert "The weights are in model_state_dict" in found.said
        assert found.loaded().keys() == state.keys()
    # A key by its own name is asked of the file, which then is another one.
    found = Answered(LOOPS.format(line="e = ckpt['epoch']", name="epoch"), path)
    assert "for a state dict" not in found.said


def test_part_of_a_name_without_a_rule(tmp_path: Path) -> None:
    path = tmp_path / "model_optim_rng.pt"
    state = {
        "layers.0.input_norm.weight": torch.ones(4),
        "layers.0.self_attention.query.weight": torch.randn(4, 4),
    }
    torch.save({"model": {"language_model": {"encoder": state}}}, path)
    line = "out_name = megatron_to_transformers[op_name]"
    for name in ("input_norm", "self_attention.query"):
        found = Answered(LOOPS.format(line=line, name=name), path)
        assert f"1 tensor of this file has {name} in its name" in found.said
        assert "in megatron_to_transformers, where" in found.said
        assert "none is" not in found.said
    found = Answered(LOOPS.format(line=line, name="pooler"), path)
    assert "has pooler" not in found.said


def test_undivided_part_of_a_distributed_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "step=10"
    dcp.save({"model.w": torch.randn(4, 4)}, checkpoint_id=str(folder), no_dist=True)
    torch.save({"epoch": 1, "state_dict": {}}, folder / "common.pt")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    text = LOOPS.format(line="w = old_checkpoint['model'],", name="model")
    found = Answered(text, folder / "common.pt")
    assert "The weights are in 1 file beside it (__0_0.distcp)" in found.said
    assert "Megatron and NeMo load such a folder" in found.said
    assert any(row.startswith("ckpt inspect") for row in found.commands)
    # The paths of the answer are those of the call.
    done = process.ckpt("explain", text, "step=10/common.pt", cwd=tmp_path)
    assert "ckpt inspect step=10" in done.out.decode()
    assert process.ckpt("inspect", "step=10", cwd=tmp_path).code == 0
    # A file of weights alone stands beside nothing.
    torch.save({"epoch": 1, "state_dict": {}}, tmp_path / "common.pt")
    found = Answered(text, tmp_path / "common.pt")
    assert "distributed" not in found.said


def test_attribute_of_a_tensor_asked_of_a_dict(tmp_path: Path) -> None:
    path = tmp_path / "r50.pth"
    state = linear("backbone.fc", 4, 4)
    torch.save({"model": state, "trainer": {"iteration": 50}}, path)
    text = "AttributeError: 'collections.OrderedDict' object has no attribute 'detach'"
    found = Answered(text, path)
    assert "takes each value for one" in found.said and "class" not in found.said
    assert "it took the whole checkpoint for a state dict" in found.said
    assert torch.load(found.run("ckpt slim")).keys() == state.keys()
    assert found.loaded().keys() == state.keys()


def test_whole_model_beside_a_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "epoch_41_iou_1.00_statedict.pt"
    torch.save(linear("conv1", 4, 4), path)
    text = "AttributeError: 'collections.OrderedDict' object has no attribute '{}'"
    found = Answered(text.format("compute_loss"), path)
    assert "Beside it stands" not in found.said
    (tmp_path / "epoch_41_iou_1.00").write_bytes(b"another file")
    found = Answered(text.format("compute_loss"), path)
    assert "Beside it stands epoch_41_iou_1.00, which" in found.said


def test_blocks_beside_other_parts(tmp_path: Path) -> None:
    def network(depth: int) -> list[str]:
        names = [f"layers.{number}.blocks.0.fc.weight" for number in range(4)]
        return names + [f"layers.2.blocks.{n}.fc.weight" for n in range(1, depth)]

    head = ["classifier.norm.weight", "classifier.head.weight", "classifier.head.bias"]
    norms = [f"outnorm{number}.weight" for number in range(4)]
    ours = [*network(5), *head]
    path = tmp_path / "vssm_tiny.pth"
    torch.save({"model": {name: torch.randn(4, 4) for name in ours}}, path)
    rest = ["layers.2.blocks.4.fc.weight", *head]
    found = Answered(
        f"_IncompatibleKeys(missing_keys={norms}, unexpected_keys={rest})", path
    )
    assert "layers.2.blocks has 5 blocks in the file and 4 in the model" in found.said


def test_agent_of_cleanrl(tmp_path: Path) -> None:
    def agent(seen: int, actions: int) -> State:
        state = linear("critic.0", 8, seen) | linear("actor_mean.0", 8, seen)
        state |= linear("actor_mean.2", actions, 8)
        return state | {"actor_logstd": torch.zeros(1, actions)}

    path = tmp_path / "final_ckpt.pt"
    torch.save(agent(128, 32), path)
    found = Answered(refusal([], [], mismatches(agent(128, 32), agent(35, 6))), path)
    assert "trained on 128 observations and 32 actions" in found.said
    assert "built for 35 and 6: another environment" in found.said


# --- questions ------------------------------------------------------------------------


def test_averages_with_another_beginning(tmp_path: Path) -> None:
    weights = conv("0.conv", 8, 3) | linear("22.heads.0", 4, 8)
    state = {f"model.model.{name}": value for name, value in weights.items()}
    state |= {f"ema.model.{name}": value * 0.5 for name, value in weights.items()}
    path = tmp_path / "epoch=9.ckpt"
    torch.save({"epoch": 9, "state_dict": state, "callbacks": {}}, path)
    found = Answered("How can I do inference using the newly trained model?", path)
    given = torch.load(found.run("ckpt slim"))
    assert given.keys() == {f"model.model.{name}" for name in weights}
    for name, value in weights.items():
        assert torch.equal(given[f"model.model.{name}"], value * 0.5)


def test_best_of_two_files(tmp_path: Path) -> None:
    best, last = "checkpointepoch=1.ckpt", "checkpointlast.ckpt"
    for name, epoch in ((best, 1), (last, 7)):
        torch.save(
            {
                "epoch": epoch,
                "state_dict": {"fc.weight": torch.full((4, 4), float(epoch))},
                "checkpoint_callback_best_model_path": f"/out/{best}",
            },
            tmp_path / name,
        )
    question = "What is the difference between the two checkpoints, are they the same?"
    for pair in ((best, last), (last, best)):
        done = process.ckpt("explain", question, *pair, cwd=tmp_path)
        said = " ".join(done.out.decode().split())
        assert f"{last} records {best} as the best save of its run" in said
        assert f"and {last} to go on with the run" in said


def test_module_that_a_question_names(tmp_path: Path) -> None:
    state = linear("pred_head.transforms.0", 8, 8) | linear("pred_head.out", 8, 8)
    state |= linear("blocks.0.attn", 8, 8) | linear("blocks.1.attn", 8, 8)
    path = tmp_path / "mae_pretrain_vit_large.pth"
    torch.save({"model_state": state, "epoch": 9}, path)
    text = (
        "I downloaded the ViT-Large pre-trained checkpoint. Some keys do not map to "
        "anything in the model definition and I would appreciate it if you could "
        'explain what "pred_head" refers to.'
    )
    found = Answered(text, path)
    assert "pred_head is a module of the model of this file, with 4" in found.said
    assert "50 % of the parameters, below transforms, out" in found.said
    assert "Beside it stand blocks" in found.said and "leaves it out" in found.said
    # The size of a model in its name asks for no bytes.
    assert not found.commands or "--dtype" not in " ".join(found.commands)
    found = Answered("What does blocks.0 mean?", path)
    assert "stands behind the body" not in found.said


def test_parts_of_an_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    path = tmp_path / "checkpoint_last.pt"
    state = {
        "model": model.state_dict(),
        "last_optimizer_state": optimizer.state_dict(),
    }
    torch.save(state, path)
    found = Answered(
        'What is stored inside last_optimizer_state? I see "param_groups", there is '
        'params, but it is full of numbers. What is "state" in it?',
        path,
    )
    assert "(2 rows, with step, exp_avg, exp_avg_sq)" in found.said
    assert "none of them is a weight" in found.said


def test_epoch_of_weights_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    state = conv("conv1", 4, 3)
    torch.save(state, path)
    question = "hi, i want know the epoch of your pre-trained weights? thanks"
    found = Answered(question, path)
    assert "records no epoch" in found.said and "only its name" in found.said
    # Batch norms count what went through them.
    state["bn1.running_mean"] = torch.zeros(4)
    state["bn1.num_batches_tracked"] = torch.tensor(625568)
    torch.save(state, path)
    found = Answered(question, path)
    assert "Its batch norms counted 625,568 batches" in found.said
    assert "only its name" not in found.said


def test_size_of_a_file_in_chinese(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    path = tmp_path / "a.pt"
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, path)
    found = Answered("全量微调后的文件怎么这大，还有这个checkpoint文件是什么？", path)
    assert found.code == 0
    assert "The tensors of this file take" in found.said

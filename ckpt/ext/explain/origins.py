"""The program that a checkpoint is of, and the model, as its config, its keys and its
names say it.

A row names a program only where keys or names stand together that no other program
writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.evidence.pretrained import base_of_adapter
from ckpt.evidence.survey import Survey
from ckpt.model.nodes import Node
from ckpt.model.rows import NamedTuple
from ckpt.model.text import and_more, show
from ckpt.tree.find import children_of


class _Kind(NamedTuple):
    """Keys of the root that stand together in the files of one program."""

    keys: frozenset[str]
    text: str


def _kind_by_keys(keys: str, text: str) -> _Kind:
    return _Kind(frozenset(keys.split()), text)


# The first row whose keys are all there wins.
_BY_KEYS = (
    _kind_by_keys("dims model_state_dict", "a Whisper of OpenAI"),
    _kind_by_keys(
        "task_cfg model_cfg model_weight",
        "a checkpoint of fairseq that s3prl has converted",
    ),
    _kind_by_keys("model optimizer_history extra_state", "a checkpoint of fairseq"),
    _kind_by_keys("model cfg task_state", "a checkpoint of fairseq"),
    _kind_by_keys("state_dict pytorch-lightning_version", "a checkpoint of Lightning"),
    _kind_by_keys("model train_args ema", "a checkpoint of ultralytics"),
    _kind_by_keys(
        "model ema updates",
        "a checkpoint of YOLOv5 or of a program that was made from it",
    ),
    _kind_by_keys("model __author__", "weights for detectron2"),
    _kind_by_keys(
        "model iteration scheduler",
        "a checkpoint of detectron2, or of a program with its checkpointer",
    ),
    _kind_by_keys("params_ema", "weights of BasicSR (ESRGAN, SwinIR, GFPGAN)"),
    _kind_by_keys("network_weights", "a checkpoint of nnU-Net 2"),
    _kind_by_keys("state_dict plot_stuff best_stuff", "a checkpoint of nnU-Net 1"),
    _kind_by_keys("weight config f0", "a voice of RVC"),
    _kind_by_keys("state rng", "a checkpoint of Composer"),
    _kind_by_keys(
        "G D G_ema",
        (
            "a checkpoint of a GAN: the generator, the discriminator and the "
            "generator's averages"
        ),
    ),
    _kind_by_keys(
        "string_to_token string_to_param",
        "an embedding of textual inversion, and no model",
    ),
    _kind_by_keys("data parameter_list", "an agent of Stable-Baselines 2"),
)
_MMCV = (
    "mmcv_version",
    "mmengine_version",
    "mmdet_version",
    "mmcls_version",
    "mmseg_version",
    "mmaction_version",
    "CLASSES",
    "dataset_meta",
)
"""Values that mmcv and mmengine write below meta."""


class _Names(NamedTuple):
    """The beginning of names of one architecture in one library."""

    pattern: re.Pattern[str]
    text: str


_BY_NAMES = tuple(
    _Names(re.compile(pattern), text)
    for pattern, text in (
        (
            r"^wav2vec2\.(?:encoder|feature_extractor)\.",
            ("a wav2vec 2.0 in the names of transformers"),
        ),
        (
            (
                r"^hubert\.(?:encoder"
                r"|feature_extractor)\."
            ),
            "a HuBERT in the names of transformers",
        ),
        (
            (
                r"^wavlm\.(?:encoder"
                r"|feature_extractor)\."
            ),
            "a WavLM in the names of transformers",
        ),
        (r"(?:^|\.)w2v_encoder\.w2v_model\.", "a wav2vec 2.0 in the names of fairseq"),
        (r"^bert\.(?:encoder|embeddings)\.", "a BERT in the names of transformers"),
        (
            r"^roberta\.(?:encoder|embeddings)\.",
            ("a RoBERTa or a model of its kind in the names of transformers"),
        ),
        (r"^distilbert\.", "a DistilBERT in the names of transformers"),
        (r"^electra\.", "an ELECTRA in the names of transformers"),
        (r"^deberta\.", "a DeBERTa in the names of transformers"),
        (r"^albert\.", "an ALBERT in the names of transformers"),
        (
            (
                r"(?:^"
                r"|\.)encoder\.block\.0\.layer\.0\.SelfAttention\."
            ),
            "a T5 in the names of transformers",
        ),
        (
            r"(?:^|\.)model\.layers\.\d+\.self_attn\.q_proj\.",
            ("a language model in the names of transformers (Llama and its kind)"),
        ),
        (r"^layers\.\d+\.attention\.wq\.", "a Llama in the names of Meta"),
        (
            (
                r"(?:^"
                r"|\.)transformer\.h\.\d+\.attn\.c_attn\."
            ),
            "a GPT-2 or a model of its kind",
        ),
        (
            (
                r"(?:^"
                r"|\.)mask_decoder\.output_hypernetworks_mlps\."
            ),
            "a Segment Anything (SAM)",
        ),
        (r"(?:^|\.)visual\.transformer\.resblocks\.", "a CLIP in the names of OpenAI"),
        (
            r"^model\.diffusion_model\.",
            ("a model of Stable Diffusion in the names of its authors"),
        ),
        (
            r"^_blocks\.\d+\._(?:depthwise|project|expand)_conv\.",
            "an EfficientNet in the names of efficientnet_pytorch",
        ),
        (r"^double_blocks\.\d+\.", "the diffusion model of a Flux, alone"),
        (
            r"^(?:lora_unet|lora_te\d?|lycoris)_",
            ("an adapter of LoRA in the names of kohya"),
        ),
        (
            r"^lllite_unet_",
            ("an adapter of ControlNet-LLLite in the names of kohya"),
        ),
    )
)
_OF_PEFT = re.compile(r"\.lora_(?:[AB]|embedding_[AB]|magnitude_vector)(?:\.|$)")
_OF_PIPELINES = re.compile(r"(?:unet|transformer|text_encoder(?:_\d)?)\.")
_PARTS_OF_DETECTORS = (
    "backbone",
    "neck",
    "bbox_head",
    "rpn_head",
    "roi_head",
    "mask_head",
    "decode_head",
    "img_backbone",
    "img_neck",
    "pts_bbox_head",
    "query_head",
)
"""The first words of names that OpenMMLab's detectors and segmenters have."""


def name_origin(survey: Survey) -> str | None:
    """Name what a checkpoint is of, in a few words with an article, or return None
    where nothing tells.
    """
    checkpoint = survey.checkpoint
    base = base_of_adapter(checkpoint)
    # An adapter goes first: its config names its base, and its names would pass for
    # those of the base.
    if base is not None:
        return (
            f"an adapter of PEFT for {show(base, 80)}" if base else "an adapter of PEFT"
        )
    # A config says the program itself; keys are a surer sign than names, which programs
    # take over.
    return _by_config(survey) or _by_keys(survey) or _by_names(survey)


def origin_opening(origin: str) -> str:
    """The beginning of a sentence on what a checkpoint is: `This is`, `These are`."""
    return "These are" if origin.startswith("weights") else "This is"


def config_of(survey: Survey) -> dict[str | int, Node]:
    """The settings of config.json beside the weights, or none."""
    return dict(children_of(dict(children_of(survey.checkpoint.root)).get("config")))


def _by_config(survey: Survey) -> str | None:
    config = config_of(survey)
    architectures = config.get("architectures")
    named = (
        architectures[0]
        if type(architectures) is list and architectures
        else config.get("model_type")
    )
    if isinstance(named, str) and (
        "transformers_version" in config or "model_type" in config
    ):
        return f"a model of transformers ({show(named, 80)})"
    # diffusers writes _class_name with _diffusers_version.
    named = config.get("_class_name")
    if isinstance(named, str) and "_diffusers_version" in config:
        return f"a model of diffusers ({show(named, 80)})"
    return None


def _by_keys(survey: Survey) -> str | None:
    root = next((row for row in survey.checkpoint.containers if not row.path), None)
    keys = frozenset() if root is None else frozenset(map(str, root.keys))
    # Detectron saves blobs with cfg at most, so more keys are another program's.
    if keys == {"blobs"} or keys == {"blobs", "cfg"}:
        return "weights of Detectron, by the names of Caffe2"
    found = next((kind.text for kind in _BY_KEYS if kind.keys <= keys), None)
    # fairseq has its task and its model in the settings, under cfg or args.
    if found is not None and "fairseq" in found:
        return f"{found}{_of_fairseq(survey)}"
    if found is not None:
        return found
    # Many programs write these two keys, so a value of mmcv or mmengine must stand
    # below meta.
    if {"meta", "state_dict"} <= keys:
        written = any(
            value.path and str(value.path[0]) == "meta" and str(value.path[-1]) in _MMCV
            for value in survey.checkpoint.values
        )
        return f"a checkpoint of OpenMMLab{_of_detectors(survey)}" if written else None
    return None


def fairseq_settings(survey: Survey) -> dict[str, str]:
    """The task and the model that a checkpoint of fairseq records, by the words `task`
    and `model`.
    """
    wanted = {
        # The names that fairseq 0.12 writes stand first.
        "task": ("cfg.task._name", "args.task", "cfg.task"),
        "model": ("cfg.model._name", "args.arch", "cfg.model.arch"),
    }
    texts = {
        value.name: value.node
        for value in survey.checkpoint.values
        if isinstance(value.node, str)
    }
    found: dict[str, str] = {}
    for word, names in wanted.items():
        name = next((texts[name] for name in names if name in texts), None)
        if name is not None:
            found[word] = name
    return found


def _of_fairseq(survey: Survey) -> str:
    """The settings of a checkpoint of fairseq: ` (task translation, model bart)`."""
    found = fairseq_settings(survey)
    said = ", ".join(f"{word} {show(name, 60)}" for word, name in found.items())
    return f" ({said})" if said else ""


def _of_detectors(survey: Survey) -> str:
    """The parts of a detector or a segmenter that a checkpoint has: `: a whole model of
    backbone, neck and bbox_head`.
    """
    parts = first_words(survey)
    held = [part for part in parts if part in _PARTS_OF_DETECTORS]
    # A backbone alone is no detector.
    if len(held) < 2:
        return ""
    return f", a whole model ({and_more([show(part, 40) for part in held], 4)})"


def first_words(survey: Survey) -> list[str]:
    """The first words of the names of the weights, within their section, in the order
    of the file.
    """
    if len(survey.candidates) != 1:
        return []
    return list(
        dict.fromkeys(name.partition(".")[0] for name in survey.candidates[0].names())
    )


def _by_names(survey: Survey) -> str | None:
    for section in survey.candidates[:1]:
        return origin_of_names(section.names())
    return None


def origin_of_names(names: Sequence[str]) -> str | None:
    """Name the architecture and the library that names of tensors tell, or return
    None.
    """
    # An adapter has names of its base around its own, and a model that PEFT has wrapped
    # has the names of an adapter.
    layers = sum(bool(_OF_PEFT.search(name)) for name in names)
    if 2 * layers >= len(names) > 0 and not any(
        ".base_layer." in name for name in names
    ):
        # The parts of a pipeline begin the names of diffusers.
        is_pipeline = all(_OF_PIPELINES.match(name) for name in names)
        program = "diffusers" if is_pipeline else "PEFT"
        return f"an adapter of LoRA in the names of {program}"
    for row in _BY_NAMES:
        if any(row.pattern.search(name) for name in names):
            return row.text
    return None

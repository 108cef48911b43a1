"""The class of the model in a folder that transformers, diffusers or PEFT wrote, as its
config says it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.model.checkpoint import Checkpoint
from ckpt.model.names import LazyPattern, without_index
from ckpt.model.nodes import Node
from ckpt.tree.find import children_of

_CLASS = LazyPattern(r"[A-Z][A-Za-z0-9_]{2,99}")
_PACKAGES = {
    "model": "transformers",
    "pytorch_model": "transformers",
    "diffusion_pytorch_model": "diffusers",
}
"""The beginning of a file of weights -> the package whose `from_pretrained` looks for
it.
"""
_WEIGHTS = LazyPattern(
    r"(?P<stem>model|pytorch_model|diffusion_pytorch_model)(?:-\d{5}-of-\d{5})?"
    r"(?:\.(?P<variant>\w{1,40}))?\.(?:safetensors|bin)"
)
"""A file of weights, with the variant of the weights."""
_INDEX_OF_DIFFUSERS = "diffusion_pytorch_model.safetensors.index.json"
_IMPLEMENTATION = LazyPattern(r"[a-z0-9_|]{1,60}")
"""An implementation that a library has itself. `ORG/NAME` is fetched, and run."""
_MEGATRON = "megatron.core"
_FETCHED = (
    "auto_map",
    "custom_pipelines",
    "adapters",
    # By it one key of a config stands for another.
    "attribute_map",
    # transformers loads the weights of this file instead.
    "transformers_weights",
)
"""Keys of documents that name code, or other files that a loader opens."""
_ELSEWHERE = LazyPattern(
    r"(?s).*/.*|(?:hf|local|file|https?)[-_a-z]{0,8}:.*"
    r"|.*\.(?:bin|ckpt|gguf|h5|json|msgpack|npy|npz|pickle|pkl|pt|pth|py|safetensors"
    r"|so|tar|zip)"
)
"""A text that leads to another file or repository: `ORG/NAME`, `hf-hub:NAME`,
`x.pth`.
"""
_FILED = LazyPattern(r"(?:.+_)?(?:path|file|dir|folder|url)")
"""Keys whose values lead to a file, whatever they look like."""
_ORIGINS = LazyPattern(
    r"(?:_|base_model_|tokenizer_)?name_or_path|license|uri|.*_text|.*template|.*_token"
)
"""Keys that say where a model came from, or that hold words for people: no loader opens
them.
"""
_LABELS = ("id2label", "label2id", "task_specific_params")
"""Dicts of words for people."""
_OTHER_CLASS = LazyPattern(
    r"Auto(?!encoder).*|TF.*|Flax.*|Modular.*|.*(?:Tokenizer|TokenizerFast|Processor"
    r"|Extractor|Retriever|Index|Corpus|Config|Pipeline|Scheduler|Manager|Mixin|Loader)"
)
"""Classes that have a `from_pretrained` as well and are no models of torch: they open
other files of the folder, some of which are pickles.
"""
_PARTS = """
alt_diffusion audio_diffusion audioldm audioldm2 blip_diffusion controlnet
dance_diffusion ddim ddpm deepfloyd_if diffusers dit i2vgen_xl kandinsky kandinsky2_2
kandinsky3 latent_diffusion latent_diffusion_uncond latte ltx ltx2 musicldm
onnxruntime.training paint_by_example pixart_alpha pndm repaint sana score_sde_ve
semantic_stable_diffusion shap_e spectrogram_diffusion stable_audio stable_cascade
stable_diffusion stable_diffusion_safe stable_diffusion_xl stable_video_diffusion
stochastic_karras_ve text_to_video_synthesis transformers unclip unidiffuser
versatile_diffusion vq_diffusion wan wuerstchen
"""
_LIBRARIES = frozenset(_PARTS.split())
"""The libraries of the parts of a pipeline. diffusers imported any other one by its
name, up to 2026.
"""
_PICKLED = LazyPattern(r"(?:TransfoXL|Rag|Realm).*")
"""Classes of transformers before 5 that unpickle a file of their folder."""
_ADAPTER = LazyPattern(r"adapter_model\.(?:safetensors|bin)")


def pretrained_line(checkpoint: Checkpoint, path: str) -> str | None:
    """Return the line that opens a folder as the model that its config.json names:
    `transformers.LlamaForCausalLM.from_pretrained("base")`.

    None where config.json was not written by the package, or names code. `path` is a
    literal of Python.
    """
    documents = dict(children_of(checkpoint.root))
    config = dict(children_of(documents.get("config")))
    # transformers loads the base that the settings of an adapter name, if it has PEFT.
    if "adapter_config" in documents or foreign_code(checkpoint) is not None:
        return None
    for package, name, mark in (
        (
            "transformers",
            _only_item(config.get("architectures")),
            "transformers_version",
        ),
        ("diffusers", config.get("_class_name"), "_diffusers_version"),
    ):
        # Each package writes its version: without it another program wrote the config.
        if (
            mark not in config
            or not isinstance(name, str)
            or not _CLASS.fullmatch(name)
            or _OTHER_CLASS.fullmatch(name)
        ):
            continue
        weights = [
            member.file
            for member in checkpoint.members
            if member.is_model or not member.key
        ]
        # diffusers takes the shards of an index, even where the weights also lie in one
        # file.
        passed_over = {notice.file for notice in checkpoint.account.notices}
        if package == "diffusers" and _INDEX_OF_DIFFUSERS in passed_over:
            continue
        # Of files with another name from_pretrained finds none by itself.
        found = {_package_and_variant(file) for file in weights}
        if len(found) == 1:
            (of_file,) = found
            if of_file is not None and of_file[0] == package:
                return _pretrained_call(f"{package}.{name}", path, of_file[1])
    return None


def _package_and_variant(file: str) -> tuple[str, str] | None:
    """Return the package that looks for a file of weights, and the variant that it has
    to be asked for, such as `fp16`; or None for a file by another name.
    """
    match = _WEIGHTS.fullmatch(without_index(file))
    if match is None:
        return None
    return _PACKAGES[match["stem"]], match["variant"] or ""


def _pretrained_call(name: str, path: str, variant: str) -> str:
    """The call that opens a folder. Without the variant no package finds its files."""
    more = f', variant="{variant}"' if variant else ""
    return f"{name}.from_pretrained({path}{more})"


def base_of_adapter(checkpoint: Checkpoint) -> str | None:
    """Return the base model that adapter_config.json names, empty where it names none;
    or None for what is no adapter of PEFT.
    """
    config = dict(children_of(dict(children_of(checkpoint.root)).get("adapter_config")))
    weights = [
        member.file
        for member in checkpoint.members
        if member.is_model or not member.key
    ]
    if not isinstance(config.get("peft_type"), str) or not weights:
        return None
    if not all(_ADAPTER.fullmatch(file) for file in weights):
        return None
    base = config.get("base_model_name_or_path")
    return base if isinstance(base, str) else ""


def foreign_code(checkpoint: Checkpoint) -> str | None:
    """Return the key by which a document of a folder has a loader import a module that
    it names, fetch code, or open other files; or None.

    What loaders do with these keys differs between their releases.
    """
    root = dict(children_of(checkpoint.root))
    index = root.get("model_index")
    for key, part in children_of(index):
        # `_ignore_files` and the like are no parts.
        if str(key).startswith("_"):
            continue
        named = [item for _, item in children_of(part)]
        library = named[0] if named else None
        if isinstance(library, str) and library not in _LIBRARIES:
            return str(key)
        if any(isinstance(word, str) and _PICKLED.fullmatch(word) for word in named):
            return str(key)
    # Each node with the last key that is a text: an item of a list belongs to the key
    # of the list.
    waiting = [("", root.get("config")), ("", root.get("adapter_config")), ("", index)]
    # Each part of a pipeline has a document of its own.
    for file, document in children_of(checkpoint.beside):
        # A loader may read what ckpt does not, and an adapter names its base.
        if document is None or str(file).endswith("adapter_config.json"):
            return str(file)
        waiting.append(("", document))
    # No recursion: a document may be nested deep.
    while waiting:
        outer, node = waiting.pop()
        for step, value in children_of(node):
            key = step if isinstance(step, str) else outer
            if _names_code(key, value) or _names_file(key, value):
                return key
            if key not in _LABELS:
                waiting.append((key, value))
    return None


def _names_file(key: str, value: Node) -> bool:
    """Tell whether a value of a document leads to another file or repository.

    Configs are read with any keys, so nobody can say which of these a loader opens:
    timm loads `checkpoint_path` that a config hands over.
    """
    if not isinstance(value, str) or not value or _ORIGINS.fullmatch(key):
        return False
    return bool(_ELSEWHERE.fullmatch(value) or _FILED.fullmatch(key))


def _names_code(key: str, value: Node) -> bool:
    """Tell whether a value of a document names code, or has a loader run some."""
    # `_attn_implementation_internal` too: transformers 4 sets any key of a config.
    if "_implementation" in key:
        # One word for all parts of a model, or a dict with a word for each.
        words = [item for _, item in children_of(value)] or [value]
        return not all(
            word is None
            or (isinstance(word, str) and _IMPLEMENTATION.fullmatch(word) is not None)
            for word in words
        )
    if key == "megatron_core":
        return value not in (None, _MEGATRON)
    if key == "trust_remote_code":
        return value not in (None, False)
    return key in _FETCHED and value is not None


def merged_parts(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the names of lora_B of the merged layers that PEFT 0.2 wrote, each with
    its lora_A.

    There lora_B is the weight of a grouped convolution, beside a lora_A of two axes. A
    layer of a convolution has three in both.
    """
    parts: dict[str, str] = {}
    for name, shape in shapes.items():
        lora_a = name.replace(".lora_B.", ".lora_A.")
        # The kernel of the grouped convolution has the size 1.
        if lora_a == name or len(shape) != 3 or shape[2] != 1:
            continue
        if len(shapes.get(lora_a, ())) == 2:
            parts[name] = lora_a
    return parts


def pipeline_class(checkpoint: Checkpoint) -> str | None:
    """Return the class of the pipeline that model_index.json of diffusers names, or
    None for anything else.
    """
    index = dict(children_of(dict(children_of(checkpoint.root)).get("model_index")))
    name = index.get("_class_name")
    is_ours = (
        "_diffusers_version" in index
        and isinstance(name, str)
        and _CLASS.fullmatch(name)
    )
    return name if is_ours and isinstance(name, str) else None


def pipeline_parts(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the parts of a pipeline that are models of diffusers and lie in the
    folder, each with its class.
    """
    index = dict(children_of(dict(children_of(checkpoint.root)).get("model_index")))
    parts: dict[str, str] = {}
    for member in checkpoint.members:
        named = [item for _, item in children_of(index.get(member.key))]
        if (
            member.is_model
            and len(named) == 2
            and named[0] == "diffusers"
            and isinstance(named[1], str)
        ):
            parts[member.key] = named[1]
    return parts


def pipeline_line(checkpoint: Checkpoint, path: str) -> str | None:
    """Return the line that opens a pipeline of diffusers, or None where its parts have
    no variant in common, or a document of it names code.
    """
    name = pipeline_class(checkpoint)
    found = [
        _package_and_variant(member.file.rpartition("/")[2])
        for member in checkpoint.members
        if member.is_model
    ]
    variants = {"" if row is None else row[1] for row in found}
    # diffusers takes one variant for all parts of a pipeline.
    if name is None or len(variants) != 1:
        return None
    if foreign_code(checkpoint) is not None:
        return None
    (variant,) = variants
    return _pretrained_call(f"diffusers.{name}", path, variant)


def _only_item(listed: Node) -> Node:
    """The only item of a list, or None."""
    return listed[0] if type(listed) is list and len(listed) == 1 else None

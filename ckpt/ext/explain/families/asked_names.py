"""A name that a program asks a checkpoint for: which part of a training checkpoint
it is, and which program writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence

from ckpt.evidence.loading import string_literal
from ckpt.evidence.wrappers import wrapped_names
from ckpt.ext.explain.case import (
    Case,
    Statement,
    keys_text,
    load_statements,
    root_keys,
)
from ckpt.ext.explain.families.asked_optimizers import (
    OPTIMIZER_WORD,
    states_of_schedulers,
    where_optimizers_are,
)
from ckpt.ext.explain.families.asked_tensors import (
    NAME_OF_A_TENSOR,
    OF_RESULTS,
    VITS,
    is_last_word,
    name_of_a_tensor,
)
from ckpt.ext.explain.families.averages import AVERAGES, of_no_averages
from ckpt.ext.explain.families.computed import computed_buffers
from ckpt.ext.explain.origins import first_words, name_origin, origin_opening
from ckpt.model.text import and_more, counted_noun, show
from ckpt.tree.find import children_of

# The keys under which programs put the weights of a model.
MODEL_KEYS = (
    "state_dict",
    "model",
    "model_state_dict",
    "net",
    "network",
    "weights",
    "module",
    "params",
    "params_ema",
    "ema",
    "generator",
    "G_ema",
    "g_ema",
    "encoder",
    "model_state",
    "teacher",
    "student",
)


_NEWER_PARTS = re.compile(r"^model\.(language_model|visual|vision_tower)\.")


_UNSAVED = re.compile(r"(?:^|\.)position_ids$")


def of_unsaved_buffer(name: str) -> Statement | None:
    """Say of a buffer that newer libraries do not keep in a state dict that the model
    which a program builds may lack it as well, or return None.
    """
    if _UNSAVED.search(name) is None:
        return None
    return Statement(
        "position_ids are the numbers 0, 1, 2 …, which transformers before 4.31 kept "
        "in the state dict of a model. Newer ones do not, so a program that asks the "
        "state dict of a model it has just built for them stops, whatever the file "
        "has. Take transformers 4.30, or leave this key out in the program."
    )


def of_newer_names(case: Case) -> Statement | None:
    """Say that a model of pictures and text has the names that transformers gives since
    4.52, or return None.
    """
    names = [entry.name for entry in case.survey.tensors]
    parts = {found[1] for name in names if (found := _NEWER_PARTS.match(name))}
    # The text model alone is no model of pictures and text.
    if "language_model" not in parts or len(parts) < 2:
        return None
    rest = [name for name in names if not _NEWER_PARTS.match(name)]
    # The older names have the layers of the text model at model.layers.
    if any(name.startswith("model.layers.") for name in rest):
        return None
    shown = and_more([f"model.{part}." for part in sorted(parts)], 3)
    text = (
        f"The names of this file are those of transformers 4.52 and newer ({shown}). "
        "A program that was made before looks for older ones, and names a key that "
        "neither has, for it had changed the beginning first. Take a newer version of "
        "the program."
    )
    # Only Qwen's older names are the same for all: others differ by the model.
    if parts != {"language_model", "visual"}:
        return Statement(text)
    way = case.plan(
        (
            "rename",
            "--sub",
            r"s/^model\.language_model\./model./",
            "--sub",
            r"s/^model\.visual\./visual./",
        )
    )
    if way.command is None:
        return Statement(text)
    return Statement(f"{text} Or write the older ones:", (), way.command)


def _files_of_keys(case: Case) -> dict[str, str]:
    """The files of a folder, by the key under which each stands."""
    return {
        member.key: member.file
        for member in case.survey.checkpoint.members
        if member.key
    }


def of_own_file(name: str, case: Case) -> Iterator[Statement]:
    """Say that a name is a file of its own in the folder."""
    files = _files_of_keys(case)
    if case.is_folder and name in files:
        yield Statement(
            f"{show(name, 80)} is a file of its own in this folder, "
            f"{show(files[name], 80)}, and no key of another one: the program read one "
            "file of the folder as if it had all in it."
        )
        yield from load_statements(case, "The weights load so:")


_NETWORKS = frozenset(
    ("generator", "discriminator", "g", "d", "netg", "netd", "critic", "gen", "dis")
)
"""The keys under which programs keep the two networks of a GAN."""


def of_empty_optimizer(name: str, case: Case) -> Iterator[Statement]:
    """Say that an optimizer of the file has groups and no state."""
    if name != "state":
        return
    checkpoint = case.survey.checkpoint
    groups = {
        value.path[: value.path.index("param_groups")]
        for value in checkpoint.values
        if "param_groups" in value.path
    }
    paths = [value.path for value in checkpoint.values]
    paths += [entry.path for entry in checkpoint.tensors]
    held: set[tuple[object, ...]] = set()
    for path in paths:
        held.update(path[:at] for at, key in enumerate(path) if key == "state")
    hollow = [
        show(".".join(map(str, place)), 100)
        for place in sorted(groups.difference(held), key=str)
    ]
    if not hollow:
        return
    yield Statement(
        f"{and_more(hollow, 3)} of this file has param_groups and no state: the run "
        "had taken no step with it when it saved, or it is one that keeps no state "
        "(SGD without momentum), or this rank saved none of it (a file of each rank, "
        "without that of the others). A run cannot take its optimizer up from here: "
        "leave the load of it out (Composer: "
        "load_weights_only, or load_ignore_keys: ['state/optimizers']), or take a save "
        "that has the state."
    )
    yield from load_statements(case, "The weights load so:")


def of_present_key(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file has the name at its root."""
    if name in root_keys(case):
        yield Statement(
            f"This file has the key {show(name, 80)} at its root: another file, or "
            "another part of it, was asked."
        )
        yield from load_statements(case)


def of_zero(name: str, case: Case) -> Iterator[Statement]:
    """Say that the optimizer is one of DeepSpeed ZeRO."""
    # load_state_dict of torch's optimizers asks for these two keys.
    if name not in ("param_groups", "state"):
        return
    zero = next(
        (
            row
            for row in case.survey.checkpoint.containers
            if _ZERO.issubset(map(str, row.keys))
        ),
        None,
    )
    if zero is not None:
        label = ".".join(map(str, zero.path))
        yield Statement(
            f"{show(label, 80) or 'This file'} is the state of an optimizer of "
            "DeepSpeed ZeRO (base_optimizer_state holds that of the optimizer below "
            "it), and no optimizer of torch takes it: resume in DeepSpeed with as many "
            "ranks, or begin the optimizer anew from the weights."
        )
        yield from load_statements(case)


def of_taken_part(name: str, case: Case) -> Iterator[Statement]:
    """Say where the state of the optimizer is, for which a program took another part of
    the file.
    """
    held = [
        section
        for section in case.optimizers
        if "param_groups" in dict(children_of(section.node))
    ]
    # With two optimizers it is not known which of them was meant.
    if name != "param_groups" or len(held) != 1:
        return
    (section,) = held
    if not section.path:
        return
    # A save that mixes up its arguments leaves the state of the scheduler in optimizer,
    # and the other way round.
    swapped = next(
        (place for place, _ in states_of_schedulers(case) if "optim" in place.lower()),
        None,
    )
    if swapped is not None and "sched" in section.name.lower():
        yield Statement(
            f"{show(swapped, 80)} of this file is the state of a scheduler (it has "
            f"last_epoch), and {show(section.name, 80)} is that of the optimizer: the "
            "save put each under the name of the other, as where two arguments are "
            "given in the wrong order. Both are whole. So they load, and the call that "
            "saves has to be mended:",
            (),
            f'optimizer.load_state_dict(checkpoint["{show(section.name, 80)}"]); '
            f'scheduler.load_state_dict(checkpoint["{show(swapped, 80)}"])',
        )
        return
    keys = "".join(f'["{show(str(key), 80)}"]' for key in section.path)
    yield Statement(
        "param_groups is a key of an optimizer's state, and the program took another "
        f"part of the file. The state is in {show(section.name, 80)}:",
        (),
        f"optimizer.load_state_dict(checkpoint{keys})",
    )


def of_known_names(name: str, case: Case, *, has_places: bool) -> Iterator[Statement]:
    """Say what the file has instead of a name that is at no other place, or whose place
    tells nothing.
    """
    keys = root_keys(case)
    if not has_places:
        yield from _of_another_program(name, case)
        # sentence-transformers reads __version__ from its own config.json, and a plain
        # model of transformers has none.
        if name == "__version__" and case.is_folder:
            yield from _of_sentences(case)
            return
    if NAME_OF_A_TENSOR.search(name):
        yield from name_of_a_tensor(name, case)
        yield from load_statements(case)
        return
    kinds = {section.kind for section in case.survey.sections}
    # Sentences and names such as __version__ are no names of files.
    is_of_files = not name.startswith("__") and " " not in name
    if case.is_folder and _files_of_keys(case) and not has_places and is_of_files:
        yield from _of_missing_file(name, case)
    elif case.has_module and not keys:
        yield Statement("This file holds a whole pickled module, and no dict of parts.")
    elif (
        kinds
        # The file holds weights alone where no section is anything else, and each model
        # begins at the root.
        and kinds.isdisjoint(("optimizer", "other"))
        and all(not section.path for section in case.survey.candidates)
        and case.survey.candidates
    ):
        yield from _of_weights_alone(name, case)
    elif keys:
        yield from of_keys(name, case, has_places=has_places)
    # Lightning looks for these keys in a checkpoint of its own.
    if name in ("pytorch-lightning_version", "hyper_parameters", "callbacks", "loops"):
        yield Statement(
            "Lightning did not write this file, or its weights alone were kept. Load "
            "the weights by load_state_dict, not by ckpt_path."
        )
    yield from load_statements(case)


def _of_sentences(case: Case) -> Iterator[Statement]:
    """Say how sentence-transformers takes a plain model of transformers."""
    path = case.path_literal
    yield Statement(
        "sentence-transformers takes a plain model of transformers as its first "
        "module, and needs a pooling behind it:",
        (),
        "from sentence_transformers import SentenceTransformer, models; first = "
        f"models.Transformer({path}); model = SentenceTransformer(modules=[first, "
        "models.Pooling(first.get_word_embedding_dimension())])",
    )


def _of_missing_file(name: str, case: Case) -> Iterator[Statement]:
    """Say that no file of the folder has the name, and which files it has."""
    listed = and_more([show(file, 80) for file in case.survey.checkpoint.parts], 8)
    yield Statement(
        f"No file of this folder is called {show(name, 80)}, and no key has this name: "
        f"its files are {listed}."
    )
    if OPTIMIZER_WORD.search(name):
        yield from where_optimizers_are(case)


def _of_weights_alone(name: str, case: Case) -> Iterator[Statement]:
    """Say that the file holds nothing but weights."""
    is_last = is_last_word(name, case)
    what = (
        "no epoch and no optimizer is in it"
        # A key for a model asks for no epoch and no optimizer, so the sentence leaves
        # them out.
        if name not in (*MODEL_KEYS, "state") and not is_last
        else (
            "the whole file is the state dict, and the program asked for a part "
            f"called {show(name, 80)}"
        )
        if is_last
        else "the whole file is the state dict"
    )
    if _HOOKED.search(name):
        yield from _of_hook(name, case)
        return
    words = first_words(case.survey)
    begins = (
        f" Its names begin with {and_more([show(word, 40) for word in words], 5)}. "
        "Are they those of the whole model that the program builds? Weights of a part, "
        "as a backbone, belong to the option for that part, and not to the one for a "
        "checkpoint of the run."
        if name in MODEL_KEYS and len(words) > 1
        else ""
    )
    networks = _NETWORKS.intersection(word.lower() for word in words)
    if name.lower() in _NETWORKS and len(networks) < 2 and not case.optimizers:
        begins += (
            f" {show(name, 40)} is a network of a run that trains two, and a run goes "
            "on from a file that has both and their optimizers. This one has one "
            "alone: it is for use. Take the save of the training itself, which has "
            "other names or lies elsewhere."
        )
    rest = " It has nothing of a run (optimizer, epoch) to go on from."
    yield Statement(
        f"This file holds weights alone, by their names at its root: {what}."
        f"{begins}{'' if case.optimizers else rest}"
    )
    yield from _put_under_key(name, case)
    if name in ("params", "params_ema", "params-ema"):
        yield Statement(
            "BasicSR and what was made with it take the weights from the key that "
            "param_key_g of their settings names: ~ (null) there stands for a file "
            "that has none, as this one."
        )
    if name in ("meta", "dataset_meta"):
        yield Statement(
            "Programs of OpenMMLab find the classes in meta, which their own training "
            "writes. Weights without it are mostly those that a training begins with "
            "(a backbone: init_cfg), and no trained model: take the checkpoint of one."
        )


_OF_TENSOR_DICTS = ("__batch_size", "__device")
"""The keys that a TensorDict writes into its state dict, beside its tensors."""


def of_tensor_dict(name: str, case: Case) -> Iterator[Statement]:
    """Say that a program builds a TensorDict where the file has plain parameters."""
    if name not in _OF_TENSOR_DICTS:
        return
    noted = [
        str(key)
        for row in case.survey.checkpoint.containers
        for key in row.keys
        if str(key).rpartition(".")[2] in _OF_TENSOR_DICTS
    ]
    if noted:
        return
    yield Statement(
        f"{show(name, 40)} is no weight: a TensorDict writes it beside its tensors, "
        "and this file has it nowhere. So the run that saved kept these parameters in "
        "another form, as older versions of tensordict or of the program do (a plain "
        "list, numbers for names), and the program that loads builds a TensorDict. "
        "Take the versions of the run that saved. To give the file other names alone "
        "would not be enough, for the program looks for this key too."
    )
    yield from load_statements(case)


_OF_WHOLE_MODELS = frozenset(
    (
        "state_dict",
        "model",
        "model_state_dict",
        "model_state",
        "net",
        "network",
        "weights",
        "params",
        "params_ema",
    )
)
"""Keys for the weights of a whole model, which no file of a part has."""


def _put_under_key(name: str, case: Case) -> Iterator[Statement]:
    """Print the line that writes a file with the weights under the key that a program
    looks for.
    """
    load = case.survey.load.expression
    if name not in _OF_WHOLE_MODELS or load is None or case.is_folder:
        return
    stem = os.path.basename(os.path.splitext(case.survey.path)[0])
    target = string_literal(f"{stem}.{name}.pth")
    yield Statement(
        "Where they are, and the program is not to be changed, a copy with the "
        f"weights under {show(name, 40)} is what it reads:",
        (),
        f'torch.save({{"{name}": {load}}}, {target})',
    )


_HOOKED = re.compile(r"\.\w{1,40}_(?:orig|u|v|g)$")
"""The names that spectral_norm and weight_norm of torch keep for a weight."""


def _of_hook(name: str, case: Case) -> Iterator[Statement]:
    """Answer the hook of spectral_norm, which asks for its names also with
    strict=False.
    """
    layer = name.rpartition(".")[0]
    held = [
        other
        for section in case.survey.candidates
        for other in section.names()
        if other.startswith(f"{layer}.")
    ]
    has = (
        f"it has {and_more([show(other, 80) for other in held], 3)} of that layer"
        if held
        else f"it has nothing of {show(layer, 80)}"
    )
    text = (
        f"This file has no {show(name, 100)}: {has}. In older versions of torch the "
        "hook of spectral_norm asks for it whenever a state dict is loaded, with "
        "strict=False too."
    )
    load = case.survey.load.expression
    if load is None or len(case.survey.candidates) != 1:
        yield Statement(text)
        return
    yield Statement(
        f"{text} What the file lacks can come from the model itself:",
        (),
        f"model.load_state_dict({{**model.state_dict(), **{load}}}, strict=False)",
    )


def _nearest_text(name: str, names: Collection[str]) -> str:
    """Say which name of a file comes nearest to one that was asked for, with more words
    between its own, or return an empty text.
    """
    words = name.split(".")
    if len(words) < _LEAST_WORDS:
        return ""
    near = [
        other
        for other in names
        if other != name and _is_within(words, other.split("."))
    ]
    if not near:
        return ""
    # A norm stands behind its layer, and has a weight too.
    nearest = min(near, key=lambda other: (bool(_OF_NORM.search(other)), len(other)))
    more = (
        " It is of a layer of OpenMMLab (ConvModule, with conv and bn inside of it), "
        "and a program that reads by the names of torchvision does not find it: give "
        "the file as a checkpoint of its own library (load_from, or init_cfg with "
        f"type=Pretrained and the prefix {show(nearest.partition('.')[0], 40)}.)."
        if nearest.endswith(".conv.weight")
        and f"{nearest.removesuffix('.conv.weight')}.bn.weight" in names
        else ""
    )
    return f" The nearest name there is {show(nearest, 100)}.{more}"


_OF_NORM = re.compile(r"\.\w{0,40}(?:bn|norm)\w{0,40}\.")
_LEAST_WORDS = 2
"""Words of a name that is looked for with others between them: a layer and a value."""


def _is_within(words: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether all words stand among others in their order, the last one last."""
    rest = iter(others)
    return words[-1] == others[-1] and all(word in rest for word in words)


def of_keys(name: str, case: Case, *, has_places: bool) -> Iterator[Statement]:
    """Say which keys the file has at its root, and where its weights are."""
    keys = root_keys(case)
    if OPTIMIZER_WORD.search(name):
        yield from where_optimizers_are(case)
    none = "" if has_places or name in keys else f", and none is {show(name, 80)}"
    averages = [key for key in keys if key in (f"{name}_ema", f"ema_{name}")]
    # model_ema of one program is state_dict_ema of another one.
    others = [key for key in keys if AVERAGES.search(key)]
    if not averages and none and others and AVERAGES.search(name):
        yield Statement(
            f"This file has its averages under another key: {and_more(others, 3)}. "
            "Give the program that name (timm: state_dict_ema, by --use-ema)."
        )
    if none and AVERAGES.search(name):
        yield from of_no_averages(case)
    part = (
        f" {show(averages[0], 60)} has the running averages of {show(name, 60)}, by "
        "its name: to use the model take these. A training that goes on wants both, "
        "with the state of its optimizers."
        if averages
        else " The run saved no such state: leave its load out, and let it begin anew."
        if none and _PART_WORD.search(name)
        else ""
    )
    if none and not part and _VALUE_WORD.search(name):
        part = (
            " It is a value of a run: the code that saved did not write it, as an "
            "older version of the program. Leave it out, give it a value of your own "
            "(checkpoint.get), or take the version that saved."
        )
    yield Statement(f"The keys of this file are {keys_text(case)}{none}.{part}")
    if VITS.issubset(keys) and name in ("config", "weight", "f0", "version"):
        yield Statement(
            "A run of VITS, RVC or so-vits-svc goes on from such a file (the G_ and D_ "
            "files of logs). The program wants the voice that is exported from it: in "
            "RVC the file of weights/ without a number, with config and weight."
        )
    # Other programs have an iteration too: checkpoint_version is Megatron's.
    if name in _OF_MEGATRON and "checkpoint_version" in keys:
        yield Statement(
            "Megatron asks for the iteration at which a run goes on, and released "
            "weights have none. With --finetune it begins at 0, and takes the "
            "weights alone."
        )
    models = [section.name for section in case.survey.candidates if section.name]
    if models:
        begins = ""
        # If a container such as net was asked for, the place of the weights is the
        # answer. Any other key may be of another model.
        if len(models) == 1 and _CONTAINER.fullmatch(name) is None:
            words = dict.fromkeys(
                row.partition(".")[0]
                for section in case.survey.candidates[:1]
                for row in section.names()
            )
            shown = and_more([show(word, 40) for word in words], 3)
            begins = (
                f", and their names begin with {shown}. Are they of the model that the "
                "program builds?"
                f"{_nearest_text(name, case.survey.candidates[0].names())}"
            )
        held = and_more([show(model, 80) for model in models], 3)
        wrapped = len(models) == 1 and wrapped_names(case.survey.candidates[0].names())
        prefix = wrapped[0].partition(".")[0] if wrapped else ""
        wrapper = (
            f" Their names begin with {show(prefix, 40)}., the prefix of a wrapper, "
            "which a model without it does not have: ckpt strip takes it off."
            if wrapped and not begins
            else ""
        )
        yield Statement(f"The weights are in {held}{begins or '.'}{wrapper}")
    elif OF_RESULTS.issubset(keys):
        yield Statement(
            "These are the results of an evaluation, and no weights of a model: "
            "take the checkpoint that was evaluated."
        )


_PART_WORD = re.compile(r"(?i)sched|(?:^|_)(?:grad_?)?scaler|(?:^|_)amp$|(?:^|_)rng")
"""The names under which programs look for parts of a run that may begin anew."""
_VALUE_WORD = re.compile(
    r"(?:^|_)(?:best|early|stop\w{0,6}|value|score|acc\w{0,6}|loss\w{0,3}|metric\w{0,2}"
    r"|patience|time|lr|record|history|count\w{0,2}|map|psnr|miou|iou|wer|bleu|fid)"
    r"(?:_|$)"
)
"""Words in keys of values that a run records beside its weights."""
_CONTAINER = re.compile(
    r"\w{0,40}(?:state|dict|model|weights?|params?|net|network|ema|module)\w{0,20}",
    re.IGNORECASE,
)
"""Keys that say nothing but that weights are below them."""
_OF_MEGATRON = ("iteration", "total_iters")
"""The keys under which Megatron has its step, in newer and in older versions."""


def of_recoverables(name: str, case: Case) -> Iterator[Statement]:
    """Answer SpeechBrain, which has a file for each object, and finds none for one of
    them.
    """
    files = {
        member.key: member.file
        for member in case.survey.checkpoint.members
        if member.file.endswith(".ckpt")
    }
    shown = show(name, 80)
    if name in files:
        yield Statement(
            f"{shown} is in this folder ({show(files[name], 80)}): the folder of the "
            "message is another one."
        )
        yield from load_statements(case)
        return
    yield Statement(
        f"{shown} is not among the objects of this folder, which are "
        f"{and_more([show(key, 60) for key in files], 8)}, in a file each: the run "
        "that saved had no such object, or its file was left out when the folder was "
        "published."
    )
    yield Statement(
        (
            f"To use the model alone, build the program without {shown} among its "
            "recoverables, or give the Checkpointer allow_partial_load=True."
        )
        + (
            " A training that goes on begins its optimizer anew."
            if OPTIMIZER_WORD.search(name)
            else ""
        )
    )
    yield from load_statements(case)


_WANTED = {
    "dims": "a Whisper of OpenAI (dims and model_state_dict)",
    "task_cfg": (
        "a checkpoint of fairseq that s3prl has converted (task_cfg, model_cfg and "
        "model_weight)"
    ),
    "model_cfg": (
        "a checkpoint of fairseq that s3prl has converted (task_cfg, model_cfg and "
        "model_weight)"
    ),
    "model_weight": (
        "a checkpoint of fairseq that s3prl has converted (task_cfg, model_cfg and "
        "model_weight)"
    ),
    "policy_class": "an agent of Stable-Baselines3",
    "params_ema": "weights of BasicSR",
    "train_args": "a checkpoint of ultralytics",
    "network_weights": "a checkpoint of nnU-Net 2",
    "trainer_name": "a checkpoint of nnU-Net 2",
    "init_args": "a checkpoint of nnU-Net 2",
    "inference_allowed_mirroring_axes": "a checkpoint of nnU-Net 2",
    "pytorch-lightning_version": "a checkpoint of Lightning",
    "model_args": "a checkpoint of nanoGPT",
    "blobs": "weights of Detectron, by the names of Caffe2",
    "__version__": "a model of sentence-transformers before 2 (in its config.json)",
}
"""Keys that one program writes -> what it writes them in."""
_DETECTION = ("rpn", "bbox", "cls_score", "fast_rcnn", "mask_fcn", "kps_score")
"""Parts of the blobs that a detector has, and the backbone of one has not."""


def _of_another_program(name: str, case: Case) -> Iterator[Statement]:
    """Say of which program a key is, and of which one the file is."""
    origin = name_origin(case.survey)
    wanted = _WANTED.get(name)
    text = f"No key and no tensor of this file is called {show(name, 120)}."
    # If the name is of a buffer, such as freqs_cis, no weight lacks.
    if computed_buffers([name]):
        text += (
            " It is no weight: a model computes it when it is built, and only some "
            "programs save it. The program reads the files of one of them: name the "
            "kind of this one to it."
        )
    if wanted is not None and wanted != origin:
        text = (
            f"{show(name, 80)} is a key of {wanted}, and this file has none of this "
            "name."
        )
    if origin is not None:
        text += f" {origin_opening(origin)} {origin}"
        text += "." if wanted is None else ", which the program does not take as it is."
    if wanted is not None or origin is not None:
        yield Statement(text)
    if wanted is not None and "nnU-Net 2" in wanted and origin is None:
        yield from _of_plans(name, case)
    if name == "network_weights" and origin is not None and "nnU-Net 1" in origin:
        yield Statement(
            "nnU-Net 2 names the layers of its networks otherwise, and has no loader "
            "for files of nnU-Net 1: use the file with version 1 (the package nnunet, "
            "not nnunetv2)."
        )
    if name == "model_args" and origin is not None and "GPT-2" in origin:
        yield Statement(
            "nanoGPT builds its model by these sizes, and loads a GPT-2 of "
            "transformers otherwise: init_from with the name of the model (gpt2, "
            "gpt2-medium, …; GPT.from_pretrained), which also turns the weights of "
            "c_attn, c_proj and c_fc, kept as [inputs, outputs] there. It takes the "
            "names of OpenAI's four models alone: for a GPT-2 of your own, let it load "
            "your folder. A renamed file is not enough."
        )
    if (
        wanted is not None
        and "s3prl" in wanted
        and origin is not None
        and "fairseq" in origin
    ):
        yield Statement(
            "s3prl converts such a file: convert.py beside its upstream "
            "(load_and_convert_fairseq_ckpt) takes the settings and the weights of it."
        )
    # Detectron keeps the weights in blobs, under the names of Caffe2: `conv_rpn_w`.
    blobs = next(
        (row for row in case.survey.checkpoint.containers if row.name == "blobs"), None
    )
    keys = [] if blobs is None else [str(key) for key in blobs.keys]
    if blobs is not None and not any(
        word in key for key in keys for word in _DETECTION
    ):
        # The layer of the classes of ImageNet shows that the backbone is as its own
        # training left it.
        classes = next(
            (key for key in keys if key.startswith(("fc1000", "pred_"))), None
        )
        last = (
            (
                f" that was trained on ImageNet ({show(classes, 40)} is its layer of "
                "classes)"
            )
            if classes is not None
            else ""
        )
        yield Statement(
            f"Its {counted_noun(len(keys), 'blob')} are of a backbone{last}, and none "
            "is of a detector: take the file of a trained detector, or give this one "
            "as the weights that a training begins with."
        )


_OF_PLANS = ("network_weights", "trainer_name", "init_args")


def _of_plans(name: str, case: Case) -> Iterator[Statement]:
    """Say what nnU-Net 2 keeps beside the weights, and print the line that puts a bare
    state dict among it.
    """
    load = case.survey.load
    if load.expression is None or len(case.survey.candidates) != 1:
        return
    dimensions = max((len(row.tensor.shape) for row in case.survey.tensors), default=0)
    configuration = "2d" if dimensions == 4 else "3d_fullres"
    yield Statement(
        f"nnU-Net 2 writes {and_more(list(_OF_PLANS), 3)} into the checkpoint of each "
        "fold, and predicts from these alone: this file was taken out of one, or is of "
        "another program. The plans.json beside it must be that of its training. With "
        f"the names that the program asks for, where its trainer was nnUNetTrainer and "
        f"its configuration {configuration} (else put in those):",
        (),
        f'torch.save({{"network_weights": {load.expression}, "trainer_name": '
        f'"nnUNetTrainer", "init_args": {{"configuration": "{configuration}"}}, '
        '"inference_allowed_mirroring_axes": None}, "checkpoint_final.nnunet.pth")',
    )


_ZERO = frozenset(("base_optimizer_state", "loss_scaler"))
"""Keys of the state of an optimizer of DeepSpeed ZeRO."""

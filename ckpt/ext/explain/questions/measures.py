"""The best of a run and its settings, as a file records them: metrics, the save that a
callback calls the best, learning rates and sizes of batches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.content import of_finished
from ckpt.ext.explain.families.recorded import settings_command
from ckpt.ext.explain.families.runs import recorded_counters
from ckpt.ext.explain.questions.by_words import of_words
from ckpt.model.checkpoint import Checkpoint
from ckpt.model.text import and_more, show
from ckpt.tree.find import children_of, counter

_METRIC = re.compile(
    r"(?i)(?:^|[_./])(?:best|score|scores|acc\d?|accuracy|metrics?|loss|fitness|m?ap\d*"
    r"|miou|iou|psnr|ssim|fid|f1|auc|bleu|wer|cer|ppl|perplexity|reward|top\d|prec\d)"
    r"(?:$|[_./\d])"
)
"""Words of keys for what a run measured."""
_GOES_ON = re.compile(r"(?i)\b(?:resum\w{1,4}|continu\w{1,4})\b|续训|继续训")
_DEEPEST = 3
_MOST = 8
_NUMBER = re.compile(r"\d{1,9}")


def of_best(text: str, case: Case) -> Iterator[Statement]:
    """Say what a file records of the best state of its run, and whether it is it."""
    finished = list(of_finished(case)) if _GOES_ON.search(text) else []
    if finished:
        yield from finished
        return
    counters = recorded_counters(case)
    told = best_of_callbacks(case)
    if told is not None:
        yield told
        return
    metrics = [
        f"{show(name, 80)} is {number:g}"
        for name, number in recorded_metrics(case.survey.checkpoint).items()
    ]
    place = and_more([f"{show(name, 60)} {count:,}" for name, count in counters], 3)
    of_run = f" It counts {place}." if place else ""
    name = os.path.basename(case.survey.path.rstrip("/"))
    if metrics:
        yield Statement(
            f"This file records what was measured: {and_more(metrics, _MOST)}.{of_run} "
            "A best value is that of the run up to this save, and the weights are "
            "those of the save itself, which need not be the best."
        )
    else:
        yield Statement(
            f"This file records no metric.{of_run} So its name, the log of the run, "
            "or an evaluation tell whether it is the best."
        )
    epochs = dict(counters)
    best = [
        (name_, node)
        for name_, node in case.finds_value(("best_epoch", "best_iter", "best_step"))
        if type(node) is int
    ]
    for best_name, number in best[:1]:
        own = epochs.get(best_name.rpartition(".")[2].removeprefix("best_"))
        # Programs count an epoch before or after they save it.
        if own is not None and own not in (number, number + 1):
            yield Statement(
                f"The best so far was {show(best_name, 60)} {number:,}, and this file "
                f"is of {own:,}: it is a later one."
            )
    if re.search(r"(?i)best|last|latest|final", name):
        yield Statement(
            f"Its name is {show(name, 80)}. Programs write a best file anew when the "
            "metric they watch gets better, and a last one at the end of each epoch."
        )


def recorded_metrics(checkpoint: Checkpoint) -> dict[str, float]:
    """The numbers near the root of a checkpoint that its run measured, by their
    names.
    """
    return {
        value.name: value.node
        for value in checkpoint.values
        if 0 < len(value.path) <= _DEEPEST
        and type(value.node) in (int, float)
        and isinstance(value.node, (int, float))
        # A metric that was never measured is infinity.
        and abs(value.node) < 1e300
        and _METRIC.search(str(value.path[-1]))
        and not any("optim" in str(key).lower() for key in value.path)
    }


BEST_PATHS = ("best_model_path", "checkpoint_callback_best_model_path")
"""The keys of Lightning for the best save, of newer versions and of older ones."""


def best_of_callbacks(case: Case) -> Statement | None:
    """Say what ModelCheckpoint of Lightning recorded as the best, or return None."""
    counters = recorded_counters(case)
    paths = [
        (name.rpartition(".")[0], str(node))
        for name, node in case.finds_value(BEST_PATHS)
        if isinstance(node, str) and node
    ]
    if not paths:
        return None
    place, best = paths[0]
    monitors = [
        str(node)
        for name, node in case.finds_value(("monitor",))
        if name.startswith(place) and isinstance(node, str)
    ]
    watched = f", by {show(monitors[0], 60)}" if monitors else ""
    watched += _score_text(place, case)
    best_name = re.split(r"[\\/]", best)[-1]
    own = os.path.basename(case.survey.path)
    counted = and_more([f"{show(name, 40)} {count:,}" for name, count in counters], 2)
    begin = f"ModelCheckpoint recorded {show(best_name, 100)} as the best{watched}"
    # Compared by the last part alone: a run is copied, and its folder is another one.
    if best_name == own:
        return Statement(f"{begin}: that is this file.")
    numbers = {int(number) for number in _NUMBER.findall(best_name)}
    held = {count for _, count in counters}
    if numbers & held:
        return Statement(
            f"{begin}, and this file counts {counted}: it is of the same epoch or "
            "step, so both hold the same weights. Where the metric is the epoch "
            "itself, the best is simply the last."
        )
    return Statement(
        f"{begin}. This file counts {counted or 'nothing'}: it holds the weights of "
        "that moment, and not of the best one. For results take the best file, and to "
        "go on with the run this one."
    )


def _score_text(place: str, case: Case) -> str:
    """The value of the best save in words, or an empty text where none is known."""
    name = f"{place}.best_model_score"
    for entry in case.survey.checkpoint.tensors:
        if entry.name == name:
            score = counter(entry.tensor)
            return "" if score is None or abs(score) > 1e300 else f" ({score:g})"
    return ""


# --- settings -------------------------------------------------------------------------

_SETTINGS = (
    (
        r"learning[ _-]?rates?|\blr\b|学习率",
        ("lr", "learning_rate", "base_lr", "initial_lr"),
    ),
    (
        r"batch[ _-]?size|批[大次量]",
        (
            "batch_size",
            "train_batch_size",
            "bs",
            "per_device_train_batch_size",
            "samples_per_gpu",
            "imgs_per_gpu",
            "ims_per_batch",
            "IMS_PER_BATCH",
            "micro_batch_size",
        ),
    ),
    (r"weight[ _-]?decay", ("weight_decay", "wd", "weight_decay_rate")),
    (r"momentum", ("momentum", "betas", "beta1")),
    (r"dropout", ("dropout", "drop_rate", "drop_path", "drop_path_rate")),
    (r"\bseed\b", ("seed", "random_seed", "manual_seed")),
    (
        r"image[ _-]?size|input (?:image )?(?:size|resolution)|\bresolution\b"
        r"|\bimg_?size",
        (
            "img_size",
            "image_size",
            "imgsz",
            "input_size",
            "resolution",
            "crop_size",
            "img_dim",
        ),
    ),
    (
        r"(?:which|what) data ?sets?\b|trained on (?:which|what)"
        r"|(?:which|what) data\b|数据集",
        ("data", "dataset", "data_path", "dataset_name", "data_dir", "train_file"),
    ),
    (r"(?:total|number of|max\w*) epochs", ("epochs", "num_epochs", "max_epochs")),
    (
        r"sampl\w{1,4}[ _-]?rate|\bHz\b",
        ("sample_rate", "sampling_rate", "sr", "sampling_freq"),
    ),
    (
        r"(?:context|sequence|seq|max\w*)[ _-]?len\w*|context (?:size|window)",
        (
            "max_position_embeddings",
            "block_size",
            "seq_len",
            "max_seq_len",
            "max_seq_length",
            "n_ctx",
            "context_length",
            "max_length",
        ),
    ),
    (r"hyper-?param\w*|training (?:settings|config\w*|arguments)|\bsettings\b", ()),
)
"""Words of a setting -> the keys under which programs keep it."""
ASKS_OF_SETTINGS = (
    r"(?:\b(?:what|which|how (?:much|many|large|big|long)|was|were|did|do|does|has|have"
    r"|is|are|find|know|see|get)\b[^\n?]{0,80}|^)(?:"
    + "|".join(f"(?:{words})" for words, _ in _SETTINGS)
    + ")"
)
"""The words of a question for a setting of the run."""


def of_settings_asked(text: str, case: Case) -> Iterator[Statement]:
    """Give the settings of a run that a question names in plain words."""
    wanted = [
        (match[0], keys)
        for words, keys in _SETTINGS
        if (match := re.search(words, text, re.IGNORECASE)) is not None
    ]
    told = []
    lacking = []
    for word, keys in wanted:
        rows = [
            f"{show(name, 80)} is {show(str(node), 60)}"
            for key in keys
            for name, node in case.finds_value((key,))
        ]
        told += rows
        if keys and not rows:
            lacking.append(show(word, 40))
    if told:
        yield Statement(f"This file records: {and_more(told, _MOST)}.")
    found = settings_command(case)
    near = list(of_words(text, case)) if lacking and not told else []
    yield from near
    if lacking and not near:
        yield Statement(
            f"No key of it names {and_more(lacking, 4)}, under a name that ckpt knows."
        )
    if found is not None:
        place, command = found
        yield Statement(
            f"All settings of the run are in {show(place, 60)}:", (), command
        )
    elif not told and not lacking:
        held = [str(key) for key, _ in children_of(case.survey.checkpoint.root)]
        has_keys = any(part.path for part in case.survey.sections)
        shown = and_more([show(key, 40) for key in held], 8) if has_keys else "weights"
        yield Statement(f"This file records no settings of its run: it has {shown}.")

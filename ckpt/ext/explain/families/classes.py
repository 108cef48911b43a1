"""The class of transformers that a folder asks for, where a program built
another one.
"""

from __future__ import annotations

import re
from collections import Counter

from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.message import Message
from ckpt.model.text import show
from ckpt.tree.find import children_of

BASES = {
    "transformer": (
        "bloom",
        "gpt2",
        "gptj",
        "gpt_neo",
        "codegen",
        "falcon",
        "xglm",
        "mpt",
    ),
    "model": (
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "gemma",
        "gemma2",
        "phi",
        "phi3",
        "opt",
        "bart",
        "mbart",
        "starcoder2",
    ),
    "gpt_neox": ("gpt_neox",),
    "bert": ("bert", "bert-generation", "megatron-bert", "qdqbert"),
    "roberta": ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"),
    "distilbert": ("distilbert",),
    "albert": ("albert",),
    "electra": ("electra",),
    "deberta": ("deberta", "deberta-v2"),
    "vit": ("vit",),
    "deit": ("deit",),
    "mpnet": ("mpnet",),
    "longformer": ("longformer",),
    "xlnet": ("xlnet",),
    "ernie": ("ernie",),
}
"""The prefix that transformers' classes with a head put before the names of the base
model -> the model types.
"""
_OF_ONE = frozenset(BASES) - {"transformer", "model"}
"""The prefixes that tell the architecture."""
# A terminal may wrap this warning of transformers, so each space stands for several.
TYPES = re.compile(
    r"You\s{1,40}are\s{1,40}using\s{1,40}a\s{1,40}model\s{1,40}of\s{1,40}type\s{1,40}`?([\w.-]{1,100})`?\s{1,40}to\s{1,40}instantiate\s{1,40}a"
    r"\s{1,40}model\s{1,40}of\s{1,40}type\s{1,40}`?([\w-]{1,100})"
)
_TASK = re.compile(
    r"\b[A-Z]\w{1,80}?(For(?:SequenceClassification|TokenClassification"
    r"|QuestionAnswering|MaskedLM|CausalLM|MultipleChoice|ImageClassification))\b"
)
"""The task of a class, for which transformers has a class that finds the architecture
in config.json.
"""


def task_of(text: str) -> str | None:
    """The task of the last class of transformers that a text names."""
    tasks = _TASK.findall(text)
    return tasks[-1] if tasks else None


def of_another_class(message: Message, case: Case) -> Statement | None:
    """Say that a model was built by a class of another architecture, as config.json or
    a warning of transformers has it.

    The weights of one architecture would load under the names of another, and compute
    something else.
    """
    config = dict(
        children_of(dict(children_of(case.survey.checkpoint.root)).get("config"))
    )
    said = config.get("model_type")
    own = said if isinstance(said, str) else None
    # A few missing keys are a head, and no other architecture.
    most = 2 * len(message.missing) >= len(case.survey.tensors)
    # A warning that contradicts config.json is not about this folder.
    if message.types and most and own in (None, message.types[0]):
        return another_class(*message.types, case, message)
    prefix = _named_architecture(message)
    known = {kind for kinds in BASES.values() for kind in kinds}
    # A type that is not in the table may share the prefix of another one.
    if own is None or prefix is None or own not in known or own in BASES[prefix]:
        return None
    return another_class(own, prefix, case, message)


def another_class(
    own: str, built: str, case: Case | None = None, message: Message | None = None
) -> Statement:
    """The sentence on a class of another architecture, with the line that takes the
    right one.
    """
    text = (
        f"The checkpoint is a model of type {show(own, 60)}, and the class that was "
        f"built is of type {show(built, 60)}: another architecture, so the names do "
        "not match, and a rename would fill it with weights that compute something "
        "else."
    )
    if case is None or message is None or case.survey.load.model is None:
        return Statement(f"{text} Use the class that config.json names.")
    line = case.survey.load.model
    if message.task is not None:
        path = case.path_literal
        # The automatic class finds the architecture in config.json, and keeps the head
        # of the task.
        line = f"transformers.AutoModel{message.task}.from_pretrained({path})"
    return Statement(f"{text} Use the class that config.json names:", (), line)


def _named_architecture(message: Message) -> str | None:
    """The architecture that most names of the model begin with, or None where they tell
    none.
    """
    names = (*message.missing, *(row.name for row in message.mismatched))
    roots = Counter(name.partition(".")[0] for name in names)
    best = max(
        (root for root in roots if root in _OF_ONE), key=roots.__getitem__, default=None
    )
    # A model may have an encoder of another architecture as a part.
    return best if best is not None and 2 * roots[best] >= len(names) else None

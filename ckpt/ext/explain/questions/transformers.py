"""Questions for a file in the form of transformers: a folder with a config, and other
names for the layers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt.evidence.dialects import Dialect, dialects_of
from ckpt.ext.explain.case import Case, Statement
from ckpt.ext.explain.families.recorded import settings_command
from ckpt.model.text import and_more, show

_THEIRS = "transformers"
_NAMED = (
    r"(?:hugging ?face|\bhf\b|\btransformers (?:format|models?|class\w*|library)"
    r"|\b(?:from|save)_pretrained\b|\bAutoModel\w*|\w+For[A-Z]\w+)"
)
ASKS_FOR_TRANSFORMERS = (
    rf"\b(?:conver\w{{1,5}}|export\w{{0,3}}|turn|transform)\b[^\n]{{0,160}}{_NAMED}"
    rf"|{_NAMED}[^\n]{{0,60}}\bconver\w{{1,5}}"
)
"""Words of a question for the form of transformers."""
_BACK = re.compile(rf"(?i)\bfrom (?:the )?{_NAMED}[^\n]{{0,60}}\b(?:in)?to\b")
"""Words of a question for the way back."""
_ASKS_HOW = re.compile(
    r"(?i)\bhow\b|\bcan (?:i|you|we|it)\b|\bis (?:there|it)\b|\b(?:way|script|tool"
    r"|possible|supported)\b|\b(?:want|need|like|have) to\b"
)
"""Words of a question for a way. One that was gone gives another question: why the
result is nonsense.
"""
_SHOWN = 4


def of_transformers(text: str, case: Case) -> Iterator[Statement]:
    """Say what a file lacks for transformers: its config, the names of its class, and
    the order of values that they go with.
    """
    path = case.survey.path
    if os.path.exists(os.path.join(path, "config.json")):
        return
    if _ASKS_HOW.search(text) is None or _BACK.search(text) is not None:
        return
    for section in case.survey.candidates[:1]:
        names = section.names()
        dialects = dialects_of(names)
        if any(dialect.name.startswith(_THEIRS) for dialect in dialects):
            told = (
                "Its names are those of transformers already: config.json is missing."
            )
        elif dialects and _THEIRS in dialects[0].family.dialects:
            told = _told_of(dialects[0])
        else:
            begins = list(dict.fromkeys(name.partition(".")[0] for name in names))
            told = (
                "The names of this file begin with "
                f"{and_more([show(word, 40) for word in begins], _SHOWN)}, and ckpt "
                "knows no table that gives each the name of a class there: that takes "
                "a script of the program or of transformers (convert_*_to_hf.py)."
            )
        yield Statement(
            "from_pretrained of transformers loads a folder with config.json, which "
            "names the class and its sizes, and the weights by the names of that class "
            f"(model.safetensors). {told}"
        )
    found = settings_command(case)
    if found is not None:
        place, command = found
        yield Statement(
            f"The sizes for config.json are among the settings, in {show(place, 60)}:",
            (),
            command,
        )


def _told_of(dialect: Dialect) -> str:
    """The sentences on an architecture that transformers has by other names."""
    both = frozenset((_THEIRS, dialect.name))
    words = (
        f"By its names this file is a {dialect.family.name} in the words of "
        f"{dialect.name}, and transformers has others"
    )
    if both in dialect.family.layouts:
        return (
            f"{words} and keeps its values otherwise (the rows of q_proj and k_proj), "
            "so new names alone give a model that loads and computes nonsense. Take "
            "the script of the program or of transformers that converts both (of "
            "Llama: convert_llama_weights_to_hf.py)."
        )
    return (
        f"{words} for the same values. Where it has the class of this model, build "
        "that by its config, let ckpt.open(FILE).load_into(model) pair the names, "
        "which says what it leaves out, and call model.save_pretrained(FOLDER). A "
        "class of its own has a script beside it (convert_*_to_hf.py)."
    )

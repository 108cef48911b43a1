"""Errors of fairseq, which builds the model that its options name, or the one that a
checkpoint records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpt.ext.explain.case import Case, Statement, load_statements
from ckpt.ext.explain.origins import fairseq_settings, name_origin
from ckpt.model.text import show

NOT_BUILT = re.compile(
    r"please ensure that the architectures match"
    r"|Could not infer (?:model|task) type from"
)
"""Words of fairseq that built another model, or does not know the one of a file."""


def of_architecture(found: re.Match[str], case: Case) -> Iterator[Statement]:
    """Name the model and the task that a checkpoint of fairseq was trained with."""
    settings = fairseq_settings(case.survey)
    origin = name_origin(case.survey) or ""
    if "fairseq" not in origin or not settings:
        return
    # Each pair is an option of fairseq, and the key of its value among the settings.
    words = (("arch", "model"), ("task", "task"))
    options = [
        f"--{option} {show(settings[word], 60)}"
        for option, word in words
        if word in settings
    ]
    # Read `Could not infer task type from {'_name': 'language_modeling'}. Available
    # tasks: dict_keys([])`.
    if "Could not infer" in found[0]:
        yield Statement(
            f"This checkpoint was trained with {' and '.join(options)}. The fairseq "
            "at hand does not know one of them: it comes with another version, or "
            "with the code of a project, which --user-dir names."
        )
    else:
        yield Statement(
            f"This checkpoint was trained with {' and '.join(options)}, and fairseq "
            "built another model: give the same, with the options that change its "
            "sizes, and the dictionaries of that training."
        )
    yield from load_statements(case)

"""The config files that go along with dequantised weights: none of them may call the
weights quantised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ckpt.commands.rewriting.report import Leftover, RewriteReport
from ckpt.ext.quantised.edit import CONFIG
from ckpt.surface.api.config_files import ConfigFile, document_bytes

_ENTRY = "quantization_config"
_OTHER = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files that hold nothing but how weights were quantised, of AutoGPTQ, AutoAWQ and
ModelOpt.
"""


def with_plain_configs(
    files: Sequence[ConfigFile], report: RewriteReport
) -> tuple[list[ConfigFile], RewriteReport]:
    """Return the files without what calls the weights quantised, and the report that
    says so.

    Where some weights stay quantised, the files stay as they are.
    """
    stays = any(row.what.startswith("stays quantised") for row in report.left_alone)
    is_changed = any(change.kind == "dequantised" for change in report.changes)
    if stays or not is_changed:
        return list(files), report
    kept: list[ConfigFile] = []
    gone: list[Leftover] = []
    for file in files:
        if file.name in _OTHER:
            gone.append(Leftover(file.name, "it says how the weights were quantised"))
            continue
        content = _without_entry(file.content) if file.name == CONFIG else None
        if content is not None:
            gone.append(
                Leftover(
                    f"{_ENTRY} of {CONFIG}", "the weights are not quantised any more"
                )
            )
            file = file._replace(content=content)
        kept.append(file)
    # The line about config.json asked for what is done now.
    rest = tuple([row for row in report.left_alone if row.name != CONFIG])
    return kept, report._replace(left_out=(*report.left_out, *gone), left_alone=rest)


def _without_entry(content: bytes) -> bytes | None:
    """Return a config.json without the entry, or None where it has none, or cannot be
    written again.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or _ENTRY not in document:
        return None
    del document[_ENTRY]
    return document_bytes(document)

"""The form of a question in plain words, also without a question mark."""

from __future__ import annotations

import re

_LONGEST = 2_000
"""Letters of a question. A log has more."""
_ASKS = re.compile(
    r"[?\uff1f]|吗|么|如何|怎么|怎样|为什么|是否|哪|请问|多少|想(?:要|知道|问)"
    r"|(?i:(?:^|[.!,;:]\s+|\n\s*)(?:so |and |but |hi[,!]? |hello[,!]? )?"
    r"(?:how|what|which|why|where|when|is|are|does|do|did|can|could|should|was|were"
    r"|has|have|will|would|may)\b(?! (?:been|not|already|now)\b))"
    r"|(?i:\bI(?:'m| am)? (?:just )?(?:want|need|wonder\w*|would like|not sure"
    r"|do(?: not|n'?t) (?:fully |really )?(?:understand|know)|confused|unsure|try\w*"
    r"|have (?:a )?questions?)\b)"
    r"|(?i:\b(?:want|would like|wish|hope|trying) to\b|\bwondering\b|\bnot sure\b)"
    r"|(?i:\bhow (?:to|do|can|many|much|long|should)\b|\bwhether\b"
    r"|\bplease (?:tell|help|explain|clarify)\b|\bany (?:way|idea)\b"
    r"|\b(?:explain|clarify|elaborate(?: on)?|understand|tell (?:me|us)) (?:what|how"
    r"|why|which|where|the)\b|\b(?:would|will) appreciate\b|\bcorrect me if\b"
    r"|\b(?:which|what) (?:part|one|file|key|epoch|layer)s?\b)"
)


_BORDER = re.compile(
    r"(?<=[\u4e00-\u9fff])(?=[A-Za-z0-9_])|(?<=[A-Za-z0-9_])(?=[\u4e00-\u9fff])"
)


def separate_scripts(text: str) -> str:
    """Return a text with a space between Chinese and other words, where Chinese has
    none: the patterns look for whole words.
    """
    return _BORDER.sub(" ", text)


def is_asking(text: str) -> bool:
    """Tell whether a short text asks something."""
    return len(text) <= _LONGEST and _ASKS.search(text) is not None


_OF_ERROR = re.compile(
    r"(?i)\w(?:Error|Exception|Warning)\b|\b(?:errors?|exceptions?|traceback|fail\w{0,3}"
    r"|fatal|mismatch\w{0,2}|missing|unexpected|cannot|can'?t|unable|invalid|unknown"
    r"|not found|expected|unsupported|did you mean)\b"
)
"""Words of a program that reports a problem."""


def asks_plainly(text: str) -> bool:
    """Tell whether a short text asks something and has no words of an error."""
    return is_asking(text) and _OF_ERROR.search(text) is None

"""A checkpoint as plain text for `git diff`: the same lines wherever the file lies, one fact each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckpt.jobs.inspect.inspect import InspectReport
from ckpt.render.tables import import_table, value_table
from ckpt.text import show, show_literal

_POINTER = re.compile(rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n?")
_DIGITS = 16
"""Hexadecimal digits of a SHA-256 that are shown: enough to see that a tensor changed."""


def textconv_lines(report: InspectReport, digests: Sequence[str | None]) -> list[str]:
    """The format, the findings, the values, the imports and the tensors of a file; no path, which is git's own."""
    lines = [f"format {report.checkpoint.format}"]
    lines += [f"finding {row.code}: {show_literal(row.message)}" for row in report.findings]
    lines += [f"value {name} = {value or kind}" for name, kind, value in value_table(report)[1:]]
    lines += [f"import {row[0]} {row[1]}" for row in import_table(report)[1:]]
    for row, digest in zip(report.rows, digests, strict=True):
        tensor = row.tensor
        shape = ", ".join(map(str, tensor.shape))
        what = f"{tensor.dtype.name} [{shape}] {show(tensor.device or '', None)}".rstrip()
        lines.append(f"tensor {show(row.entry.name, None)} {what} {(digest or 'no data')[:_DIGITS]}")
    return lines


def unread_line(head: bytes, problem: str) -> str:
    """The line for what cannot be read: what a Git LFS pointer points to, else the problem."""
    pointer = _POINTER.match(head)
    if pointer:
        return f"Git LFS pointer to {int(pointer[2]):,} bytes, sha256 {pointer[1].decode()}"
    return f"not read: {show_literal(problem)}"

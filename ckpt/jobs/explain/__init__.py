"""`ckpt explain`: the pages of the findings, and those that answer the errors of PyTorch.

`findings.md` and `errors.md` are the source of docs/findings.md and docs/errors.md, which also show what the
commands print.
"""

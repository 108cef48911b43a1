"""A script that trains when it is imported is refused before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inside import inside
from torch import nn

from ckpt.ext.live.script import training_call

HEAD = """
import torch
from torch import nn

def build():
    return nn.Linear(2, 1)

def train(model):
    for epoch in range(2):
        model(torch.ones(1, 2)).sum().backward()
        torch.save({"model": model.state_dict(), "epoch": epoch}, "last.pth")

class Trainer:
    def __init__(self, model):
        self.model = model
    def run(self):
        train(self.model)

def main():
    Trainer(build()).run()

"""
GUARD = 'if __name__ == "__main__":'


@pytest.mark.parametrize(
    ("end", "call"),
    [
        ("main()", "backward(…) in line 10"),
        ("Trainer(build()).run()", "backward(…) in line 10"),
        (
            "for x in range(3):\n    loss = build()(torch.ones(1, 2)).sum()\n"
            "    loss.backward()",
            "backward(…) in line 24",
        ),
        ("torch.save(build().state_dict(), 'last.pth')", "save(…) in line 22"),
        (f"{GUARD}\n    pass\nelse:\n    main()", "backward(…) in line 10"),
        ("trainer = object()\nif 0:\n    trainer.fit(build())", "fit(…) in line 24"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "last.pth", "--model", "train.py:build", "--index", "0"),
        ("explain", "did not receive grad for rank 0: 0", "last.pth", "--model",
         "train.py:build"),
        ("lint", "--model", "train.py:build"),
        ("warmstart", "last.pth", "--into-model", "train.py:build", "-o", "o.pth"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_script_that_trains_when_it_is_imported(
    end: str, call: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    """Its checkpoints, which the question is about, would be written anew."""
    (tmp_path / "train.py").write_text(f"{HEAD}{end}\n")
    torch.save({"model": nn.Linear(2, 1).state_dict()}, tmp_path / "last.pth")
    before = (tmp_path / "last.pth").read_bytes()
    done = inside(*command, cwd=tmp_path)
    assert (tmp_path / "last.pth").read_bytes() == before and done.code == 2
    line = done.complaints[-1]
    assert "importing the script would train: " in line and call in line, line
    assert line.endswith(f"(put what the script runs below {GUARD})")


@pytest.mark.parametrize(
    "end",
    [
        f"{GUARD}\n    main()",
        "if '__main__' == __name__:\n    main()",
        "build().train().eval()\nstep = lambda loss: loss.backward()",
        "registry = {}\nregistry['main'] = main\nregistry.get('main')",
    ],
)
def test_a_script_that_only_defines(end: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}{end}\n")
    assert training_call((tmp_path / "train.py").read_bytes()) is None


@pytest.mark.parametrize("source", [b"def (", b"\0", b"x = " + b"(" * 5000, b"\xff"])
def test_what_is_no_script_is_left_to_the_import(source: bytes) -> None:
    assert training_call(source) is None

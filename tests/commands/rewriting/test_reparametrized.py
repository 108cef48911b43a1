"""weight_norm and spectral_norm, old and new: `warmstart`, `load_into` and `diff` know
that their tensors are the same.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import oracle
import pytest
import torch
from inside import inside
from torch import nn

import ckpt

pytestmark = oracle.QUIET


class Vocoder(nn.Module):
    """A layer with weight_norm along the last dimension, as wav2vec2 has it, and one
    with spectral_norm.
    """

    def __init__(self, new: bool) -> None:
        super().__init__()
        conv, linear = nn.Conv1d(16, 16, 8, groups=4), nn.Linear(16, 8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if new:
                self.conv = nn.utils.parametrizations.weight_norm(conv, dim=2)
                self.judge = nn.utils.parametrizations.spectral_norm(linear)
            else:
                self.conv = nn.utils.weight_norm(conv, dim=2)
                self.judge = nn.utils.spectral_norm(linear)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.judge(self.norm(self.conv(x).mean(2)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("old_into_new", [True, False])
def test_the_file_of_one_fills_a_model_of_the_other(
    tmp_path: Path, old_into_new: bool
) -> None:
    torch.manual_seed(0)
    models = [Vocoder(new=False).eval(), Vocoder(new=True).eval()]
    source, target = models if old_into_new else models[::-1]
    torch.save(source.state_dict(), tmp_path / "one.pth")
    torch.save(target.state_dict(), tmp_path / "two.pth")
    x = torch.randn(2, 16, 12)

    done = inside(
        "warmstart", "one.pth", "--into", "two.pth", "-o", "start.pth", cwd=tmp_path
    )

    number = len(target.state_dict())
    assert (
        f"loads {number} of {number} tensors, 100 % of the model; 0 missing; 0 "
        "unexpected"
    ) in done.out.decode()
    target.load_state_dict(torch.load(tmp_path / "start.pth", weights_only=True))
    assert torch.equal(target(x), source(x))
    other = Vocoder(new=old_into_new).eval()
    with ckpt.open(tmp_path / "one.pth") as opened:
        assert opened.load_into(other, strict=True).share == 1
    assert torch.equal(other(x), source(x))
    same = inside("diff", "one.pth", "start.pth", cwd=tmp_path)
    assert same.code == 0 and f"same: {number} tensors" in same.out.decode()


def test_torch_loads_the_old_weight_norm_to_the_same_tensors(tmp_path: Path) -> None:
    old, new = (
        nn.utils.weight_norm(nn.Linear(3, 4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    )
    torch.save(old.state_dict(), tmp_path / "old.pth")
    torch.save(new.state_dict(), tmp_path / "new.pth")
    new.load_state_dict(torch.load(tmp_path / "old.pth", weights_only=True))
    done = inside(
        "warmstart", "old.pth", "--into", "new.pth", "-o", "start.pth", cwd=tmp_path
    )
    assert done.code == 0, done.err
    written = torch.load(tmp_path / "start.pth", weights_only=True)
    assert written.keys() == new.state_dict().keys()
    assert all(
        torch.equal(value, written[name]) for name, value in new.state_dict().items()
    )

"""Draws the pictures of reports, docs/img/report.png and docs/img/report-diff.png:
`python tools/screens.py`.

Headless Chromium shows the pages of two samples. Fonts differ between machines, so no
test compares the pictures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WIDTH = 940
PICTURES = {
    "report": (["report", "llama_bf16.pth", "-o"], 1040),
    "report-diff": (["diff", "ddp_before.pth", "ddp_after.pth", "-q", "--html"], 830),
}
"""Name -> the command that draws the page, and the height of the part that is shown, in
pixels.
"""


def main() -> None:
    """Draw both pictures."""
    sys.path.insert(0, str(ROOT / "tests" / "lib"))
    from browser import browser

    with tempfile.TemporaryDirectory() as folder:
        for name, (words, height) in PICTURES.items():
            page = Path(folder, f"{name}.html")
            subprocess.run(
                [sys.executable, "-m", "ckpt", *words, page],
                cwd=ROOT / "sample_checkpoints",
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            shown = browser()
            shown.open(page, width=WIDTH, height=height)
            shown.picture(ROOT / "docs" / "img" / f"{name}.png", whole=False)


if __name__ == "__main__":
    main()

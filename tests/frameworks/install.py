"""`install.py PYTHON`: installs requirements.txt, one package after the other, and says
which ones cannot be had.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAYERS = (
    "autoawq==0.2.9",
    "gptqmodel==7.7.0",
    "defuser==0.0.28",
    "device-smi==0.5.7",
    "logbar==0.4.15",
    "pypcre==0.6.4",
    "tokenicer==0.0.14",
)
"""Packages of which only the layers are asked, and what these import. What they need
beside is left out, as another torch.
"""


def pip(python: str, *arguments: str) -> bool:
    return (
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *arguments]
        ).returncode
        == 0
    )


def main() -> int:
    python = sys.argv[1]
    lines = (HERE / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    torch, *packages = wanted
    if not pip(python, torch):
        return 1
    # All at once is fastest. With one that cannot be had, each alone.
    constraint = ("--constraint", str(HERE / "requirements.txt"))
    if not pip(python, *constraint, *packages):
        for package in packages:
            if not pip(python, *constraint, package):
                print(
                    f"{package} cannot be installed: its cases will be skipped",
                    file=sys.stderr,
                )
    for package in LAYERS:
        if not pip(python, "--no-deps", package):
            print(f"{package} cannot be installed", file=sys.stderr)
    # torchaudio is built for CUDA in the package index. Without its library it does
    # what it can.
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    )
    for path in (Path(where.stdout.strip()) / "torchaudio" / "lib").glob("*.so"):
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

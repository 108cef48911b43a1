"""Sources that answer otherwise once they were judged: what is written is what was
judged.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from struct import pack

import pytest
import torch
from webs import served

import ckpt
from ckpt.model.errors import CkptError

ROOM = 400
MARK = b"X" + pack("<I", ROOM) + b"x" * ROOM
CALL = b"cposix\nsystem\nX\x09\x00\x00\x00touch ran\x85R0"


def popped(size: int) -> bytes:
    """`size` bytes of a pickle that leave nothing on its stack."""
    return b"X" + pack("<I", size - 6) + b"y" * (size - 6) + b"0"


def harmless_and_evil(*, is_legacy: bool) -> tuple[bytes, bytes]:
    """Two files of equal size that differ in a call whose result is thrown away."""
    buffer = BytesIO()
    tree = {"w": torch.ones(200_000), "pad": "x" * ROOM}
    torch.save(tree, buffer, _use_new_zipfile_serialization=not is_legacy)
    value = b"X\x01\x00\x00\x00v"
    texts = (popped(500) + value, CALL + popped(500 - len(CALL)) + value)
    return tuple(  # type: ignore[return-value]
        buffer.getvalue().replace(MARK, text)
        if is_legacy
        else with_pickle(buffer.getvalue(), text)
        for text in texts
    )


def with_pickle(data: bytes, text: bytes) -> bytes:
    """An archive with other bytes in the place of MARK."""
    made = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for record in old.infolist():
            content = old.read(record).replace(MARK, text)
            new.writestr(zipfile.ZipInfo(record.filename), content)
    return made.getvalue()


class Liar(dict[str, bytes]):
    """Files of a server that changes one after so many requests."""

    def __init__(self, harmless: bytes, evil: bytes, after: int) -> None:
        super().__init__({"/in.pth": harmless})
        self.evil = evil
        self.left = after

    def __getitem__(self, name: str) -> bytes:
        self.left -= 1
        return self.evil if self.left < 0 else super().__getitem__(name)

    def get(self, name: str, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        return super().get(name, default) and self[name]


@pytest.mark.needs("remote")
@pytest.mark.parametrize("is_legacy", [False, True], ids=["zip", "legacy"])
def test_a_server_that_lies_after_the_judgement(
    is_legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckpt.ext.remote import source

    # As with a file of gigabytes: nothing that was read is kept.
    monkeypatch.setattr(source.kept._held, "most", 0)
    monkeypatch.setattr(source.kept._loose, "most", 0)
    pair = harmless_and_evil(is_legacy=is_legacy)
    assert len(pair[0]) == len(pair[1])
    format = "torch-legacy" if is_legacy else "torch-zip"
    outcomes: list[str] = []
    for after in range(80):
        with served() as web:
            web.etags = False
            web.files = Liar(*pair, after)
            out = tmp_path / f"{after}.pth"
            try:
                ckpt.convert(f"{web.url}/in.pth", out=out, format=format)
            except CkptError as error:
                outcomes.append(error.problem)
                assert not out.exists()
                continue
        assert b"posix" not in out.read_bytes()
        # From here on the server never lies.
        outcomes.append("written")
        break
    assert outcomes[-1] == "written"
    assert any("posix.system, which its source did not" in text for text in outcomes)

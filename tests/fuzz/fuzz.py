"""Fuzzing with atheris: `python tests/fuzz/fuzz.py TARGET [OPTIONS OF LIBFUZZER]`;
without a TARGET it lists them.

The targets are the names of `targets.TARGETS`: each reads bytes with one part of ckpt,
and checks what must hold. The corpus starts from `seeds` and is kept in `.fuzz/TARGET`
below the root of the repository; a crash is written beside it. `python
tests/fuzz/fuzz.py TARGET FILE` runs one file again. `make fuzz` runs each target for 60
seconds. A crash becomes a case of `tests/lib/hostile.py`, or a test of the module that
it is in, before it is fixed.

`test_fuzz.py` runs the seeds and some changes of them without atheris, so that no
target rots. For OSS-Fuzz, a build script needs one `compile_python_fuzzer` of this file
with the TARGET in `CKPT_FUZZ_TARGET`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "lib"), str(ROOT)]

_DEFAULTS = {"-timeout": "10", "-rss_limit_mb": "2000", "-max_len": "8192"}


def main(arguments: list[str]) -> None:
    """Fuzz the target that the first argument names, until libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["ckpt"]):
        from targets import TARGETS
    if arguments == ["--list"]:
        print(*TARGETS)
        return
    name = os.environ.get("CKPT_FUZZ_TARGET") or (arguments.pop(0) if arguments else "")
    if name not in TARGETS:
        raise SystemExit(f"targets: {' '.join(TARGETS)}")
    target = TARGETS[name]

    def one(data: bytes) -> None:
        try:
            target.check(data)
        except BaseException:
            # libFuzzer writes it too, but not where the process ends before: by its own
            # alarm, while Python shuts down.
            with suppress(OSError):
                (
                    ROOT / ".fuzz" / f"{name}-crash-{hashlib.sha1(data).hexdigest()}"
                ).write_bytes(data)
            raise

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return target.mutate(data, random)[:most]

    (ROOT / ".fuzz").mkdir(exist_ok=True)
    given = {argument.partition("=")[0] for argument in arguments}
    options = [
        f"{option}={value}"
        for option, value in _DEFAULTS.items()
        if option not in given
    ]
    if not any(not argument.startswith("-") for argument in arguments):
        corpus = ROOT / ".fuzz" / name
        corpus.mkdir(parents=True, exist_ok=True)
        for seed in target.seeds():
            (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
        options += [f"-artifact_prefix={ROOT / '.fuzz'}/{name}-", str(corpus)]
    atheris.Setup([sys.argv[0], *options, *arguments], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])

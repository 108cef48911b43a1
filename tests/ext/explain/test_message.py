"""Errors of torch 1.4 to 2.13 are found in the output of a program, with their numbers,
names and shapes.
"""

from __future__ import annotations

import random

import pytest

from ckpt.evidence.numbering import Numbers
from ckpt.ext.explain.families import find_message
from ckpt.ext.explain.message import Message, Mismatch
from ckpt.ext.explain.pasted import LONGEST, plain_text

UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before "
    "starting a new one. This error indicates that your module has parameters that "
    "were not used in producing loss. You can enable unused parameter detection by "
    "passing the keyword argument `find_unused_parameters=True` to "
    "`torch.nn.parallel.DistributedDataParallel`, and by making sure all `forward` "
    "function outputs participate in calculating loss."
)
KEYS = """RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s) in state_dict: "fc.weight", "fc.bias".
\tUnexpected key(s) in state_dict: "module.fc.weight", "module.fc.bias".
\tsize mismatch for head.weight: copying a param with shape torch.Size([10, 4]) from checkpoint, the shape in current model is torch.Size([2, 4])."""


def found(text: str) -> Message:
    message = find_message(text)
    assert message is not None
    return message


VERSIONS = [
    # torch 1.4: no numbers yet
    ("ddp", UNUSED.replace("You can enable", "(1) You can enable")),
    # 1.8 and later
    ("ddp", (
        f"{UNUSED}\nParameter indices which did not receive grad for rank 1: 6 7 8 9\n "
        "In addition, you can set"
    )),
    ("twice", (
        "RuntimeError: Expected to mark a variable ready only once. This error is "
        "caused by one of the following reasons: 1) Use of a module parameter outside "
        "the `forward` function."
    )),
    ("twice", (
        "Parameter at index 3 has been marked as ready twice. This means that multiple "
        "autograd engine hooks"
    )),
    ("keys", (
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in '
        'state_dict: "a".'
    )),
    ("keys", "KeyError: 'unexpected key \"module.conv1.weight\" in state_dict'"),  # 0.3
    ("sizes", (
        "\tsize mismatch for fc.weight: copying a param of torch.Size([10, 4]) from "
        "checkpoint, where the shape is torch.Size([2, 4]) in current model."
    )),
    ("device", (
        "RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False."
    )),
    ("device", (
        "RuntimeError: Attempting to deserialize object on CUDA device 3 but "
        "torch.cuda.device_count() is 1."
    )),
    ("device", "RuntimeError: CUDA error: invalid device ordinal"),
    ("device", (
        "RuntimeError: don't know how to restore data location of "
        "torch.storage.UntypedStorage (tagged with xla:0)"
    )),
    ("memory", (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 "
        "GiB total capacity;"
    )),  # 1.x
    ("memory", (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
        "has a total capacity of"
    )),
    ("memory", "torch.cuda.OutOfMemoryError: HIP out of memory."),
    ("globals", (
        "_pickle.UnpicklingError: Unsupported class argparse.Namespace"
    )),  # 1.13
    ("globals", (
        "WeightsUnpickler error: Unsupported global: GLOBAL "
        "numpy.core.multiarray.scalar was not an allowed global by default."
    )),
    ("globals", (
        "WeightsUnpickler error: Trying to load unsupported GLOBAL posix.system whose "
        "module posix is blocked."
    )),
    ("code", "ModuleNotFoundError: No module named 'models.yolo'"),
    ("code", (
        "AttributeError: Can't get attribute 'Net' on <module '__main__' from "
        "'train.py'>"
    )),
    ("optimizer", (
        "ValueError: loaded state dict has a different number of parameter groups"
    )),
    ("optimizer", (
        "ValueError: loaded state dict contains a parameter group that doesn't match "
        "the size of optimizer's group"
    )),
    ("distributed", (
        "RuntimeError: Missing key in checkpoint state_dict: "
        "optim.state.unused.weight.step."
    )),
    ("damaged", (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding "
        "central directory"
    )),
    ("damaged", (
        "RuntimeError: [enforce fail at inline_container.cc:145] . PytorchStreamReader "
        "failed reading zip archive: not a ZIP archive"
    )),
    ("damaged", (
        "RuntimeError: unexpected EOF, expected 9436 more bytes. The file might be "
        "corrupted."
    )),
    ("damaged", "_pickle.UnpicklingError: invalid load key, '<'."),
    ("damaged", "EOFError: Ran out of input"),
    ("damaged", "_pickle.UnpicklingError: pickle data was truncated"),
    ("replicas", (
        "RuntimeError: Expected all tensors to be on the same device, but found at "
        "least two devices, cuda:0 and cuda:1!"
    )),
    ("replicas", (
        "RuntimeError: Expected tensor for argument #1 'input' to have the same device "
        "as tensor for argument #2 'weight'; but device 1 does not equal 0"
    )),
    ("python2", (
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xa4 in position 1: "
        "invalid start byte"
    )),
    ("python2", (
        "UnicodeDecodeError: 'ascii' codec can't decode byte 0xa4 in position 1: "
        "ordinal not in range(128)"
    )),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), VERSIONS, ids=lambda value: value[-50:])
def test_each_error_has_its_kind(kind: str, text: str) -> None:
    log = (
        f"Traceback (most recent call last):\n{text}\nsrun: error: node1: task 0: "
        "Exited with exit code 1\n"
    )

    assert found(log).kind == kind


def test_what_is_no_error_of_torch() -> None:
    assert find_message("epoch 7 loss 0.3\nKeyboardInterrupt\n") is None


def test_numbers_of_several_ranks_with_mixed_lines() -> None:
    lines = [
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        f"[rank1]: {UNUSED}",
        f"[rank0]: {UNUSED}",
        "[rank1]: Parameter indices which did not receive grad for rank 1: 6 7 8 9",
        "[rank0]: Parameter indices which did not receive grad for rank 0: 6 7",
        (
            "[rank1]:  In addition, you can set the environment variable "
            "TORCH_DISTRIBUTED_DEBUG"
        ),
    ]

    message = found("\r\n".join(lines))

    assert message.numbers == Numbers(((0, (6, 7)), (1, (6, 7, 8, 9))), "without")
    assert message.fields == {"numbers": "6,7,8,9"}


def test_names_that_ddp_prints_itself() -> None:
    text = "Parameters which did not receive grad for rank 1: fc3.weight, fc3.bias\n"
    assert found(text).names == ("fc3.weight", "fc3.bias")
    twice = (
        "Parameter at index 3 with name conv1.weight has been marked as ready twice."
    )
    assert found(twice).names == ("conv1.weight",)
    assert found(twice).numbers == Numbers(((None, (3,)),), "twice")


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "[rank3]: ",
        "[default0]:",
        "[1,0]<stderr>:",
        "3: ",
        "(RayTrainWorker pid=71, ip=10.0.0.1) ",
    ],
)
def test_keys_and_shapes(mark: str) -> None:
    message = found(
        "\n".join(mark + line for line in f"loading\n{KEYS}\nbye".split("\n"))
    )

    assert message.kind == "keys"
    assert message.text == "RuntimeError: Error(s) in loading state_dict for Net:"
    assert message.missing == ("fc.weight", "fc.bias")
    assert message.unexpected == ("module.fc.weight", "module.fc.bias")
    assert message.mismatched == (Mismatch("head.weight", (10, 4), (2, 4)),)


def test_the_last_load_counts() -> None:
    first = KEYS.replace("fc.", "old.")

    assert found(f"{first}\nretry\n{KEYS}").missing == ("fc.weight", "fc.bias")
    # Two ranks that print at once are one load.
    one, other = KEYS.split("\n"), KEYS.split("\n")
    mixed = "\n".join(line for pair in zip(one, other, strict=True) for line in pair)
    assert found(mixed) == found(KEYS)


def test_the_last_error_counts() -> None:
    texts = [
        text for kind, text in VERSIONS if kind != "sizes"
    ]  # a line of shapes belongs to the keys before it
    rng = random.Random(3)
    for _ in range(40):
        rng.shuffle(texts)
        assert found("\n\n".join(texts)).kind == found(texts[-1]).kind


def test_the_names_that_loading_imports() -> None:
    assert found(VERSIONS[14][1]).names == ("argparse.Namespace",)
    assert found(VERSIONS[15][1]).names == ("numpy.core.multiarray.scalar",)
    assert found("No module named 'models.yolo'").names == ("models.yolo",)
    assert found("Can't get attribute 'Net' on <module '__main__'").names == (
        "__main__.Net",
    )


def test_the_device_of_an_error() -> None:
    devices = [found(text).device for kind, text in VERSIONS if kind == "device"]
    assert devices == ["cuda", "cuda:3", None, "xla:0"]


def test_colours_and_progress_bars() -> None:
    text = (
        "\x1b[31mRuntime\x1b[0mError\r 10%|##  |\r 20%|### "
        f"|\r\x1b[1;31m{VERSIONS[1][1]}\x1b[0m\x1b]0;title\x07"
    )
    message = found(text)
    assert message.numbers is not None and message.numbers.all == [6, 7, 8, 9]
    assert message.text.startswith("Parameter indices")
    bar = (
        "\r 10%|##  |\r\x1b[31mRuntime\x1b[0mError: "
        f"{VERSIONS[8][1].removeprefix('RuntimeError: ')}"
    )
    assert found(bar).text == VERSIONS[8][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "Parameter indices which did not receive grad for rank 1: " + "9" * 5_000,
        "Parameter indices which did not receive grad for rank 1: "
        + " ".join(map(str, range(1_000_000))),
        "size mismatch for " + "a" * 1_000_000,
        "Missing key(s) in state_dict: " + '"' * 1_000_000,
        "Error(s) in loading state_dict for \n" * 100_000,
        "Missing key(s) in state_dict: " * 100_000,
        "\x1b[" * 1_000_000,
        "[rank1]: " * 300_000,
        "Unsupported global: GLOBAL " + "." * 1_000_000,
        "Parameters which did not receive grad for rank 1: " + "a, " * 1_000_000,
        "step\r" * 2_000_000,
    ],
    ids=lambda text: text[:40].strip(),
)
def test_hostile_texts(text: str) -> None:
    """Each of these takes hours where the time of a pattern grows with the square of
    the length.
    """
    message = find_message(text)

    assert message is None or len(message.text) <= 4_000
    assert (
        message is None
        or message.numbers is None
        or len(message.numbers.all) in (0, 1_000_000)
    )


@pytest.mark.slow
def test_only_the_end_of_a_long_text_counts() -> None:
    assert find_message(UNUSED + " " * LONGEST) is None
    assert plain_text("x" * (LONGEST + 5)) == "x" * LONGEST

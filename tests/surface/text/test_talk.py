"""Errors on a terminal: broken at words, with the command that helps whole and on a
line of its own.
"""

from __future__ import annotations

import ast
import textwrap

import pytest

from ckpt.surface.text.lines import expression_lines, plain_text, talk_lines

TEXT = "ckpt: hostile.pth: loading the result would run posix.system('echo')"


def test_what_fits_is_one_line_and_so_is_all_in_a_pipe() -> None:
    hint = (
        "--keep-code writes it; for the weights alone: ckpt slim hostile.pth -o "
        "hostile.slim.pth"
    )

    assert talk_lines(TEXT, hint, None) == [f"{TEXT} ({hint})"]
    assert talk_lines(TEXT, None, 80) == [TEXT]
    assert talk_lines("ckpt: a", "b c", 13) == ["ckpt: a (b c)"]


@pytest.mark.parametrize(
    ("hint", "below"),
    [
        (
            "for the weights alone: ckpt slim a b.pth",
            ["      for the weights alone:", "      ckpt slim a b.pth"],
        ),
        ("ckpt inspect a.pth --section x", ["      ckpt inspect a.pth --section x"]),
    ],
)
def test_a_command_has_a_line_of_its_own(hint: str, below: list[str]) -> None:
    assert talk_lines(TEXT, hint, 80) == [TEXT, *below]


def test_a_command_wider_than_the_terminal_is_whole() -> None:
    command = f"ckpt slim {'long' * 20}.pth -o out.pth"

    assert command in [line.strip() for line in talk_lines(TEXT, command, 80)]


def test_a_short_hint_is_not_broken_and_a_long_one_is() -> None:
    assert talk_lines("ckpt: index.pth: a Git LFS pointer", "git lfs pull", 40) == [
        "ckpt: index.pth: a Git LFS pointer",
        "      (git lfs pull)",
    ]
    assert talk_lines("ckpt: index.pth: a pointer", "one two three four five", 40) == [
        "ckpt: index.pth: a pointer (one two",
        "      three four five)",
    ]


def test_a_value_stays_with_its_option_and_a_unit_with_its_number() -> None:
    text = "ckpt: m: the ending names no format"
    hint = (
        "-o out.pth or -o out.safetensors, of at most 30 % or 12 GiB of --dtype float16"
    )

    for width in range(30, 100):
        for line in talk_lines(text, hint, width):
            assert not line.endswith((" -o", "(-o", " 30", " 12", " --dtype")), width


EXPRESSIONS = (
    'torch.load("a.pt", map_location="cpu")["model"]',
    'transformers.Qwen2ForCausalLM.from_pretrained("hub/models--a--b/snapshots/'
    + "f0" * 20
    + '")',
    '{k: v for shard in ["m-1.safetensors", "m (2), \\"x\\".safetensors"]'
    ' for k, v in safetensors.torch.load_file("some folder/of/" + shard).items()}',
    'peft.PeftModel.from_pretrained(base, "lora/out")  # base is "Qwen2-tiny-instruct"',
    (
        'torch.load(io.BytesIO(open("a/b/c.pth", "rb").read()[12:]), '
        'weights_only=False)["a"]["b"]'
    ),
    "torch.load('it is quoted/otherwise, and/long', map_location='cpu')",
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, None])
def test_an_expression_that_is_broken_is_the_same_for_python(
    expression: str, width: int | None
) -> None:
    lines = expression_lines(expression, width, 10)

    text = textwrap.dedent(plain_text(lines))
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(expression))
    if width is None or width >= len(expression) + 2:
        assert len(lines) == 1
    elif width >= 60 and '"' in expression:
        assert max(map(len, plain_text(lines).splitlines())) <= width


def test_a_command_of_a_shell_is_not_broken() -> None:
    command = "ckpt rename a.pth --sub 's/^(a|b), (c)/d/' -o out.pth"
    assert plain_text(expression_lines(command, 30)).splitlines() == [f"  {command}"]

"""`B: size`: what may be said with it, and what is said of what may not."""

from __future__ import annotations

import pytest

from mirage_nb.errors import DTypeError, MirageError, NamedSizeError, OptionError
from mirage_nb.ir import Size
from mirage_nb.ir.sizes import resized, size_of
from mirage_nb.lang import parse
from tests.shares import crossed

NORM = "X: f16[2*B, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W"


def test_a_size_is_declared_in_the_text_or_from_outside() -> None:
    declared = parse(f"B: size(16)\n{NORM}").graph
    assert size_of(declared) == Size("B", 1, 16)
    assert declared.inputs[0].type.shape == (32, 64) and declared.inputs[1].size is None
    assert parse(f"B = 1\n{NORM}", sizes={"B": range(1, 17)}).graph == declared
    assert size_of(parse(f"B: size\n{NORM}").graph) == Size("B", 1, 64)
    assert size_of(parse(f"B: size\n{NORM}", sizes={"B": range(3, 9)}).graph) == Size("B", 3, 8)
    fixed = parse(f"B: size\n{NORM}", sizes={"B": 5}).graph
    assert size_of(fixed) is None and fixed == resized(declared, 5) == parse(f"B = 5\n{NORM}").graph


def test_ranges_are_programs_of_their_own() -> None:
    program = parse(f"B: size(1, 8, 64)\n{NORM}")
    one, eight, last = program.ranges
    assert last is program and [p.called for p in program.ranges] == ["B = 1", "B from 1 to 8", "B from 1 to 64"]
    assert one.graph == resized(program.graph, 1) and size_of(eight.graph) == Size("B", 1, 8)
    for wrong in ("size(8, 8)", "size(8, 1)", "size(0, 8)"):
        with pytest.raises(NamedSizeError, match="do not ascend"):
            parse(f"B: {wrong}\n{NORM}")


ATTENTION = """B: size(8)
x: f16[B, 16, 64]
W: f16[64, 192]
q, k, v = split(x @ W, 3, axis=-1)
q = transpose(reshape(q, B, 16, 4, 16), 0, 2, 1, 3)
k = transpose(reshape(k, B, 16, 4, 16), 0, 2, 3, 1)
v = transpose(reshape(v, B, 16, 4, 16), 0, 2, 1, 3)
a = transpose(softmax(q @ k) @ v, 0, 2, 1, 3)
return x + reshape(a, B, 16, 64)
"""


def test_a_size_goes_through_what_programs_do_with_batches() -> None:
    graph = parse(ATTENTION).graph
    assert resized(graph, 3).output_types[0].shape == (3, 16, 64)


MISTAKES = {
    "summed": ("X: f16[B, 8]\nreturn sum(X, axis=0)", NamedSizeError, "B: the size is summed"),
    "a number": ("X: f16[B, 8]\nreturn X / B", NamedSizeError, "with B = 63 this is another program"),
    "inner": ("X: f16[8, B]\nreturn exp(X)", NamedSizeError, "behind another dimension"),
    "one more": ("X: f16[B + 1, 8]\nreturn exp(X)", NamedSizeError, "no multiple of B"),
    "squared": ("X: f16[B*B, 8]\nreturn exp(X)", NamedSizeError, "with B = 63 this is another program"),
    "unused": ("X: f16[4, 8]\nreturn exp(X)", NamedSizeError, "no input has the size B"),
    "meets 64": ("X: f16[B, 8]\nW: f16[64, 8]\nreturn X + W", NamedSizeError, "meets the number 64"),
    "split": ("X: f16[B, 8]\nreturn reshape(X, 8, 64) * 2", NamedSizeError, "spread over several dimensions"),
    "in a loop": ("X: f16[B, 8]\nfor i in range(B):\n    X = X + i\nreturn X", NamedSizeError, "another program"),
    "two": ("C: size\nX: f16[B, 8]\nreturn exp(X)", NamedSizeError, "known at launch only"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    text, kind, told = MISTAKES[name]
    with pytest.raises(kind) as caught:
        parse(f"B: size\n{text}")
    assert told in str(caught.value) and caught.value.hint and caught.value.span is not None


@pytest.mark.parametrize("annotation", ["size(1)", "size(0)", "size(3, 2)", "size(X)", "size(n=3)", "size()[3]"])
def test_declarations_that_are_none_are_refused(annotation: str) -> None:
    with pytest.raises(MirageError):
        parse(f"B: {annotation}\n{NORM}")


def test_ranges_from_outside_are_checked() -> None:
    for wrong in (range(0), range(0, 4), range(1, 2), range(1, 9, 2)):
        with pytest.raises(OptionError, match="for example B=range"):
            parse(f"B = 1\n{NORM}", sizes={"B": wrong})


def test_size_is_no_name_of_a_type() -> None:
    with pytest.raises(DTypeError):
        parse("X: size[2, 3]\nreturn exp(X)")


@crossed({
    "most": [300, 100_000],
    "factor": ["(2 if B == 2 else 3)", "((len(X) == 2) + 2)", "(X.shape[0] // 300 + 2)"],
})
def test_no_single_extent_is_another_program(factor: str, most: int) -> None:
    """Whichever numbers anybody would try."""
    with pytest.raises(NamedSizeError):
        parse(f"B: size(1, {most})\nX: f32[B, 4]\nreturn X * {factor}")
    with pytest.raises(NamedSizeError):
        parse(f"B: size(1, {most})\nX: f32[B + 2 // B - 2 * (1 // B), 4]\nreturn X * 2")
    assert parse(f"B: size(1, {most})\nX: f32[3 * B, 4]\nreturn X * 2").graph.ops

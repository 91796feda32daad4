"""Text and JSON forms: exact round trips, errors at their place, and hostile texts in bounded time."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import FormatError, ProgramSizeError
from mirage_nb.ir import OPS, DType, Input, KernelGraph, TensorType
from mirage_nb.ir.fields import FIELDS, MAX_OPERATORS
from mirage_nb.ir.jsonform import from_plain, parse_json, print_json, to_plain
from mirage_nb.ir.text import parse_graph, print_graph
from tests.clock import cpu_limit
from tests.mugraphs import Case, Kernel, cases, rmsnorm, rmsnorm_fig3
from tests.shares import examples
from tests.strategies import mugraphs, programs

FORMS = [(print_graph, parse_graph), (print_json, parse_json)]
SECONDS = 4.0


@given(programs() | mugraphs() | mugraphs(overhang=True))
@examples(150)
def test_text_round_trip(graph: KernelGraph) -> None:
    assert parse_graph(print_graph(graph)) == graph


@given(programs() | mugraphs() | mugraphs(overhang=True))
@examples(100)
def test_json_round_trip(graph: KernelGraph) -> None:
    assert parse_json(print_json(graph)) == graph


@pytest.mark.parametrize("form", FORMS, ids=["text", "json"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_hand_built_round_trip(case: Case, form: tuple[Callable[..., str], Callable[..., KernelGraph]]) -> None:
    write, read = form
    for graph in (case.program, case.candidate):
        assert read(write(graph)) == graph
        assert read(write(graph)).digest() == graph.digest()


@pytest.mark.parametrize("form", FORMS, ids=["text", "json"])
def test_what_is_known_of_inputs_is_kept(form: tuple[Callable[..., str], Callable[..., KernelGraph]]) -> None:
    write, read = form
    kinds = [{}, {"settled": True}, {"places": True}, {"settled": True, "places": True}]
    graphs = [KernelGraph.start(Input("I", TensorType((4,), DType.F32), **kind)) for kind in kinds]
    assert [read(write(graph)) for graph in graphs] == graphs
    assert len({graph.digest() for graph in graphs}) == len(graphs)


def test_every_attributes_class_has_a_codec() -> None:
    assert set(FIELDS) == {spec.attrs for spec in OPS.values() if spec.attrs is not None}


@given(st.fractions() | st.floats(allow_nan=False, allow_infinity=False).map(Fraction), st.text(max_size=20))
@examples(150)
def test_constants_and_symbols_are_exact(value: Fraction, symbol: str) -> None:
    k = Kernel(X=(2,))
    graph = k.returning(k.const(value, symbol))
    for write, read in FORMS:
        assert read(write(graph)) == graph


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3, unique=True))
def test_any_names_are_kept(names: list[str]) -> None:
    k = Kernel(**dict.fromkeys(names, (2,)))
    graph = k.graph.returning(tuple(range(len(names))), tuple(f"{n} out" for n in names))
    for write, read in FORMS:
        assert read(write(graph)) == graph


def test_the_text_is_stable(golden: Callable[[str, str], None]) -> None:
    golden("rmsnorm_fig3.mugraph", print_graph(rmsnorm_fig3().candidate))


def test_types_may_be_left_out_and_are_checked() -> None:
    text = print_graph(rmsnorm().candidate)
    bare = "\n".join(line.split(" : ")[0] for line in text.splitlines())
    assert parse_graph(bare) == rmsnorm().candidate
    with pytest.raises(FormatError, match=r"the type is f16\[2, 2\]"):
        parse_graph(text.replace(": f16[2, 2]", ": f16[2, 3]", 1))


HEAD = "mugraph 1\ninput %0 X f16[2, 4]\n"
MISTAKES = [
    ("", "the text ends", None),
    ("kernel 1", "expected 'mugraph'", 1),
    ("mugraph 2", "version 2", 1),
    ("mugraph 1 2", "end of the line", 1),
    ("mugraph 1\ninput %1 X f16[2]", "input %0 comes here", 2),
    ("mugraph 1\ninput %0 X f8[2]", "unknown element type", 2),
    ("mugraph 1\ninput %0 X f16[0]", "at least 1", 2),
    ("mugraph 1\ninput %0 X f16[-2]", "at least 1", 2),
    ("mugraph 1\ninput %0 X f16[2", "expected ','", 2),
    ("mugraph 1\ninput %0 X f16[*]", "not a whole number", 2),
    (HEAD + "%1 = Sqt(%0)", "did you mean Sqrt", 3),
    (HEAD + "%1 = EwExp(%0) dim=1", "no attribute dim", 3),
    (HEAD + "%1 = Sum(%0)", "needs the attribute dim", 3),
    (HEAD + "%1 = Sum(%0) dim=1 dim=1", "given twice", 3),
    (HEAD + "%1 = Sum(%0) dim=7", "no dimension 7", 3),
    (HEAD + "%1 = Sum(%0) dim=1/2", "not a whole number", 3),
    (HEAD + "%1 = Sum(%0) dim=*", "not a whole number", 3),
    (HEAD + "%1 = EwExp(%5)", "not defined before", 3),
    (HEAD + "%2 = EwExp(%0)", "defines %1", 3),
    (HEAD + "EwExp(%0)", "defines %1", 3),
    (HEAD + "%1 = EwAdd(%0)", "takes 2 operands", 3),
    (HEAD + "%1 = Matmul(%0, %0)", "inner extents", 3),
    (HEAD + "%1 = InIter arg=0 imap=[*]", "may not stand", 3),
    (HEAD + "%1 = Const value=1/0", "divides by zero", 3),
    (HEAD + "%1 = Const value=x", "not a rational", 3),
    (HEAD + '%1 = Const value=1 symbol="\\q"', "string that cannot be read", 3),
    (HEAD + "%1 = Accum(%0) kind=avg", "unknown accumulator", 3),
    (HEAD + "%1 = EwExp(%0) ; x", "unexpected character", 3),
    (HEAD + "%1 = Graph(%0)", "grid dims", 3),
    (HEAD + "%1 = Graph(%0) grid=[1, 1, 1, 1] {", "grid dims", 3),
    (HEAD + "%1 = Graph(%0) grid=[1] loop=0 {", "for-loop range", 3),
    (HEAD + "%1 = Graph(%0) grid=[1] speed=1 {", "no attribute speed", 3),
    (HEAD + "%1 = Graph(%0) grid=[1] {", "text ends", 3),
    (HEAD + "%1 = Graph(%0) grid=[1] {\n%0 = InIter arg=0 imap=[*]\n%1 = Fused(%0) {\nreturn %9\n}\n}", "returns", 6),
    (HEAD + "output %0 O\n%1 = EwExp(%0)", "after the outputs", 4),
    (HEAD + "output %9 O", "not defined", None),
    (HEAD + "output %0 3", "expected a name", 3),
]


@pytest.mark.parametrize(("text", "message", "line"), MISTAKES)
def test_mistakes_show_their_place(text: str, message: str, line: int | None) -> None:
    with pytest.raises(FormatError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
    assert (caught.value.span.line if caught.value.span else None) == line


HUGE = "9" * 5000
TOO_BIG = [
    "x" * 5_000_000,
    HEAD + f"%1 = Const value={HUGE}",
    HEAD + f"%1 = Sum(%0) dim={HUGE}",
    HEAD + f"%1 = EwExp(%{HUGE})",
    f"mugraph 1\ninput %0 X f16[{HUGE}]",
    "mugraph 1\ninput %0 X f16[1000000000, 1000000000, 1000000000]",
    f"mugraph 1\ninput %0 X f16[{', '.join(['1'] * 17)}]",
    f"mugraph 1\ninput %0 {'n' * 300} f16[2]",
    HEAD + "".join(f"%{i} = EwExp(%{i - 1})\n" for i in range(1, MAX_OPERATORS + 2)),
    HEAD + "".join(f"%{i} = Repeat(%{i - 1}) dim=0 times=1000000000\n" for i in range(1, 500)),
]


@pytest.mark.parametrize("text", TOO_BIG, ids=range(len(TOO_BIG)))
def test_what_is_too_big_is_refused_quickly(text: str) -> None:
    with cpu_limit(SECONDS), pytest.raises(ProgramSizeError):
        parse_graph(text)


NESTED = [
    HEAD + "%1 = Graph(%0) grid=[1] {\n" * 20_000,
    HEAD + "%1 = Graph(%0) grid=[1] {\n%0 = InIter arg=0 imap=[*]\n" + "%1 = Fused(%0) {\n" * 20_000,
    HEAD + "%1 = EwExp" + "(" * 100_000,
    HEAD + "%1 = Reshape(%0) shape=" + "[" * 100_000,
    HEAD + '%1 = Const value=1 symbol="' + "\\" * 1_000_001,
    HEAD + "%1 = Matmul(" + "%0, " * 200_000,
]


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_deep_nesting_is_refused_quickly(text: str) -> None:
    with cpu_limit(SECONDS), pytest.raises((FormatError, ProgramSizeError)):
        parse_graph(text)


def test_the_largest_graph_is_read_in_time() -> None:
    text = HEAD + "".join(f"%{i} = EwExp(%{i - 1})\n" for i in range(1, MAX_OPERATORS + 1)) + "output %1 O\n"
    with cpu_limit(SECONDS):
        assert len(parse_graph(text).ops) == MAX_OPERATORS


@st.composite
def damaged(draw: st.DrawFn, write: Callable[[KernelGraph], str]) -> str:
    """The text of a muGraph with a few cuts, doublings and insertions."""
    text = write(draw(st.sampled_from([case.candidate for case in cases()])))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        piece = draw(st.sampled_from(["", text[start:end] * 2, "{", "}", "[", "%", "-1", "99999999", '"', "\0", "é"]))
        text = text[:start] + piece + text[end:]
    return text


def reads_or_refuses(read: Callable[[str], KernelGraph], text: str) -> None:
    try:
        graph = read(text)
    except (FormatError, ProgramSizeError):
        return
    assert read(print_graph(graph) if read is parse_graph else print_json(graph)) == graph


@given(damaged(print_graph))
@examples(300)
def test_damaged_text_is_read_or_refused(text: str) -> None:
    reads_or_refuses(parse_graph, text)


@given(damaged(print_json))
@examples(200)
def test_damaged_json_is_read_or_refused(text: str) -> None:
    reads_or_refuses(parse_json, text)


@given(st.text(alphabet='mugraph 1input%0=()[]{},:*"\\\n-/Xf', max_size=80))
@examples(200)
def test_any_text_is_read_or_refused(text: str) -> None:
    reads_or_refuses(parse_graph, text)
    reads_or_refuses(parse_graph, HEAD + text)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged_plain(draw: st.DrawFn) -> object:
    """The JSON of a muGraph in which one value, anywhere, is another one."""
    top = json.loads(print_json(draw(st.sampled_from([case.candidate for case in cases()]))))
    place: object = top
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.integers(0, 4)) == 0:
            place[key] = draw(PLAIN)
            return top
        place = place[key]


@given(damaged_plain())
@examples(300)
def test_damaged_values_are_read_or_refused(plain: object) -> None:
    try:
        graph = from_plain(plain)
    except (FormatError, ProgramSizeError):
        return
    assert from_plain(to_plain(graph)) == graph


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[" * 200_000, "{}", "null", "NaN", '{"schema": "mugraph"}', f'{{"a": {HUGE}}}', "x" * 9_000_000],
    ids=range(9),
)
def test_hostile_json_is_refused_quickly(text: str) -> None:
    with cpu_limit(SECONDS), pytest.raises((FormatError, ProgramSizeError)):
        parse_json(text)


def test_json_names_unknown_keys_and_versions() -> None:
    plain = to_plain(rmsnorm().candidate)
    for changed, message in (
        ({**plain, "extra": 1}, "has no extra"),
        ({**plain, "version": 2}, "this reads mugraph 1"),
        ({**plain, "version": True}, "this reads mugraph 1"),
        ({k: v for k, v in plain.items() if k != "outputs"}, "needs 'outputs'"),
    ):
        with pytest.raises(FormatError, match=message):
            from_plain(changed)


@pytest.mark.parametrize("kind", ["Graph", "Fused"])
def test_graphs_nest_three_levels_and_no_more(kind: str) -> None:
    deep: dict[str, object] = {"kind": "EwExp", "operands": [0]}
    for _ in range(400):
        block = {"grid": [1], "loop": 1, "operators": [deep]}
        thread = {"operators": [deep], "outputs": [0]}
        deep = {"kind": kind, "operands": [0], **({"block": block} if kind == "Graph" else {"thread": thread})}
    plain = to_plain(rmsnorm().candidate)
    with pytest.raises(FormatError):
        from_plain({**plain, "operators": [deep]})


@pytest.mark.parametrize("key", ["inputs", "outputs", "operators"])
def test_lists_of_a_graph_are_no_longer_than_its_operators_may_be_many(key: str) -> None:
    top = to_plain(cases()[0].candidate)
    with pytest.raises(ProgramSizeError, match=f"{key}: .* at most {MAX_OPERATORS}"):
        from_plain({**top, key: [*top[key]] * (MAX_OPERATORS + 1)})

"""The line of `%%mirage`: what it accepts, and where its mistakes point."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

pytest.importorskip("IPython")
pytest.importorskip("anywidget")

from mirage_magics.options import OPTIONS, USAGE, CellOptions, Line, nearest, read_line

from mirage_nb.errors import OptionError
from mirage_nb.options import EXTEND, LIMITS, SEARCH, SIZES, SWITCHES, TUNE, with_limits
from mirage_nb.pipeline import Session, superoptimize
from mirage_nb.search import Limits


def test_all_options_together_in_both_spellings() -> None:
    asked = {"effort": "quick", "budget": 2.5, "target": "a100"}
    wanted = CellOptions("fused", asked, {"B": 8, "K": 64}, keep=True, wait=True)
    assert read_line("fused --effort quick --budget 2.5 --target a100 --set B=8 --set K=64 --keep --wait") == wanted
    assert read_line("fused --wait --keep --set=K=64 --set=B=8 --target=A100 --budget=2.5 --effort=quick") == wanted


def test_switches_are_collected_by_name() -> None:
    line = "f --without-axiom sum_div --with-axiom sqrt_product --without-pruning oracle --without-axiom=mul_div"
    found = read_line(line).asked
    assert found["axioms"] == {"sum_div": False, "sqrt_product": True, "mul_div": False}
    assert found["prunings"] == {"oracle": False}


def test_limits_are_gathered_and_differ_from_what_was() -> None:
    line = "f --blocks 8:264 --loop :16 --grid-dims 2 --without-operator Accum-concat --without-operator=EwDiv"
    limits = Limits(2, (8, 264), (1, 16), frozenset({"Accum concat", "EwDiv"}))
    assert read_line(line).asked == {"limits": limits}
    assert read_line("f --blocks 64 --loop 4:").asked["limits"] == Limits(blocks=(64, 64), loop=(4, None))
    assert with_limits({"seconds": 3.0, "loop": (2, 4)}, limits) == {
        "seconds": 3.0,
        "limits": replace(limits, loop=(2, 4)),
    }
    assert with_limits({"seconds": 3.0}, limits) == {"seconds": 3.0}


def test_a_name_is_enough() -> None:
    assert read_line("  fused ") == CellOptions("fused")


MISTAKES = (
    ("", "needs a name", "NAME", ""),
    ("--wait", "needs a name", "NAME", "--wait"),
    ("2fast", "cannot be a variable", "bound", "2fast"),
    ("class", "cannot be a variable", "bound", "class"),
    ("f --efort quick", "unknown option '--efort'", "did you mean --effort?", "--efort"),
    ("f quick", "what is 'quick'?", "options begin with --", "quick"),
    ("f effort quick", "what is 'effort'?", "did you mean --effort?", "effort"),
    ("my-kernel", "'my-kernel' cannot be a variable", "write my_kernel", "my-kernel"),
    ("print", "'print' is a name of Python's own", "another name", "print"),
    ("_f", "'_f' begins with _", "another name", "_f"),
    ("f --grid-dims 7", "not NUMBER", "0 to 3", "7"),
    ("f --blocks 9:2", "not RANGE", "8:264", "9:2"),
    ("f --effort quik", "unknown effort 'quik'", "did you mean quick?", "quik"),
    ("f --effort", "--effort needs a value", "exhaustive", ""),
    ("f --effort --wait", "--effort needs a value", "exhaustive", "--wait"),
    ("f --target h20", "unknown target 'h20'", "did you mean h200?", "h20"),
    ("f --budget soon", "not SECONDS", "positive", "soon"),
    ("f --budget -1", "not SECONDS", "positive", "-1"),
    ("f --budget nan", "not SECONDS", "positive", "nan"),
    ("f --budget inf", "not SECONDS", "positive", "inf"),
    ("f --set B", "not NAME=NUMBER", "--set B=8", "B"),
    ("f --symbolic B=8:1", "not NAME", "--symbolic B=1:256", "B=8:1"),
    ("f --symbolic=B=0:8", "not NAME", "--symbolic B=1:256", "B=0:8"),
    ("f --tolerance 0", "not TIMES", "above 0", "0"),
    ("f --set=B=x", "not NAME=NUMBER", "--set B=8", "B=x"),
    ("f --without-axiom sum_dvi", "unknown axiom 'sum_dvi'", "did you mean sum_div?", "sum_dvi"),
    ("f --without-axiom add_commutes", "unknown axiom 'add_commutes'", "did you mean", "add_commutes"),
    ("f --blocks few", "not RANGE", "8:264", "few"),
    ("f --loop 0:4", "not RANGE", "2:64", "0:4"),
    ("f --without-operator EwDvi", "unknown operator 'EwDvi'", "did you mean EwDiv?", "EwDvi"),
    ("f --wait=yes", "--wait takes no value", "block", "--wait=yes"),
    ("f --with-axiom mul_div --without-axiom mul_div", "--with-axiom mul_div and", "one of them", "mul_div"),
)


@pytest.mark.parametrize(("line", "message", "hint", "word"), MISTAKES, ids=[row[0] or "empty" for row in MISTAKES])
def test_mistakes_name_the_word_and_the_way_out(line: str, message: str, hint: str, word: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_line(line)
    assert message in caught.value.message
    assert hint in caught.value.hint
    span = caught.value.span
    assert span is not None and span.text == f"%%mirage {line}".rstrip()
    assert span.text[span.column - 1 : span.column - 1 + len(word)] == word


def test_the_usage_names_every_option() -> None:
    assert all(name in USAGE for name in OPTIONS)


def test_quotation_marks_hold_a_word_together() -> None:
    words = Line("""f "a b.html" --store='c d' it's""", "%mirage export").words
    assert [word.text for word in words] == ["f", "a b.html", "--store=c d", "it's"]


def test_far_off_words_get_the_list() -> None:
    assert nearest("zzz", ["list", "show"]) == "one of list, show"


def test_every_option_is_a_keyword_of_the_api() -> None:
    limits = set(inspect.signature(Limits).parameters)
    for table, asked in (((*SEARCH, *SIZES), superoptimize), (EXTEND, Session.extend), (TUNE, Session.tune)):
        known = set(inspect.signature(asked).parameters)
        assert {option.key for option in table} <= known, asked
        assert asked is Session.tune or {option.key for option in SWITCHES} | {"limits"} <= known, asked
    assert {option.key for option in LIMITS} == limits

"""The named muGraphs are proved equal to their programs for all sizes; what is wrong never is."""

from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given

from mirage_nb.errors import AssumptionError, GraphError, OptionError, ProofError
from mirage_nb.ir import (
    AccumKind,
    ApplyAttrs,
    ClampAttrs,
    DimAttrs,
    KernelGraph,
    OpKind,
    ReshapeAttrs,
)
from mirage_nb.search import (
    EFFORTS,
    Budget,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    run_configuration,
    tiny,
)
from mirage_nb.targets import DEFAULT_TARGET, TARGETS
from mirage_nb.verify.proof import Proof, Unproved, check, prove
from mirage_nb.verify.proof.checker import begun, equation, rewritten
from mirage_nb.verify.proof.translate import translate
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests import mugraphs
from tests.clock import cpu_limit
from tests.codegen import mugraphs as built
from tests.mugraphs import BUILDERS, Kernel
from tests.search import programs
from tests.shares import examples
from tests.strategies import arrays_for, program_pairs
from tests.strategies import programs as random_programs
from tests.verify.mutants import is_legal, mutants
from tests.verify.term_values import World, part_extents

SECONDS = 1.0
SLOW_STRUCTURES = 60
OTHER_SIZES = {
    "rmsnorm": {"m": 3, "k": 12, "n": 10, "grid": 5, "loop": 3},
    "rmsnorm_fig3": {"m": 2, "k": 6, "n": 9, "grid": 3, "loop": 3},
    "gated_mlp": {"m": 3, "k": 6, "n": 6, "grid": 3, "loop": 3},
    "lora": {"m": 2, "k": 6, "n": 6, "r": 3, "grid": 2, "loop": 3},
    "gqa": {"h": 3, "q": 6, "d": 3, "s": 6, "grid": (3, 2), "loop": 3},
    "attention_safe": {"h": 3, "q": 6, "d": 3, "s": 9, "grid": (3, 3), "loop": 3},
    "flash_decoding": {"h": 3, "q": 3, "d": 3, "s": 12, "parts": 3, "loop": 2},
    "qknorm": {"h": 3, "q": 6, "d": 3, "s": 6, "grid": (3, 3), "loop": 3},
    "concat_free": {"m": 6, "k": 3, "n": 6, "grid": 3, "loop": 3},
}


def proved(program: KernelGraph, mugraph: KernelGraph, assume=MappingProxyType({}), **options) -> Proof:
    """The proof, found in time, and accepted by the checker once it went through JSON."""
    with cpu_limit(SECONDS):
        found = prove(program, mugraph, properties=assume, **options)
    assert isinstance(found, Proof), found
    again = Proof.from_json(found.to_json())
    assert again == found
    check(again, program, mugraph, assume=assume)
    return found


def refused(program: KernelGraph, mugraph: KernelGraph, **options) -> str:
    found = prove(program, mugraph, **options)
    assert isinstance(found, Unproved), found
    return found.reason


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_named_muGraphs_for_all_sizes(build):
    """A proof found at one size is one at another, also at the size of a real workload."""
    case = build()
    proof = proved(case.program, case.candidate)
    other = build(**OTHER_SIZES[build.__name__])
    check(proof, other.program, other.candidate)
    assert proved(other.program, other.candidate) == proof


def test_real_sizes():
    small, real = mugraphs.rmsnorm(), mugraphs.rmsnorm(16, 4096, 6144, 96, 64)
    check(proved(small.program, small.candidate), real.program, real.candidate)


def ntrans_program(rows: int, width: int) -> KernelGraph:
    k = Kernel(H=(rows, width), X=(rows, width), A=(rows, width))
    inner = k.op(OpKind.MUL, 2, k.op(OpKind.ADD, mugraphs.rms(k, 0, 1, width), 1))
    return k.returning(mugraphs.rms(k, k.op(OpKind.ADD, 1, inner), 1, width))


def chain_program(m: int, k: int, n: int) -> KernelGraph:
    b = Kernel(X=(m, k), A=(k, n), C=(n, k))
    return b.returning(b.op(OpKind.MATMUL, b.op(OpKind.EXP, b.op(OpKind.MATMUL, 0, 1)), 2))


BUILT = {
    "rmsnorm": (lambda: programs.rmsnorm(2, 512, 128), built.rmsnorm),
    "rmsnorm_gain": (lambda: mugraphs.rmsnorm_fig3(16, 256, 128).program, built.rmsnorm_gain),
    "gated_mlp": (lambda: programs.gated_mlp(8, 256, 128), built.gated_mlp),
    "lora": (lambda: programs.lora(16, 128, 16, 64), built.lora),
    "lora_concat": (lambda: programs.lora(16, 128, 16, 64), built.lora_concat),
    "attention": (lambda: programs.gqa(2, 32, 64, 128), built.attention),
    "split_attention": (lambda: programs.gqa(2, 16, 64, 256), built.split_attention),
    "safe_attention": (lambda: programs.attention_safe(2, 16, 64, 128), built.safe_attention),
    "split_safe_attention": (lambda: programs.attention_safe(2, 16, 64, 256), built.split_safe_attention),
    "split_safe_rows": (
        lambda: programs.attention_safe(2, 16, 64, 256),
        lambda: built.split_safe_attention(row_blocks=2, combine_blocks=4),
    ),
    "ntrans": (lambda: ntrans_program(4, 512), built.ntrans),
    "moe": (lambda: chain_program(8, 64, 64), built.chain),
}


@pytest.mark.parametrize("name", BUILT)
def test_built_muGraphs(name: str):
    program, mugraph = (make() for make in BUILT[name])
    proved(program, mugraph)


def _after(end: float) -> bool:
    return time.thread_time() > end


def found_by_search(graph: KernelGraph, kernels: int, seconds: float, limit: int) -> list[tuple[Prepared, Structure]]:
    """What the search finds in its first configurations with so many kernels: one at least, then as time allows."""
    prepared, effort = prepare(graph), EFFORTS["standard"]
    found: list[tuple[Prepared, Structure]] = []
    end = time.thread_time() + seconds
    for configuration in configurations(prepared, effort):
        if configuration.kernels == kernels and not (found and _after(end)):
            late = partial(_after, max(end, time.thread_time() + 5))
            result = run_configuration(prepared, configuration, effort, Budget(), lambda counts: None, late)
            found += [(prepared, structure) for structure in result.structures[:limit]]
    return found


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_what_the_search_finds(name: str):
    """muGraphs of one kernel, at the smallest sizes and at those of the real instance."""
    graph = programs.PROGRAMS[name]()
    cases = found_by_search(graph, 1, 0.3, 2)
    assert cases
    for prepared, structure in cases[:6]:
        proved(*tiny(prepared, structure))
        for instance in instances(structure, prepared, TARGETS[DEFAULT_TARGET], 1):
            proved(graph, instance.graph)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_more_of_what_the_search_finds(name: str, kernels: int):
    found = list(found_by_search(programs.PROGRAMS[name](), kernels, 8.0, 20))
    for prepared, structure in found[:: -(-len(found) // SLOW_STRUCTURES)]:
        program, mugraph = tiny(prepared, structure)
        assert verify(program, mugraph).kind is VerdictKind.FIELD
        proved(program, mugraph)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_every_step_keeps_the_value(build):
    """Both sides of every goal have one value before and after each step, whatever the constants are."""
    case = build()
    proof = proved(case.program, case.candidate)
    states = begun(translate(case.program, case.candidate, proof.outputs).goals)
    extents = part_extents(case.program, case.candidate, proof.outputs)
    world = World(extents, arrays_for(case.program, 5), {"c0": 0.7, "c1": 1.9})
    world.functions = {"SiLU": lambda x: x / (1 + np.exp(-x))}
    (state,) = states
    indices = tuple(sorted(state.left.free))
    expected = world.value(state.left, indices)
    for step in proof.steps:
        states = rewritten(states, *equation(step, {}))
        for side in (states[0].left, states[0].right):
            np.testing.assert_allclose(world.value(side, indices), expected, rtol=1e-7)


def test_a_concatenated_matmul_of_real_concatenations():
    """(X || X @ A) @ (W || C), concatenated in device memory, is X @ W + (X @ A) @ C."""
    program = programs.lora(4, 8, 3, 6)
    k = Kernel(X=(4, 8), W=(8, 6), A=(8, 3), C=(3, 6))
    left = k.op(OpKind.CONCAT, 0, k.op(OpKind.MATMUL, 0, 2), attrs=DimAttrs(1))
    right = k.op(OpKind.CONCAT, 1, 3, attrs=DimAttrs(0))
    proved(program, k.returning(k.op(OpKind.MATMUL, left, right)))
    swapped = k.op(OpKind.CONCAT, k.op(OpKind.MATMUL, 0, 2), 0, attrs=DimAttrs(1))
    refused(program, k.returning(k.op(OpKind.MATMUL, swapped, right)))


def test_a_quotient_by_itself_counts_where_the_program_has_one():
    """The sum of (x + 1) / (x + 1) and that of x - x + 1 over a row is its length, where x is not -1."""
    k = Kernel(X=(4, 6))
    columns = k.returning(k.sum(k.op(OpKind.ADD, k.op(OpKind.SUB, 0, 0), k.const(1)), 1))
    k = Kernel(X=(4, 6))
    ones = k.op(OpKind.DIV, k.op(OpKind.ADD, 0, k.const(1)), k.op(OpKind.ADD, 0, k.const(1)))
    quotient = k.returning(k.sum(ones, 1))
    assert "inv_cancel" in proved(quotient, columns).axioms
    assert "has to be different from 0" in refused(columns, quotient)


def test_wrong_qknorm():
    case = mugraphs.qknorm_wrong()
    found = prove(case.program, case.candidate)
    assert isinstance(found, Unproved) and "normal forms" in str(found)
    assert found.forms is not None and found.forms[0] != found.forms[1] and "exp(" in found.forms[1]


def test_wrong_shift():
    """A maximum over one tile only, subtracted from all: right for the quotient, wrong for a sum alone."""

    def shifted(whole: bool) -> KernelGraph:
        k = Kernel(S=(4, 6))
        parts = k.op(OpKind.RESHAPE, 0, attrs=ReshapeAttrs((4, 2, 3)))
        top = k.max(k.max(parts, 2), 1) if whole else k.max(parts, 2)
        e = k.op(OpKind.EXP, k.op(OpKind.SUB, parts, top))
        return k.returning(k.sum(k.sum(e, 2), 1))

    program = Kernel(S=(4, 6))
    e = program.op(OpKind.EXP, program.op(OpKind.SUB, 0, program.max(0, 1)))
    right = program.returning(program.op(OpKind.RESHAPE, program.sum(e, 1), attrs=ReshapeAttrs((4, 1, 1))))
    proved(right, shifted(True))
    refused(right, shifted(False))


def test_an_accumulator_of_the_wrong_kind():
    """Tiles that carry their own maximum, added up without rescaling."""
    case = mugraphs.attention_safe()
    plain = [m for d, m in mutants(case.candidate) if AccumKind.RESCALE.value in d or "Accum" in d]
    assert plain
    for mutant in plain:
        if is_legal(mutant) and verify(case.program, mutant).kind is VerdictKind.REFUTED:
            refused(case.program, mutant)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_mutants_are_proved_exactly_where_they_are_right(every: int):
    """Hundreds of single-site mutants: no refuted one is proved, and every accepted one is."""
    tally: Counter[tuple[VerdictKind, bool]] = Counter()
    for build in BUILDERS:
        case = build()
        for number, (description, mutant) in enumerate(mutants(case.candidate)):
            if number % every == 0 and is_legal(mutant):
                verdict = verify(case.program, mutant)
                found = isinstance(prove(case.program, mutant), Proof)
                assert not (found and verdict.kind is VerdictKind.REFUTED), f"{build.__name__}: {description}"
                assert found or not verdict.accepted, f"{build.__name__}: {description}: {verdict}"
                tally[verdict.kind, found] += 1
    assert tally[VerdictKind.REFUTED, False] > 200 / every and tally[VerdictKind.FIELD, True] > 40 / every


WITHOUT_A_PROOF = ("nest", "concatenated", "extents", "large", "nodes", "nowhere", "has a value at none of the points")
"""What is said of programs that are not proved to be themselves: the last one divides by 0."""


@examples(60, suppress_health_check=list(HealthCheck))
@given(random_programs())
def test_a_program_is_itself(graph):
    found = prove(graph, graph)
    if isinstance(found, Proof):
        assert found.steps == ()
        check(found, graph, graph)
    else:
        assert any(word in found.reason for word in WITHOUT_A_PROOF)


@examples(60, suppress_health_check=list(HealthCheck))
@given(program_pairs())
def test_random_pairs(pair):
    """Whatever is proved of two random programs is not refuted by random tests."""
    program, candidate = pair
    if program.output_types == candidate.output_types and isinstance(prove(program, candidate, seconds=1), Proof):
        assert verify(program, candidate).kind is not VerdictKind.REFUTED


def one(kind: OpKind, *later, attrs=None, shape=(4, 6)) -> tuple[Kernel, int]:
    k = Kernel(X=shape, Y=shape)
    return k, k.op(kind, 0, attrs=attrs)


def test_ring_laws():
    """(x + y)(x - y) = x*x - y*y, and 2 * x = x + x."""
    k = Kernel(X=(4, 6), Y=(4, 6))
    left = k.returning(k.op(OpKind.MUL, k.op(OpKind.ADD, 0, 1), k.op(OpKind.SUB, 0, 1)))
    k = Kernel(X=(4, 6), Y=(4, 6))
    right = k.returning(k.op(OpKind.SUB, k.op(OpKind.SQR, 0), k.op(OpKind.SQR, 1)))
    proved(left, right)
    k = Kernel(X=(4, 6))
    twice = k.returning(k.op(OpKind.MUL, 0, k.const(2)))
    k = Kernel(X=(4, 6))
    proved(twice, k.returning(k.op(OpKind.ADD, 0, 0)))


def test_constants_as_they_are():
    """1/8 * 1/8 is 1/64 only for these constants, and the proof says so."""
    k = Kernel(X=(4, 6))
    left = k.returning(k.op(OpKind.MUL, k.op(OpKind.MUL, 0, k.const(Fraction(1, 8))), k.const(Fraction(1, 8))))
    k = Kernel(X=(4, 6))
    proof = proved(left, k.returning(k.op(OpKind.MUL, 0, k.const(Fraction(1, 64)))))
    assert proof.literal and "for these constants" in str(proof)
    k = Kernel(X=(4, 6))
    wrong = k.returning(k.op(OpKind.MUL, 0, k.const(Fraction(1, 63))))
    refused(left, wrong)
    with pytest.raises(ProofError):
        check(proof, left, wrong)


def test_sizes_that_happen_to_be_equal_are_not_the_same():
    """A sum over rows is none over columns, even of a square; both sides of a product are told apart."""
    k = Kernel(X=(4, 4))
    rows = k.returning(k.op(OpKind.RESHAPE, k.sum(0, 0), attrs=ReshapeAttrs((4,))))
    k = Kernel(X=(4, 4))
    refused(rows, k.returning(k.op(OpKind.RESHAPE, k.sum(0, 1), attrs=ReshapeAttrs((4,)))))


def test_outputs_in_another_order():
    k = Kernel(X=(4, 6), Y=(4, 6))
    added, timed = k.op(OpKind.ADD, 0, 1), k.op(OpKind.MUL, 0, 1)
    program, turned = k.returning(added, timed), k.returning(timed, added)
    assert proved(program, turned).outputs == (1, 0)
    refused(program, turned, outputs=(0, 1))


def test_many_outputs_are_paired_by_type():
    """Sixteen outputs of sixteen types, the other way round: there is only one way to pair them."""
    k = Kernel(**{f"X{i}": (i + 1,) for i in range(16)})
    program, turned = k.returning(*range(16)), k.returning(*reversed(range(16)))
    assert proved(program, turned).outputs == tuple(reversed(range(16)))
    refused(program, k.returning(*range(15)))


def test_an_illegal_muGraph_is_refused():
    case = mugraphs.rmsnorm()
    illegal = next(m for _, m in mutants(mugraphs.attention_safe().candidate) if not is_legal(m))
    for call in (lambda: prove(mugraphs.attention_safe().program, illegal), lambda: check(Proof(()), illegal, illegal)):
        with pytest.raises(GraphError):
            call()
    assert is_legal(case.candidate)


def test_another_program_is_no_crash():
    case, other = mugraphs.rmsnorm(), mugraphs.gqa()
    refused(case.program, other.program)
    with pytest.raises(ProofError, match="inputs"):
        check(Proof(()), case.program, other.program)


def graph(kind: OpKind, first: bool, attrs=None, then=OpKind.MAX) -> KernelGraph:
    """f(max x) or max(f x); f(sum x) or sum(f x)."""
    k = Kernel(X=(4, 6))
    value = 0
    for step in (kind, then) if first else (then, kind):
        value = k.op(step, value, attrs=DimAttrs(1) if step is then else attrs)
    return k.returning(value)


def test_properties_of_the_operators():
    """Monotone functions pass maxima, ReLU passes positive scales and itself; neither passes sums."""
    unit = ClampAttrs(Fraction(0), Fraction(1))
    for kind, attrs in ((OpKind.RELU, None), (OpKind.CLAMP, unit), (OpKind.SIGMOID, None)):
        proof = proved(graph(kind, True, attrs), graph(kind, False, attrs))
        assert "monotone" in proof.axioms
        refused(graph(kind, True, attrs, OpKind.SUM), graph(kind, False, attrs, OpKind.SUM))
    k = Kernel(X=(4, 6))
    twice = k.returning(k.op(OpKind.RELU, k.op(OpKind.RELU, k.op(OpKind.MUL, 0, k.const(Fraction(1, 3))))))
    k = Kernel(X=(4, 6))
    proved(twice, k.returning(k.op(OpKind.MUL, k.op(OpKind.RELU, 0), k.const(Fraction(1, 3)))))


def test_gelu_has_no_properties_but_is_itself():
    refused(graph(OpKind.GELU, True), graph(OpKind.GELU, False))
    case = mugraphs.gated_mlp()
    assert case.program.ops  # SiLU as an unknown function is enough there
    proved(graph(OpKind.GELU, True), graph(OpKind.GELU, True))


def test_a_user_adds_a_property():
    """The sign is multiplicative: the proof goes through once that is said, and names it."""

    def direction(first: bool) -> KernelGraph:
        attrs = ApplyAttrs("direction", "sign(x)")
        k = Kernel(X=(4, 6), Y=(4, 6))
        if first:
            return k.returning(k.op(OpKind.APPLY, k.op(OpKind.MUL, 0, 1), attrs=attrs))
        return k.returning(k.op(OpKind.MUL, *(k.op(OpKind.APPLY, x, attrs=attrs) for x in (0, 1))))

    refused(direction(True), direction(False))
    said = {"direction": frozenset({"multiplicative"})}
    proof = proved(direction(True), direction(False), assume=said)
    assert "direction is multiplicative" in proof.assumptions
    refused(direction(True), direction(False), properties={"other": ["multiplicative"]})
    forgotten = Proof(proof.steps, proof.outputs, proof.literal)
    with pytest.raises(ProofError, match="multiplicative"):
        check(forgotten, direction(True), direction(False))
    with pytest.raises(OptionError, match="unknown property"):
        prove(direction(True), direction(False), properties={"direction": ["convex"]})


def test_what_is_assumed_is_the_callers_business():
    """A file that says what a function is has to be told so by who reads it."""
    left, right = (applied_sum(ROUNDABOUT, first) for first in (True, False))
    proof = proved(left, right, assume={"third": frozenset({"linear"})})
    for assumed in ({}, {"third": ["odd"]}, {"other": ["linear"]}):
        with pytest.raises(AssumptionError, match="assumes that third is linear") as caught:
            check(proof, left, right, assume=assumed)
        assert "--assume third=linear" in str(caught.value)
    check(proof, left, right, assume={"third": ["odd", "linear"]})


ROUNDABOUT = "1/3 * x * (atan(exp(x)) + atan(exp(-x)))"
"""A linear function, which no axiom says."""


def applied_sum(formula: str, first: bool) -> KernelGraph:
    """f(sum x), or the sum of f(x)."""
    k = Kernel(X=(4, 6))
    attrs = ApplyAttrs("third", formula)
    return k.returning(k.op(OpKind.APPLY, k.sum(0, 1), attrs=attrs) if first else
                       k.sum(k.op(OpKind.APPLY, 0, attrs=attrs), 1))  # fmt: skip


def test_a_users_linear_function_passes_a_product():
    """f(X @ W) = f(X) @ W for a function of the user's that is said to be linear; one kernel, a loop over tiles."""
    attrs = ApplyAttrs("third", ROUNDABOUT)
    k = Kernel(X=(4, 6), W=(6, 3))
    program = k.returning(k.op(OpKind.APPLY, k.op(OpKind.MATMUL, 0, 1), attrs=attrs))
    k = Kernel(X=(4, 6), W=(6, 3))
    b = k.block((0, 1), (3,), 2)
    x, w = b.read(0, (None,), 1), b.read(1, (1,), 0)
    b.save(b.accum(b.op(OpKind.MATMUL, b.op(OpKind.APPLY, x, attrs=attrs), w)), (1,))
    mugraph = k.returning(k.launch((0, 1), b))
    refused(program, mugraph)
    proof = proved(program, mugraph, assume={"third": frozenset({"linear"})})
    assert "linear" in proof.axioms and "third is linear" in proof.assumptions


def test_definitions_are_unfolded_where_they_are_needed():
    """SiLU is x / (1 + exp(-x)), and x * Sigmoid(x)."""
    k, silu = one(OpKind.SILU)
    program = k.returning(silu)
    k, sigmoid = one(OpKind.SIGMOID)
    assert "definition" in proved(program, k.returning(k.op(OpKind.MUL, 0, sigmoid))).axioms
    k = Kernel(X=(4, 6), Y=(4, 6))
    e = k.op(OpKind.EXP, k.op(OpKind.SUB, k.const(0), 0))
    proved(program, k.returning(k.op(OpKind.DIV, 0, k.op(OpKind.ADD, k.const(1), e))))


def test_time_is_kept():
    k = Kernel(X=(4, 6), Y=(4, 6))
    value = k.op(OpKind.ADD, 0, 1)
    for _ in range(6):
        value = k.op(OpKind.MUL, value, k.op(OpKind.ADD, value, 0))
    left = k.returning(value)
    k = Kernel(X=(4, 6), Y=(4, 6))
    with cpu_limit(3):
        reason = refused(left, k.returning(k.op(OpKind.ADD, 0, 1)), seconds=0.5)
    assert "grow" in reason or "within" in reason or "nodes" in reason
    with pytest.raises(OptionError, match="seconds"):
        prove(left, left, seconds=0)

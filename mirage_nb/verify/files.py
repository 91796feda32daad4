"""Two files against each other: what `python -m mirage_nb verify A B` says.

In: two texts, each a tensor program, a muGraph or its JSON form. Out: an exit code and the text to print:
0 accepted, 1 refuted, 2 not decided (outside LAX or without enough defined elements). With `--prove`, a proof for
all sizes too, or why there is none; with `--check`, whether a proof that a file holds is one of these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from mirage_nb.errors import ProofError, printable
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.jsonform import parse_json
from mirage_nb.ir.text import HEADER, parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify.fields.drawn import is_small
from mirage_nb.verify.proof import Proof, check, verify_and_prove
from mirage_nb.verify.trials import TRIALS, Progress, crossed_names, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

ACCEPTED, REFUTED, UNDECIDED = 0, 1, 2
SHOWN = 4
"""Primes of a verdict that are printed."""


def verify_files(
    a_text: str,
    b_text: str,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    final: bool = False,
    permuted: bool = False,
    progress: Progress | None = None,
    device: Callable[[], Device] = lambda: CPU,
) -> tuple[int, str]:
    """Exit code and report; `device` is asked for graphs that are large enough for another device than the CPU.

    Raises MirageError for a text that cannot be read or graphs that do not compare.
    """
    a, b = read_graph(a_text), read_graph(b_text)
    where = CPU if is_small(a) else device()
    verdict = verify(a, b, trials=trials, seed=seed, final=final, permuted=permuted, progress=progress, device=where)
    return exit_code(verdict), describe(verdict)


def exit_code(verdict: Verdict) -> int:
    """What a command ends with that was asked for this verdict."""
    if verdict.accepted:
        return ACCEPTED
    return REFUTED if verdict.kind is VerdictKind.REFUTED else UNDECIDED


def prove_files(
    a_text: str,
    b_text: str,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    final: bool = False,
    permuted: bool = False,
    progress: Progress | None = None,
    properties: Mapping[str, Iterable[str]] = MappingProxyType({}),
    device: Callable[[], Device] = lambda: CPU,
) -> tuple[int, str, Proof | None]:
    """As `verify_files`, with a search for a proof unless the second graph is refuted, and the proof.

    Raises also as `prove`; `properties` are what else is known of functions.
    """
    program, mugraph = read_graph(a_text), read_graph(b_text)
    verdict, proof = verify_and_prove(
        program,
        mugraph,
        trials=trials,
        seed=seed,
        final=final,
        permuted=permuted,
        progress=progress,
        properties=properties,
        device=CPU if is_small(program) else device(),
    )
    return exit_code(verdict), describe(verdict), proof


def check_files(
    a_text: str,
    b_text: str,
    proof_text: str,
    *,
    permuted: bool = False,
    assume: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> str:
    """What the proof in the third text says of the graphs in the others; `assume` as in `check`, `permuted` as in
    `verify`.

    Raises ProofError where it says nothing, or pairs outputs in another order although that is not allowed,
    AssumptionError where it assumes more, and as `verify_files` and `Proof.from_json`.
    """
    proof, a, b = Proof.from_json(proof_text), read_graph(a_text), read_graph(b_text)
    other = "the proof pairs the outputs in another order" if proof.outputs != tuple(range(len(proof.outputs))) else ""
    if not permuted and (wrong := other or crossed_names(a, b)):
        raise ProofError(wrong, hint="--permute allows that")
    check(proof, a, b, assume=assume)
    return "\n".join([str(proof), *_pairs(proof.outputs)])


def read_graph(text: str) -> KernelGraph:
    """The graph in a text of any of the three forms. Raises FormatError, ProgramSizeError, and those of `lang`."""
    start = text.lstrip()
    if start.startswith(HEADER):
        return parse_graph(text)
    if start.startswith("{"):
        return parse_json(text)
    return parse(text).graph


def describe(verdict: Verdict) -> str:
    """The verdict on a few lines: rung, sizes, primes, bound, outputs, witness."""
    lines = [str(verdict)]
    if verdict.sizes:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in verdict.sizes.items())
        lines.append(f"  checked at {shapes}")
    if verdict.primes:
        lines.append(f"  seed {verdict.seed}, primes p = {', '.join(str(p) for p, _ in verdict.primes[:SHOWN])}")
    elif verdict.witness is not None:
        lines.append(f"  seed {verdict.seed}, no field trials")
    lines += _pairs(verdict.outputs)
    if verdict.witness is not None:
        w = verdict.witness
        lines.append(
            f"  output {w.output} at {list(w.index)}: {w.expected} in the first, {w.found} in the second "
            f"({f'real numbers {w.point}' if w.point else 'residues'}, seed {w.seed})"
        )
    return printable("\n".join(lines))


def _pairs(outputs: Sequence[int]) -> list[str]:
    """Which outputs are which, on a line, where they stand in another order."""
    if outputs == tuple(range(len(outputs))):
        return []
    return [f"  outputs of the first file in the second: {', '.join(f'{i} is {j}' for i, j in enumerate(outputs))}"]

"""What axioms say, of numbers: patterns evaluated as total functions of reals, in float64 at many points, and in Z3.

Letters are arrays with one dimension for points and one for each of two indices, v and w; a letter that may not use
an index has extent 1 there. In Z3 a letter has an unknown for each value of the indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import z3

from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.axioms import Axiom, Bit, Has, Is, Pattern, Same, Vanishes, Whole, Without

EXTENT = 2
AXES = {"V": (1,), "W": (2,)}
GRID = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
POINTS = 2500
HOLDS: Mapping[Need, Callable] = {
    Need.NONZERO: lambda x: x != 0, Need.NONNEGATIVE: lambda x: x >= 0, Need.POSITIVE: lambda x: x > 0
}  # fmt: skip


def heads(pattern: Pattern) -> set[str]:
    return {str(pattern.head)}.union(*map(heads, pattern.args))


def letters(row: Axiom) -> list[str]:
    return sorted(head for head in heads(row.left) | heads(row.right) if len(head) == 1)


def uses(row: Axiom) -> dict[str, tuple[bool, bool]]:
    """For each term's letter, whether it may use v and w."""
    lists = {name for name in letters(row) if name.isupper()}
    if any(isinstance(c, Same) for c in row.conditions):
        return {letter: (True, True) for letter in letters(row) if letter.islower() and letter != "g"}
    barred = {(c.term, c.indices) for c in row.conditions if isinstance(c, Without)}
    return {
        letter: tuple(name in lists and (letter, name) not in barred for name in "VW")
        for letter in letters(row)
        if letter.islower() and letter != "g"
    }


def total_inv(x):
    return np.where(x == 0, 0.0, 1 / np.where(x == 0, 1.0, x))


def total_pow(x, e):
    whole = e == np.round(e)
    safe = np.where(x == 0, 1.0, np.where((x < 0) & ~whole, 1.0, x))
    found = np.power(safe, np.where((x < 0) & whole, np.round(e), e))
    return np.where(x == 0, np.where(e == 0, 1.0, 0.0), np.where((x < 0) & ~whole, 0.0, found))


NUMPY: dict[str, Callable] = {
    "inv": total_inv,
    "exp": np.exp,
    "sqrt": lambda x: np.sqrt(np.maximum(x, 0)),
    "log": lambda x: np.log(np.where(x > 0, x, 1.0)),
    "Pow": total_pow,
    "max": lambda *args: np.maximum.reduce(np.broadcast_arrays(*args)),
    "sin": np.sin,
    "cos": np.cos,
    "step": lambda x: np.where(x >= 0, 1.0, 0.0),
    "floor": np.floor,
    "Where": lambda condition, x: np.where(condition != 0, x, 0.0),
}


def value(pattern: Pattern, env: Mapping[str, object], axes: Mapping[str, tuple[int, ...]] = AXES):
    """The pattern in float64."""
    match pattern.head, list(pattern.args):
        case "num", _:
            return np.asarray(float(pattern.number))
        case "size", [list_]:
            return np.asarray(float(EXTENT ** len(indices(list_, axes))))
        case ("Sum" | "Max" | "Rescaled" | "Within") as kind, [list_, *bodies]:
            over = indices(list_, axes)
            shape = (1, *(EXTENT if axis in over else 1 for axis in (1, 2)))
            made = [value(body, env, axes) for body in bodies]
            made = [np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)) for x in made]
            if kind == "Sum":
                return made[0].sum(axis=over, keepdims=True)
            if kind == "Max":
                return made[0].max(axis=over, keepdims=True)
            if kind == "Within":
                largest = np.where(made[1] != 0, made[0], -np.inf).max(axis=over, keepdims=True)
                return np.where(np.isneginf(largest), 0.0, largest)
            return (made[0] * np.exp(made[1] - made[1].max(axis=over, keepdims=True))).sum(axis=over, keepdims=True)
        case head, []:
            return env[head]
        case "add", [a, b]:
            return value(a, env, axes) + value(b, env, axes)
        case "mul", [a, b]:
            return value(a, env, axes) * value(b, env, axes)
        case "g", [a]:
            return env["g"](value(a, env, axes))
        case head, args:
            return NUMPY[head](*(value(arg, env, axes) for arg in args))


def indices(list_: Pattern, axes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(axis for part in list_.args or (list_,) for axis in axes[part.head])


@dataclass
class Points:
    """Values of all letters, at points where the conditions hold."""

    env: dict[str, object]
    held: np.ndarray


def points(row: Axiom, seed: int = 0, function: Callable | None = None) -> Points:
    """Special numbers in all combinations as far as there is room, random ones behind them."""
    rng = np.random.default_rng(seed)
    shapes = {letter: tuple(EXTENT if used else 1 for used in both) for letter, both in uses(row).items()}
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    if len(GRID) ** count <= POINTS:
        special = np.array(list(itertools.product(GRID, repeat=count)))
    else:
        special = rng.choice(GRID, (POINTS, count))
    table = np.concatenate([special, rng.normal(size=(200, count)) * rng.choice([0.3, 1, 3], (200, 1))])
    env: dict[str, object] = {"g": function}
    at = 0
    for letter, shape in shapes.items():
        size = int(np.prod(shape))
        env[letter] = table[:, at : at + size].reshape(-1, *shape)
        at += size
    held = np.ones(len(table), bool)
    for condition in row.conditions:
        if isinstance(condition, Is):
            held &= HOLDS[condition.need](env[condition.term]).all(axis=(1, 2))
        if isinstance(condition, Vanishes):
            held &= ((env[condition.term] == 0) | (env[condition.where] != 0)).all(axis=(1, 2))
        if isinstance(condition, Bit):
            held &= np.isin(env[condition.term], (0, 1)).all(axis=(1, 2))
        if isinstance(condition, Whole):
            held &= (env[condition.term] % 1 == 0).all(axis=(1, 2))
    return Points(env, held)


def wrong(row: Axiom, seed: int = 0, function: Callable | None = None) -> bool:
    """Whether numbers refute the axiom."""
    at = points(row, seed, function)
    axes = {"V": (1, 2), "W": (2, 1)} if any(isinstance(c, Same) for c in row.conditions) else AXES
    with np.errstate(all="ignore"):
        left, right = np.broadcast_arrays(value(row.left, at.env, axes), value(row.right, at.env, axes))
    if left.shape[0] == 1:
        left, right = (np.broadcast_to(x, (len(at.held), *x.shape[1:])) for x in (left, right))
    left, right = left[at.held], right[at.held]
    with np.errstate(all="ignore"):
        seen = np.isfinite(left) & np.isfinite(right) & (np.abs(left) < 1e12)
        return bool((seen & (np.abs(left - right) > 1e-7 * (1 + np.abs(left) + np.abs(right)))).any())


def in_z3(row: Axiom) -> z3.ExprRef | None:
    """The axiom as a formula over the reals, negated; None if it speaks of exponentials or functions."""
    unknown = {"exp", "log", "Pow", "sin", "cos", "g", "unfolded", "Rescaled", "Within"}
    if (heads(row.left) | heads(row.right)) & unknown:
        return None
    used = uses(row)
    side: list[z3.ExprRef] = []
    counter = itertools.count()

    def letter(name: str, at: Mapping[int, int]) -> z3.ExprRef:
        own = [str(at[axis]) if may else "-" for axis, may in zip((1, 2), used[name], strict=True)]
        return z3.Real(f"{name}{own[0]}{own[1]}")

    def root(x: z3.ExprRef) -> z3.ExprRef:
        found = z3.Real(f"root{next(counter)}")
        side.append(z3.If(x <= 0, found == 0, z3.And(found > 0, found * found == x)))
        return found

    def inverse(x: z3.ExprRef) -> z3.ExprRef:
        found = z3.Real(f"inverse{next(counter)}")
        side.append(z3.If(x == 0, found == 0, found * x == 1))
        return found

    def below(x: z3.ExprRef) -> z3.ExprRef:
        found = z3.ToReal(z3.Int(f"below{next(counter)}"))
        side.append(z3.And(found <= x, x < found + 1))
        return found

    def larger(args: list[z3.ExprRef]) -> z3.ExprRef:
        found = args[0]
        for arg in args[1:]:
            found = z3.If(found >= arg, found, arg)
        return found

    axes = {"V": (1, 2), "W": (2, 1)} if any(isinstance(c, Same) for c in row.conditions) else AXES

    def expr(pattern: Pattern, at: Mapping[int, int]) -> z3.ExprRef:
        match pattern.head, list(pattern.args):
            case "num", _:
                return z3.RealVal(pattern.number)
            case "size", [list_]:
                return z3.RealVal(EXTENT ** len(indices(list_, axes)))
            case ("Sum" | "Max") as kind, [list_, body]:
                made = [expr(body, at | dict(zip(indices(list_, axes), places, strict=True)))
                        for places in itertools.product(range(EXTENT), repeat=len(indices(list_, axes)))]  # fmt: skip
                return z3.Sum(made) if kind == "Sum" else larger(made)
            case name, []:
                return letter(name, at)
            case "add", [a, b]:
                return expr(a, at) + expr(b, at)
            case "mul", [a, b]:
                return expr(a, at) * expr(b, at)
            case "max", args:
                return larger([expr(arg, at) for arg in args])
            case "inv", [a]:
                return inverse(expr(a, at))
            case "sqrt", [a]:
                return root(expr(a, at))
            case "step", [a]:
                return z3.If(expr(a, at) >= 0, z3.RealVal(1), z3.RealVal(0))
            case "floor", [a]:
                return below(expr(a, at))
            case "Where", [a, b]:
                return z3.If(expr(a, at) != 0, expr(b, at), z3.RealVal(0))
        raise AssertionError(pattern)

    for condition in row.conditions:
        if isinstance(condition, Is):
            for places in itertools.product(range(EXTENT), repeat=2):
                side.append(HOLDS[condition.need](letter(condition.term, dict(zip((1, 2), places, strict=True)))))
        if isinstance(condition, Vanishes):
            side.append(z3.Or(letter(condition.where, {}) != 0, letter(condition.term, {}) == 0))
        if isinstance(condition, Bit):
            side.append(z3.Or(letter(condition.term, {}) == 0, letter(condition.term, {}) == 1))
        if isinstance(condition, Whole):
            side.append(letter(condition.term, {}) == z3.ToReal(z3.Int("whole")))
    free = {1: 0, 2: 0}
    different = expr(row.left, free) != expr(row.right, free)
    return z3.And(*side, different)


def mutants(row: Axiom) -> Iterator[tuple[str, Axiom]]:
    """The axiom with one thing changed: a condition left out, or one place of its right side another one."""
    for place, condition in enumerate(row.conditions):
        if not isinstance(condition, Same | Has):
            rest = (*row.conditions[:place], *row.conditions[place + 1 :])
            yield f"without {condition}", Axiom(row.name, row.left, row.right, row.text, rest)
    terms = [name for name in letters(row) if name.islower() and name != "g"]
    for description, right in changed(row.right, terms):
        yield description, Axiom(row.name, row.left, right, row.text, row.conditions)


OTHER = {"add": "mul", "mul": "add", "Sum": "Max", "Max": "Sum", "exp": "sqrt", "sqrt": "exp", "inv": "exp"}


def changed(pattern: Pattern, terms: list[str]) -> Iterator[tuple[str, Pattern]]:
    """The pattern with one node changed."""
    if pattern.head == "num":
        yield "another numeral", Pattern(pattern.head, number=pattern.number + 1)
    if pattern.head in terms:
        for name in terms:
            if name != pattern.head:
                yield f"{name} for {pattern.head}", Pattern(name)
    if pattern.head in OTHER and not all(arg.head in ("V", "W") for arg in pattern.args):
        yield f"{OTHER[pattern.head]} for {pattern.head}", Pattern(OTHER[pattern.head], pattern.args)
    for place, arg in enumerate(pattern.args):
        for description, made in changed(arg, terms):
            yield description, Pattern(pattern.head, (*pattern.args[:place], made, *pattern.args[place + 1 :]))

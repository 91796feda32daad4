"""Atoms, monomials and blocks: the multiplicative part of the normal form.

In: symbols and the arguments of opaque, exponential, root and inverse atoms (as expression numbers).
Out: monomials. Every atom is a prime number and a monomial is the product of its atoms, so that
multiplication is integer multiplication and "is a sub-multiset of" is divisibility.

A sum is a BLOCK: a connected component of atoms joined by bound variables, as in a tensor network. Blocks
are closed: whatever does not depend on a summed axis stands outside, nested sums are flattened into one
block, and bound variables have no names, so scoping is exact and there is no capture. Invariant: the atoms
inside a block are not blocks; equal monomials are equal integers. Section 4.3 of the paper.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import permutations, product
from math import factorial, prod

SubAxis = Hashable
Expr = int
"""The number of an expression in its algebra."""
Factor = tuple[int, tuple[int, ...]]
"""An atom (its prime) and one variable per axis that it depends on, in the order of the axes' numbers.
Variable v >= 0 is bound; variable -1 - a is the free axis number a."""

ORDERINGS_LIMIT = 1 << 16
"""Factors that are numbered anew, in all orders of a block's variables together."""


class AtomKind(Enum):
    """What an atom is; the payload of the atom is given in parentheses."""

    __hash__ = object.__hash__  # as in `OpKind`
    SYMBOL = "symbol"  # (name)
    CONSTANT = "constant"  # (key)
    FUNCTION = "function"  # (name, argument expression)
    EXP = "exp"  # (argument expression)
    ROOT = "root"  # (argument expression)
    INVERSE = "inverse"  # (argument expression)
    ADDITION = "addition"  # (expression): a sum of terms that stays a factor
    LATER = "later"  # (prime of an addition): see levels
    BLOCK = "block"  # (bound axes, factors)
    LARGE = "large"  # (operator, operand expressions): what has too many factors to be written out


@dataclass(frozen=True, slots=True)
class Block:
    """A sum over variables: `names[v]` is the axis of variable v. No factors: the extent of that axis."""

    names: tuple[int, ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Atom:
    """One indivisible factor of a monomial.

    Attributes:
        kind: what it is.
        payload: see `AtomKind`.
        axes: bit mask of the axes that it depends on (bound ones are not among them).
        flat: the product of all atoms and bound axes in it, ignoring scope; divisibility of flats is
            necessary for one monomial to be a part of another.
        additive: whether it is an addition, or a block with one inside.
        vague: whether its normal form may not be canonical, so that nothing may be concluded from it.
    """

    kind: AtomKind
    payload: Hashable
    axes: int
    flat: int
    additive: bool = False
    vague: bool = False


@dataclass(frozen=True, slots=True)
class Monomial:
    """The atoms of a monomial with multiplicity (sorted), and the union, product or sum of their properties; its
    size is the number of factors, those inside blocks counted."""

    atoms: tuple[int, ...]
    axes: int
    flat: int
    additive: bool
    size: int


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class PrimeSource:
    """The primes in order, as many as are asked for."""

    def __init__(self) -> None:
        self._primes: list[int] = []
        self._used = 0
        self._limit = 1 << 10

    def take(self) -> int:
        """The next prime."""
        if self._used == len(self._primes):
            self._limit *= 2
            sieve = bytearray([1]) * self._limit
            sieve[:2] = b"\0\0"
            for p in range(2, int(self._limit**0.5) + 1):
                if sieve[p]:
                    sieve[p * p :: p] = bytes(len(range(p * p, self._limit, p)))
            self._primes = [n for n in range(self._limit) if sieve[n]]
        self._used += 1
        return self._primes[self._used - 1]


class AtomTable:
    """Interned atoms and monomials of one algebra."""

    def __init__(self) -> None:
        self._source = PrimeSource()
        self._primes: dict[tuple[AtomKind, Hashable], int] = {}
        self._axis_numbers: dict[SubAxis, int] = {}
        self._axis_primes: list[int] = []
        self._sums: dict[tuple[int, int], int] = {}
        self.axis_names: list[SubAxis] = []
        self.atoms: dict[int, Atom] = {}
        self.monomials: dict[int, Monomial] = {1: Monomial((), 0, 1, False, 0)}
        self.any_vague = False
        self.minus = self.intern(AtomKind.CONSTANT, Fraction(-1), 0)
        """The atom of -1. A monomial has it at most once."""

    # ---- axes
    def axis(self, key: SubAxis) -> int:
        """The number of an axis, given out at first sight."""
        number = self._axis_numbers.get(key)
        if number is None:
            number = self._axis_numbers[key] = len(self.axis_names)
            self.axis_names.append(key)
            self._axis_primes.append(self._source.take())
        return number

    def mask(self, axes: Iterable[SubAxis]) -> int:
        """The bit mask of some axes."""
        mask = 0
        for key in axes:
            mask |= 1 << self.axis(key)
        return mask

    # ---- atoms
    def find(self, kind: AtomKind, payload: Hashable) -> int | None:
        """The prime of an atom that exists already."""
        return self._primes.get((kind, payload))

    def intern(self, kind: AtomKind, payload: Hashable, axes: int, vague: bool = False) -> int:
        """The prime of an atom other than a block."""
        key = (kind, payload)
        prime = self._primes.get(key)
        if prime is None:
            prime = self._primes[key] = self._source.take()
            self._register(prime, Atom(kind, payload, axes, prime, kind is AtomKind.ADDITION, vague))
        return prime

    def _register(self, prime: int, atom: Atom) -> None:
        self.atoms[prime] = atom
        size = len(atom.payload.factors) if isinstance(atom.payload, Block) else 1
        self.monomials[prime] = Monomial((prime,), atom.axes, atom.flat, atom.additive, size)
        self.any_vague |= atom.vague

    # ---- monomials
    def multiply(self, m: int, n: int) -> int:
        """The product of two monomials."""
        out = m * n
        if out not in self.monomials:
            return self.product(self.monomials[m].atoms + self.monomials[n].atoms)
        return out

    def product(self, primes: Iterable[int]) -> int:
        """The product of some atoms."""
        atoms = tuple(primes)
        out = prod(atoms)
        if out and not out % self.minus**2:
            signs = atoms.count(self.minus)
            atoms = tuple(p for p in atoms if p != self.minus) + (self.minus,) * (signs % 2)
            out = prod(atoms)
        if out not in self.monomials:
            self._combine(out, atoms)
        return out

    def quotient(self, m: int, n: int) -> int:
        """The exact quotient of two monomials."""
        atoms = list(self.monomials[m].atoms)
        for prime in self.monomials[n].atoms:
            atoms.remove(prime)
        return self.product(atoms)

    def _combine(self, out: int, primes: tuple[int, ...]) -> None:
        axes, flat, additive, size = 0, 1, False, 0
        for prime in primes:
            atom = self.atoms[prime]
            axes |= atom.axes
            flat *= atom.flat
            additive |= atom.additive
            size += self.monomials[prime].size
        self.monomials[out] = Monomial(tuple(sorted(primes)), axes, flat, additive, size)

    # ---- sums
    def sum(self, mask: int, m: int) -> int:
        """The sum of a monomial over the axes in `mask`."""
        key = (mask, m)
        out = self._sums.get(key)
        if out is None:
            atoms = self.monomials[m].atoms
            touched = [p for p in atoms if self.atoms[p].axes & mask]
            rest = [p for p in atoms if not self.atoms[p].axes & mask]
            names = list(bits(mask))
            variable = {-1 - a: v for v, a in enumerate(names)}
            factors: list[Factor] = []
            self.open(touched, names, factors)
            bound = [(p, tuple(variable.get(v, v) for v in vs)) for p, vs in factors]
            out = self._sums[key] = self.multiply(self.product(rest), self.close(names, bound))
        return out

    def open(self, primes: Iterable[int], names: list[int], factors: list[Factor]) -> None:
        """Append the network of some atoms: their factors, and the axes of their bound variables."""
        for prime in primes:
            atom = self.atoms[prime]
            block = atom.payload
            if isinstance(block, Block):
                shift = len(names)
                names += block.names
                factors += [(p, tuple(v if v < 0 else v + shift for v in vs)) for p, vs in block.factors]
            else:
                factors.append((prime, tuple(-1 - a for a in bits(atom.axes))))

    def close(self, names: Sequence[int], factors: Iterable[Factor]) -> int:
        """The monomial of a network: one block for each component joined by the bound variables."""
        component = list(range(len(names)))
        members: list[list[Factor]] = [[] for _ in names]
        plain: list[int] = []
        for f in factors:
            bound = [v for v in f[1] if v >= 0]
            if not bound:
                plain.append(f[0])
                continue
            home = component[bound[0]]
            members[home].append(f)
            for v in bound[1:]:
                other = component[v]
                if other != home:
                    members[home] += members[other]
                    component = [home if c == other else c for c in component]
        for home in set(component):
            variables = [v for v, c in enumerate(component) if c == home]
            plain.append(self._block(names, variables, members[home]))
        return self.product(plain)

    def _block(self, names: Sequence[int], variables: list[int], factors: list[Factor]) -> int:
        block, certain = canonical_block(names, variables, factors)
        key = (AtomKind.BLOCK, block)
        prime = self._primes.get(key)
        if prime is None:
            axes, flat, additive, vague = 0, 1, False, not certain
            for p, vs in block.factors:
                atom = self.atoms[p]
                flat *= p
                additive |= atom.additive
                vague |= atom.vague
                for v in vs:
                    if v < 0:
                        axes |= 1 << (-1 - v)
            for a in block.names:
                flat *= self._axis_primes[a]
            prime = self._primes[key] = self._source.take()
            self._register(prime, Atom(AtomKind.BLOCK, block, axes, flat, additive, vague))
        return prime


def canonical_block(names: Sequence[int], variables: list[int], factors: list[Factor]) -> tuple[Block, bool]:
    """The canonical numbering of a block's variables, and whether it is certain to be canonical.

    Variables are ordered by axis; several variables of one axis (two independent sums over it inside a
    third sum) are told apart by what they touch, and by trial of all orders where that does not decide.
    """
    axes = [names[v] for v in variables]
    if len(set(axes)) == len(axes):
        order = sorted(variables, key=lambda v: names[v])
        return _numbered(names, order, factors), True
    color = _colors(names, variables, factors)
    classes: dict[tuple[int, int], list[int]] = {}
    for v in sorted(variables, key=lambda v: (names[v], color[v])):
        classes.setdefault((names[v], color[v]), []).append(v)
    if len(factors) * prod(factorial(len(same)) for same in classes.values()) > ORDERINGS_LIMIT:
        order = [v for same in classes.values() for v in same]
        return _numbered(names, order, factors), False
    orders = product(*(permutations(same) for same in classes.values()))
    candidates = (_numbered(names, [v for part in order for v in part], factors) for order in orders)
    return min(candidates, key=lambda block: block.factors), True


def _numbered(names: Sequence[int], order: Sequence[int], factors: list[Factor]) -> Block:
    number = {v: i for i, v in enumerate(order)}
    renamed = sorted((p, tuple(v if v < 0 else number[v] for v in vs)) for p, vs in factors)
    return Block(tuple(names[v] for v in order), tuple(renamed))


def _colors(names: Sequence[int], variables: list[int], factors: list[Factor]) -> dict[int, int]:
    """Numbers that tell variables apart by what they touch; they do not depend on how they are numbered."""
    color = dict.fromkeys(variables, 0)
    for _ in range(2):
        colored = [(p, [u if u < 0 else color[u] for u in vs], vs) for p, vs in factors]
        signature = {
            v: (names[v], color[v], sorted((p, us, vs.index(v)) for p, us, vs in colored if v in vs)) for v in variables
        }
        ranks = sorted(signature.values())
        color = {v: ranks.index(signature[v]) for v in variables}
    return color

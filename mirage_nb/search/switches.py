"""Axioms and prunings of a search, each of which may be switched on or off by its name.

In: an effort, and names with on or off. Out: an effort that differs in just these. Whatever is switched, every muGraph
is verified before it is handed out: fewer axioms lose muGraphs, fewer prunings cost time. Sections 4.1 and 4.3 of the
paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_nb.algebra import EQUATIONS
from mirage_nb.errors import OptionError
from mirage_nb.search.limits import Limits
from mirage_nb.search.space import UNCAPPED, WRITTEN_OUT, Effort


@dataclass(frozen=True, slots=True)
class Switch:
    """One axiom or pruning: its name, what it says in one line, and why it cannot be switched, if it cannot."""

    name: str
    says: str
    fixed: str = ""


AXIOMS: Mapping[str, Switch] = {axiom.name: Switch(axiom.name, axiom.says, axiom.fixed) for axiom in EQUATIONS}
"""The equations of Table 2. Off: what only this axiom makes a part of the program is cut."""

_PRODUCTS = "factored_products"
_CLOSURE = (
    ("oracle", "oracle", "prune what cannot become a part of the program by its abstract expression"),
    ("types", "types", "no outer products that the program itself does not form, but by matmuls"),
    ("canonical_form", "canonical", "a scaling by a constant comes last in a product, after sums"),
    ("shift_rules", "shifts", "exponentials less different maxima are not mixed (off: unsafe forms as well)"),
    ("merging", "merging", "equal values are one value with several derivations"),
    ("whole_inputs", "replicas", "inputs may also be read whole where the grid or the loop could split them"),
    ("concat", "concat", "accumulators that gather the tiles of all iterations"),
    ("hold", "hold", "accumulators that keep what is the same in every iteration"),
)
"""Names, fields of `closure.Rules`, and what they say."""
_RULES = {name: field for name, field, _ in _CLOSURE}

PRUNINGS: Mapping[str, Switch] = {
    **{name: Switch(name, says) for name, _, says in _CLOSURE},
    _PRODUCTS: Switch(
        _PRODUCTS, "products of long sums stay factored, which keeps expressions short and loses some parts"
    ),
}
"""The prunings, then what widens the space (whole inputs, accumulators), then how products are written."""
WIDENING = frozenset({"whole_inputs", "concat", "hold"})
"""These let more through when they are on, the prunings when they are off."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What differs from an effort: names of axioms and prunings that are on, and that are off; limits set by hand."""

    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()
    by_hand: Limits | None = None

    @classmethod
    def of(
        cls,
        axioms: Mapping[str, bool] | None = None,
        prunings: Mapping[str, bool] | None = None,
        limits: Limits | None = None,
    ) -> Switches:
        """The switches of these.

        Raises:
            OptionError: an unknown name, one that cannot be switched, or an impossible limit.
        """
        if limits is not None:
            limits.check()
        chosen: dict[str, bool] = {}
        for what, known, asked in (("axiom", AXIOMS, axioms or {}), ("pruning", PRUNINGS, prunings or {})):
            names = ", ".join(name for name, switch in known.items() if not switch.fixed)
            for name, state in asked.items():
                if name not in known:
                    raise OptionError(f"{name!r} is no {what}", hint=f"one of {names}")
                if known[name].fixed and not state:
                    raise OptionError(f"{name!r} cannot be switched off: {known[name].fixed}", hint=f"one of {names}")
                chosen[name] = bool(state)
        on = frozenset(name for name, state in chosen.items() if state)
        return cls(on, frozenset(chosen) - on, limits)

    def then(self, later: Switches) -> Switches:
        """These, and later ones over them."""
        by_hand = later.by_hand if later.by_hand is not None else self.by_hand
        return Switches((self.on - later.off) | later.on, (self.off - later.on) | later.off, by_hand)

    def applied(self, effort: Effort) -> Effort:
        """The effort with these switches."""
        if self == Switches():
            return effort
        axioms = frozenset(AXIOMS)
        options = replace(effort.options, off=(effort.options.off - self.on) | (self.off & axioms))
        rules = {field: name in self.on for name, field in _RULES.items() if name in self.on | self.off}
        if _PRODUCTS in self.off:
            options = replace(options, products="expanded")
        written_out = effort.written_out
        if _PRODUCTS in self.on | self.off:
            written_out = UNCAPPED if _PRODUCTS in self.off else min(written_out, WRITTEN_OUT)
        limits = self.by_hand if self.by_hand is not None else effort.limits
        kept = replace(effort.rules, without=limits.without, **rules)
        return replace(effort, options=options, rules=kept, written_out=written_out, limits=limits)

    def limits(self, effort: Effort) -> tuple[str, ...]:
        """What these take away from the space of an effort, one sentence each."""
        before, after = switched(effort), switched(self.applied(effort))
        narrowing = {*AXIOMS, *WIDENING}
        gone = [f"{name} is switched off" for name in after if name in narrowing and before[name] and not after[name]]
        if after[_PRODUCTS] and not before[_PRODUCTS]:
            gone.append(f"{_PRODUCTS} is switched on")
        return (*gone, *(self.by_hand.sentences() if self.by_hand is not None else ()))


def switched(effort: Effort) -> dict[str, bool]:
    """For every axiom and pruning whether it is in force at an effort."""
    found = {name: name not in effort.options.off for name in AXIOMS}
    found |= {name: bool(getattr(effort.rules, field)) for name, field in _RULES.items()}
    found[_PRODUCTS] = effort.options.products == "factored" or effort.written_out < UNCAPPED
    return found

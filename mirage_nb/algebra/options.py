"""Which axioms the algebra honours: a frozen choice, named in every result that depends on it.

In: names of axioms. Out: `AlgebraOptions` and the presets QUICK, STANDARD and THOROUGH. Switching an axiom
off makes the oracle cut more: what it then guarantees is Theorem 1 for the axioms that are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mirage_nb.algebra.axioms import BY_NAME, EQUATIONS, Axiom
from mirage_nb.errors import OptionError


@dataclass(frozen=True, slots=True)
class AlgebraOptions:
    """The axioms in force.

    Attributes:
        off: names of switchable axioms that are not applied.
        products: `expanded` multiplies products of sums out; `factored` keeps them, which bounds the size
            of expressions and restricts the axioms that carry `factored_conditions`.

    Raises:
        OptionError: an unknown name, or an axiom that cannot be switched off.
    """

    off: frozenset[str] = frozenset()
    products: Literal["expanded", "factored"] = "expanded"

    def __post_init__(self) -> None:
        switchable = sorted(axiom.name for axiom in EQUATIONS if axiom.switchable)
        for name in sorted(self.off):
            if name not in switchable:
                fixed = BY_NAME[name].fixed if name in BY_NAME else ""
                what = f"cannot be switched off: {fixed}" if name in BY_NAME else "is not an axiom"
                raise OptionError(f"{name!r} {what}", hint=f"switchable: {', '.join(switchable)}")
        if self.products not in ("expanded", "factored"):
            raise OptionError(f"products is {self.products!r}", hint="use 'expanded' or 'factored'")

    def equations(self) -> tuple[Axiom, ...]:
        """The equations in force, in the order of Table 2."""
        return tuple(axiom for axiom in EQUATIONS if axiom.name not in self.off)

    def limits(self) -> tuple[str, ...]:
        """What is switched off or restricted, in words, for the name of a result."""
        limits = [f"{name} off" for name in sorted(self.off)]
        if self.products == "factored":
            limits += [f"{axiom.name} restricted" for axiom in EQUATIONS if axiom.factored_conditions]
        return tuple(limits)


QUICK = AlgebraOptions(off=frozenset({"sqrt_product"}), products="factored")
STANDARD = AlgebraOptions(off=frozenset({"sqrt_product"}))
THOROUGH = AlgebraOptions()

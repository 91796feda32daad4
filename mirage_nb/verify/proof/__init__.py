"""The `proved` rung: an equational proof, for all sizes, that a muGraph computes what its program computes.

What is proved: for every choice of how many values the indices of each part of each axis take, for all real inputs
at which the program and the muGraph are both defined, and for all values of the constants (other than 0, 1 and 2;
the sign of a constant and which constants are the same is kept), the outputs are equal. Arithmetic is that of the
real numbers; what rounding does is for the float gate. A part of an axis is a factor of an extent that grid dims,
a loop or a regrouping set apart; a dimension of extent 1 has none, so that a proof for graphs that have one says
nothing of graphs that have more there. `check` holds a proof against a pair of graphs of any sizes.

What is trusted: `translate` and `axes` (tests hold them against the float64 reference on random graphs), `terms`,
`axioms` (tests hold each one against numbers) and `checker`. The prover is not.

How: both graphs become terms in index notation (`axes` finds the parts of axes that grid dims, loops and regrouping
declare, `translate` unfolds the operators, `terms` are what they become). A proof is a list of steps, each an axiom
(`axioms`: data) with a term for each of its letters, applied to both terms wherever it fits, until they are the
same. `prover` and `rules` find the steps by directed rewriting; `checker` replays them and uses neither.
`steps` is the proof as data, `ladder` lifts verdicts. This is the verifier for programs outside of LAX of the
paper's section 5: operators may be given properties, such as linearity or monotonicity.
"""

from mirage_nb.verify.proof.checker import check
from mirage_nb.verify.proof.ladder import lifted, verify_and_prove, with_proof
from mirage_nb.verify.proof.prover import Unproved, prove
from mirage_nb.verify.proof.steps import Proof, Step

__all__ = ["Proof", "Step", "Unproved", "check", "lifted", "prove", "verify_and_prove", "with_proof"]

"""The `proved` rung: an equational proof, for all sizes, that a muGraph computes what its program computes.

What is proved: for every choice of how many values the indices of each part of each axis take, for all real inputs
at which the program is defined, and for all values of the constants (other than 0, 1 and 2; the sign of a constant and
which constants are the same is kept), the muGraph is defined and the outputs are equal (`defined.domain` says what that
means). Arithmetic is that of the real numbers and of masks of minus infinity (`masked`): nothing is said of infinite
inputs, and a plus infinity, or an output that may be minus infinity, has no proof; what rounding does is for the float
gate. A part of an axis is a factor of an extent that grid dims, a loop or a regrouping set apart; a dimension of extent
1 has none, so that a proof for graphs that have one says nothing of graphs that have more there. `check` holds a proof
against a pair of graphs of any sizes.

Where numbers count elements (a mean over 16 is a sixteenth of the sum), there may be a proof for these extents of some
parts of axes, and for all of the others (`Proof.extents`). Where partitions do not nest or elements are told by their
numbers, small graphs may have a proof for their own sizes (`elements`), which says so and is no proof for others.

An axis over whose end tiles hang has the parts of these tiles; a bit for each of their elements says whether it is
inside (`terms.inside`). What folds the axis folds what is inside, an iterator reads 0 beyond, an output has what is
inside; and each tile has an element. Nothing else is known of these bits, so that a proof holds wherever the axis ends.

What is trusted: `terms`, `axioms` (tests hold each one against Z3 or numbers), `signs`, `functions`, `masked` and
`checker`; for a proof of these sizes `elements`, too, and the walk of the interpreters.
`translate` and `axes` are not believed: `meaning` runs both graphs, at small sizes, and compares every element with
what the terms say. The prover is not trusted.

How: both graphs become terms in index notation (`axes` finds the parts of axes that grid dims, loops and regrouping
declare, `indices` what runs over them, `translate` unfolds the operators, `terms` are what they become: total functions
of real numbers). A proof is a list of steps, each an axiom (`axioms`: data) with a term for each of its letters,
applied to both terms wherever it fits, until they are the same; and what the muGraph needs so that it has a value has
to hold by its form or because the program needs it, too (`signs`). `prover` finds the steps by directed rewriting
(`rules`, `lattice`, `choices`, `compared`, `exponentials`, `circle`, `known`, and where these do not lead to one term,
`pieces`); `checker` replays them and uses none of these. `steps` is the proof as data, `ladder` lifts verdicts. This is
the verifier for programs outside of LAX of the paper's section 5: functions may be given properties, such as linearity
or monotonicity.
"""

from mirage_nb.verify.proof.checker import check
from mirage_nb.verify.proof.ladder import decided, lifted, verify_and_prove, with_proof
from mirage_nb.verify.proof.prover import Unproved, prove
from mirage_nb.verify.proof.steps import Proof, Step

__all__ = ["Proof", "Step", "Unproved", "check", "decided", "lifted", "prove", "verify_and_prove", "with_proof"]

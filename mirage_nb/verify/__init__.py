"""Verification: field trials with an error bound, proofs, and the floating-point gate (paper section 5).

In: a program and a muGraph of the same inputs. Out: a `Verdict`. `verify` tries random elements of finite fields,
`prove` looks for a proof for all sizes, `verify_and_prove` does both, `check` replays a proof.
"""

from mirage_nb.verify.proof import Proof, Unproved, check, prove, verify_and_prove
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness

__all__ = ["Proof", "Unproved", "Verdict", "VerdictKind", "Witness", "check", "prove", "verify", "verify_and_prove"]

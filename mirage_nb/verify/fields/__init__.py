"""Trials over finite fields: what they can decide, what is drawn, and the bound on their error (paper section 5)."""

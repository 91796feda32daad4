"""Other ways to say a program, before it is searched or composed: each a rewrite that keeps what is computed."""

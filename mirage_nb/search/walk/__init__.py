"""Walks of a muGraph through the rules of the closure: what the search makes of its values, and what it does not."""

"""Structures become muGraphs: sizes are chosen last, by a cost model, among all that are legal."""

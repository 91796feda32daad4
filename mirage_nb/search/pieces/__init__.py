"""A program in pieces: which operators are searched, or computed by a library, as one, and how muGraphs of the pieces
become one of the whole."""

"""The backend of torch.compile: regions of a traced graph, kernels for them, and what came of it.

In: the ATen graph that torch.compile hands to a compiler. Out: compiled code, at first PyTorch's, later with regions
that run kernels of the search. Invariant: a region is replaced only by a kernel that was compared with PyTorch's own
result for it and, on a GPU, timed as faster than PyTorch's code; everything else is left, and the report says why.
"""

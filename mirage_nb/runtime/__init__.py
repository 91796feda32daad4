"""Compiling and running emitted kernels: NVRTC, the attached GPU, the CPU edition, timing, the store.

The only room that imports CuPy, starts g++ or opens the store; importing it alone loads none of them. Modules
are imported by name (`mirage_nb.runtime.execution.emulate`), so that each loads only what it needs.
"""

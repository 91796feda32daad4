"""One emitted muGraph: compiled by NVRTC or g++, given its arguments, run on the GPU or on the CPU edition."""

"""The second line: values over the reals, exact ones and those of kernels, at points of many kinds."""

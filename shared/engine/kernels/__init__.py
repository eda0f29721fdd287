"""The native kernels: one C++ file, how it is compiled, and how the result is loaded."""

"""Choosing tokens: validated parameters, counter-based random numbers, and the sampler."""

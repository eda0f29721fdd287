"""Counter-based random numbers: a draw is a function of its coordinates, not of the draws before it."""

import numpy as np


def uniform(seed: int, index: int, position: int) -> float:
    """Return the uniform number in [0, 1) of one output position of one completion.

    It is the first word of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) under
    the key (seed, index) at the counter position + 1, so that it is the same in any batch, process and replica.

    Args:
        seed: The request's seed, in [0, 2**64).
        index: Which completion of the prompt, from 0.
        position: Position in the completion, from 0.
    """
    # As uint64 arrays: numpy would take a list with a large seed for floats, and lose its low bits.
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)  # numpy counts up before it generates
    key = np.array([seed, index], dtype=np.uint64)
    bits = int(np.random.Philox(counter=counter, key=key).random_raw())
    return (bits >> 11) * 2.0**-53

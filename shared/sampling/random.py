"""Counter-based random numbers: a draw is a function of its coordinates, not of the draws before it."""

import numpy as np


def uniform(seed: int, index: int, position: int) -> float:
    """Return the uniform number in [0, 1) of one output position of one completion.

    It is the first word of Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) at
    counter `position` under the key (seed, index), so that it is the same in any batch, process and replica.

    Args:
        seed: The request's seed, in [0, 2**64).
        index: Which completion of the prompt, from 0.
        position: Position in the completion, from 0.
    """
    bits = int(np.random.Philox(counter=[position, 0, 0, 0], key=[seed, index]).random_raw())
    return (bits >> 11) * 2.0**-53

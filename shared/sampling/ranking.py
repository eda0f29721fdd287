"""Which of a row's values are the largest. Among equals the lowest place goes first."""

from math import isfinite

import numpy as np
import numpy.typing as npt


def find_highest(values: npt.NDArray[np.float32]) -> int | FloatingPointError:
    """Return the place of the first of the highest values; an error where there is a NaN, or nothing that is finite."""
    place = int(values.argmax())  # a NaN counts as the highest
    value = float(values[place])
    return place if isfinite(value) else no_number(value)


def no_number(highest: float) -> FloatingPointError:
    """The error of a row whose highest logit is no finite number."""
    return FloatingPointError(f"the highest logit is {highest}")


def mark_largest(values: npt.NDArray[np.float32], smallest: np.float32, num_marked: int) -> npt.NDArray[np.bool_]:
    """Mark the `num_marked` largest values, of which `smallest` is the last; the first ones win among equals."""
    marked: npt.NDArray[np.bool_] = values > smallest
    num_equal = num_marked - np.count_nonzero(marked)
    marked[np.flatnonzero(values == smallest)[:num_equal]] = True
    return marked

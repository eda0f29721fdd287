"""What the two services have in common; it knows neither of them."""

import os

# OpenMP reads this once, when torch loads it, and whatever imports torch here has imported this package before. Threads
# that wait for their next step spin for some 4 ms by default, on cores that the event loop could use; now for 0.1 ms.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

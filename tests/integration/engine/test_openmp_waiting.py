"""OpenMP is told not to spin between steps before torch loads it, which is when it listens."""

import os
import subprocess
import sys

import pytest

WATCH = """
import os, sys
class Watch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"))
            sys.exit()
sys.meta_path.insert(0, Watch())
import {module}
print("torch was not imported")
"""


@pytest.mark.parametrize("module", ["decode_service.server", "prefill_service.server"])
@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_the_spin_count_is_there_before_torch(module: str, environment: dict[str, str], expected: str) -> None:
    inherited = {key: value for key, value in os.environ.items() if key not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    done = subprocess.run(
        [sys.executable, "-c", WATCH.format(module=module)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHM = Path("/dev/shm")


@pytest.fixture
def shm_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory of a real tmpfs where there is one."""
    if not SHM.is_dir():
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="baton-test-", dir=SHM))
    yield directory
    shutil.rmtree(directory)

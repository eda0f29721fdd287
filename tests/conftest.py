"""Models that many tests use."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from shared.engine.kernels.library import KernelLibrary
from shared.engine.models.registry import import_model
from tests.kernel_libraries import emulated_library, native_library
from tests.tiny_models import write_tiny_model

# No test fails because a machine is busy.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What a command sets up in this process is not the next test's."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


DEFAULT_MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The default model, imported if it is not there yet."""
    return import_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a tokenizer of bytes."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session", params=["native", "avx512_emulated"])
def kernel_library(request: pytest.FixtureRequest) -> KernelLibrary:
    """Each of the kernel libraries that can run here."""
    if request.param == "native":
        return native_library()
    cache: pytest.Cache = request.config.cache
    return emulated_library(cache.mkdir("kernels"))

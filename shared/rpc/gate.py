"""Whether a service takes work: not yet, now, or no longer."""

from typing import Generic, TypeVar

from shared.errors import Reason, UnavailableError

T = TypeVar("T")


class ReadyGate(Generic[T]):
    """Holds what serves calls; closed before warm-up is done and again when draining begins."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._value: T | None = None
        self._is_draining = False
        self._failure: str | None = None

    @property
    def is_draining(self) -> bool:
        """Whether `begin_drain` was called."""
        return self._is_draining

    @property
    def is_open(self) -> bool:
        """Whether warm-up is done and the engine has not failed."""
        return self._value is not None and self._failure is None

    def open(self, value: T) -> None:
        """Warm-up is done: `value` serves from now on."""
        self._value = value

    def begin_drain(self) -> None:
        """No new work from now on; `value` still serves what was begun."""
        self._is_draining = True

    def fail(self, message: str) -> None:
        """The engine is gone: every call is refused with `message` from now on."""
        self._failure = message

    def enter(self) -> T:
        """What serves new work.

        Raises:
            UnavailableError: not ready, draining, or failed.
        """
        if self._is_draining:
            raise UnavailableError(f"the {self._service} service is draining", Reason.DRAINING)
        return self.value()

    def value(self) -> T:
        """What serves work that was begun, also while draining.

        Raises:
            UnavailableError: not ready, or failed.
        """
        if self._failure is not None:
            raise UnavailableError(
                f"the {self._service} service's engine has failed: {self._failure}", Reason.ENGINE_FAILED
            )
        if self._value is None:
            raise UnavailableError(f"the {self._service} service is loading its model", Reason.NOT_READY)
        return self._value

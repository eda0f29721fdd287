import time

import pytest

from baton_client.health import CHECK_TIMEOUT_S, POLL_INTERVAL_S, poll_timeout


def test_a_check_ends_near_the_deadline_but_gets_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert poll_timeout(102.0) == 2.0
    assert poll_timeout(1000.0) == CHECK_TIMEOUT_S
    assert poll_timeout(float("inf")) == CHECK_TIMEOUT_S
    assert poll_timeout(100.0) == poll_timeout(0.0) == POLL_INTERVAL_S

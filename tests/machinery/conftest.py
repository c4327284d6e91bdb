import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def logs():
    """What was logged; printing a traceback takes longer than the tests."""
    with capture_logs() as captured:
        yield captured

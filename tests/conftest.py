"""For all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A run in the background of a shell that has no job control ignores Ctrl-C, and so would every
# program the tests start and then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A commit passes or does not, whenever it is tried: the drawn cases are the same for the same
# test. `make explore` draws others; what it finds becomes an example of its test.
settings.register_profile("settled", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("BIDPLANE_EXPLORE") else "settled")

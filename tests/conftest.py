"""For all tests."""

from __future__ import annotations

import signal

# A run in the background of a shell that has no job control ignores Ctrl-C, and so would every
# program the tests start and then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

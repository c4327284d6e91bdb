"""
Bidplane for Python programs.

    from bidplane import Client

    with Client() as client, client.lease(gpus=4, link="nvlink", max_price=3.0) as lease:
        subprocess.run(["python", "train.py"], env=os.environ | lease.env)

`AsyncClient` has the same methods with `await`. `leasing` says what a lease is and when it ends.
"""

from bidplane.client.aio import AsyncClient
from bidplane.client.asking import Link, Quote
from bidplane.client.config import Config
from bidplane.client.leasing import (
    HeldLease,
    LeasedDevice,
    LeaseLost,
    LeaseProgress,
    LeaseTimeout,
    Notice,
    Refused,
)
from bidplane.client.sync import Client

__all__ = [
    "AsyncClient",
    "Client",
    "Config",
    "HeldLease",
    "LeaseLost",
    "LeaseProgress",
    "LeaseTimeout",
    "LeasedDevice",
    "Link",
    "Notice",
    "Quote",
    "Refused",
]

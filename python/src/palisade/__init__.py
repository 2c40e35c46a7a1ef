"""Distributed locks whose every grant carries a fencing token.

>>> import palisade
>>> client = palisade.connect("memory:")              # or "embedded:": one file, nothing installed
>>> with client.lock("orders/42") as guard:           # waits in a fair queue
...     print("UPDATE orders … token", guard.token)   # raises palisade.Lost once the lock is lost
UPDATE orders … token 1

The resource refuses a token that a newer one has superseded: see `palisade.fence`. `palisade.aio` is the same for asyncio.
"""

from palisade._client import (
    AnyGuard,
    Client,
    DetachedSession,
    EfficiencyGuard,
    Election,
    Guard,
    Leadership,
    LockGuard,
    Observer,
    Permit,
    ReadGuard,
    Request,
    RwLock,
    Semaphore,
    Watch,
    WriteGuard,
    connect,
)
from palisade._types import (
    Contended,
    Denied,
    Ended,
    Error,
    Event,
    Forced,
    Forked,
    Guarantees,
    Holder,
    Leader,
    LockInfo,
    Loss,
    Lost,
    Misuse,
    Mode,
    Offers,
    Standing,
    Unavailable,
    Unsupported,
    Waiter,
)

__all__ = [
    "AnyGuard",
    "Client",
    "Contended",
    "Denied",
    "DetachedSession",
    "EfficiencyGuard",
    "Election",
    "Ended",
    "Error",
    "Event",
    "Forced",
    "Forked",
    "Guarantees",
    "Guard",
    "Holder",
    "Leader",
    "Leadership",
    "LockGuard",
    "LockInfo",
    "Loss",
    "Lost",
    "Misuse",
    "Mode",
    "Observer",
    "Offers",
    "Permit",
    "ReadGuard",
    "Request",
    "RwLock",
    "Semaphore",
    "Standing",
    "Unavailable",
    "Unsupported",
    "Waiter",
    "Watch",
    "WriteGuard",
    "connect",
]

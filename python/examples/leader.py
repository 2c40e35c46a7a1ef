"""A scheduler of which one runs, with asyncio: the leader works, the others stand by.

python leader.py embedded: 10.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import sys
from typing import Awaitable, Callable

import palisade
import palisade.aio


async def lead(url: str, address: str, work: Callable[[palisade.aio.Leadership], Awaitable[None]]) -> None:
    """Waits to be elected, and works until the work is done or the leadership is lost. Then it stands again."""
    async with await palisade.aio.connect(url) as client:
        while True:
            try:
                await client.election("scheduler").candidacy(address).run(work)
                return
            except palisade.Lost as lost:
                print(f"stands by: {lost.loss}")


async def schedule(leadership: palisade.aio.Leadership) -> None:
    print(f"leads with token {leadership.token}")
    await asyncio.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python leader.py URL ADDRESS")
    asyncio.run(lead(sys.argv[1], sys.argv[2], schedule))

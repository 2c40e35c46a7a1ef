"""Ctrl-C interrupts a wait, and leaves nothing queued."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import palisade
from conftest import BOUND, until, waiting

# A shell that starts a job in the background lets it ignore Ctrl-C, and its children inherit that.
PROGRAM = """
import signal, sys, palisade
signal.signal(signal.SIGINT, signal.default_int_handler)
client = palisade.connect(sys.argv[1])
{use}
print("interrupted", flush=True)
sys.stdin.read()
assert not client.lock(sys.argv[2]).dangerous_accept_failover().try_acquire()
"""

ACQUIRE = """
try:
    client.lock(sys.argv[2]).dangerous_accept_failover().acquire()
except KeyboardInterrupt:
    pass
"""

ACQUIRE_ON_A_LOOP = """
import asyncio, palisade.aio
async def main():
    global client
    client = await palisade.aio.connect(sys.argv[1])
    await client.lock(sys.argv[2]).dangerous_accept_failover().acquire()
try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
client = palisade.connect(sys.argv[1])
"""


@pytest.mark.parametrize("use", [ACQUIRE, ACQUIRE_ON_A_LOOP], ids=["thread", "loop"])
def test_ctrl_c_leaves_nothing_queued(use: str, client: palisade.Client, url: str, name: str) -> None:
    with client.lock(name).dangerous_accept_failover():
        command = [sys.executable, "-c", PROGRAM.format(use=use), url, name]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdin is not None and child.stdout is not None
            assert until(lambda: waiting(client, name) == 1)
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            # The process lives on, with its session: the wait itself is over.
            assert until(lambda: waiting(client, name) == 0)
            child.stdin.close()
            assert child.wait(timeout=BOUND / 2) == 0
        finally:
            child.kill()
            child.wait()


def test_a_signal_handler_runs_during_a_wait(client: palisade.Client, other: palisade.Client, name: str) -> None:
    guard = client.lock(name).dangerous_accept_failover().acquire()

    def release(*_: object) -> None:
        guard.release()

    previous = signal.signal(signal.SIGALRM, release)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        other.lock(name).dangerous_accept_failover().acquire().release()
    finally:
        signal.signal(signal.SIGALRM, previous)

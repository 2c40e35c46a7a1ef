"""Engines for the tests. `scripts/test python` starts the servers and runs pytest."""

from __future__ import annotations

import faulthandler
import itertools
import os
import select
import socket
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Callable, Iterator, TypeVar

import pytest

import palisade

T = TypeVar("T")

BOUND = 300.0
"""Nothing that works takes this long."""

_names = itertools.count()


def variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        pytest.fail(
            f"{name} is not set: run `scripts/test python`, which starts the servers"
        )


@pytest.fixture(scope="session")
def stderr(pytestconfig: pytest.Config) -> Iterator[int]:
    """The stderr of pytest itself, which is not captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        descriptor = os.dup(2)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(autouse=True)
def bound(stderr: int) -> Iterator[None]:
    """Ends pytest with the stacks of all threads if a test hangs."""
    faulthandler.dump_traceback_later(BOUND, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


ENGINES = ["embedded", "service", "postgres", "redis"]


def engine_url(engine: str, folder: Path) -> str:
    if engine == "embedded":
        return f"embedded://{folder}/locks.db"
    return variable(f"PALISADE_TEST_{engine.upper()}")


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each engine."""
    return engine_url(request.param, tmp_path)


@pytest.fixture
def client(url: str) -> Iterator[palisade.Client]:
    with palisade.connect(url, label="first") as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[palisade.Client]:
    with palisade.connect(url, label="second") as client:
        yield client


@pytest.fixture
def name() -> str:
    """A lock that no other test uses."""
    return f"python/{os.getpid()}/{next(_names)}"


def until(condition: Callable[[], T]) -> T:
    """Waits until a condition is true."""
    deadline = time.monotonic() + BOUND / 2
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)


def waiting(client: palisade.Client, name: str) -> int:
    """How many requests wait for a lock."""
    lock = client.inspect(name)
    return 0 if lock is None else len(lock.waiters)


def held(client: palisade.Client, name: str) -> int:
    """How many grants a lock has."""
    lock = client.inspect(name)
    return 0 if lock is None else len(lock.holders)


class Proxy:
    """A proxy in front of a server. While `is_deaf`, it forwards requests, and closes the connection instead of answering."""

    def __init__(self, url: str) -> None:
        target = urllib.parse.urlsplit(url)
        self.address = (str(target.hostname), int(target.port or 0))
        self.is_deaf = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{target.scheme}://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, socket.create_connection(self.address) as server:
            while True:
                for ready in select.select([connection, server], [], [])[0]:
                    try:
                        data = ready.recv(65536)
                        if not data or (ready is server and self.is_deaf):
                            return
                        (server if ready is connection else connection).sendall(data)
                    except ConnectionError:
                        return

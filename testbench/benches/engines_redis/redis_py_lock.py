"""redis-py's Lock in threads: PORT THREADS hot|own SECONDS. Prints the counts, their times in milliseconds, and those
of waits that were no hand-overs."""

import sys
import threading
import time

import redis

port, threads, which, seconds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
counts, times, others, last = [0] * threads, [[] for _ in range(threads)], [[] for _ in range(threads)], [None]
until = time.monotonic() + seconds


def contend(number):
    client = redis.Redis(port=port)
    lock = client.lock("py-hot" if which == "hot" else f"py-lock-{number}", timeout=60)
    while time.monotonic() < until:
        began = time.monotonic()
        lock.acquire()
        held = time.monotonic()
        is_counted = which == "own" or last[0] != number
        counts[number] += is_counted
        last[0] = number
        lock.release()
        ended = held if which == "hot" else time.monotonic()
        (times if is_counted else others)[number].append((ended - began) * 1000)


workers = [threading.Thread(target=contend, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(*counts)
for kind in (times, others):
    print(*(f"{time:.4f}" for own in kind for time in own))

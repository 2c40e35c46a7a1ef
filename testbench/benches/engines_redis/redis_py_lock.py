"""redis-py's Lock in threads: PORT THREADS hot|own SECONDS. Prints the counts, and the times in milliseconds."""

import sys
import threading
import time

import redis

port, threads, which, seconds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
counts, times, last = [0] * threads, [[] for _ in range(threads)], [None]
until = time.monotonic() + seconds


def contend(number):
    client = redis.Redis(port=port)
    lock = client.lock("py-hot" if which == "hot" else f"py-lock-{number}", timeout=60)
    while time.monotonic() < until:
        began = time.monotonic()
        lock.acquire()
        held = time.monotonic()
        if which == "own" or last[0] != number:
            counts[number] += 1
        last[0] = number
        lock.release()
        ended = held if which == "hot" else time.monotonic()
        times[number].append((ended - began) * 1000)


workers = [threading.Thread(target=contend, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(*counts)
print(*(f"{time:.4f}" for own in times for time in own))

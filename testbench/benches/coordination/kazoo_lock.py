"""kazoo's Lock: ADDRESS CLIENTS hot|own SECONDS. Prints the seconds that it took, and a line for each client with the times of
its cycles in seconds; on a hot lock, of its waits for a hand-over. The clients are threads of as many processes as there are
cores."""

import multiprocessing
import os
import sys
import threading
import time

from kazoo.client import KazooClient

address, clients, is_hot, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "hot", float(sys.argv[4])
processes = min(clients, os.cpu_count())
fork = multiprocessing.get_context("fork")
barrier, last, results = fork.Barrier(clients), fork.RawValue("i", -1), fork.Queue()


def contend(number):
    client = KazooClient(hosts=address, timeout=30)
    client.start()
    lock = client.Lock("/kazoo/hot" if is_hot else f"/kazoo/lock-{number}", str(number))
    lock.acquire()
    lock.release()
    times = []
    barrier.wait()
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        began = time.monotonic()
        lock.acquire()
        held = time.monotonic()
        is_counted = not is_hot or last.value != number
        last.value = number
        lock.release()
        if is_counted:
            times.append((held if is_hot else time.monotonic()) - began)
    elapsed = time.monotonic() - start
    barrier.wait()
    client.stop()
    results.put((elapsed, times))


def run(process):
    threads = [threading.Thread(target=contend, args=(number,)) for number in range(process, clients, processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


workers = [fork.Process(target=run, args=(process,)) for process in range(processes)]
for worker in workers:
    worker.start()
found = [results.get() for _ in range(clients)]
for worker in workers:
    worker.join()
print(max(elapsed for elapsed, _ in found))
for _, times in found:
    print(*(f"{time:.6f}" for time in times))

"""Runs of three steps with DBOS, as the benchmark of workflows does with Isles.

    python3 dbos_peer.py sqlite|postgres URL RUNS AT_ONCE
"""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, SetWorkflowID

name, url, runs, at_once = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if url.startswith("postgres://"):
    url = url.replace("postgres://", "postgresql://", 1)

DBOS(config={"name": "peer", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
latencies, lock = [], threading.Lock()


@DBOS.step()
def step():
    return 1


@DBOS.workflow()
def three(n):
    total = n
    for _ in range(3):
        begun = time.perf_counter()
        total += step()
        with lock:
            latencies.append(time.perf_counter() - begun)
    return total


def one(n):
    with SetWorkflowID(f"run-{n}"):
        return three(n)


DBOS.launch()
one(10**9)
latencies.clear()
begun = time.perf_counter()
with ThreadPoolExecutor(at_once) as pool:
    assert sum(pool.map(one, range(runs))) == sum(range(runs)) + 3 * runs
rate = runs / (time.perf_counter() - begun)
latencies.sort()
p50, p99 = (latencies[int((len(latencies) - 1) * part)] * 1000 for part in (0.5, 0.99))
print(f"dbos {name}: {rate:.0f} runs/s of three steps, {at_once} at once", flush=True)
print(f"dbos {name}: step: p50 {p50:.2f}ms, p99 {p99:.2f}ms, {len(latencies)} samples", flush=True)
os._exit(0)

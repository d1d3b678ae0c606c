"""Measures how workers start when they are added one by one to a service that is not busy.

tools/spike and tools/reproduce use it.
"""

import time

from cluster import READY_TIMEOUT_S, WORKLOADS, Failure

PLANES = ("krcore", "lite", "verbs")  # control planes that every report compares
KINDS = ("thread", "fork", "exec")    # of workers
# The parts of a worker's bootstrap, as computenode reports them; the last one is the whole.
PARTS = ("spawn", "store", "client", "connect", "lanes", "first_reply", "bootstrap")
PAUSE_S = 0.03  # between a worker's start and its end, and between two queries of its state
REQUESTS = 4    # a worker stays until so many have come: of two idle workers each gets every second one


def one_at_a_time(cluster, plane, kind, count, rate, records, *arguments):
    """Adds `count` workers to a computenode on the cluster's loaded store. `arguments` are computenode's. Returns for each
    part the microseconds that it took each worker.

    Fails if a value that a worker reads is wrong, or a request gets no reply.
    """
    name = f"{plane} {kind} one at a time"
    cluster.step = f"workers of {name}"
    node = cluster.start(name, "computenode", "-P", WORKLOADS / "workloadb", "-p", f"recordcount={records}",
                         "-p", "operationcount=0", f"--control_plane={plane}", f"--worker_kind={kind}", "--in_flight=1",
                         f"--profile=constant:{rate},{60 + count}", "--worker_capacity=0", *arguments)
    cluster.event(node, "ready", 0, "did not become ready")
    for number in range(count):
        cluster.check_serving()
        cluster.screen.progress(f"    {name}: {number} of {count}")
        for workers in (2, 1):
            mark = len(node.lines)
            node.command(f"workers {workers}")
            cluster.event(node, "workers", mark, "did not answer `workers`")
            time.sleep(PAUSE_S)
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not settled(cluster, node):
                cluster.check_serving()
                if time.monotonic() > deadline:
                    raise Failure(f"a worker neither started nor ended within {READY_TIMEOUT_S} s", node)
                time.sleep(PAUSE_S)
            time.sleep(REQUESTS / rate)
    cluster.screen.end()
    node.command("quit")
    summary, _ = cluster.event(node, "summary", 0, "did not end its work")
    node.popen.wait(READY_TIMEOUT_S)
    if summary["failed"] or summary["mismatches"] or node.popen.returncode != 0:
        raise Failure(f"{summary['mismatches']} wrong values, {summary['failed']} failed requests", node)
    cluster.processes.remove(node)
    added = [worker for worker in summary["workers"] if worker["wanted_s"] >= 0]
    return {part: [worker[f"{part}_us"] for worker in added] for part in PARTS}


def settled(cluster, node):
    """Whether no worker of computenode `node` is starting or ending."""
    mark = len(node.lines)
    node.command("status")
    status, _ = cluster.event(node, "status", mark, "did not answer `status`")
    return status["starting"] == status["draining"] == 0

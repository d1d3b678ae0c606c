"""The figures of tools/reproduce: what each is, what was published, and what its measurements say in a sentence.

A measurement is a row of bench/reproduce/report.h. The rows of a figure that differ only in their round are one
configuration, and each of its numbers is the median. With an odd number of rounds, a rate and the mean latency at the
same concurrency are then as consistent as they are in each round.
"""

import dataclasses
import statistics

from bootstraps import KINDS, PLANES

KRCORE = "KRCORE, USENIX ATC'22"
ARTIFACT = "figure by the artifact's evaluation guide"


@dataclasses.dataclass
class Figure:
    title: str
    published: str
    measured: str
    keys: tuple      # fields that tell its configurations apart
    rate: str = ""   # field with the operations a second, if there is one
    latency: str = ""  # and the field with the times that operations took, `in_flight` of them at a time
    columns: tuple = ()  # (heading, field, digits)


FIGURES = {
    "many_to_one": Figure(
        "Many workers connect to one node",
        f"{KRCORE}: a full connection within 10 us, hundreds or thousands of times faster than verbs (abstract); a verbs "
        "connect takes some 18 ms, and one host completes 500 to 600 of them a second (the simulator's costs in "
        f"docs/hacking.md and bench/spike/model use these figures of the paper; figure 8a, {ARTIFACT}).",
        "Workers start at the same time. They are threads of a process that has connected before, with its Node open for "
        "krcore and lite, or fresh processes with nothing open. On sw the host's shared cache has the peer's metadata from "
        "earlier waves, and krcore finds it there. A time counts from when a worker runs until its queue is connected. When "
        "all are connected, each READs 64 bytes. A wave of threads warms up, so lite has its connection; processes do not "
        "warm up. A krcore thread makes a pool of its own; in the kernel there would be one.",
        ("worker_kind", "control_plane", "in_flight"), "connects_per_s", "worker_us",
        (("worker", "worker_kind", None), ("control plane", "control_plane", None), ("workers at once", "in_flight", 0),
         ("worker p50 us", "worker_us.p50", 1), ("p99", "worker_us.p99", 1), ("device and pool p50", "open_us.p50", 1),
         ("exchange QP p50", "datagrams_us.p50", 1), ("connect p50", "connect_us.p50", 2), ("p99", "connect_us.p99", 2),
         ("connects a second", "connects_per_s", 0))),
    "full_mesh": Figure(
        "Every node connects to every other",
        f"{KRCORE}: metadata of a small, fixed size at each node whatever the cluster's size, and no handshake (abstract). "
        "A published time of a full mesh is not known to this project.",
        "Each node is a process whose Node is open and published; lite's is open too, as the kernel's would be. On command "
        "all connect to all others, one after the other, and READ 64 bytes from each. For verbs and lite a thread of every "
        "node answers. There is no warm-up: each mesh is of new nodes.",
        ("control_plane", "nodes"), "connects_per_s", "connect_us",
        (("control plane", "control_plane", None), ("nodes", "nodes", 0), ("mesh complete p50 us", "mesh_us.p50", 0),
         ("node p50 us", "worker_us.p50", 0), ("p99", "worker_us.p99", 0), ("connect p50 us", "connect_us.p50", 1),
         ("p99", "connect_us.p99", 1), ("connects a second", "connects_per_s", 0))),
    "one_sided": Figure(
        "One-sided requests by size",
        f"{KRCORE}: a READ of 8 bytes takes 2.19 us with verbs and 2.88 us over DC through the kernel, whose tax is 0.8 to "
        f"0.9 us from 1 B to 128 KB (published logs; figures 10a to 10d, {ARTIFACT}).",
        "One thread posts and polls. On sw it executes the request too, so no network and no other CPU takes part, and "
        "krcore runs in user space, without a system call. Latency is that of a batch, from its post to its last "
        "completion. An eighth of a slice warms up. After each slice the destination is compared with the source.",
        ("op", "bytes", "in_flight", "transport"), "ops_per_s", "latency_us",
        (("request", "op", None), ("over", "transport", None), ("bytes", "bytes", 0), ("in flight", "in_flight", 0),
         ("batch p50 us", "latency_us.p50", 3), ("p99", "latency_us.p99", 3), ("requests a second", "ops_per_s", 0))),
    "two_sided": Figure(
        "Messages by size, copied and zero-copy",
        f"{KRCORE}: copying and zero-copy cross between 32 and 64 KB (published logs; figures 11a and 11b, {ARTIFACT}).",
        "One thread is sender and receiver, so there are no wake-ups. Latency is that of a batch, from its push until the "
        "receiver has all its messages and the sender all its completions. An eighth of a slice warms up. After each slice "
        "what was received is compared with what was sent.",
        ("bytes", "in_flight", "mode"), "ops_per_s", "latency_us",
        (("way", "mode", None), ("bytes", "bytes", 0), ("in flight", "in_flight", 0), ("batch p50 us", "latency_us.p50", 3),
         ("p99", "latency_us.p99", 3), ("messages a second", "ops_per_s", 0))),
    "race_bootstrap": Figure(
        "Bootstrap of the store's workers",
        f"{KRCORE}: under a load spike workers of a RACE store bootstrap in 83% less time than with verbs (abstract; figure "
        f"14, {ARTIFACT}). RACE (USENIX ATC'21) is the store.",
        "The time from when a worker is wanted to its first reply. Workers are added one at a time to a computenode that "
        "serves 1,000 requests a second, as in tools/spike. A thread, and a pre-forked process (fork), have the store open "
        "and what a client needs made in advance; with verbs only the store is open. There is no warm-up.",
        ("worker_kind", "control_plane"),
        columns=(("worker", "worker_kind", None), ("control plane", "control_plane", None),
                 ("first reply p50 us", "bootstrap_us.p50", 0), ("p99", "bootstrap_us.p99", 0), ("spawn p50", "spawn_us.p50", 0),
                 ("open store p50", "store_us.p50", 0), ("client p50", "client_us.p50", 0),
                 ("of it connect p50", "connect_us.p50", 1), ("lanes p50", "lanes_us.p50", 1),
                 ("reply p50", "first_reply_us.p50", 0))),
    "transfer": Figure(
        "A serverless function moves its result",
        f"{KRCORE}: transferring data through RDMA in a serverless platform (Fn) takes 99% less time (abstract).",
        "A fresh worker connects, WRITEs its bytes to a peer, and ends. There is one at a time: a thread of a process whose "
        "Node is open (krcore, lite), a process forked from one with nothing open, or a program executed afresh. The total "
        "counts from when the worker is wanted until its bytes are written. One worker warms up. The peer's process checks "
        "all of the bytes.",
        ("worker_kind", "control_plane", "bytes"),
        columns=(("worker", "worker_kind", None), ("control plane", "control_plane", None), ("bytes", "bytes", 0),
                 ("total p50 us", "total_us.p50", 1), ("p99", "total_us.p99", 1), ("spawn p50", "spawn_us.p50", 1),
                 ("device, memory, pool p50", "open_us.p50", 1), ("exchange QP p50", "datagrams_us.p50", 1),
                 ("connect p50", "connect_us.p50", 2), ("transfer p50", "transfer_us.p50", 1), ("end p50", "end_us.p50", 1))),
}


def field(row, path):
    for name in path.split("."):
        row = row[name]
    return row


def medians(name, rounds):
    """A row for each configuration, in order, with the median of every number over its rounds."""
    keys = FIGURES[name].keys
    groups = {}
    for row in rounds:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)

    def median(values):
        if isinstance(values[0], dict):
            return {part: median([value[part] for value in values]) for part in values[0]}
        return statistics.median(values) if not isinstance(values[0], str) else values[0]

    rows = []
    for key in sorted(groups):
        same = [{part: value for part, value in row.items() if part != "round"} for row in groups[key]]
        rows.append(median(same) | {"rounds": len(same)})
    return rows


def inconsistencies(name, rows):
    """Rows whose arithmetic or units are wrong: a rate times the mean latency is never more than what was in flight.
    As both are counted, this is an identity, and no evidence that a measurement is right.

    The data paths never pause, so theirs are not fewer either.
    """
    figure, wrong = FIGURES[name], []
    if not figure.rate:
        return wrong
    for row in rows:
        at_a_time = row[figure.rate] * row[figure.latency]["mean"] / 1e6
        # On the data path, latency is that of a whole batch, in which all its requests are done.
        most, least = row["in_flight"] * 1.01, row["in_flight"] * 0.99 if figure.rate == "ops_per_s" else 0
        if not least <= at_a_time <= most:
            wrong.append(f"{ {key: row[key] for key in figure.keys} }: {at_a_time:.2f} of {row['in_flight']} in flight")
    return wrong


# ---- what was found here, in a sentence of numbers of the rows


def find(rows, path, **wanted):
    """The number at `path` in the one row that has all these values; None: there is no such row."""
    found = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return field(found[0], path) if len(found) == 1 else None


def ratio_of(rows, path, other, **wanted):
    of_krcore = find(rows, path, control_plane="krcore", **wanted)
    of_other = find(rows, path, control_plane=other, **wanted)
    return of_krcore, of_other, of_other / of_krcore


def found_many_to_one(rows):
    most = max(row["in_flight"] for row in rows)
    said = []
    for kind, several in (("thread", "threads"), ("process", "processes")):
        planes = [f"{plane} {find(rows, 'worker_us.p50', control_plane=plane, worker_kind=kind, in_flight=most):,.1f} us and "
                  f"{find(rows, 'connects_per_s', control_plane=plane, worker_kind=kind, in_flight=most):,.0f} connects a second"
                  for plane in PLANES]
        said.append(f"{several} {', '.join(planes)}")
    return f"With {most} at once, p50: {'; '.join(said)}."


def found_full_mesh(rows):
    most = max(row["nodes"] for row in rows)
    krcore, verbs, ratio = ratio_of(rows, "mesh_us.p50", "verbs", nodes=most)
    lite = find(rows, "mesh_us.p50", control_plane="lite", nodes=most)
    return (f"A mesh of {most} nodes is complete after {krcore:,.0f} us with krcore, {lite:,.0f} with lite and {verbs:,.0f} "
            f"with verbs ({ratio:.1f} times krcore's).")


def found_one_sided(rows):
    said = []
    for size in (8, 1 << 20):
        times = [find(rows, "latency_us.p50", op="READ", bytes=size, in_flight=1, transport=transport)
                 for transport in ("bare RC", "krcore DC", "krcore RC")]
        said.append(f"a READ of {size:,} bytes takes {times[0]:.2f} us on the bare RC queue, {times[1]:.2f} over krcore's "
                    f"DC and {times[2]:.2f} over its RC")
    return f"One at a time, {'; '.join(said)}."


def crossing(rows, in_flight):
    """The two sizes from the second of which on zero-copy is always faster; None: it is not at the largest."""
    sizes = sorted({row["bytes"] for row in rows})
    times = {mode: [find(rows, "latency_us.p50", mode=mode, bytes=size, in_flight=in_flight) for size in sizes]
             for mode in ("copy", "zero-copy")}
    faster = [zero < copy for copy, zero in zip(times["copy"], times["zero-copy"])]
    last = max((i for i, is_faster in enumerate(faster) if not is_faster), default=-1)
    if last + 1 == len(sizes):
        return None
    return (sizes[last] if last >= 0 else 0, sizes[last + 1])


def found_two_sided(rows):
    said = []
    for in_flight in sorted({row["in_flight"] for row in rows}):
        between = crossing(rows, in_flight)
        where = "not up to the largest size" if between is None else f"between {between[0]:,} and {between[1]:,} bytes"
        said.append(f"{where} with {in_flight:.0f} under way")
    return f"Zero-copy becomes the faster one {'; '.join(said)}."


def shorter(rows, path, worker_kind, **wanted):
    krcore, verbs, _ = ratio_of(rows, path, "verbs", worker_kind=worker_kind, **wanted)
    change = 1 - krcore / verbs
    return f"{worker_kind} {abs(change):.0%} {'shorter' if change >= 0 else 'LONGER'} ({krcore:,.0f} against {verbs:,.0f} us)"


def found_race_bootstrap(rows):
    kinds = ", ".join(shorter(rows, "bootstrap_us.p50", kind) for kind in KINDS)
    return f"With krcore the time until the first reply is, against verbs: {kinds}."


def found_transfer(rows):
    size = min(row["bytes"] for row in rows)
    kinds = ", ".join(shorter(rows, "total_us.p50", kind, bytes=size) for kind in KINDS)
    connects = ", ".join(f"{kind} {ratio_of(rows, 'connect_us.p50', 'verbs', worker_kind=kind, bytes=size)[2]:.0f}"
                         for kind in KINDS)
    return (f"For {size:,.0f} bytes with krcore all of it is, against verbs: {kinds}. Verbs' connect alone, in multiples of "
            f"krcore's: {connects}.")


FOUND = {"many_to_one": found_many_to_one, "full_mesh": found_full_mesh, "one_sided": found_one_sided,
         "two_sided": found_two_sided, "race_bootstrap": found_race_bootstrap, "transfer": found_transfer}
assert FOUND.keys() == FIGURES.keys()

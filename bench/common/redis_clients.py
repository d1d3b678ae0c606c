#!/usr/bin/env python3
"""Clients of Redis whose requests come at times that do not depend on the replies: an open loop of GETs.

Usage: redis_clients.py HOST:PORT --records N --connections N --base RATE --peak RATE --start S --length S --end S
                        --seed N --output FILE

Writes the records, says {"event":"begin"} on stdout, and sends requests at random times (Poisson): --base a second, and
--peak from --start for --length seconds. Each connection has as many under way as fall due. Compares every value with
what was written. Writes FILE in the format of computenode --requests_file (worker: the connection), and says
{"event":"summary",...}. A request is sent up to a millisecond after it is due, and its latency counts from then.
"""

import argparse
import collections
import json
import random
import selectors
import socket
import struct
import time

REQUEST = struct.Struct("=qqII")
VALUE_BYTES = 100
PATIENCE_S = 30  # for the replies that are missing at the end


def key_of(record):
    return f"redis{record:012d}"


def value_of(record):
    return key_of(record).ljust(VALUE_BYTES, "v")


def encode(*words):
    return (f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)).encode()


def reply_to(record):
    return f"${VALUE_BYTES}\r\n{value_of(record)}\r\n".encode()


REPLY_BYTES = len(reply_to(0))


class Connection:
    """Its replies all have the same length, and come in the order of its requests."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting = collections.deque()  # (request, record)
        self.received = b""

    def write_records(self, records):
        for first in range(0, records, 500):
            batch = range(first, min(first + 500, records))
            self.socket.sendall(encode("MSET", *(word for record in batch for word in (key_of(record), value_of(record)))))
            answer = self.socket.recv(1024)
            if answer != b"+OK\r\n":
                raise SystemExit(f"MSET: {answer!r}")

    def ask(self, requests):
        self.waiting.extend(requests)
        self.socket.sendall(b"".join(encode("GET", key_of(record)) for _, record in requests))

    def replies(self):
        """Yields (request, whether the value is right) of those that are there."""
        more = self.socket.recv(1 << 16)
        if not more:
            raise SystemExit("a connection was closed")
        self.received += more
        at = 0
        while at + REPLY_BYTES <= len(self.received):
            request, record = self.waiting.popleft()
            yield request, self.received[at:at + REPLY_BYTES] == reply_to(record)
            at += REPLY_BYTES
        self.received = self.received[at:]
        if self.received.startswith(b"-"):
            raise SystemExit(f"an error: {self.received[:200]!r}")


def due_times(options, chooser):
    times, now = [], 0.0
    while True:
        now += chooser.expovariate(options.peak if options.start <= now < options.start + options.length else options.base)
        if now >= options.end:
            return times
        times.append(now)


def run(options):
    chooser = random.Random(options.seed)
    due = due_times(options, chooser)
    records = [chooser.randrange(options.records) for _ in due]
    connections = [Connection(options.address) for _ in range(options.connections)]
    connections[0].write_records(options.records)
    selector = selectors.DefaultSelector()
    for number, connection in enumerate(connections):
        selector.register(connection.socket, selectors.EVENT_READ, number)
    done = [-1.0] * len(due)
    wrong = replied = sent = 0
    print(json.dumps({"event": "begin", "requests": len(due)}), flush=True)
    begin = time.monotonic()
    while replied < len(due):
        now = time.monotonic() - begin
        if now > options.end + PATIENCE_S:
            break
        batches = collections.defaultdict(list)
        while sent < len(due) and due[sent] <= now:
            batches[sent % len(connections)].append((sent, records[sent]))
            sent += 1
        for number, batch in batches.items():
            connections[number].ask(batch)
        wait_s = max(0.0, due[sent] - (time.monotonic() - begin)) if sent < len(due) else 0.1
        for ready, _ in selector.select(min(wait_s, 0.1)):
            for request, right in connections[ready.data].replies():
                done[request] = time.monotonic() - begin
                wrong += not right
                replied += 1
    with open(options.output, "wb") as file:
        for request, (due_s, done_s) in enumerate(zip(due, done)):
            file.write(REQUEST.pack(round(due_s * 1e9), round(done_s * 1e9) if done_s >= 0 else -1, request % len(connections), 0))
    print(json.dumps({"event": "summary", "requests": len(due), "replied": replied, "failed": len(due) - replied,
                      "verified": replied - wrong, "mismatches": wrong}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("address")
    for name, kind in {"records": int, "connections": int, "base": float, "peak": float, "start": float, "length": float,
                       "end": float, "seed": int, "output": str}.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    run(parser.parse_args())


if __name__ == "__main__":
    main()

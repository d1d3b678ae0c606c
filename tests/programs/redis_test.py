#!/usr/bin/python3
"""Front ends for clients of Redis, with the clients that people use: redis-cli, redis-benchmark, and the libraries of
Python and Node. (Debian's Python, which has the library.)

Usage: redis_test.py [unittest's arguments], in the repository's root, after a release build.
"""

import json
import os
import re
import resource
import subprocess
import threading
import time
import unittest

import redis

from fabric_case import FabricCase
from program import BIN, PATIENCE_S, ROOT, metrics_address, wait_for


class RedisTest(FabricCase):
    def setUp(self):
        super().setUp()
        self.memnode = self.start_memnode(1, "--metaserver", "--memory=512M", metrics=False)

    def start_front_end(self, *arguments, at="127.0.0.1:0"):
        front_end = self.start("computenode", f"--redis={at}", *arguments)
        ready = json.loads(front_end.wait_for('^.*"event":"ready".*$').group(0))
        front_end.address = ready["redis"]
        front_end.port = int(ready["redis"].rpartition(":")[2]) if ":" in ready["redis"] else None
        return front_end

    def connect(self, front_end, **options):
        client = redis.Redis(port=front_end.port, socket_timeout=PATIENCE_S, **options)
        self.addCleanup(client.close)
        return client

    def command(self, *words, text=None, **environment):
        done = subprocess.run(words, capture_output=True, text=True, input=text, timeout=PATIENCE_S, check=False, cwd=ROOT,
                              env={**os.environ, **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def summary(self, front_end):
        front_end.stop()
        return json.loads(front_end.wait_for('^.*"event":"summary".*$').group(0))

    def test_redis_cli(self):
        front_end = self.start_front_end()
        said = self.command("redis-cli", "-p", str(front_end.port), text="SET greeting 'hello world'\nGET greeting\n"
                            "INCRBY count 41\nINCR count\nEXPIRE count 100\nTTL count\nGET\nDEL greeting count\nLPUSH a b\n")
        self.assertEqual(said.splitlines()[:7], ["OK", "hello world", "41", "42", "1", "100",
                                                 "ERR wrong number of arguments for 'get' command"])
        self.assertIn("ERR unknown command 'LPUSH'", said)
        self.assertEqual(self.command("redis-cli", "-3", "-p", str(front_end.port), "--scan"), "")
        summary = self.summary(front_end)
        self.assertEqual((summary["end"], front_end.ended()), ("signal", 0))
        self.assertGreaterEqual(summary["errors"], 2)  # redis-cli asks for documents, too
        self.assertGreaterEqual(summary["commands"], 10)

    def test_redis_benchmark(self):
        front_end = self.start_front_end("--workers=2")
        for clients, pipeline in ((50, 1), (500, 1), (50, 16), (500, 16)):
            said = self.command("redis-benchmark", "-p", str(front_end.port), "-t", "set,get,incr,mset", "-r", "1000000",
                                "-n", "20000", "-c", str(clients), "-P", str(pipeline), "--csv")
            rates = {name: float(rate) for name, rate in re.findall(r'^"(.*?)","([0-9.]+)"', said, re.MULTILINE)}
            self.assertEqual(list(rates), ["SET", "GET", "INCR", "MSET (10 keys)"])
            self.assertTrue(all(rate > 0 for rate in rates.values()), said)
        self.assertEqual(self.connect(front_end).info()["total_error_replies"], 0)

    def test_python(self):
        front_end = self.start_front_end("--workers=2")
        client = self.connect(front_end)
        self.assertTrue(client.set("key", b"\x00\xff", ex=100))
        self.assertEqual((client.get("key"), client.ttl("key"), client.strlen("key")), (b"\x00\xff", 100, 2))
        self.assertIsNone(client.set("key", "other", nx=True))
        self.assertEqual(client.incrbyfloat("float", 0.5), 0.5)
        with client.pipeline(transaction=False) as pipeline:
            for i in range(1000):
                pipeline.set(f"key{i}", i)
            pipeline.mget([f"key{i}" for i in range(1000)])
            self.assertEqual(pipeline.execute()[-1], [str(i).encode() for i in range(1000)])
        self.assertEqual(len(set(client.scan_iter(match="key?", count=10))), 10)
        with self.assertRaisesRegex(redis.ResponseError, "unknown command"):
            client.execute_command("MULTI")
        self.assertEqual(client.dbsize(), 1002)
        client.flushall()
        self.assertEqual(client.dbsize(), 0)

    def test_node(self):
        front_end = self.start_front_end()
        said = self.command("node", "tests/programs/redis_client.js", str(front_end.port), NODE_PATH="/usr/share/nodejs")
        self.assertEqual(said, "all as expected\n")

    def test_a_unix_socket_and_a_password(self):
        password = self.folder / "password"
        password.write_text("secret\n", "utf-8")
        path = self.folder / "redis.sock"
        front_end = self.start_front_end(f"--redis_password_file={password}", at=path)
        client = redis.Redis(unix_socket_path=str(path), password="secret")
        self.addCleanup(client.close)
        self.assertTrue(client.ping())
        with self.assertRaises(redis.AuthenticationError):
            redis.Redis(unix_socket_path=str(path)).get("key")
        self.assertEqual(front_end.stop(), 0)
        self.assertFalse(path.exists())

    def test_mistakes_on_the_command_line(self):
        for arguments, message in (
                (["--redis=0.0.0.0:0"], "--redis=0.0.0.0:0: whoever reaches this address .* --redis_password_file"),
                (["--redis=127.0.0.1"], "--redis=127.0.0.1: expected HOST:PORT"),
                (["--redis=127.0.0.1:0", "--profile=constant:1,1"], "--profile has no effect with --redis"),
                (["--redis=127.0.0.1:0", "-p", "recordcount=1"], "-p has no effect with --redis"),
                (["--redis=127.0.0.1:0", "--worker_kind=fork"], "--worker_kind=fork: with --redis it is thread"),
                (["--redis=127.0.0.1:0", "--redis_password_file=/nowhere"], "--redis_password_file=/nowhere: No such file"),
                (["--redis="], "--redis=: expected HOST:PORT, .* or the path"),
                ([f"--redis={self.folder}"], "it exists, and is no socket"),
                (["--redis_idle_s=1", "-p", "recordcount=1"], "--redis_idle_s needs --redis")):
            program = self.start("computenode", *arguments)
            self.assertEqual(program.ended(), 2, program.text())
            self.assertRegex(program.text(), message)

    def test_workers_follow_the_load_and_commands(self):
        front_end = self.start_front_end("--autoscale", "--worker_capacity=2000", "--max_workers=4", "--scale_in_after_s=1",
                                         "--metrics=127.0.0.1:0")
        client = self.connect(front_end)
        client.set("key", "value")
        self.command("redis-benchmark", "-p", str(front_end.port), "-t", "set", "-n", "50000", "-c", "20")
        front_end.wait_for('"event":"workers",.*"why":"decision".*"workers":4}')
        front_end.wait_for('"event":"workers",.*"why":"decision".*"workers":1}')
        self.assertEqual(client.get("key"), b"value")
        exposition = self.scrape(metrics_address(front_end))
        self.assertGreater(exposition.value("surgekv_redis_commands_total"), 50000)
        self.assertGreater(exposition.value("surgekv_redis_moved_total"), 0)
        self.assertEqual(exposition.value("surgekv_redis_clients"), 1)
        self.assertGreater(exposition.value("surgekv_workers_busy_seconds_total"), 0)
        front_end.stop()

        manual = self.start_front_end("--json_status")
        client = self.connect(manual)
        manual.command("workers 0")
        manual.wait_for('"event":"workers".*"workers":0}')
        answers = []
        asked = threading.Thread(target=lambda: answers.append(client.get("key")))
        asked.start()
        manual.wait_for('"event":"status".*"workers":0')
        manual.command("workers 2")
        asked.join()
        self.assertEqual(answers, [b"value"])

    def test_a_backup_has_the_times_at_which_values_expire(self):
        client = self.connect(self.start_front_end())
        client.set("lasting", "value")
        client.set("expiring", "value", ex=1000)
        client.set("expired", "value", px=1)
        client.set("since", "value", px=2000)
        time_ms, since_ms = (client.execute_command("PEXPIRETIME", key) for key in ("expiring", "since"))
        self.surge_does("backup", f"--out={self.folder / 'backup'}")
        client.flushall()
        client.set("since", "newer")
        wait_for(lambda: time.time() * 1000 > since_ms, lambda: "the clock stands still")
        self.surge_does("restore", f"--in={self.folder / 'backup'}")
        self.assertEqual(client.mget("lasting", "expiring", "expired"), [b"value", b"value", None])
        self.assertEqual(client.get("since"), b"newer")
        self.assertEqual((client.ttl("lasting"), client.execute_command("PEXPIRETIME", "expiring")), (-1, time_ms))

    def surge_does(self, command, file):
        self.command(BIN / "surge", command, f"--fabric={self.fabric}", file)

    def test_a_worker_that_lacks_descriptors_is_started_when_there_are_some(self):
        front_end = self.start_front_end("--json_status")
        client = self.connect(front_end)
        client.set("key", "value")
        pid = front_end.popen.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), most))
        front_end.command("workers 2")
        front_end.wait_for('"event":"error".*a worker could not start')
        self.assertEqual(client.get("key"), b"value")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        front_end.wait_for('"event":"status".*"workers":2')
        self.assertEqual(self.connect(front_end).get("key"), b"value")

    def test_it_ends_when_the_fabric_has_another_store(self):
        front_end = self.start_front_end()
        self.connect(front_end).set("key", "value")
        self.assertEqual(self.memnode.stop(), 0)
        self.start_memnode(1, "--metaserver", "--memory=512M", metrics=False)
        self.assertEqual(front_end.ended(), 1)
        self.assertRegex(front_end.text(), '"end":"the store is gone"')
        self.assertIsNone(self.connect(self.start_front_end()).get("key"))

    def test_a_front_end_is_killed_and_the_clients_of_others_notice_nothing(self):
        front_ends = [self.start_front_end("--workers=2") for _ in range(2)]
        acknowledged = [{} for _ in range(4)]
        failures = []
        stop = threading.Event()

        def write(number):
            # Of those connected to the front end that is killed, each goes on with the other one.
            client, survives = self.connect(front_ends[number % 2]), number % 2 == 1
            i = 0
            while not stop.is_set():
                key, value = f"{number}/{i}", str(i * 7)
                try:
                    client.set(key, value)
                    acknowledged[number][key] = value
                    i += 1
                except redis.ConnectionError as error:
                    if survives:
                        failures.append(error)
                        return
                    client, survives = self.connect(front_ends[1]), True
                    lost = [key for key, value in acknowledged[number].items() if client.get(key) != value.encode()]
                    if lost:
                        failures.append(f"lost: {lost[:5]}")

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        wait_for(lambda: all(len(written) > 300 for written in acknowledged), lambda: front_ends[0].text())
        front_ends[0].kill()
        before = [len(written) for written in acknowledged]
        wait_for(lambda: failures or all(len(written) > count + 300 for written, count in zip(acknowledged, before)),
                 lambda: front_ends[1].text())
        stop.set()
        for writer in writers:
            writer.join()
        self.assertEqual(failures, [])
        client = self.connect(front_ends[1])
        for written in acknowledged:
            self.assertEqual(client.mget(list(written)), [value.encode() for value in written.values()])
        print(f"{sum(map(len, acknowledged))} acknowledged writes are there")


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""The store on provider verbs, in guests: the whole of it in one, while another program uses the device; and memory
nodes in one and compute nodes in another, while workers are added, the link is cut and restored, and packets are lost,
reordered and doubled, which the counts of what was repeated show; and the spike experiment. Every value read is verified by ycsb and computenode.

Where this machine is busy a guest may stand still for longer than a NIC retransmits. So operations may fail as
unavailable or unknown, and are then done again; they may not answer anything wrong, lose a record, or hang.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VM = ROOT / "tools/vm"
LIMIT_S = 900
CUT_S = int(os.environ.get("SURGEKV_CUT_S", "20"))  # longer than TCP connections of the membership service last
IMPOSSIBLE = 77


def vm(mode, *commands):
    done = subprocess.run([VM, mode, "-t", str(LIMIT_S), *commands], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode == IMPOSSIBLE:  # of all tests: ctest counts this one as skipped, and shows the reason
        print(done.stderr, flush=True)
        os._exit(IMPOSSIBLE)
    return done


def returns(output, operation):
    """How many of the operations in the last report of ycsb ended how."""
    return {code: int(count) for code, count in re.findall(rf"^\[{operation}\], Return=(\w+), (\d+)$", output, re.MULTILINE)}


class StoreTest(unittest.TestCase):
    def expect_nearly_all(self, output, operations, wanted):
        """Of so many operations more had an outcome than not, and every value that was read was right. How many is up to
        how long the guests stood still, and nothing that a test could ask for."""
        ended = [returns(output, operation) for operation in operations]
        self.assertEqual(sum(sum(counts.values()) for counts in ended), wanted)
        self.assertGreater(sum(counts["OK"] for counts in ended), wanted / 2)
        for counts in ended:
            self.assertLessEqual(set(counts), {"OK", "UNAVAILABLE", "UNKNOWN", "TIMEOUT"})
        if "READ" in operations:
            verified = returns(output, "VERIFY")
            self.assertEqual((verified["OK"], verified["UNEXPECTED_STATE"]), (returns(output, "READ")["OK"], 0))

    def test_the_whole_store_in_one_guest_beside_another_program(self):
        done = vm("run", "tests/vm/guest/whole_store")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.expect_nearly_all(done.stdout, ["INSERT"], 500)
        self.expect_nearly_all(done.stdout, ["READ", "UPDATE"], 2000)
        self.assertEqual(done.stdout.count("200 iters in"), 1, "ibv_rc_pingpong passes beside the store")
        self.assertEqual(len(re.findall(r"^stopped fabric=vm .* memory=removed", done.stdout, re.MULTILINE)), 2)
        self.assertNotIn("left: ", done.stdout)
        # The CPU time that DC in software took of the memory nodes.
        agents_s = re.findall(r"^stopped fabric=vm .* of_it_dc_agent_s=(\S+)$", done.stdout, re.MULTILINE)
        self.assertEqual(len(agents_s), 3)
        self.assertGreater(sum(map(float, agents_s)), 0)
        self.expect_huge_pages(done.stdout)
        self.expect_a_second_device(done.stdout)

    def expect_huge_pages(self, output):
        """The first memory node's 64 MiB are in pages that were set aside, the second's in such as the kernel found."""
        before, after, found_kb = re.search(r"^huge pages: (\d+) free, then (\d+), (\d+) kB found$", output, re.MULTILINE).groups()
        self.assertGreaterEqual(int(before) - int(after), 32)
        self.assertLess(int(after), 32)
        self.assertGreater(int(found_kb), 0)

    def expect_a_second_device(self, output):
        second = "\n".join(re.findall(r"^second: (.*)$", output, re.MULTILINE))
        self.expect_nearly_all(second, ["INSERT"], 20)
        packets = [int(count) for count in re.findall(r"^rxe1 sent (\d+)$", output, re.MULTILINE)]
        self.assertEqual(len(packets), 2)
        self.assertGreater(packets[1], packets[0] + 40, "a load is more than its inserts' requests and answers")
        self.assertIn("MTU of 2048 bytes, and this device's 1024 bytes", output)
        self.assertIn("another MTU: 1", output)
        self.assertRegex(output, r"no RDMA device nic7 with an active port; it has:\n +rxe0:1: active, MTU 1024\n"
                                 r" +rxe1:1: active, MTU 4096\n")
        self.assertIn("no such device: 1", output)

    def test_compute_nodes_reach_memory_nodes_over_a_link_that_fails(self):
        done = vm("pair", "tests/vm/guest/memory_nodes 10.7.0.1", f"tests/vm/guest/compute_nodes 10.7.0.1 {CUT_S}")
        output = re.sub(r"^\[[01]\] ", "", done.stdout, flags=re.MULTILINE)
        self.assertEqual(done.returncode, 0, output + done.stderr)
        self.expect_nearly_all(output, ["INSERT"], 500)
        (summary,) = re.findall(r'^\{"event":"summary".*$', output, re.MULTILINE)
        summary = json.loads(summary)
        self.assertEqual(summary["mismatches"], 0)
        self.assertGreater(summary["verified"], 0)
        self.assertEqual(len(summary["workers"]), 4)
        self.assertGreater(summary["software_dc"]["sent_again"], 0, "the program's report tells of it, too")
        self.expect_nearly_all(output, ["READ"], 1000)
        self.expect_counts_of_impairments(output)
        stamps = {what: float(at) for what, at in re.findall(r"^== (.*) \((\S+) s\)$", output, re.MULTILINE)}
        print(f"{summary['ops']} operations by 4 workers, {summary['errors']} of them unavailable or unknown; served again "
              f"{stamps['one more worker'] - stamps['restored']:.1f} s after a cut of {CUT_S} s", file=sys.stderr)

    def test_a_link_that_flaps_is_forgotten_by_the_memory_node_and_by_clients_of_its_own_host(self):
        done = vm("run", "tests/vm/guest/link_flap")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (summary,) = re.findall(r'^\{"event":"summary".*$', done.stdout, re.MULTILINE)
        self.assertEqual(json.loads(summary)["mismatches"], 0)
        self.assertIn("published again", done.stdout)

    def expect_counts_of_impairments(self, output):
        phases = [json.loads(line) for line in re.findall(r'^\{"phase".*$', output, re.MULTILINE)]
        self.assertEqual([phase["phase"] for phase in phases], ["calm", "loss", "duplicate", "reorder", "all"])
        calm, loss, duplicate, reorder, everything = phases
        # Of both guests, phase by phase; netem counts only what it lost.
        sent_lost = [tuple(map(int, found)) for found in re.findall(r"netem: Sent \d+ bytes (\d+) pkt \(dropped (\d+)", output)]
        self.assertEqual(len(sent_lost), 2 * 4)
        lost = [sum(lost for _, lost in sent_lost[i:i + 2]) for i in range(0, 8, 2)]
        self.assertEqual((lost[1], lost[2]), (0, 0), "what follows was not for want of packets")
        self.assertGreater(lost[0], 0)
        self.assertGreater(lost[3], 0)
        self.assertGreater(loss["sent_again"], 0)
        self.assertGreater(everything["sent_again"], 0)
        # A quarter came twice, on the way there or because the answer did... and hardly any when all was calm.
        share = {phase["phase"]: phase["served_again"] / phase["served"] for phase in phases}
        self.assertGreater(share["duplicate"], 0.1)
        self.assertGreater(share["duplicate"], 2 * share["calm"])
        early = {phase["phase"]: phase["early"] / phase["served"] for phase in phases}
        self.assertGreater(early["reorder"], 2 * early["calm"])
        for phase in phases:
            print("  ".join(f"{name} {value}" for name, value in phase.items()), file=sys.stderr)
        print(f"lost by netem: {lost}", file=sys.stderr)

    def test_the_spike_is_measured_over_verbs_and_the_kernel_module_and_reported_in_columns_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["/usr/bin/python3", ROOT / "bench/spike/spike.py", "--quick", "--control_plane=kernel",
                                   "--kinds=fork", f"--output={folder}"],
                                  capture_output=True, text=True, check=False, cwd=ROOT)
            if done.returncode == IMPOSSIBLE:
                print(done.stderr, flush=True)
                os._exit(IMPOSSIBLE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            report = json.loads((pathlib.Path(folder) / "spike.json").read_text("utf-8"))
            page = (pathlib.Path(folder) / "index.html").read_text("utf-8")
        (section,) = report["sections"]
        self.assertEqual(section["provider"], "verbs")
        self.assertIn("Measured on verbs", page)
        self.assertEqual([(run["control_plane"], run["worker_kind"]) for run in section["runs"]],
                         [("krcore", "fork"), ("lite", "fork"), ("verbs", "fork"), ("kernel", "fork")])
        self.assertEqual(len(section["measured"]), 4)
        for run in section["runs"]:  # of whose requests each had one right reply, or the experiment had failed
            self.assertGreater(run["requests"], 50)
            self.assertGreaterEqual(run["workers_added"], 1)
            self.assertGreater(len(run["decisions"]), 0)
        for row in section["one_at_a_time"]:
            self.assertGreater(row["bootstrap_us"]["connect"]["p50"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

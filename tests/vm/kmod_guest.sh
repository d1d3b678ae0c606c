#!/usr/bin/env bash
# Runs in a guest of tools/vm: loads krcore.ko, tests it, unloads it, and fails on whatever the kernel complains of.
# Usage: tests/vm/kmod_guest.sh MODULE TESTS_FOLDER CYCLES FUZZ_SECONDS [SEED]
set -uo pipefail
module=$1 tests=$2 cycles=$3 fuzz_seconds=$4 seed=${5:-}
failslab=/sys/kernel/debug/failslab
counters=/sys/kernel/debug/krcore/rxe0/stats
failed=0
fail() { echo "kmod: FAILED: $*"; failed=1; }
step() { echo "kmod: $*"; }
# Of a device whose users are gone: nothing is left, and as many requests went as came. WHEN.
settled() {
  local when=$1 name requests completed
  for name in queues regions region_bytes records ports senders; do
    grep -qx "$name 0" "$counters" || fail "$when: $(grep "^$name " "$counters")"
  done
  requests=$(awk '$1 == "requests" { print $2 }' "$counters")
  completed=$(awk '$1 == "completed" { print $2 }' "$counters")
  if [[ "$requests" != "$completed" ]]; then fail "$when: $requests requests, $completed completed"; fi
}

mount -t debugfs debugfs /sys/kernel/debug || exit 1
# Followed, for the log itself may wrap; what is judged is between the two marks.
mark_begin="kmod_guest.sh begins" mark_end="kmod_guest.sh ends"
dmesg --follow > /run/kernel.log &
follower=$!
echo "$mark_begin" > /dev/kmsg
modprobe -a ib_uverbs rdma_cm || exit 1  # the latter, which krcore needs, and what registers memory are not counted below

step "loading and unloading, $cycles times"
for ((i = 0; i < cycles; ++i)); do
  if ! insmod "$module" || ! rmmod krcore; then fail "cycle $i"; break; fi
done

if [[ -e $failslab ]]; then
  step "loading while allocations fail"
  echo 0 > "$failslab/verbose"
  echo N > "$failslab/ignore-gfp-wait"
  "$(dirname "$0")/kmod_load_failing.py" "$module" || fail "kmod_load_failing.py"
fi

if [[ " $(< /proc/cmdline) " == *" slub_debug="* ]]; then
  step "slabs are checked: SLUB_DEBUG"
  for check in sanity_checks red_zone poison; do
    [[ $(< /sys/kernel/slab/kmalloc-192/$check) == 1 ]] || fail "SLUB_DEBUG: no $check"
  done
fi
insmod "$module" connections=2 || exit 1
if modprobe siw 2> /dev/null; then
  step "a device of a driver that is not known to go with a null pointer"
  rdma link add siw0 type siw netdev dummy0 || fail "no siw0"
  timeout 10 bash -c 'until grep -q "siw0: krcore: not used: its driver" /run/kernel.log; do sleep 0.1; done' ||
    fail "siw0 is not said to be refused"
  if [[ -e /sys/kernel/debug/krcore/siw0 ]]; then fail "siw0 is used"; fi
  rdma link del siw0
fi
step "the tests"
"$tests/kmod_test" --gtest_brief=1 || fail "kmod_test"
settled "after the tests"

step "tracepoints"
events=/sys/kernel/tracing/events/krcore
[[ -d $events ]] || mount -t tracefs tracefs /sys/kernel/tracing
echo 1 > "$events/enable"
"$tests/kmod_test" --gtest_brief=1 --gtest_filter=Node.IsFound*:KmodFault.AWriteOr* > /run/traced || fail "kmod_test"
echo 0 > "$events/enable"
for event in krc_connect krc_push krc_complete krc_conn; do
  grep -q " $event: " /sys/kernel/tracing/trace || fail "no trace of $event"
done
step "the store and krcore's suites over control plane kernel: four processes at once, and two memory nodes"
bin=$tests/../bin
fabric=(--fabric=kmod --control_plane=kernel)
# shellcheck source-path=SCRIPTDIR source=guest/functions
. "$(dirname "$0")/guest/functions"
start_memory_nodes
"$bin/surge" status --fabric=kmod --control_plane=kernel --json > /run/surge || fail "surge"
for word in '"id":1' '"id":2' '"state":"serving"'; do
  grep -q "$word" /run/surge || { cat /run/surge; fail "surge status does not show $word"; }
done
ycsb load -P ycsb/workloads/workloada -p recordcount=200 --overwrite > /dev/null || fail "ycsb load"
"$tests/krcore_kernel_test" --gtest_filter='Connect.*:Node.*:Each/*' > /run/suite1 &
users=("$!")
"$tests/krcore_kernel_test" --gtest_filter='-Connect.*:Node.*:Each/*' > /run/suite2 &
users+=("$!")
for run in 1 2; do
  "$bin/ycsb" run -P ycsb/workloads/workloada "${fabric[@]}" -p recordcount=200 -p operationcount=500 --in_flight=4 \
    --max_failures=0 --operation_timeout_ms=30000 > "/run/ycsb$run" 2>&1 &
  users+=("$!")
done
for user in "${users[@]}"; do wait "$user" || { cat /run/suite? /run/ycsb?; fail "one of them"; }; done
for run in 1 2; do
  grep -q 'VERIFY\], Return=UNEXPECTED_STATE, 0' "/run/ycsb$run" || fail "a value was wrong"
  grep -q '^\[READ\], Return=OK' "/run/ycsb$run" || fail "nothing was read"
done
cat /run/suite?  # what kmod_test.py compares with krcore_kernel.expected
stop_memory_nodes > /dev/null || fail "memnode"
settled "after the store"

step "beside verbs, on an emulated machine"
"$bin/bench_connect" --control_plane=kernel --quick > /run/connect || fail "bench_connect"
cat /run/connect
grep -q '^kernel, fork to first reply' /run/connect || fail "bench_connect measured no fresh process of kernel"
"$bin/bench_kmod" --quick || fail "bench_kmod"
if [[ -e $failslab ]]; then
  echo Y > "$failslab/task-filter"
  echo 3 > "$failslab/probability"
  echo -1 > "$failslab/times"
fi
step "the fuzzer"
"$tests/kmod_fuzz" "$fuzz_seconds" ${seed:+"$seed"} || fail "kmod_fuzz"
settled "after the fuzzer"
step "the fuzzer, while the device goes and comes"
"$tests/kmod_fuzz" "$fuzz_seconds" ${seed:+"$seed"} &
fuzzer=$!
while kill -0 "$fuzzer" 2> /dev/null; do
  sleep 1
  rdma link del rxe0 || fail "rdma link del"
  rdma link add rxe0 type rxe netdev dummy0 || fail "rdma link add"
done
wait "$fuzzer" || fail "kmod_fuzz"
# That of the devices that went nothing was left, the module itself checks (krc_debugfs_remove): the log tells.
settled "after the last device came"

step "unloading under a user"
exec {user}<> /dev/krcore
if rmmod krcore 2> /dev/null; then fail "it went under an open file"; fi
exec {user}>&-
rmmod krcore || fail "it does not unload"
if [[ -e /dev/krcore || -d /sys/kernel/debug/krcore ]]; then fail "something of it stayed"; fi

step "unloading under somebody who sends to its software DC whatever comes to his mind"
dc=/sys/kernel/debug/krcore/rxe0/software_dc
for round in 1 2 3; do
  insmod "$module" connections=2 || { fail "round $round"; break; }
  KMOD_ATTACK_SECONDS=4 "$tests/kmod_test" --gtest_brief=1 --gtest_filter=SoftwareDc.IsAttacked > /run/attack 2>&1 &
  attacker=$!
  timeout 20 bash -c "until grep -qE '^packets [0-9]{3}' $dc 2> /dev/null; do sleep 0.05; done" || fail "nothing came"
  rmmod krcore || fail "it does not unload"
  wait "$attacker" || { cat /run/attack; fail "the attacker"; }
done

# Pages that were pinned and are not any more. The counters are gathered from the CPUs first.
echo 1 > /proc/sys/vm/stat_refresh
acquired=$(awk '$1 == "nr_foll_pin_acquired" { print $2 }' /proc/vmstat)
released=$(awk '$1 == "nr_foll_pin_released" { print $2 }' /proc/vmstat)
step "$acquired pages pinned, $released released"
[[ "$acquired" == "$released" && "$acquired" -gt 0 ]] || fail "pages stay pinned"

if [[ -e /sys/kernel/debug/kmemleak ]]; then
  # A leak is what two scans do not find a pointer to.
  for _ in 1 2; do sleep 6; echo scan > /sys/kernel/debug/kmemleak; done
  leaks=$(grep -c '^unreferenced object' /sys/kernel/debug/kmemleak)
  if grep -qE 'krc_|\[krcore\]' /sys/kernel/debug/kmemleak; then
    cat /sys/kernel/debug/kmemleak
    fail "kmemleak"
  fi
  step "kmemleak: nothing of the module's ($leaks of others)"
fi
if [[ -e /proc/lockdep_stats ]]; then
  if grep -q 'debug_locks: *1' /proc/lockdep_stats; then step "lockdep: clean"; else fail "lockdep"; fi
fi
# D 7: died, W 9: warned, L 14: locked up, B 5: bad page.
tainted=$(< /proc/sys/kernel/tainted)
if ((tainted & (1 << 5 | 1 << 7 | 1 << 9 | 1 << 14))); then fail "the kernel is tainted: $tainted"; fi
echo "$mark_end" > /dev/kmsg
until grep -q "$mark_end" /run/kernel.log; do
  kill -0 "$follower" || { fail "nobody follows the kernel's log"; break; }
  sleep 0.1
done
kill "$follower"
wait "$follower" 2> /dev/null
sed -i "0,/$mark_begin/d" /run/kernel.log
if grep -nE 'WARNING:|BUG:|BUG [^ ]+ \(|Oops|KASAN|UBSAN|KCSAN|INFO: (task|rcu)|blocked for more|refcount_t|possible (recursive|circular)|general protection|still has' \
  /run/kernel.log; then
  fail "the kernel's log, see above"
  grep -A 40 -m 1 -E 'WARNING:|BUG:|BUG [^ ]+ \(|Oops|KASAN|UBSAN|INFO: (task|rcu)' /run/kernel.log
fi
((failed == 0)) && step "clean: nothing in the kernel's log ($(wc -l < /run/kernel.log) lines looked at)"
exit "$failed"

// A recording stand-in for an mlx5 device. It takes the place of libibverbs and libmlx5 in the test's executable, which
// has functions of their names (fake_calls.cc, fake_posts.cc) and loads these. It refuses what the
// mlx5 driver refuses: wrong transitions of a DC initiator or target and wrong attributes for them, destroying what is
// in use, and WRs that are not completely built. It records what it was given, fails the call that a test names, and
// completes WRs when a test says so. It carries nothing out.
#ifndef TESTS_RNIC_MLX5_FAKE_NIC_H_
#define TESTS_RNIC_MLX5_FAKE_NIC_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "krcore/rnic/verbs/library.h"

namespace krcore::rnic::verbs::testing {

inline constexpr uint8_t kPort = 1;
inline constexpr uint8_t kGidIndex = 3;  // RoCE v2 and IPv4
inline constexpr ibv_mtu kMtu = IBV_MTU_1024;
inline constexpr int kReadDepth = 8;

struct FakeCq {
  ibv_cq cq{};
  std::deque<ibv_wc> completions;
  int users = 0;  // queues
};

struct FakePost {
  std::string op;  // "read", "write", "write_imm", "send", "send_imm", "cas", "add"
  uint64_t wr_id = 0;
  unsigned int flags = 0;
  uint32_t rkey = 0;
  uint64_t remote_addr = 0;
  uint64_t compare_add = 0, swap = 0;
  uint32_t imm = 0;  // as on the wire
  ibv_ah* ah = nullptr;
  uint32_t dctn = 0;
  uint64_t dc_key = 0;
  std::vector<ibv_sge> sges;
  bool is_inline = false;
  std::string inline_data;
  int setters = 0;  // calls for it: one for the address, one for the data
};

struct FakeSrq {
  ibv_srq srq{};
  ibv_srq_init_attr init{};
  std::vector<ibv_recv_wr> posted;
  int users = 0;
};

struct FakeModify {
  ibv_qp_state from, to;
  int mask;
  ibv_qp_attr attr;
};

// State of a DC initiator or target, or of an RC or UD queue.
struct FakeQp {
  ibv_qp_ex ex{};  // must be first: an ibv_qp* points to it
  mlx5dv_qp_ex dv{};
  ibv_qp_init_attr_ex init{};
  mlx5dv_qp_init_attr dc{};
  ibv_qp_state state = IBV_QPS_RESET;
  std::vector<FakeModify> modifies;
  bool building = false;
  std::vector<FakePost> doorbell;            // between wr_start and wr_complete
  std::vector<std::vector<FakePost>> posts;  // by doorbell
  std::deque<FakePost> outstanding;          // not yet completed
  bool is_plain() const { return init.qp_type != IBV_QPT_DRIVER; }
  bool is_dci() const { return !is_plain() && dc.dc_init_attr.dc_type == MLX5DV_DCTYPE_DCI; }
  bool is_dct() const { return !is_plain() && !is_dci(); }
};

class FakeNic {
 public:
  // Returns the only one; a test begins with a fresh one.
  static FakeNic& Get();
  static void Reset();

  bool is_mlx5 = true;
  bool has_libmlx5 = true;
  uint32_t part_id = 0x101d;    // ConnectX-6 Dx
  bool dci_is_extended = true;  // ibv_qp_to_qp_ex knows it
  bool has_plain = false;       // RC and UD queues can be made

  // The names of the calls that can fail, in order.
  std::vector<std::string> calls;
  // The call of this number, from 0, fails with this errno. -1: none.
  int fail_call = -1;
  int fail_error = 0;
  // Calls of this name fail with this errno.
  std::map<std::string, int> fail_named;
  // What the device's driver would not have allowed. Empty in a correct program.
  std::vector<std::string> misuses;

  // What exists, by libibverbs' pointer.
  std::map<ibv_qp*, std::unique_ptr<FakeQp>> qps;
  std::map<ibv_cq*, std::unique_ptr<FakeCq>> cqs;
  std::map<ibv_srq*, std::unique_ptr<FakeSrq>> srqs;
  std::map<ibv_ah*, ibv_ah_attr> ahs;
  std::map<ibv_pd*, int> pds;  // with the count of what is made from each
  std::map<ibv_mr*, ibv_pd*> mrs;
  int contexts = 0;
  // Returns whether none of the above exists.
  bool Empty() const;

  FakeQp& Dci();  // the only one that exists
  FakeQp& Dct();
  FakeQp& Plain();
  FakeSrq& Srq() { return *srqs.begin()->second; }

  // The oldest outstanding WR of `dci`, or of a plain queue, succeeds; unsignaled ones do so silently.
  void Succeed(FakeQp& dci);
  // The oldest outstanding WR fails: the queue breaks, and what was posted after it is flushed.
  void Fail(FakeQp& dci, ibv_wc_status status);
  // `wc` completes the index-th of the receives that were posted to the target's SRQ and are still there.
  void Receive(FakeQp& dct, size_t index, ibv_wc wc);
  // Breaks the queue, and the device reports it.
  void Break(FakeQp& qp);
  // The device reports an event of its port.
  void ReportPort(ibv_event_type type);

  // The creation of the next address handle blocks until Unblock, as when the network is asked.
  std::atomic<bool> create_ah_blocks{false};
  void AwaitBlocked();
  void Unblock();

  // For the functions that take libibverbs' place.
  void BlockIfWanted();
  int Enter(const char* call);  // returns 0, or the errno with which the call is to fail
  void Misuse(std::string what) { misuses.push_back(std::move(what)); }
  void SetState(FakeQp& qp, ibv_qp_state state);
  void Flush(FakeQp& dci);
  void Report(const ibv_async_event& event);
  std::mutex events_mutex;
  std::deque<ibv_async_event> events;
  int events_fd = -1;
  std::mutex block_mutex;
  std::condition_variable block_changed;
  bool blocked = false;
  uint32_t next_qp_num = 100;
  uint32_t next_key = 0x1000;
};

}  // namespace krcore::rnic::verbs::testing

#endif  // TESTS_RNIC_MLX5_FAKE_NIC_H_

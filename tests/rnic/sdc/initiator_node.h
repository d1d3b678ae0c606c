// A machine with an initiator and a user of it, which posts WRs of all kinds and looks at their results.
#ifndef TESTS_RNIC_SDC_INITIATOR_NODE_H_
#define TESTS_RNIC_SDC_INITIATOR_NODE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "krcore/rnic/sdc/initiator.h"
#include "tests/rnic/sdc/target_node.h"
#include "tests/rnic/sdc/world.h"

namespace sdc_test {

class InitiatorNode : public Machine {
 public:
  // Targets have the machine numbers after the initiators'.
  InitiatorNode(World* world, uint32_t number);
  void Receive(const sdc_address& from, const std::vector<uint8_t>& packet) override;
  void Start(std::vector<TargetNode*> targets);

  // Returns whether all WRs have been posted and completed, and the queue was reset after the last of them.
  bool finished() const { return left_ == 0 && outstanding_ == 0 && final_ == Final::kDone; }
  void Reset();
  void Fail();
  void Restart();
  void DeregisterLocal(uint64_t for_ns);
  void Count();

 private:
  enum class Final : uint8_t { kNo, kUnderWay, kDone };
  struct Target {
    TargetNode* node = nullptr;
    // For each word of its own place: the last WR that certainly wrote it, and the last WR posted to it. The latter
    // becomes certain when a later one of the queue succeeds.
    std::vector<uint32_t> confirmed, posted;
    uint64_t confirmed_sum = 0, posted_sum = 0;  // of its own counter
  };
  struct Buffer {
    std::vector<uint64_t> words;
    uint32_t uid = 0;
    uint32_t first_word = 0;  // in the place
    bool is_counter = false;
  };

  void StartCore();
  void Step();
  // Runs the core, takes its completions, and schedules the next run that it asks for.
  void Pump();
  void Take(const sdc_completion& completion);
  void NewEpoch();

  void PostOne();
  void AimAtomic(sdc_wr* wr, Record* record, Target* target);
  void AimPlace(sdc_wr* wr, Record* record, Target* target, uint32_t word);
  void Spoil(sdc_wr* wr, Record* record);
  void Succeeded(Record& record);
  void CheckRead(const Record& record, const Buffer& buffer);
  void* Local(uint32_t lkey, uint64_t addr, uint32_t length);

  std::vector<sdc_queued_wr> wrs_;
  std::vector<sdc_peer> peers_;
  sdc_initiator initiator_{};
  std::vector<Target> targets_;
  uint32_t left_;
  uint32_t outstanding_ = 0;
  std::deque<uint32_t> in_queue_;  // uids
  uint32_t epoch_ = 0;
  bool failed_ = false;  // a completion said so, or the user moved it to ERR
  bool waits_for_reset_ = false;
  Final final_ = Final::kNo;
  bool local_gone_ = false;
  uint64_t tainted_until_ns_ = 0;       // until then what the killed predecessor posted may be executed
  uint64_t last_seen_ = 0;              // by an atomic
  uint64_t wake_ns_ = 0;                // 0: none is due
  std::map<uint64_t, Buffer> buffers_;  // by address
  std::map<uint32_t, uint64_t> buffer_of_;
};

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_INITIATOR_NODE_H_

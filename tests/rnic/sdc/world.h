// A network and its machines in virtual time: one thread, one seed.
#ifndef TESTS_RNIC_SDC_WORLD_H_
#define TESTS_RNIC_SDC_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/rnic/sdc/judge.h"
#include "tests/rnic/sdc/plan.h"

namespace sdc_test {

// A machine's clock: it begins at any time and runs a little fast or slow. It goes on while the machine sleeps.
struct LocalClock {
  uint64_t offset_ns = 0;
  double rate = 1;
  uint64_t At(uint64_t world_ns) const {
    return offset_ns + static_cast<uint64_t>(static_cast<double>(world_ns) * rate);
  }
  uint64_t Until(uint64_t local_ns, uint64_t world_ns) const {
    const uint64_t now_ns = At(world_ns);
    return local_ns <= now_ns ? 0 : static_cast<uint64_t>(static_cast<double>(local_ns - now_ns) / rate) + 1;
  }
};

class World;

// A machine on the network. Subclasses are an initiator and a target.
class Machine {
 public:
  Machine(World* world, uint32_t number);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;
  virtual void Receive(const sdc_address& from, const std::vector<uint8_t>& packet) = 0;

  uint32_t number() const { return number_; }
  const sdc_address& address() const { return address_; }
  const LocalClock& clock() const { return clock_; }
  uint64_t local_ns() const;
  uint64_t asleep_until_ns = 0;  // by the world's clock

 protected:
  // For a core's `buffer` and `send`.
  uint8_t* buffer() { return buffer_.data(); }
  void Send(const sdc_address& to, uint32_t bytes);

  World* const world_;

 private:
  const uint32_t number_;
  sdc_address address_{};
  LocalClock clock_;
  std::vector<uint8_t> buffer_;
};

class World {
 public:
  explicit World(const Plan& plan);

  const Plan& plan() const { return plan_; }
  uint64_t now_ns() const { return now_ns_; }
  Judge& judge() { return judge_; }
  uint64_t In(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }
  bool Chance(double p) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < p; }

  void After(uint64_t delay_ns, std::function<void()> what);
  // Runs until `done`, until nothing is left to happen, or until `until_ns`.
  bool RunUntil(const std::function<bool()>& done, uint64_t until_ns);

  const LocalClock& ClockOf(uint32_t machine) const { return machines_[machine]->clock(); }
  void Join(Machine* machine) { machines_.push_back(machine); }
  void Transmit(Machine* from, const sdc_address& to, std::vector<uint8_t> packet);
  void Cut(uint32_t a, uint32_t b, uint64_t for_ns, bool hold);

 private:
  struct Event {
    uint64_t at_ns;
    uint64_t serial;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : serial > other.serial;
    }
  };
  struct Link {
    uint64_t cut_until_ns = 0;
    bool hold = false;
  };

  void Deliver(Machine* to, const sdc_address& from, const std::vector<uint8_t>& packet);
  // Checks that what a target refused is not done later.
  void Watch(Machine* from, const std::vector<uint8_t>& packet);

  const Plan& plan_;
  std::mt19937_64 random_;
  Judge judge_;
  const bool trace_;  // SDC_SIM_PACKETS: each packet on stderr
  uint64_t now_ns_ = 0;
  uint64_t serial_ = 0;
  std::priority_queue<Event> events_;
  std::vector<Machine*> machines_;
  std::map<std::pair<uint32_t, uint32_t>, Link> links_;
  std::set<std::pair<uint64_t, uint32_t>> refused_;  // nonce and PSN
};

}  // namespace sdc_test

#endif  // TESTS_RNIC_SDC_WORLD_H_

#include "tests/rnic/sdc/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sdc_test {

Machine::Machine(World* world, uint32_t number) : world_(world), number_(number), buffer_(SDC_MAX_MTU_BYTES) {
  std::memcpy(address_.bytes, &number, sizeof(number));
  address_.qpn = number + 100;
  clock_.offset_ns = world->In(0, 1'000'000) * kMs;
  clock_.rate = 1 + (static_cast<double>(world->In(0, 2000)) - 1000) / 1000 / 300;
  world->Join(this);
}

uint64_t Machine::local_ns() const { return clock_.At(world_->now_ns()); }

void Machine::Send(const sdc_address& to, uint32_t bytes) {
  if (bytes > world_->plan().mtu_bytes) world_->judge().Violation("a packet is longer than the MTU");
  world_->Transmit(this, to, std::vector<uint8_t>(buffer_.begin(), buffer_.begin() + bytes));
}

World::World(const Plan& plan)
    : plan_(plan), random_(plan.seed), judge_(plan), trace_(std::getenv("SDC_SIM_PACKETS") != nullptr) {}

void World::After(uint64_t delay_ns, std::function<void()> what) {
  events_.push({now_ns_ + delay_ns, serial_++, std::move(what)});
}

bool World::RunUntil(const std::function<bool()>& done, uint64_t until_ns) {
  while (!events_.empty() && judge_.violation().empty()) {
    if (done()) return true;
    if (events_.top().at_ns > until_ns) break;
    now_ns_ = events_.top().at_ns;
    const std::function<void()> what = std::move(const_cast<Event&>(events_.top()).what);
    events_.pop();
    what();
  }
  return done();
}

void World::Cut(uint32_t a, uint32_t b, uint64_t for_ns, bool hold) {
  links_[{std::min(a, b), std::max(a, b)}] = {now_ns_ + for_ns, hold};
}

void World::Watch(Machine* from, const std::vector<uint8_t>& packet) {
  sdc_packet parsed;
  if (!sdc_parse(packet.data(), static_cast<uint32_t>(packet.size()), &parsed)) {
    judge_.Violation("machine " + std::to_string(from->number()) + " sent what is no packet");
    return;
  }
  if (trace_) {
    std::fprintf(stderr, "%9lu us  %u sends kind %u psn %u slot %u nonce %04lx bytes %u offset %u flags %u\n",
                 now_ns_ / kUs, from->number(), parsed.kind, parsed.psn, parsed.slot, parsed.nonce & 0xffff,
                 parsed.bytes, parsed.offset, parsed.flags);
  }
  judge_.Digest(now_ns_ ^ uint64_t{parsed.kind} << 56 ^ uint64_t{parsed.psn} << 20 ^ parsed.nonce);
  if (parsed.kind == SDC_NAK) {
    refused_.insert({parsed.nonce, parsed.psn});
    ++judge_.counts().refused;
  }
  if ((parsed.kind == SDC_DATA || parsed.kind == SDC_RESULT) && refused_.contains({parsed.nonce, parsed.psn}))
    judge_.Violation("what was refused was done when it was repeated");
}

void World::Transmit(Machine* from, const sdc_address& to, std::vector<uint8_t> packet) {
  Watch(from, packet);
  uint32_t number = 0;
  std::memcpy(&number, to.bytes, sizeof(number));
  const auto machine =
      std::find_if(machines_.begin(), machines_.end(), [number](const Machine* at) { return at->number() == number; });
  if (machine == machines_.end() || Chance(plan_.loss)) return;
  const Link& link = links_[{std::min(from->number(), number), std::max(from->number(), number)}];
  uint64_t held_ns = 0;
  if (now_ns_ < link.cut_until_ns) {
    if (!link.hold) return;
    held_ns = link.cut_until_ns - now_ns_;
  }
  const int copies = Chance(plan_.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    uint64_t delay_ns = held_ns + In(plan_.wire_ns / 2, plan_.wire_ns);
    // If a packet was duplicated and its second copy is late, that copy is very late now and then.
    if (Chance(plan_.late)) delay_ns += In(0, i == 1 && Chance(0.3) ? 100 * plan_.late_ns : plan_.late_ns);
    After(delay_ns, [this, to = *machine, from = from->address(), packet] { Deliver(to, from, packet); });
  }
}

void World::Deliver(Machine* to, const sdc_address& from, const std::vector<uint8_t>& packet) {
  if (now_ns_ < to->asleep_until_ns) {
    After(to->asleep_until_ns - now_ns_, [this, to, from, packet] { Deliver(to, from, packet); });
    return;
  }
  to->Receive(from, packet);
}

}  // namespace sdc_test

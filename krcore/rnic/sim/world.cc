#include "krcore/rnic/sim/world.h"

#include <utility>

#include "krcore/rnic/sim/fabric.h"
#include "krcore/rnic/sim/qp.h"

namespace krcore::rnic::sim {

World::World(const WorldOptions& options) : fabric_(std::make_unique<Fabric>(options)) {}
World::~World() = default;

Clock& World::clock() { return fabric_->clock(); }
int64_t World::now_ns() const { return fabric_->engine().now_ns(); }
std::mt19937_64& World::random() { return fabric_->engine().random(); }
int64_t World::next_event_ns() const { return fabric_->engine().NextEventNs(); }
bool World::Step() { return fabric_->engine().Step(); }
void World::RunUntil(int64_t ns) { fabric_->engine().RunUntil(ns); }
void World::set_chaos(const Chaos& chaos) {
  fabric_->engine().chaos() = chaos;
  for (const auto& device : fabric_->engine().devices()) device->chaos.reset();
}

void World::set_chaos(NodeId node, const Chaos& chaos) {
  if (DeviceState* device = fabric_->LastHolder(node); device != nullptr) device->chaos = chaos;
}

void World::Kill(NodeId node, int64_t linger_ns) {
  if (DeviceState* device = fabric_->LastHolder(node); device != nullptr) fabric_->Kill(*device, linger_ns);
}

void World::KillAtVerb(NodeId node, uint64_t verb, bool before, int64_t linger_ns) {
  DeviceState* const device = fabric_->LastHolder(node);
  if (device == nullptr || device->life != Life::kAlive) return;
  device->verbs_left = verb;
  device->dies_before = before;
  device->dies_linger_ns = linger_ns;
}

bool World::IsDead(NodeId node) const {
  const DeviceState* const device = fabric_->LastHolder(node);
  return device != nullptr && device->life == Life::kKilled;
}

void World::StallDoorbells(NodeId node, int64_t duration_ns) {
  if (DeviceState* device = fabric_->LastHolder(node); device != nullptr)
    device->stalled_until_ns = now_ns() + duration_ns;
}

void World::CutOff(NodeId node, int64_t duration_ns) {
  if (DeviceState* device = fabric_->LastHolder(node); device != nullptr)
    device->cut_off_until_ns = now_ns() + duration_ns;
}

void World::Freeze(NodeId node, int64_t duration_ns) {
  if (DeviceState* device = fabric_->LastHolder(node); device != nullptr)
    device->frozen_until_ns = now_ns() + duration_ns;
}

void World::AtVerb(NodeId node, uint64_t verb, bool before, std::function<void()> action) {
  DeviceState* const device = fabric_->LastHolder(node);
  if (device == nullptr) return;
  device->verbs_to_act = verb;
  device->acts_before = before;
  device->action = std::move(action);
}

void World::BreakQueues(NodeId node, NodeId peer) {
  DeviceState* const device = fabric_->LastHolder(node);
  const DeviceState* const target = fabric_->LastHolder(peer);
  if (device == nullptr || target == nullptr || device->life != Life::kAlive) return;
  for (QpEntry& entry : device->qps.entries()) {
    if (entry.number != 0 && entry.qp != nullptr) fabric_->engine().Break(entry.qp->send_queue(), target);
  }
}

void World::LeaveUnanswered(bool unanswered) { fabric_->LeaveUnanswered(unanswered); }

void World::ForgetRecords(NodeId node) {
  if (const DeviceState* device = fabric_->LastHolder(node); device != nullptr) fabric_->ForgetRecords(*device);
}

bool World::HasCompletions(NodeId node) const {
  const DeviceState* const device = fabric_->LastHolder(node);
  return device != nullptr && device->unpolled != 0;
}

NodeId World::TakeReady() {
  const DeviceState* const device = fabric_->engine().TakeReady();
  return device == nullptr ? kNoNode : device->node;
}

int64_t World::control_ns(NodeId node) const {
  const DeviceState* const device = fabric_->LastHolder(node);
  return device == nullptr ? 0 : device->control_ns;
}

const WorldStats& World::stats() const { return fabric_->engine().stats(); }
uint64_t World::trace_hash() const { return fabric_->engine().trace_hash(); }
void World::set_trace(std::FILE* file) { fabric_->engine().set_trace(file); }

}  // namespace krcore::rnic::sim

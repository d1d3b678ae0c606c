// The Backing of "inproc:" fabrics: memory of this process, found by name in a process-wide table.
#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "krcore/rnic/fork_guard.h"
#include "krcore/rnic/sw/backing.h"
#include "krcore/rnic/sw/shm_file.h"

namespace krcore::rnic::sw {
namespace {

struct InprocFabric {
  std::mutex admin;
  std::mutex mutex;  // of what follows; never held across anything else
  std::map<std::string, std::shared_ptr<Mapping>> segments;
  std::set<uint32_t> held;
  std::shared_ptr<Mapping> control;  // null: removed with its last device
};

struct Table {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<InprocFabric>> fabrics;
  const uint32_t generation = ForkGeneration();
  const Table* former = nullptr;  // of the parent process: its mutexes may be held for ever
};

// This process's. Never destroyed: devices of static storage duration may outlive it.
Table& TheTable() {
  static std::atomic<Table*> table{nullptr};
  Table* current = table.load(std::memory_order_acquire);  // pairs with the release of who made it
  while (current == nullptr || current->generation != ForkGeneration()) {
    auto fresh = std::make_unique<Table>();
    fresh->former = current;
    if (table.compare_exchange_strong(current, fresh.get(), std::memory_order_acq_rel)) current = fresh.release();
  }
  return *current;
}

class InprocBacking final : public Backing {
 public:
  InprocBacking(std::string name, std::shared_ptr<InprocFabric> fabric)
      : name_(std::move(name)), fabric_(std::move(fabric)) {}

  Control& control() override { return *reinterpret_cast<Control*>(control_->addr()); }
  void Attach(std::shared_ptr<Mapping> control) { control_ = std::move(control); }

  Result<std::shared_ptr<Mapping>> Create(const std::string& suffix, size_t length, bool /*claimed*/) override {
    auto mapping = MapAnonymous(RoundUpToPage(length));
    if (!mapping.ok()) return mapping;
    const std::lock_guard lock(fabric_->mutex);
    if (!fabric_->segments.emplace(suffix, *mapping).second) {
      return Status(StatusCode::kExists, "segment " + suffix + " exists");
    }
    return mapping;
  }

  Result<std::shared_ptr<Mapping>> Open(const std::string& suffix) override {
    const std::lock_guard lock(fabric_->mutex);
    const auto found = fabric_->segments.find(suffix);
    if (found == fabric_->segments.end()) return Status(StatusCode::kNotFound, "no segment " + suffix);
    return found->second;
  }

  // Nobody but the fabric's devices reaches this memory, so what they agree on is enough.
  Result<std::shared_ptr<Mapping>> Adopt(const std::string& suffix) override { return Open(suffix); }
  void Disown(const std::string& /*suffix*/) override {}

  Status Rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(fabric_->mutex);
    auto node = fabric_->segments.extract(from);
    if (node.empty()) return {StatusCode::kNotFound, "no segment " + from};
    fabric_->segments[to] = node.mapped();
    return {};
  }

  void Remove(const std::string& suffix) override {
    const std::lock_guard lock(fabric_->mutex);
    fabric_->segments.erase(suffix);
  }

  Status RemoveLeft(const std::string& suffix) override {
    Remove(suffix);
    return {};
  }

  Result<std::vector<std::string>> List() override {
    const std::lock_guard lock(fabric_->mutex);
    std::vector<std::string> suffixes;
    for (const auto& [suffix, mapping] : fabric_->segments) suffixes.push_back(suffix);
    return suffixes;
  }

  void RemoveControl() override {
    {
      const std::lock_guard lock(fabric_->mutex);
      fabric_->control.reset();
      if (!fabric_->segments.empty()) return;  // memory that is kept for a successor
    }
    Table& table = TheTable();
    const std::lock_guard lock(table.mutex);
    const auto found = table.fabrics.find(name_);
    if (found != table.fabrics.end() && found->second == fabric_) table.fabrics.erase(found);
  }

  Status CheckName() override { return {}; }

  Status LockAdmin() override {
    fabric_->admin.lock();
    return {};
  }
  void UnlockAdmin() override { fabric_->admin.unlock(); }

  Status Hold(uint32_t index) override {
    const std::lock_guard lock(fabric_->mutex);
    fabric_->held.insert(index);
    return {};
  }
  void Release(uint32_t index) override {
    const std::lock_guard lock(fabric_->mutex);
    fabric_->held.erase(index);
  }
  bool HeldByOther(uint32_t index) override {
    const std::lock_guard lock(fabric_->mutex);
    return fabric_->held.contains(index);
  }

 private:
  const std::string name_;
  const std::shared_ptr<InprocFabric> fabric_;
  std::shared_ptr<Mapping> control_;
};

}  // namespace

Result<std::unique_ptr<Backing>> OpenInprocBacking(const std::string& name, bool create) {
  Table& table = TheTable();
  for (;;) {
    std::shared_ptr<InprocFabric> fabric;
    {
      const std::lock_guard lock(table.mutex);
      const auto found = table.fabrics.find(name);
      if (found != table.fabrics.end()) fabric = found->second;
      if (fabric == nullptr && create) fabric = table.fabrics[name] = std::make_shared<InprocFabric>();
    }
    if (fabric == nullptr)
      return Status(StatusCode::kNotFound, "no fabric named " + name + " in this process; create it");
    auto backing = std::make_unique<InprocBacking>(name, fabric);
    KRCORE_RETURN_IF_ERROR(backing->LockAdmin());
    {
      // Removed from the table between our look and our lock: look again.
      const std::lock_guard lock(table.mutex);
      const auto found = table.fabrics.find(name);
      if (found == table.fabrics.end() || found->second != fabric) {
        backing->UnlockAdmin();
        continue;
      }
    }
    if (fabric->control == nullptr) {
      Status failed;
      if (create) {
        auto mapping = MapAnonymous(RoundUpToPage(sizeof(Control)));
        if (mapping.ok()) {
          InitControl(*reinterpret_cast<Control*>((*mapping)->addr()));
          fabric->control = *std::move(mapping);
        } else {
          failed = mapping.status();
        }
      } else {
        failed = {StatusCode::kNotFound, "no fabric named " + name + " in this process; create it"};
      }
      if (!failed.ok()) {
        backing->UnlockAdmin();
        return failed;
      }
    }
    backing->Attach(fabric->control);
    return std::unique_ptr<Backing>(std::move(backing));
  }
}

}  // namespace krcore::rnic::sw

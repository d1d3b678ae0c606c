#include "krcore/rnic/sim/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "krcore/rnic/sim/fabric.h"

namespace krcore::rnic::sim {
namespace {

constexpr size_t kMaxMemoryBytes = size_t{1} << 46;
constexpr size_t kHugePageBytes = size_t{2} << 20;

Status CheckName(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  if (name.size() <= 32 && std::all_of(name.begin(), name.end(), allowed)) return {};
  return {StatusCode::kInvalidArgument, "memory name '" + name + "' is not 1 to 32 of [a-z0-9_-]"};
}

}  // namespace

Result<std::shared_ptr<Pages>> Pages::Map(size_t length) {
  const bool huge = length >= kHugePageBytes;
  const size_t mapped = huge ? length + kHugePageBytes : length;
  void* const mapping =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return Status::FromErrno(errno, "mmap of " + std::to_string(mapped) + " bytes");
  auto start = reinterpret_cast<uintptr_t>(mapping);
  if (huge) start = (start + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  return std::shared_ptr<Pages>(new Pages(mapping, mapped, {reinterpret_cast<std::byte*>(start), length}));
}

Pages::~Pages() { munmap(mapping_, mapped_); }

Result<std::unique_ptr<Memory>> SimMemory::Allocate(Fabric* fabric, DeviceState* device, size_t length,
                                                    const AllocOptions& options) {
  KRCORE_RETURN_IF_ERROR(fabric->CheckAlive(*device));
  if (length == 0) return Status(StatusCode::kInvalidArgument, "memory of 0 bytes");
  if (length > kMaxMemoryBytes) {
    return Status(StatusCode::kOutOfMemory,
                  "memory of " + std::to_string(length) + " bytes is more than this machine has");
  }
  KRCORE_RETURN_IF_ERROR(CheckName(options.name));
  std::shared_ptr<Pages> pages;
  if (!options.name.empty()) {
    NamedMemory& named = fabric->named(device->node, options.name);
    if (named.holder == device) {
      return Status(StatusCode::kExists, "this device has memory '" + options.name + "' already");
    }
    if (named.pages != nullptr && named.pages->bytes().size() != length) {
      return Status(StatusCode::kInvalidArgument,
                    "memory '" + options.name + "' of node " + std::to_string(device->node) + " was left with " +
                        std::to_string(named.pages->bytes().size()) + " bytes, not " + std::to_string(length));
    }
    pages = named.pages;
  }
  const bool adopted = pages != nullptr;
  if (!adopted) {
    auto made = Pages::Map(length);
    if (!made.ok()) return made.status();
    pages = *std::move(made);
  }
  if (!options.name.empty()) fabric->named(device->node, options.name) = {pages, device};
  return std::unique_ptr<Memory>(new SimMemory(fabric, device, std::move(pages), length, options, adopted));
}

SimMemory::SimMemory(Fabric* fabric, DeviceState* device, std::shared_ptr<Pages> pages, size_t length,
                     const AllocOptions& options, bool adopted)
    : fabric_(fabric), device_(device), pages_(std::move(pages)), options_(options) {
  bytes_ = pages_->bytes().first(length);
  adopted_ = adopted;
}

SimMemory::~SimMemory() {
  if (options_.name.empty()) return;
  NamedMemory& named = fabric_->named(device_->node, options_.name);
  // What a dead process held stays for its successor, which may have taken it already.
  if (named.holder != device_ || device_->life == Life::kKilled) return;
  named.holder = nullptr;
  if (!options_.keep_on_close) fabric_->ForgetNamed(device_->node, options_.name);
}

}  // namespace krcore::rnic::sim

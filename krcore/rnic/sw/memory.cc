#include "krcore/rnic/sw/memory.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "krcore/rnic/huge_pages.h"
#include "krcore/rnic/sw/shm_file.h"
#include "krcore/rnic/sw/word_copy.h"

namespace krcore::rnic::sw {
namespace {

constexpr size_t kMaxMemoryBytes = size_t{1} << 46;

Status CheckName(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  if (name.size() <= 32 && std::all_of(name.begin(), name.end(), allowed)) return {};
  return {StatusCode::kInvalidArgument, "memory name '" + name + "' is not 1 to 32 of [a-z0-9_-]"};
}

struct Found {
  std::shared_ptr<Mapping> mapping;  // null: nothing to adopt
  std::string suffix;
};

// Looks for what a predecessor of this node left under the name, whichever way it asked to keep it.
Result<Found> FindPredecessors(Fabric& fabric, const std::string& name, size_t length, bool keep) {
  const std::string rest = std::to_string(fabric.node()) + "-" + name;
  const std::string wanted = (keep ? kKeptPrefix : kNamedPrefix) + rest;
  for (const char prefix : {kNamedPrefix, kKeptPrefix}) {
    auto mapping = fabric.backing().Adopt(prefix + rest);
    if (!mapping.ok()) {
      if (mapping.status() == StatusCode::kNotFound) continue;
      return mapping.status();
    }
    if ((*mapping)->length() != RoundUpToPage(length)) {
      fabric.backing().Disown(prefix + rest);
      return Status(StatusCode::kInvalidArgument, "memory '" + name + "' of node " + std::to_string(fabric.node()) +
                                                      " was left with " + std::to_string((*mapping)->length()) +
                                                      " bytes, not " + std::to_string(RoundUpToPage(length)) +
                                                      "; ask for the same length, or clean the fabric to start afresh");
    }
    if (prefix + rest != wanted) {
      if (const Status renamed = fabric.backing().Rename(prefix + rest, wanted); !renamed.ok()) {
        fabric.backing().Disown(prefix + rest);
        return renamed;
      }
    }
    return Found{*std::move(mapping), wanted};
  }
  return Found{nullptr, wanted};
}

// By its owner's node: what is named memory of that name, kept or not.
NodeId OwnerOf(const std::string& suffix, const std::string& name) {
  if (suffix.empty() || (suffix[0] != kNamedPrefix && suffix[0] != kKeptPrefix)) return kNoNode;
  const char* const end = suffix.data() + suffix.size();
  NodeId node = kNoNode;
  const auto [rest, error] = std::from_chars(suffix.data() + 1, end, node);
  return error == std::errc{} && std::string_view(rest, end) == "-" + name ? node : kNoNode;
}

}  // namespace

Result<std::vector<FoundMemory>> FindMemory(Fabric& fabric, const std::string& name, size_t bytes) {
  KRCORE_RETURN_IF_ERROR(CheckName(name));
  std::vector<FoundMemory> all;
  const auto suffixes = fabric.backing().List();
  if (!suffixes.ok()) return suffixes.status();
  for (std::string suffix : *suffixes) {
    FoundMemory found{OwnerOf(suffix, name), {}};
    if (found.node == kNoNode || found.node == fabric.node()) continue;
    auto mapping = fabric.backing().Open(suffix);
    if (mapping.status() == StatusCode::kNotFound) {  // just adopted, and kept otherwise from now on
      suffix[0] = suffix[0] == kNamedPrefix ? kKeptPrefix : kNamedPrefix;
      mapping = fabric.backing().Open(suffix);
    }
    if (mapping.status() == StatusCode::kNotFound) continue;  // just removed
    if (!mapping.ok()) return mapping.status();
    found.begin.resize(std::min(bytes, (*mapping)->length()));
    LoadWords(found.begin.data(), (*mapping)->addr(), found.begin.size());
    all.push_back(std::move(found));
  }
  return all;
}

Result<std::unique_ptr<Memory>> SwMemory::Allocate(Fabric* fabric, Tables* tables, size_t length,
                                                   const AllocOptions& options) {
  if (length == 0) return Status(StatusCode::kInvalidArgument, "memory of 0 bytes");
  if (length > kMaxMemoryBytes) {
    return Status(StatusCode::kOutOfMemory,
                  "memory of " + std::to_string(length) + " bytes is more than this machine has");
  }
  KRCORE_RETURN_IF_ERROR(CheckName(options.name));
  const bool keep = options.keep_on_close && !options.name.empty();
  const uint64_t serial = tables->NextSerial();
  const std::string own = fabric->OwnSuffix(serial);
  Found found;
  if (!options.name.empty()) {
    if (tables->NameInUse(options.name)) {
      return Status(StatusCode::kExists, "this device has memory '" + options.name + "' already");
    }
    auto looked = FindPredecessors(*fabric, options.name, length, keep);
    if (!looked.ok()) return looked.status();
    found = *std::move(looked);
  }
  const bool adopted = found.mapping != nullptr;
  if (!adopted) {
    auto made = fabric->backing().Create(own, length, /*claimed=*/!options.name.empty());
    if (!made.ok()) return made.status();
    found.mapping = *std::move(made);
    if (options.name.empty()) {
      found.suffix = own;
    } else if (Status named = fabric->backing().Rename(own, found.suffix); !named.ok()) {
      // Named only once it is whole: a crash above leaves an unnamed segment, which is reclaimed.
      fabric->backing().Remove(own);
      return named;
    }
  }
  std::unique_ptr<SwMemory> memory(new SwMemory(fabric, tables, std::move(found.mapping), found.suffix, keep));
  auto segment = tables->AddSegment(serial, memory->suffix_, memory->mapping_->addr(), length, options.name);
  memory->adopted_ = adopted;
  if (!segment.ok()) return segment.status();
  memory->segment_ = *segment;
  memory->bytes_ = {memory->mapping_->addr(), length};
  return std::unique_ptr<Memory>(std::move(memory));
}

SwMemory::SwMemory(Fabric* fabric, Tables* tables, std::shared_ptr<Mapping> mapping, std::string suffix, bool keep)
    : fabric_(fabric), tables_(tables), mapping_(std::move(mapping)), suffix_(std::move(suffix)), keep_(keep) {}

SwMemory::~SwMemory() {
  if (segment_.index == kNoSegment) {
    // Never announced, for lack of room: what a predecessor left must not suffer for that.
    adopted_ ? fabric_->backing().Disown(suffix_) : fabric_->backing().Remove(suffix_);
    return;
  }
  tables_->RemoveSegment(segment_, mapping_->addr());
  keep_ ? fabric_->backing().Disown(suffix_) : fabric_->backing().Remove(suffix_);
}

Status SwMemory::CollapseToHugePages(size_t offset, size_t length) {
  return rnic::CollapseToHugePages(bytes_, offset, length);
}

}  // namespace krcore::rnic::sw

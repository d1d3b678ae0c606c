// Memory that peers can reach: a segment of the fabric, announced in the device's segment table.
#ifndef KRCORE_RNIC_SW_MEMORY_H_
#define KRCORE_RNIC_SW_MEMORY_H_

#include <memory>
#include <string>
#include <vector>

#include "krcore/rnic/rnic.h"
#include "krcore/rnic/sw/tables.h"

namespace krcore::rnic::sw {

class SwMemory final : public Memory {
 public:
  void DoNotKeep() override { keep_ = false; }
  static Result<std::unique_ptr<Memory>> Allocate(Fabric* fabric, Tables* tables, size_t length,
                                                  const AllocOptions& options);
  ~SwMemory() override;
  Status CollapseToHugePages(size_t offset, size_t length) override;

 private:
  SwMemory(Fabric* fabric, Tables* tables, std::shared_ptr<Mapping> mapping, std::string suffix, bool keep);

  Fabric* const fabric_;
  Tables* const tables_;
  const std::shared_ptr<Mapping> mapping_;
  const std::string suffix_;
  bool keep_;
  SegmentRef segment_;
};

// As Device::FindMemory.
Result<std::vector<FoundMemory>> FindMemory(Fabric& fabric, const std::string& name, size_t bytes);

// Prefixes of the files of named memory: kept only after a crash, or after a clean close too. Both are followed
// by "<node>-<name>".
inline constexpr char kNamedPrefix = 'm';
inline constexpr char kKeptPrefix = 'k';

}  // namespace krcore::rnic::sw

#endif  // KRCORE_RNIC_SW_MEMORY_H_

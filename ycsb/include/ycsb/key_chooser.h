// KeyChooser: which record the run phase asks for next, by the workload's distribution.
//
// Thread safety: copied from the job's prototype, one per worker. The AcknowledgedCounter is shared.
#ifndef YCSB_KEY_CHOOSER_H_
#define YCSB_KEY_CHOOSER_H_

#include <cstdint>
#include <optional>

#include "ycsb/generators.h"
#include "ycsb/random.h"
#include "ycsb/workload.h"

namespace ycsb {

class KeyChooser {
 public:
  // `inserted` counts the client's own records (OwnRecords), and must outlive the chooser and its copies.
  KeyChooser(const Workload& workload, const AcknowledgedCounter& inserted);

  // A record that exists. `ticket`: the operation's number in the whole run, for the sequential distribution.
  uint64_t Next(Random& random, uint64_t ticket);
  // The record that the distribution asks for most often; the first one if all are alike.
  uint64_t Hottest() const;

 private:
  uint64_t NextOwn(Random& random, uint64_t ticket);

  Distribution distribution_;
  OwnRecords own_;
  uint64_t hot_count_ = 0;
  double hot_operations_ = 0;
  const AcknowledgedCounter* inserted_;
  std::optional<ScrambledZipfian> scrambled_;
  std::optional<SkewedLatest> latest_;
};

}  // namespace ycsb

#endif  // YCSB_KEY_CHOOSER_H_

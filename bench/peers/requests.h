// The requests of one worker. Every peer gets the same, in the same order, with the same keys and values. They are
// drawn before the clock runs (Trace), by YCSB's generators (ycsb/), so that a fast peer is not measured against its
// generator. While the clock runs, values are made and every value read is verified: that is in all throughputs alike.
#ifndef BENCH_PEERS_REQUESTS_H_
#define BENCH_PEERS_REQUESTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/clock.h"
#include "ycsb/workload/generators.h"
#include "ycsb/workload/measurements.h"
#include "ycsb/workload/records.h"

namespace peers {

inline constexpr uint32_t kMaxInFlight = 64;

enum class Verb : uint8_t {
  kGet,
  kUpdate,  // of a record that exists
  kInsert,  // of one that does not
};

// Valid until the lane's next request.
struct Request {
  Verb verb = Verb::kGet;
  uint64_t record = 0;
  std::string_view key;
  std::string_view value;  // to be written
};

// YCSB's core workloads, and the load phase.
enum class Mix : uint8_t { kLoad, kA, kB, kC, kD, kF };
const char* MixName(Mix mix);  // "load", "A", ...

// What a worker asks for, in order.
class Trace {
 public:
  // Of worker `worker` of `workers`, for a mix that is not kLoad: `length` requests of records [0, records). `zipf`:
  // by YCSB's scrambled Zipfian of constant 0.99, else uniform; kD is always by its "latest".
  static Trace OfMix(Mix mix, bool zipf, uint64_t records, size_t key_bytes, size_t length, uint64_t seed,
                     uint32_t worker, uint32_t workers);
  // Inserts of all records that fall to this worker, once each.
  static Trace OfLoad(uint64_t records, size_t key_bytes, uint32_t worker, uint32_t workers);

 private:
  friend class Requests;
  enum class Kind : uint8_t { kGet, kUpdate, kInsert, kReadModifyWrite };
  struct Entry {
    uint64_t kind : 8;
    uint64_t record : 56;  // kD: of a read, how many records younger ones there are; of an insert, nothing
    std::array<char, 16> key;
  };
  static_assert(sizeof(Entry) == 24);

  Trace(Mix mix, uint64_t records, size_t key_bytes, uint32_t worker, uint32_t workers)
      : mix_(mix), records_(records), worker_(worker), workers_(workers), keys_(key_bytes, /*hashed=*/true) {}
  void Add(Kind kind, uint64_t record);

  Mix mix_;
  uint64_t records_;
  uint32_t worker_, workers_;
  ycsb::KeyCodec keys_;
  std::vector<Entry> entries_;
};

struct RunOptions {
  int64_t warm_up_ns = 0;  // requests in this time do not count
  int64_t measure_ns = 0;  // 0: until the trace has ended, once, from the first request on
  bool timed = false;      // each request is timed: with a reading of the clock at its begin and its end
  uint64_t first_new = 0;  // kD: inserted records are numbered from here on,
  uint64_t most_new = 0;   // the slice ends after so many inserts of this worker
  uint64_t start = 0;      // where in the trace to begin
};

class Requests {
 public:
  // `trace` must outlive it. The clock runs from the first Next.
  Requests(const Trace& trace, size_t value_bytes, const RunOptions& options);

  // The next request of a lane, below kMaxInFlight: one whose last request is done. False: there is none, and will be
  // none.
  bool Next(uint32_t lane, Request* request);
  // After the last Done: ends the measurement of a trace that is run once.
  void End();
  // How the lane's request ended. `value`: what a Get read; looked at before this returns.
  void Done(uint32_t lane, bool ok, std::string_view value = {});

  uint64_t measured() const { return measured_; }  // operations; a read-modify-write is one
  int64_t measured_ns() const { return measured_ns_; }
  uint64_t failures() const { return failures_; }  // requests that failed, or read a wrong value
  const std::string& first_failure() const { return first_failure_; }
  uint64_t inserted() const { return inserted_; }                         // kD
  const ycsb::LatencyHistogram& latencies() const { return latencies_; }  // if timed; of requests

 private:
  static constexpr uint32_t kLookEvery = 64;  // operations between two readings of the clock
  struct Lane {
    Request request;
    uint64_t insert = 0;  // kD: number of this worker's insert
    int64_t start_ns = 0;
    bool update_follows = false;  // the second half of a read-modify-write
    bool first_half = false;
    std::array<char, 16> key;
    std::string value;
  };

  void Look();
  void ChooseLatest(const Trace::Entry& entry, Lane& lane);
  void Fail(const Lane& lane, std::string_view value, bool answered);

  const Trace& trace_;
  const RunOptions options_;
  const size_t value_bytes_;
  uint64_t next_;
  uint64_t end_;
  uint32_t until_look_ = 1;
  bool begun_ = false, measuring_ = false, ended_ = false;
  int64_t begin_ns_ = 0;
  uint64_t done_ = 0, done_before_ = 0;
  uint64_t measured_ = 0;
  int64_t measured_ns_ = 0;
  uint64_t writes_ = 0;
  uint64_t inserted_ = 0;
  uint64_t failures_ = 0;
  std::string first_failure_;
  std::optional<ycsb::AcknowledgedCounter> acknowledged_;
  std::array<Lane, kMaxInFlight> lanes_;
  ycsb::LatencyHistogram latencies_;
};

inline bool Requests::Next(uint32_t index, Request* request) {
  Lane& lane = lanes_[index];
  if (--until_look_ == 0) [[unlikely]]
    Look();
  if (lane.update_follows) {
    lane.update_follows = false;
    lane.request.verb = Verb::kUpdate;
  } else {
    if (ended_) [[unlikely]]
      return false;
    const Trace::Entry& entry = trace_.entries_[next_];
    if (++next_ == end_) [[unlikely]] {
      next_ = 0;
      ended_ = options_.measure_ns == 0;
    }
    const auto kind = static_cast<Trace::Kind>(entry.kind);
    lane.update_follows = lane.first_half = kind == Trace::Kind::kReadModifyWrite;
    lane.request.verb = lane.first_half ? Verb::kGet : static_cast<Verb>(kind);
    if (trace_.mix_ == Mix::kD) {
      ChooseLatest(entry, lane);
    } else {
      lane.request.record = entry.record;
      lane.request.key = {entry.key.data(), trace_.keys_.key_bytes()};
    }
  }
  if (lane.request.verb != Verb::kGet) {
    const ycsb::Version version = trace_.mix_ == Mix::kLoad
                                      ? ycsb::Version{}
                                      : ycsb::Version{static_cast<uint16_t>(trace_.worker_ + 1), ++writes_};
    ycsb::FillValue(lane.request.record, version, lane.value.data(), value_bytes_);
    lane.request.value = lane.value;
  }
  *request = lane.request;
  if (options_.timed) lane.start_ns = krcore::RealClock()->NowNs();
  return true;
}

inline void Requests::Done(uint32_t index, bool ok, std::string_view value) {
  Lane& lane = lanes_[index];
  if (options_.timed) {
    const int64_t now_ns = krcore::RealClock()->NowNs();
    if (measuring_) latencies_.Record(now_ns - lane.start_ns);
  }
  const bool right =
      ok && (lane.request.verb != Verb::kGet || ycsb::VerifyValue(lane.request.record, value, value_bytes_));
  if (!right) [[unlikely]]
    Fail(lane, value, ok);
  if (lane.request.verb == Verb::kInsert && acknowledged_) acknowledged_->Acknowledge(lane.insert);
  if (lane.first_half) {
    lane.first_half = false;
    return;
  }
  ++done_;
}

}  // namespace peers

#endif  // BENCH_PEERS_REQUESTS_H_

// Arrivals: when each request of an open loop is due, planned before it starts.
//
// Thread safety: values; what is shared is const.
#ifndef YCSB_ARRIVALS_H_
#define YCSB_ARRIVALS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/status.h"
#include "ycsb/rate_profile.h"

namespace ycsb {

// kEven: request i is due when the integral of the rate goes beyond i, i = 0, 1, ...
// kPoisson: a Poisson process whose intensity is the rate: independent users, so that gaps are exponential.
enum class ArrivalProcess : uint8_t { kEven, kPoisson };
std::string_view ArrivalProcessName(ArrivalProcess process);  // "even", "poisson"

struct Arrivals {
  static constexpr uint64_t kMaxRequests = 200'000'000;  // 8 bytes each
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  RateProfile profile;
  ArrivalProcess process;
  std::vector<int64_t> due_ns;  // since the start; ascending, perhaps equal
  int64_t end_ns;               // of the profile; of the last request, if `most` left some out

  // The first `most` requests of `profile`. Same arguments, same times. kInvalidArgument: they are none, or more than
  // kMaxRequests. Takes up to 80 ns a request.
  static Result<Arrivals> Plan(const RateProfile& profile, ArrivalProcess process, uint64_t seed, uint64_t most = kAll);
};

// What the flags of a program say about its open loop.
struct ArrivalFlags {
  std::string profile = {};        // --profile; empty: none
  std::string arrivals = "even";   // --arrivals
  double target = 0;               // --target, or the property; 0: none
  uint64_t most = Arrivals::kAll;  // operations of the phase, if it has a count
  double seconds = 0;              // after which the phase is stopped; 0: not
  uint64_t seed = 1;
};
// Null: there is nothing to plan, the loop is closed, or has even arrivals at `target`. A profile that `most` cuts
// short is described in *warnings. kInvalidArgument, kNotFound: messages for the user, which name the flags.
Result<std::shared_ptr<const Arrivals>> PlanArrivals(const ArrivalFlags& flags, std::vector<std::string>* warnings);

// "burst:100,900,1,2,4, poisson arrivals: 2200 requests in 4 s, at most 900 a second", for a log.
std::string DescribePlan(const Arrivals& arrivals);

}  // namespace ycsb

#endif  // YCSB_ARRIVALS_H_

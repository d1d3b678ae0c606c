// When the requests of an open loop are due: RateProfile is how many a second a load asks for, Arrivals the plan of
// each of them.
#ifndef YCSB_WORKLOAD_ARRIVALS_H_
#define YCSB_WORKLOAD_ARRIVALS_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/status.h"

namespace ycsb {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

// The grammar, for --help and errors.
inline constexpr char kRateProfileHelp[] =
    "Requests a second over time: constant:RATE,SECONDS | ramp:FROM,TO,SECONDS | "
    "burst:BASE,PEAK,START,LENGTH,SECONDS | step:RATE@0,RATE@SECOND,...,end@SECOND | file:PATH, with lines "
    "`SECOND RATE`, the last of which is the end";

// RateProfile: how many requests a second a load asks for, as it changes over time: piecewise linear, with an end.
//
// The integral of the rate counts the requests asked for so far; its inverse says when each is due (Arrivals). A
// request is one operation of the workload.
//
// As text (`--profile=`), rates in requests a second, times in seconds since the start, decimals allowed:
//
//   constant:RATE,SECONDS                    one rate
//   ramp:FROM,TO,SECONDS                     linear from one rate to another
//   burst:BASE,PEAK,START,LENGTH,SECONDS     BASE, but PEAK for LENGTH seconds from START on
//   step:RATE@0,RATE@SECOND,...,end@SECOND   each rate holds from its second until the next one
//   file:PATH                                the same steps out of a trace file
//
// A trace file has lines `SECOND RATE`, separated by blanks; seconds begin at 0 and ascend. Empty lines, and what
// stands behind a #, are ignored. A rate holds until the next line's second. The last line's second is the end: its
// rate must be a rate, and is not used.
//
// Thread safety: a value; its methods are const.
class RateProfile {
 public:
  static constexpr double kMaxRate = 1e9;     // requests a second
  static constexpr double kMaxSeconds = 1e9;  // so that nanoseconds fit into an int64_t

  // kInvalidArgument: not a profile; begins with `text`, and the line if there is one, and says what was expected.
  // kNotFound: no such file. A profile that asks for no request at all is not one.
  static Result<RateProfile> Parse(std::string_view text);
  // One rate, as --target asks for; its text is "target=RATE". 0 < rate <= kMaxRate, 0 < seconds <= kMaxSeconds.
  static RateProfile OfTarget(double rate, double seconds);

  // As it was parsed.
  const std::string& text() const { return text_; }
  double end_s() const { return end_s_; }
  // At that moment; at a step, the rate behind it. 0 before the start, and from the end on.
  double RateAt(double seconds) const;
  // The highest rate.
  double PeakRate() const;
  // The integral of the rate from the start to `seconds`, and to the end. Where it is a whole number but for
  // rounding, at a step or the end, it is that number.
  double RequestsBy(double seconds) const;
  double Requests() const { return requests_; }
  // The inverse: the moment from which on the integral exceeds `requests`, 0 <= requests < Requests(). So nothing is
  // due while the rate is 0: what would be due at the beginning of such a time is due at its end.
  double SecondsAt(double requests) const;

 private:
  // From start_s to the next piece's, or to the end, the rate goes from `from` to `to` linearly.
  struct Piece {
    double start_s;
    double from;
    double to;
    double requests_before;  // the integral up to start_s
  };
  RateProfile(std::string text, std::vector<Piece> pieces, double end_s);
  static Result<RateProfile> Make(std::string_view text, std::vector<Piece> pieces, double end_s);
  static Result<RateProfile> ParseSteps(std::string_view text, std::string_view steps);
  static Result<RateProfile> ParseTrace(std::string_view text, std::string_view path);
  double EndOf(size_t piece) const { return piece + 1 < pieces_.size() ? pieces_[piece + 1].start_s : end_s_; }
  size_t PieceAt(double seconds) const;

  std::string text_;
  std::vector<Piece> pieces_;  // ascending, the first starts at 0; none is empty
  double end_s_;
  double requests_ = 0;
};

// kEven: request i is due when the integral of the rate goes beyond i, i = 0, 1, ...
// kPoisson: a Poisson process whose intensity is the rate: independent users, so that gaps are exponential.
enum class ArrivalProcess : uint8_t { kEven, kPoisson };
std::string_view ArrivalProcessName(ArrivalProcess process);  // "even", "poisson"

// Arrivals: when each request of an open loop is due, planned before it starts.
//
// Thread safety: values; what is shared is const.
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

#endif  // YCSB_WORKLOAD_ARRIVALS_H_

// When the requests of an open loop are due. RateProfile says how many a second a load asks for; Arrivals is the plan
// of each of them.
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
    "The rate over time, in requests per second: constant:RATE,SECONDS | ramp:FROM,TO,SECONDS | "
    "burst:BASE,PEAK,START,LENGTH,SECONDS | step:RATE@0,RATE@SECOND,...,end@SECOND | file:PATH. The file has lines "
    "`SECOND RATE`; the last line is the end";

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
// A trace file has lines `SECOND RATE`, separated by blanks; seconds begin at 0 and ascend. Empty lines, and anything
// after a #, are ignored. A rate holds until the next line's second. The last line's second is the end: its rate must
// be a valid rate, but is not used.
//
// Thread safety: a value; its methods are const.
class RateProfile {
 public:
  static constexpr double kMaxRate = 1e9;     // requests a second
  static constexpr double kMaxSeconds = 1e9;  // so that nanoseconds fit into an int64_t

  // kInvalidArgument: not a profile; the message begins with `text`, and the line if there is one, and says what was
  // expected. kNotFound: no such file. A profile that asks for no request at all is not valid.
  static Result<RateProfile> Parse(std::string_view text);
  // Returns a profile of one rate, as --target asks for; its text is "target=RATE". 0 < rate <= kMaxRate, 0 < seconds
  // <= kMaxSeconds.
  static RateProfile OfTarget(double rate, double seconds);

  // Returns the text that was parsed.
  const std::string& text() const { return text_; }
  double end_s() const { return end_s_; }
  // Returns the rate at that moment; at a step, the rate after it. 0 before the start, and from the end on.
  double RateAt(double seconds) const;
  // Returns the highest rate.
  double PeakRate() const;
  // Returns the integral of the rate from the start to `seconds`, and to the end. If it differs from a whole number
  // only by rounding, at a step or the end, it is that number.
  double RequestsBy(double seconds) const;
  double Requests() const { return requests_; }
  // Returns the inverse: the moment from which on the integral exceeds `requests`, 0 <= requests < Requests(). So
  // nothing is due while the rate is 0: what would be due when such a time begins is due when it ends.
  double SecondsAt(double requests) const;

 private:
  // From start_s to the start of the next piece, or to the end, the rate goes from `from` to `to` linearly.
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
  std::vector<Piece> pieces_;  // ascending, the first starts at 0; no piece is empty
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
  std::vector<int64_t> due_ns;  // since the start; ascending, possibly equal
  int64_t end_ns;               // of the profile; of the last request if `most` cut the plan short

  // Plans the first `most` requests of `profile`. The same arguments give the same times. kInvalidArgument: there are
  // none, or more than kMaxRequests. Takes up to 80 ns a request.
  static Result<Arrivals> Plan(const RateProfile& profile, ArrivalProcess process, uint64_t seed, uint64_t most = kAll);
};

// What the flags of a program say about its open loop.
struct ArrivalFlags {
  std::string profile = {};        // --profile; empty: none
  std::string arrivals = "even";   // --arrivals
  double target = 0;               // --target, or the property; 0: none
  uint64_t most = Arrivals::kAll;  // operations of the phase, if it has a count
  double seconds = 0;              // after which the phase is stopped; 0: never
  uint64_t seed = 1;
};
// Returns null if there is nothing to plan: the loop is closed, or has even arrivals at `target`. If `most` cuts a
// profile short, *warnings describes it. kInvalidArgument, kNotFound: messages for the user, which name the flags.
Result<std::shared_ptr<const Arrivals>> PlanArrivals(const ArrivalFlags& flags, std::vector<std::string>* warnings);

// Returns "burst:100,900,1,2,4, poisson arrivals: 2200 requests in 4 s, at most 900 a second", for a log.
std::string DescribePlan(const Arrivals& arrivals);

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_ARRIVALS_H_

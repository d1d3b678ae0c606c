// RateProfile: how many requests a second a load asks for, as it changes over time: piecewise linear, with an end.
//
// The integral of the rate counts the requests asked for so far; its inverse says when each is due (arrivals.h). A
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
#ifndef YCSB_RATE_PROFILE_H_
#define YCSB_RATE_PROFILE_H_

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

}  // namespace ycsb

#endif  // YCSB_RATE_PROFILE_H_

#include "ycsb/arrivals.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "ycsb/random.h"

namespace ycsb {
namespace {

constexpr uint64_t kRandomStream = std::numeric_limits<uint64_t>::max();  // of the seed; workers have 0, 1, ...

// The positions of the requests on the integral of the rate: whole numbers, or a Poisson process of rate 1.
class Positions {
 public:
  Positions(ArrivalProcess process, uint64_t seed) : process_(process), random_(seed, kRandomStream) {
    if (process_ == ArrivalProcess::kPoisson) Advance();
  }
  double at() const { return at_; }
  void Advance() { at_ += process_ == ArrivalProcess::kEven ? 1 : -std::log1p(-random_.NextDouble()); }

 private:
  const ArrivalProcess process_;
  Random random_;
  double at_ = 0;
};

std::string Number(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.12g", number);
  return text;
}

Status WithFlag(const char* flag, const Status& status) {
  return {status.code(), std::string("--") + flag + "=" + std::string(status.message())};
}

}  // namespace

std::string_view ArrivalProcessName(ArrivalProcess process) {
  return process == ArrivalProcess::kEven ? "even" : "poisson";
}

Result<Arrivals> Arrivals::Plan(const RateProfile& profile, ArrivalProcess process, uint64_t seed, uint64_t most) {
  const double expected = std::min(std::ceil(profile.Requests()), static_cast<double>(most));
  if (expected > static_cast<double>(kMaxRequests)) {
    return Status(StatusCode::kInvalidArgument, profile.text() + ": asks for " + Number(expected) +
                                                    " requests; expected at most " + std::to_string(kMaxRequests) +
                                                    ", because each one's time is kept in memory");
  }
  Arrivals arrivals{profile, process, {}, std::llround(profile.end_s() * 1e9)};
  // A Poisson process may have a few more.
  arrivals.due_ns.reserve(static_cast<size_t>(expected + 6 * std::sqrt(expected)));
  int64_t last_ns = 0;
  for (Positions positions(process, seed); positions.at() < profile.Requests(); positions.Advance()) {
    if (arrivals.due_ns.size() == most) {
      arrivals.end_ns = last_ns;
      break;
    }
    // Rounding must not make it less than the one before, or later than the end.
    last_ns = std::clamp<int64_t>(std::llround(profile.SecondsAt(positions.at()) * 1e9), last_ns, arrivals.end_ns);
    arrivals.due_ns.push_back(last_ns);
  }
  if (arrivals.due_ns.empty()) {
    return Status(StatusCode::kInvalidArgument, profile.text() + ": no request arrives before the end with this seed");
  }
  return arrivals;
}

Result<std::shared_ptr<const Arrivals>> PlanArrivals(const ArrivalFlags& flags, std::vector<std::string>* warnings) {
  const bool poisson = flags.arrivals == "poisson";
  if (!poisson && flags.arrivals != "even") {
    return Status(StatusCode::kInvalidArgument, "--arrivals=" + flags.arrivals + ": expected even or poisson");
  }
  const ArrivalProcess process = poisson ? ArrivalProcess::kPoisson : ArrivalProcess::kEven;
  if (!flags.profile.empty()) {
    if (flags.target > 0) {
      return Status(StatusCode::kInvalidArgument, "--profile=" + flags.profile +
                                                      ": there is --target or the property target, " +
                                                      Number(flags.target) + ", as well; expected one of them");
    }
    const Result<RateProfile> profile = RateProfile::Parse(flags.profile);
    if (!profile.ok()) return WithFlag("profile", profile.status());
    Result<Arrivals> arrivals = Arrivals::Plan(*profile, process, flags.seed, flags.most);
    if (!arrivals.ok()) return WithFlag("profile", arrivals.status());
    if (arrivals->due_ns.size() == flags.most && profile->Requests() > static_cast<double>(flags.most)) {
      warnings->push_back("operationcount=" + std::to_string(flags.most) + " ends --profile=" + flags.profile +
                          " early, after " + Number(static_cast<double>(arrivals->end_ns) / 1e9) +
                          " s; -p operationcount=0 follows it to its end");
    }
    return std::shared_ptr<const Arrivals>(std::make_shared<Arrivals>(*std::move(arrivals)));
  }
  if (!poisson) return std::shared_ptr<const Arrivals>();
  if (flags.target <= 0) {
    return Status(StatusCode::kInvalidArgument, "--arrivals=poisson: at which rate? Give --profile or --target");
  }
  if (flags.most == Arrivals::kAll && flags.seconds <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--arrivals=poisson: requests are planned ahead, so with --target the run needs an end: give "
                  "operationcount or maxexecutiontime");
  }
  const double seconds = flags.seconds > 0 ? std::min(flags.seconds, RateProfile::kMaxSeconds)
                                           : RateProfile::kMaxSeconds;  // it ends by its count
  Result<Arrivals> arrivals =
      Arrivals::Plan(RateProfile::OfTarget(flags.target, seconds), process, flags.seed, flags.most);
  if (!arrivals.ok())
    return Status(arrivals.status().code(), "--arrivals=poisson: " + std::string(arrivals.status().message()));
  return std::shared_ptr<const Arrivals>(std::make_shared<Arrivals>(*std::move(arrivals)));
}

std::string DescribePlan(const Arrivals& arrivals) {
  return arrivals.profile.text() + ", " + std::string(ArrivalProcessName(arrivals.process)) +
         " arrivals: " + std::to_string(arrivals.due_ns.size()) + " requests in " +
         Number(static_cast<double>(arrivals.end_ns) / 1e9) + " s, at most " + Number(arrivals.profile.PeakRate()) +
         " a second";
}

}  // namespace ycsb

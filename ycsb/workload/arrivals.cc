#include "ycsb/workload/arrivals.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

#include "ycsb/workload/generators.h"

namespace ycsb {
namespace {

constexpr std::string_view kBlanks = " \t\r\f\v";
constexpr double kRounding = 1e-12;  // relative, for sums and products of decimals
constexpr char kRateRange[] = "requests per second, 0 to 1000000000";
constexpr char kSecondsRange[] = "seconds, 0 to 1000000000";
constexpr char kPositiveSecondsRange[] = "seconds, more than 0 and at most 1000000000";

Status Bad(std::string_view text, const std::string& why) {
  return {StatusCode::kInvalidArgument, std::string(text) + ": " + why};
}

Status BadWord(std::string_view text, std::string_view word, const std::string& expected) {
  return Bad(text, "'" + std::string(word) + "': expected " + expected);
}

// `word` is what the user wrote where the grammar has `name`.
Status BadNumber(std::string_view text, std::string_view word, const char* name, const char* range) {
  return Bad(text, "'" + std::string(word) + "' as " + name + ": expected " + range);
}

// False: `word` is not a number, or not in [min, max].
bool ReadNumber(std::string_view word, double min, double max, double* out) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
  return error == std::errc() && end == word.data() + word.size() && *out >= min && *out <= max;  // refuses NaN too
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t end = text.find(separator);
    words.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> SplitAtBlanks(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return words;
    words.push_back(line.substr(0, line.find_first_of(kBlanks)));
    line.remove_prefix(words.back().size());
  }
}

// The arguments of a form, each with its name in the grammar.
struct Argument {
  const char* name;
  bool rate;      // otherwise seconds
  bool positive;  // 0 is refused
  double value = 0;
};

Status ReadArguments(std::string_view text, std::string_view arguments, std::vector<Argument>* out) {
  const std::vector<std::string_view> words = Split(arguments, ',');
  if (words.size() != out->size()) {
    std::string form(text.substr(0, text.find(':')));
    for (const Argument& argument : *out) form += (&argument == out->data() ? ":" : ",") + std::string(argument.name);
    return Bad(text, "expected " + form);
  }
  for (size_t i = 0; i < words.size(); ++i) {
    Argument& argument = (*out)[i];
    const double max = argument.rate ? RateProfile::kMaxRate : RateProfile::kMaxSeconds;
    if (ReadNumber(words[i], 0, max, &argument.value) && !(argument.positive && argument.value == 0)) continue;
    const char* range = argument.rate ? kRateRange : argument.positive ? kPositiveSecondsRange : kSecondsRange;
    return BadNumber(text, words[i], argument.name, range);
  }
  return {};
}

}  // namespace

RateProfile::RateProfile(std::string text, std::vector<Piece> pieces, double end_s)
    : text_(std::move(text)), pieces_(std::move(pieces)), end_s_(end_s) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    piece.requests_before = requests_;
    requests_ += (piece.from + piece.to) / 2 * (EndOf(i) - piece.start_s);
    // A value that is whole in decimals stays whole; otherwise rounding would move a request past a time with rate 0.
    const double whole = std::round(requests_);
    if (whole > 0 && std::abs(requests_ - whole) <= kRounding * whole) requests_ = whole;
  }
}

Result<RateProfile> RateProfile::Make(std::string_view text, std::vector<Piece> pieces, double end_s) {
  RateProfile profile{std::string(text), std::move(pieces), end_s};
  if (!(profile.Requests() > 0)) return Bad(text, "contains no request; expected a rate above 0");
  return profile;
}

RateProfile RateProfile::OfTarget(double rate, double seconds) {
  char text[40];
  std::snprintf(text, sizeof(text), "target=%.12g", rate);
  return {text, {{0, rate, rate, 0}}, seconds};
}

Result<RateProfile> RateProfile::ParseSteps(std::string_view text, std::string_view steps) {
  constexpr char kForm[] = "RATE@SECOND, or end@SECOND as the last";
  std::vector<Piece> pieces;
  double last_s = -1;
  const std::vector<std::string_view> words = Split(steps, ',');
  for (const std::string_view& word : words) {
    const size_t at = word.find('@');
    if (at == std::string_view::npos) return BadWord(text, word, kForm);
    const std::string_view rate_word = word.substr(0, at);
    const bool end = rate_word == "end";
    double rate = 0;
    double second = 0;
    if (!end && !ReadNumber(rate_word, 0, kMaxRate, &rate)) {
      return BadNumber(text, word, "RATE", kRateRange);
    }
    if (!ReadNumber(word.substr(at + 1), 0, kMaxSeconds, &second)) {
      return BadNumber(text, word, "SECOND", kSecondsRange);
    }
    const bool last = &word == &words.back();
    if (end != last) return BadWord(text, word, last ? "end@SECOND as the last" : "end@SECOND only as the last");
    if (pieces.empty() && (end || second != 0)) return BadWord(text, word, "RATE@0 as the first");
    if (second <= last_s) return BadWord(text, word, "ascending seconds");
    last_s = second;
    if (!end) pieces.push_back({second, rate, rate, 0});
  }
  return Make(text, std::move(pieces), last_s);
}

Result<RateProfile> RateProfile::ParseTrace(std::string_view text, std::string_view path) {
  std::ifstream file{std::string(path)};
  if (!file) {
    return Status(StatusCode::kNotFound,
                  std::string(text) + ": cannot read the file (" + std::generic_category().message(errno) + ")");
  }
  std::vector<Piece> pieces;
  std::string line;
  for (uint64_t number = 1; std::getline(file, line); ++number) {
    const std::string where = std::string(text) + ":" + std::to_string(number);
    const std::string_view content = std::string_view(line).substr(0, line.find('#'));
    const std::vector<std::string_view> words = SplitAtBlanks(content);
    if (words.empty()) continue;
    double second = 0;
    double rate = 0;
    if (words.size() != 2) return BadWord(where, line, "a line `SECOND RATE`");
    if (!ReadNumber(words[0], 0, kMaxSeconds, &second)) {
      return BadNumber(where, words[0], "SECOND", kSecondsRange);
    }
    if (!ReadNumber(words[1], 0, kMaxRate, &rate)) {
      return BadNumber(where, words[1], "RATE", kRateRange);
    }
    if (pieces.empty() && second != 0) return BadWord(where, words[0], "0 as the first SECOND");
    if (!pieces.empty() && second <= pieces.back().start_s) {
      return BadWord(where, words[0],
                     "ascending seconds; the line before has " + std::to_string(pieces.back().start_s));
    }
    pieces.push_back({second, rate, rate, 0});
  }
  if (file.bad()) return Bad(text, "not a readable file");
  if (pieces.size() < 2) return Bad(text, "expected at least two lines `SECOND RATE`; the last one is the end");
  const double end_s = pieces.back().start_s;
  pieces.pop_back();
  return Make(text, std::move(pieces), end_s);
}

Result<RateProfile> RateProfile::Parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view form = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (form == "constant") {
    std::vector<Argument> in = {{"RATE", true, false}, {"SECONDS", false, true}};
    KRCORE_RETURN_IF_ERROR(ReadArguments(text, rest, &in));
    return Make(text, {{0, in[0].value, in[0].value, 0}}, in[1].value);
  }
  if (form == "ramp") {
    std::vector<Argument> in = {{"FROM", true, false}, {"TO", true, false}, {"SECONDS", false, true}};
    KRCORE_RETURN_IF_ERROR(ReadArguments(text, rest, &in));
    return Make(text, {{0, in[0].value, in[1].value, 0}}, in[2].value);
  }
  if (form == "burst") {
    std::vector<Argument> in = {{"BASE", true, false},
                                {"PEAK", true, false},
                                {"START", false, false},
                                {"LENGTH", false, true},
                                {"SECONDS", false, true}};
    KRCORE_RETURN_IF_ERROR(ReadArguments(text, rest, &in));
    const double base = in[0].value, peak = in[1].value, start_s = in[2].value, end_s = in[4].value;
    double burst_end_s = start_s + in[3].value;
    if (burst_end_s > end_s * (1 + kRounding))
      return Bad(text, "START + LENGTH is more than SECONDS; expected at most SECONDS");
    std::vector<Piece> pieces;
    if (start_s > 0) pieces.push_back({0, base, base, 0});
    pieces.push_back({start_s, peak, peak, 0});
    if (burst_end_s < end_s * (1 - kRounding)) pieces.push_back({burst_end_s, base, base, 0});
    return Make(text, std::move(pieces), end_s);
  }
  if (form == "step" && colon != std::string_view::npos) return ParseSteps(text, rest);
  if (form == "file" && !rest.empty()) return ParseTrace(text, rest);
  return Bad(text, std::string("expected a profile. ") + kRateProfileHelp);
}

size_t RateProfile::PieceAt(double seconds) const {
  const auto next = std::upper_bound(pieces_.begin() + 1, pieces_.end(), seconds,
                                     [](double at, const Piece& piece) { return at < piece.start_s; });
  return static_cast<size_t>(next - pieces_.begin()) - 1;
}

double RateProfile::RateAt(double seconds) const {
  if (!(seconds >= 0 && seconds < end_s_)) return 0;
  const size_t at = PieceAt(seconds);
  const Piece& piece = pieces_[at];
  return piece.from + (piece.to - piece.from) * (seconds - piece.start_s) / (EndOf(at) - piece.start_s);
}

double RateProfile::PeakRate() const {
  double peak = 0;
  for (const Piece& piece : pieces_) peak = std::max({peak, piece.from, piece.to});
  return peak;
}

double RateProfile::RequestsBy(double seconds) const {
  if (seconds <= 0) return 0;
  if (seconds >= end_s_) return requests_;
  const Piece& piece = pieces_[PieceAt(seconds)];
  return piece.requests_before + (piece.from + RateAt(seconds)) / 2 * (seconds - piece.start_s);
}

double RateProfile::SecondsAt(double requests) const {
  // Find the last piece that begins with this many requests: the others ask for none.
  const auto next = std::upper_bound(pieces_.begin() + 1, pieces_.end(), requests,
                                     [](double at, const Piece& piece) { return at < piece.requests_before; });
  const auto at = static_cast<size_t>(next - pieces_.begin()) - 1;
  const Piece& piece = pieces_[at];
  const double length_s = EndOf(at) - piece.start_s;
  const double more = requests - piece.requests_before;
  if (more <= 0) return piece.start_s;
  // Solves x + slope / 2 x^2 = more for x, without a difference of nearly equal numbers.
  const double slope = (piece.to - piece.from) / length_s;
  const double root = std::sqrt(std::max(0.0, piece.from * piece.from + 2 * slope * more));
  return piece.start_s + std::min(length_s, 2 * more / (piece.from + root));
}

namespace {

constexpr uint64_t kRandomStream = std::numeric_limits<uint64_t>::max();  // the seed's stream; workers have 0, 1, ...

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
    return Status(StatusCode::kInvalidArgument, profile.text() + ": contains " + Number(expected) +
                                                    " requests; expected at most " + std::to_string(kMaxRequests) +
                                                    ", because memory holds the time of each one");
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
    // Rounding must not make it earlier than the one before, or later than the end.
    last_ns = std::clamp<int64_t>(std::llround(profile.SecondsAt(positions.at()) * 1e9), last_ns, arrivals.end_ns);
    arrivals.due_ns.push_back(last_ns);
  }
  if (arrivals.due_ns.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  profile.text() + ": with this --seed no request arrives before the end");
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
                                                      ": --target or the property target is also set, to " +
                                                      Number(flags.target) + "; give only one of them");
    }
    const Result<RateProfile> profile = RateProfile::Parse(flags.profile);
    if (!profile.ok()) return WithFlag("profile", profile.status());
    Result<Arrivals> arrivals = Arrivals::Plan(*profile, process, flags.seed, flags.most);
    if (!arrivals.ok()) return WithFlag("profile", arrivals.status());
    if (arrivals->due_ns.size() == flags.most && profile->Requests() > static_cast<double>(flags.most)) {
      warnings->push_back("operationcount=" + std::to_string(flags.most) + " ends --profile=" + flags.profile +
                          " early, after " + Number(static_cast<double>(arrivals->end_ns) / 1e9) +
                          " s; -p operationcount=0 runs it to its end");
    }
    return std::shared_ptr<const Arrivals>(std::make_shared<Arrivals>(*std::move(arrivals)));
  }
  if (!poisson) return std::shared_ptr<const Arrivals>();
  if (flags.target <= 0) {
    return Status(StatusCode::kInvalidArgument, "--arrivals=poisson needs a rate: give --profile or --target");
  }
  if (flags.most == Arrivals::kAll && flags.seconds <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  "--arrivals=poisson plans all requests in advance, so with --target the run needs an end: give "
                  "operationcount or maxexecutiontime");
  }
  const double seconds = flags.seconds > 0 ? std::min(flags.seconds, RateProfile::kMaxSeconds)
                                           : RateProfile::kMaxSeconds;  // the phase ends by its count
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

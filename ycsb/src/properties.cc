#include "ycsb/properties.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "cli/nearest.h"

namespace ycsb {
namespace {

constexpr std::string_view kBlank = " \t\f\r";

// What YCSB's core (CoreWorkload, Client, Measurements) defines, and what this runner adds.
constexpr auto kKnownKeys = std::to_array<std::string_view>({
    "core_workload_insertion_retry_interval",
    "core_workload_insertion_retry_limit",
    "dataintegrity",
    "db",
    "debug.pause",
    "dotransactions",
    "exponential.frac",
    "exponential.percentile",
    "exporter",
    "exportfile",
    "fieldcount",
    "fieldlength",
    "fieldlengthdistribution",
    "fieldlengthhistogram",
    "fieldnameprefix",
    "hdrhistogram.fileoutput",
    "hdrhistogram.output.path",
    "hdrhistogram.percentiles",
    "histogram.buckets",
    "hotspotdatafraction",
    "hotspotopnfraction",
    "insertcount",
    "insertorder",
    "insertproportion",
    "insertstart",
    "jvm.track",
    "keylength",
    "maxexecutiontime",
    "maxscanlength",
    "measurement.interval",
    "measurement.raw.output_file",
    "measurement.trackjvm",
    "measurementtype",
    "minfieldlength",
    "minscanlength",
    "operationcount",
    "readallfields",
    "readallfieldsbyname",
    "readmodifywriteproportion",
    "readproportion",
    "recordcount",
    "reportlatencyforeacherror",
    "requestdistribution",
    "scanlengthdistribution",
    "scanproportion",
    "status.interval",
    "table",
    "target",
    "threadcount",
    "timeseries.granularity",
    "updateproportion",
    "workload",
    "writeallfields",
    "zeropadding",
    "zipfianconstant",
});
static_assert(std::ranges::is_sorted(kKnownKeys));

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Splits at the first '=' or ':', or else at the first blank, as java.util.Properties does (without its escapes).
void SplitLine(std::string_view line, std::string* key, std::string* value) {
  const size_t end = std::min(line.find_first_of(" \t\f=:"), line.size());
  *key = line.substr(0, end);
  std::string_view rest = Trim(line.substr(end));
  if (!rest.empty() && (rest.front() == '=' || rest.front() == ':')) rest = Trim(rest.substr(1));
  *value = rest;
}

}  // namespace

Status Properties::AddFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return {StatusCode::kNotFound, "-P " + path + ": cannot read the file (" + std::generic_category().message(errno) +
                                       "); the standard workloads are ycsb/workloads/workload{a,b,c,d,f}"};
  }
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.fail()) return {StatusCode::kInvalidArgument, "-P " + path + ": not a readable file"};
  return AddText(text.str(), path);
}

Status Properties::AddText(std::string_view text, const std::string& origin) {
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t first_line = ++line_number;
    std::string joined;
    bool more = true;
    while (more) {
      const size_t end = text.find('\n');
      std::string_view line = Trim(text.substr(0, end));
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
      const bool comment = joined.empty() && !line.empty() && (line.front() == '#' || line.front() == '!');
      if (comment) break;
      more = !line.empty() && line.back() == '\\' && !text.empty();
      if (!line.empty() && line.back() == '\\') line.remove_suffix(1);
      joined += line;
      if (more) ++line_number;
    }
    if (joined.empty()) continue;
    const std::string where = origin + ":" + std::to_string(first_line);
    std::string key;
    std::string value;
    SplitLine(joined, &key, &value);
    if (key.empty()) return {StatusCode::kInvalidArgument, where + ": no key before '='; expected key=value"};
    Set(key, std::move(value), where);
  }
  return {};
}

Status Properties::AddOverride(std::string_view assignment) {
  const size_t equals = assignment.find('=');
  const std::string_view key = Trim(assignment.substr(0, equals));
  if (equals == std::string_view::npos || key.empty()) {
    return {StatusCode::kInvalidArgument,
            "-p " + std::string(assignment) + ": expected key=value, e.g. -p recordcount=1000000"};
  }
  Set(std::string(key), std::string(Trim(assignment.substr(equals + 1))), "-p");
  return {};
}

void Properties::Set(const std::string& key, std::string value, std::string origin) {
  entries_[key] = {std::move(value), std::move(origin)};
}

Status Properties::Bad(const std::string& key, const Entry& entry, const std::string& expected) const {
  return {StatusCode::kInvalidArgument, entry.origin + ": " + key + "=" + entry.value + ": expected " + expected};
}

Status Properties::Read(const std::string& key, std::string* out) const {
  const auto found = entries_.find(key);
  if (found != entries_.end()) *out = found->second.value;
  return {};
}

Status Properties::Read(const std::string& key, uint64_t min, uint64_t max, uint64_t* out) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  const std::string& text = found->second.value;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) {
    return Bad(key, found->second, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  *out = number;
  return {};
}

Status Properties::Read(const std::string& key, double min, double max, double* out) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  const std::string& text = found->second.value;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // The negation also refuses NaN.
  if (error != std::errc() || end != text.data() + text.size() || !(number >= min && number <= max)) {
    std::ostringstream expected;
    expected << "a number from " << min << " to " << max;
    return Bad(key, found->second, expected.str());
  }
  *out = number;
  return {};
}

Status Properties::Read(const std::string& key, bool* out) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  if (found->second.value != "true" && found->second.value != "false") {
    return Bad(key, found->second, "true or false");
  }
  *out = found->second.value == "true";
  return {};
}

std::string Properties::Origin(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::string() : found->second.origin;
}

std::vector<std::string> Properties::UnknownKeys() const {
  std::vector<std::string> unknown;
  for (const auto& [key, entry] : entries_) {
    if (!std::ranges::binary_search(kKnownKeys, std::string_view(key))) {
      std::string line = entry.origin + ": " + key + ": not a property of YCSB's core or of this runner, ignored";
      if (const std::string nearest(cli::Nearest(key, kKnownKeys)); !nearest.empty())
        line += "; did you mean " + nearest + "?";
      unknown.push_back(std::move(line));
    }
  }
  return unknown;
}

std::map<std::string, std::string> Properties::ToMap() const {
  std::map<std::string, std::string> map;
  for (const auto& [key, entry] : entries_) map[key] = entry.value;
  return map;
}

}  // namespace ycsb

#include "ycsb/workload/workload.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "cli/flags.h"
#include "kvs/client.h"
#include "ycsb/workload/records.h"

namespace ycsb {
namespace {

constexpr std::string_view kBlank = " \t\f\r";

using enum Support;

// The properties that YCSB's core defines (CoreWorkload, Client, Measurements and what they use), and those that this
// runner adds. `same`: values that ask for what happens anyway.
constexpr auto kKnown = std::to_array<KnownProperty>({
    {"core_workload_insertion_retry_interval", kWarned, "", "an insert that failed is not tried again"},
    {"core_workload_insertion_retry_limit", kWarned, "0", "an insert that failed is not tried again"},
    {"dataintegrity", kWarned, "true", "every value read is verified all the same"},
    {"db", kWarned, "", "the store is that of --fabric"},
    {"dotransactions", kWarned, "", "the command is `ycsb load` or `ycsb run`"},
    {"exponential.frac", kWarned, "", "there is no requestdistribution=exponential"},
    {"exponential.percentile", kWarned, "", "there is no requestdistribution=exponential"},
    {"exporter", kWarned,
     "site.ycsb.measurements.exporter.TextMeasurementsExporter "
     "com.yahoo.ycsb.measurements.exporter.TextMeasurementsExporter",
     "the summary is text; --json=FILE also writes JSON"},
    {"exportfile", kDone, "", "file for the summary, instead of stdout"},
    {"fieldcount", kDone, "", "a record is one value, as long as its fields together"},
    {"fieldlength", kDone, "", "the greatest length, if lengths are drawn"},
    {"fieldlengthdistribution", kDone, "",
     "constant, uniform, zipfian (short ones are frequent); histogram is refused"},
    {"fieldlengthhistogram", kWarned, "", "there is no fieldlengthdistribution=histogram"},
    {"fieldnameprefix", kWarned, "field", "fields have no names here"},
    {"hdrhistogram.fileoutput", kWarned, "false", "no such file is written; --json=FILE has all percentiles"},
    {"hdrhistogram.output.path", kWarned, "", "no such file is written; --json=FILE has all percentiles"},
    {"hdrhistogram.percentiles", kWarned, "50,95,99", "the summary has 50, 90, 95, 99, 99.9 and 99.99"},
    {"histogram.buckets", kWarned, "", "latencies are kept in log-linear buckets, within 0.4%"},
    {"hotspotdatafraction", kDone, "", ""},
    {"hotspotopnfraction", kDone, "", ""},
    {"insertcount", kDone, "", "number of records in this client's range, which it loads or reads"},
    {"insertorder", kDone, "", "hashed, ordered"},
    {"insertproportion", kDone, "", ""},
    {"insertstart", kDone, "", "the first record of this client's range"},
    {"keylength", kDone, "", "bytes of a key (16); not a property of YCSB"},
    {"label", kWarned, "", "status lines have none"},
    {"latencytrackederrors", kWarned, "", "failed operations are reported apart, all statuses together"},
    {"maxexecutiontime", kDone, "", "seconds"},
    {"maxscanlength", kWarned, "", "there are no scans"},
    {"measurement.histogram.verbose", kWarned, "false", "buckets are not printed"},
    {"measurement.interval", kWarned, "",
     "latency counts from the start of an operation in a closed loop (op), and from when it was due in an open loop "
     "(intended)"},
    {"measurement.raw.no_summary", kWarned, "false", "the summary is always printed"},
    {"measurement.raw.output_file", kWarned, "", "single latencies are not written"},
    {"measurement.trackjvm", kWarned, "false", "there is no JVM"},
    {"measurementtype", kWarned, "hdrhistogram", "latencies are percentiles of a histogram with log-linear buckets"},
    {"minfieldlength", kDone, "", "the smallest length, if lengths are drawn (1)"},
    {"minscanlength", kWarned, "", "there are no scans"},
    {"operationcount", kDone, "", "0: no end"},
    {"readallfields", kWarned, "true", "a record is one value here; reads return it whole"},
    {"readallfieldsbyname", kWarned, "false", "a record is one value here; reads return it whole"},
    {"readmodifywriteproportion", kDone, "", "one atomic Modify; its read and update are not measured apart"},
    {"readproportion", kDone, "", ""},
    {"recordcount", kDone, "", "records of all clients together"},
    {"reportlatencyforeacherror", kWarned, "false", "failed operations are reported apart, all statuses together"},
    {"requestdistribution", kDone, "", "uniform, zipfian, latest, hotspot, sequential; exponential is refused"},
    {"scanlengthdistribution", kWarned, "", "there are no scans"},
    {"scanproportion", kRefused, "0",
     "scans need an ordered index, and this store is a hash table; use workload a, b, c, d or f, or set -p "
     "scanproportion=0 and another proportion"},
    {"spin.sleep", kWarned, "", "a worker sleeps until shortly before an operation is due, then spins"},
    {"status", kWarned, "true", "status lines go to stderr; status.interval=0 turns them off"},
    {"status.interval", kDone, "", "seconds (1); 0: no status lines"},
    {"table", kWarned, "usertable", "there is one table; all clients of the fabric share its keys"},
    {"target", kDone, "", ""},
    {"threadcount", kDone, "", "workers, unless --workers is given"},
    {"timeseries.granularity", kWarned, "", "there are no time series; status lines have rate and p99"},
    {"timeseries.percentiles", kWarned, "", "there are no time series; status lines have rate and p99"},
    {"updateproportion", kDone, "", ""},
    {"workload", kRefused, "site.ycsb.workloads.CoreWorkload com.yahoo.ycsb.workloads.CoreWorkload",
     "only CoreWorkload is implemented; leave the property out to use it"},
    {"writeallfields", kWarned, "true",
     "a record is one value here; updates replace it whole, as with writeallfields=true"},
    {"zeropadding", kDone, "",
     "with insertorder=ordered: the least number of digits after \"user\" in a key, as in YCSB"},
    {"zipfianconstant", kDone, "", "for requestdistribution zipfian and latest (0.99); not a property of YCSB"},
});
static_assert(std::ranges::is_sorted(kKnown, {}, &KnownProperty::name));

const KnownProperty* Find(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kKnown, name, {}, &KnownProperty::name);
  return found != kKnown.end() && found->name == name ? found : nullptr;
}

std::optional<double> Number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

// Returns whether the value is one of the words, or a number equal to one.
bool IsOneOf(std::string_view value, std::string_view words) {
  for (size_t begin = 0; begin < words.size();) {
    const std::string_view word = words.substr(begin, words.substr(begin).find(' '));
    if (value == word || (Number(word) && Number(value) == Number(word))) return true;
    begin += word.size() + 1;
  }
  return false;
}

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

std::span<const KnownProperty> KnownProperties() { return kKnown; }

Status Properties::CheckRefused() const {
  for (const auto& [key, entry] : entries_) {
    const KnownProperty* const known = Find(key);
    if (!known || known->support != kRefused || IsOneOf(entry.value, known->same)) continue;
    return {StatusCode::kUnsupported, entry.origin + ": " + key + "=" + entry.value + ": " + std::string(known->text)};
  }
  return {};
}

std::vector<std::string> Properties::Ineffective() const {
  std::vector<std::string> lines;
  for (const auto& [key, entry] : entries_) {
    if (const KnownProperty* const known = Find(key)) {
      if (known->support != kWarned || IsOneOf(entry.value, known->same)) continue;
      lines.push_back(entry.origin + ": " + key + "=" + entry.value + " has no effect: " + std::string(known->text));
      continue;
    }
    std::vector<std::string_view> names;
    for (const KnownProperty& known : kKnown) names.push_back(known.name);
    std::string line = entry.origin + ": " + key + ": unknown property, ignored";
    if (const std::string nearest(cli::Nearest(key, names)); !nearest.empty())
      line += "; did you mean " + nearest + "?";
    lines.push_back(std::move(line));
  }
  return lines;
}

std::map<std::string, std::string> Properties::ToMap() const {
  std::map<std::string, std::string> map;
  for (const auto& [key, entry] : entries_) map[key] = entry.value;
  return map;
}

namespace {

constexpr uint64_t kMaxRecords = uint64_t{1} << 48;  // far beyond memory; keeps sums of counts from overflowing

constexpr std::array<std::pair<std::string_view, Distribution>, 5> kDistributions = {{
    {"uniform", Distribution::kUniform},
    {"zipfian", Distribution::kZipfian},
    {"latest", Distribution::kLatest},
    {"hotspot", Distribution::kHotspot},
    {"sequential", Distribution::kSequential},
}};

Status Refuse(const Properties& properties, const std::string& key, StatusCode code, const std::string& why) {
  std::string value;
  (void)properties.Read(key, &value);  // strings always parse
  const std::string origin = properties.Origin(key);
  return {code, origin.empty() ? key + ": " + why : origin + ": " + key + "=" + value + ": " + why};
}

Status ReadProportions(const Properties& properties, Workload* workload) {
  KRCORE_RETURN_IF_ERROR(properties.Read("readproportion", 0.0, 1.0, &workload->read_proportion));
  KRCORE_RETURN_IF_ERROR(properties.Read("updateproportion", 0.0, 1.0, &workload->update_proportion));
  KRCORE_RETURN_IF_ERROR(properties.Read("insertproportion", 0.0, 1.0, &workload->insert_proportion));
  KRCORE_RETURN_IF_ERROR(
      properties.Read("readmodifywriteproportion", 0.0, 1.0, &workload->read_modify_write_proportion));
  const double sum = workload->read_proportion + workload->update_proportion + workload->insert_proportion +
                     workload->read_modify_write_proportion;
  if (sum <= 0) {
    return {StatusCode::kInvalidArgument,
            "readproportion, updateproportion, insertproportion and readmodifywriteproportion are all 0: set one"};
  }
  return {};
}

Status ReadDistribution(const Properties& properties, Workload* workload) {
  std::string name(DistributionName(workload->distribution));
  KRCORE_RETURN_IF_ERROR(properties.Read("requestdistribution", &name));
  bool found = false;
  for (const auto& [known, distribution] : kDistributions) {
    if (name != known) continue;
    workload->distribution = distribution;
    found = true;
  }
  if (!found) {
    const bool of_ycsb = name == "exponential";
    return Refuse(properties, "requestdistribution", of_ycsb ? StatusCode::kUnsupported : StatusCode::kInvalidArgument,
                  "expected uniform, zipfian, latest, hotspot or sequential");
  }
  // Above 1 the closed form of Gray et al. does not hold.
  KRCORE_RETURN_IF_ERROR(properties.Read("zipfianconstant", 0.01, 0.9999, &workload->zipfian_constant));
  KRCORE_RETURN_IF_ERROR(properties.Read("hotspotdatafraction", 0.0, 1.0, &workload->hotspot_data_fraction));
  return properties.Read("hotspotopnfraction", 0.0, 1.0, &workload->hotspot_operation_fraction);
}

Status ReadCounts(const Properties& properties, Workload* workload) {
  constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
  if (!properties.Has("recordcount")) {
    return {StatusCode::kInvalidArgument, "recordcount is not set: give a workload file with -P or -p recordcount=N"};
  }
  KRCORE_RETURN_IF_ERROR(properties.Read("recordcount", 1, kMaxRecords, &workload->record_count));
  KRCORE_RETURN_IF_ERROR(properties.Read("operationcount", 0, kAny >> 8, &workload->operation_count));
  KRCORE_RETURN_IF_ERROR(properties.Read("insertstart", 0, kMaxRecords, &workload->insert_start));
  if (workload->insert_start >= workload->record_count) {
    return Refuse(properties, "insertstart", StatusCode::kInvalidArgument,
                  "must be below recordcount=" + std::to_string(workload->record_count));
  }
  workload->insert_count = workload->record_count - workload->insert_start;
  KRCORE_RETURN_IF_ERROR(properties.Read("insertcount", 1, kMaxRecords, &workload->insert_count));
  if (workload->loaded_end() > workload->record_count) {
    return Refuse(properties, "insertcount", StatusCode::kInvalidArgument,
                  "insertstart + insertcount must be at most recordcount=" + std::to_string(workload->record_count));
  }
  return {};
}

Status ReadZeroPadding(const Properties& properties, Workload* workload) {
  KRCORE_RETURN_IF_ERROR(properties.Read("zeropadding", 1, KeyCodec::kMaxPadding, &workload->zero_padding));
  if (workload->zero_padding == 0) return {};
  if (workload->hashed_order) {
    return Refuse(properties, "zeropadding", StatusCode::kInvalidArgument,
                  "has no effect on hashed keys; set insertorder=ordered, or use keylength instead");
  }
  if (properties.Has("keylength")) {
    return Refuse(properties, "zeropadding", StatusCode::kInvalidArgument,
                  "sets the length of keys, as keylength does; set only one of them");
  }
  workload->key_length = std::string("user").size() +
                         std::max<uint64_t>(workload->zero_padding, std::to_string(workload->record_count - 1).size());
  return {};
}

Status ReadFieldLengths(const Properties& properties, Workload* workload) {
  std::string lengths = "constant";
  KRCORE_RETURN_IF_ERROR(properties.Read("fieldlengthdistribution", &lengths));
  if (lengths == "uniform") {
    workload->field_lengths = FieldLengths::kUniform;
  } else if (lengths == "zipfian") {
    workload->field_lengths = FieldLengths::kZipfian;
  } else if (lengths != "constant") {
    const bool of_ycsb = lengths == "histogram";
    return Refuse(properties, "fieldlengthdistribution",
                  of_ycsb ? StatusCode::kUnsupported : StatusCode::kInvalidArgument,
                  "expected constant, uniform or zipfian");
  }
  KRCORE_RETURN_IF_ERROR(properties.Read("minfieldlength", 0, kvs::kMaxValueBytes, &workload->min_field_length));
  if (workload->field_lengths != FieldLengths::kConstant && workload->min_field_length > workload->field_length) {
    return Refuse(properties, "minfieldlength", StatusCode::kInvalidArgument,
                  "must be at most fieldlength=" + std::to_string(workload->field_length));
  }
  return {};
}

Status ReadShape(const Properties& properties, Workload* workload) {
  KRCORE_RETURN_IF_ERROR(properties.Read("fieldcount", 1, kvs::kMaxValueBytes, &workload->field_count));
  KRCORE_RETURN_IF_ERROR(properties.Read("fieldlength", 0, kvs::kMaxValueBytes, &workload->field_length));
  KRCORE_RETURN_IF_ERROR(
      properties.Read("keylength", KeyCodec::kMinKeyBytes, KeyCodec::kMaxKeyBytes, &workload->key_length));
  if (workload->value_bytes() > kvs::kMaxValueBytes) {
    return Refuse(properties, properties.Has("fieldcount") ? "fieldcount" : "fieldlength", StatusCode::kInvalidArgument,
                  "fieldcount x fieldlength is " + std::to_string(workload->value_bytes()) +
                      " bytes; a value has at most " + std::to_string(kvs::kMaxValueBytes));
  }
  std::string order = "hashed";
  KRCORE_RETURN_IF_ERROR(properties.Read("insertorder", &order));
  if (order != "hashed" && order != "ordered") {
    return Refuse(properties, "insertorder", StatusCode::kInvalidArgument, "expected hashed or ordered");
  }
  workload->hashed_order = order == "hashed";
  KRCORE_RETURN_IF_ERROR(ReadZeroPadding(properties, workload));
  const KeyCodec keys(workload->key_length, workload->hashed_order, workload->zero_padding);
  // The keys need room for as many inserts again as the run phase could make.
  if (workload->record_count > keys.capacity() / 2) {
    return Refuse(properties, "keylength", StatusCode::kInvalidArgument,
                  std::to_string(workload->key_length) + "-byte keys cannot distinguish recordcount=" +
                      std::to_string(workload->record_count) + " records; set a larger keylength");
  }
  return ReadFieldLengths(properties, workload);
}

Status ReadRunning(const Properties& properties, Workload* workload) {
  KRCORE_RETURN_IF_ERROR(properties.Read("maxexecutiontime", 0, 1'000'000'000, &workload->max_execution_time_s));
  KRCORE_RETURN_IF_ERROR(properties.Read("target", 0.0, 1e9, &workload->target_ops));
  KRCORE_RETURN_IF_ERROR(properties.Read("exportfile", &workload->export_file));
  KRCORE_RETURN_IF_ERROR(properties.Read("status.interval", 0, 1'000'000, &workload->status_interval_s));
  return properties.Read("threadcount", 1, 4096, &workload->thread_count);
}

void Warn(const Properties& properties, const Workload& workload, std::vector<std::string>* warnings) {
  for (std::string& line : properties.Ineffective()) {
    // In a record of one field, all fields are that field.
    const bool of_fields = line.find("allfields") != std::string::npos;
    if (!of_fields || workload.field_count > 1) warnings->push_back(std::move(line));
  }
  const bool updates = workload.update_proportion > 0 || workload.read_modify_write_proportion > 0;
  if (updates && workload.field_count > 1 && !properties.Has("writeallfields")) {
    warnings->push_back("updates replace all " + std::to_string(workload.field_count) +
                        " fields of a record, because a record is one value here; YCSB replaces one field. "
                        "To do the same in YCSB and to silence this warning: -p writeallfields=true");
  }
}

}  // namespace

std::string_view DistributionName(Distribution distribution) {
  for (const auto& [name, known] : kDistributions) {
    if (known == distribution) return name;
  }
  return "?";
}

Result<Workload> Workload::FromProperties(const Properties& properties, std::vector<std::string>* warnings) {
  KRCORE_RETURN_IF_ERROR(properties.CheckRefused());
  Workload workload;
  for (const auto& step : {ReadCounts, ReadShape, ReadProportions, ReadDistribution, ReadRunning}) {
    if (Status status = step(properties, &workload); !status.ok()) return status;
  }
  if (warnings) Warn(properties, workload, warnings);
  return workload;
}

}  // namespace ycsb

// What the user says of a workload (Properties, in YCSB's syntax), and what that means (Workload).
#ifndef YCSB_WORKLOAD_WORKLOAD_H_
#define YCSB_WORKLOAD_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/status.h"

namespace ycsb {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

// How this runner treats a property of YCSB's core, or of its own.
enum class Support : uint8_t {
  kDone,
  kWarned,   // it has no effect: a warning says what happens instead
  kRefused,  // without it this would be a different experiment
};
struct KnownProperty {
  std::string_view name;
  Support support;
  std::string_view same;  // kWarned, kRefused: values, with blanks between, that ask for what happens anyway
  std::string_view text;  // for users: what happens
};
// Returns them by name. docs/operating.md has them as a table.
std::span<const KnownProperty> KnownProperties();

// Properties: YCSB's key=value settings, from .properties files (-P) and single overrides (-p key=value). Each value
// remembers where it came from, so that an error can say so.
//
// Thread safety: a value; distinct objects may be used by distinct threads.
class Properties {
 public:
  // Reads a file of `key=value`, `key: value` or `key value` lines. A line that begins with # or ! is a comment; one
  // that ends in a backslash goes on in the next. Later settings replace earlier ones. kNotFound: no such file;
  // kInvalidArgument: a line without a key, named by file:line.
  Status AddFile(const std::string& path);
  // Does the same for text; `origin` names it in errors.
  Status AddText(std::string_view text, const std::string& origin);
  // Adds one `key=value` of the command line. kInvalidArgument: no '=' or no key.
  Status AddOverride(std::string_view assignment);
  void Set(const std::string& key, std::string value, std::string origin);

  bool Has(const std::string& key) const { return entries_.contains(key); }
  // Each leaves *out alone when the key is not set. kInvalidArgument: the value does not parse, or lies outside
  // [min, max]; the message names key, value, origin.
  Status Read(const std::string& key, std::string* out) const;
  Status Read(const std::string& key, uint64_t min, uint64_t max, uint64_t* out) const;
  Status Read(const std::string& key, double min, double max, double* out) const;
  Status Read(const std::string& key, bool* out) const;

  // Returns where the key was set: "ycsb/workloads/workloada:12" or "-p". Empty: not set.
  std::string Origin(const std::string& key) const;
  // kUnsupported: a property that is set would make this a different experiment.
  Status CheckRefused() const;
  // Returns a line for the user of each key that has no effect: what happens instead; or, if neither YCSB's core nor
  // this runner knows it, what it may be a misspelling of.
  std::vector<std::string> Ineffective() const;
  std::map<std::string, std::string> ToMap() const;

 private:
  struct Entry {
    std::string value;
    std::string origin;
  };
  Status Bad(const std::string& key, const Entry& entry, const std::string& expected) const;
  std::map<std::string, Entry> entries_;
};

enum class Distribution : uint8_t { kUniform, kZipfian, kLatest, kHotspot, kSequential };
std::string_view DistributionName(Distribution distribution);
enum class FieldLengths : uint8_t { kConstant, kUniform, kZipfian };

// A client counts its own records: those of its range, and then those that it inserts. Clients with disjoint ranges
// insert distinct records: beyond all that were loaded, the range repeats, each time a distance of `all` further on.
struct OwnRecords {
  uint64_t start, count, all;
  // Returns the record's number.
  uint64_t At(uint64_t own) const { return own < count ? start + own : own / count * all + start + own % count; }
};

// Workload: what YCSB's CoreWorkload reads from its properties, checked. Defaults are YCSB's own.
//
// Differences to YCSB's CoreWorkload, which works on tables with named fields: a record is one value of
// fieldcount x fieldlength bytes, reads return it whole and writes replace it whole (as with writeallfields=true).
//
// Thread safety: a value.
struct Workload {
  uint64_t record_count = 0;
  uint64_t operation_count = 0;  // 0: until max_execution_time_s or a signal
  uint64_t insert_start = 0;     // number of the first record of this client's range,
  uint64_t insert_count = 0;     // and how many it has: those that it loads, and reads in the run phase

  uint64_t field_count = 10;
  uint64_t field_length = 100;    // bytes; the most, if lengths are drawn,
  uint64_t min_field_length = 1;  // and the least
  FieldLengths field_lengths = FieldLengths::kConstant;
  uint64_t key_length = 16;   // bytes, of the longest key that is loaded; not a YCSB property
  uint64_t zero_padding = 0;  // ordered keys have at least this many digits; 0: as many as key_length has room for
  bool hashed_order = true;

  double read_proportion = 0.95;
  double update_proportion = 0.05;
  double insert_proportion = 0;
  double read_modify_write_proportion = 0;

  Distribution distribution = Distribution::kUniform;
  double zipfian_constant = 0.99;
  double hotspot_data_fraction = 0.2;
  double hotspot_operation_fraction = 0.8;

  uint64_t max_execution_time_s = 0;  // 0: no limit
  double target_ops = 0;              // operations a second, all workers together; 0: closed loop, as fast as it goes
  uint64_t status_interval_s = 1;
  uint64_t thread_count = 0;  // 0: not set
  std::string export_file;    // empty: the summary goes to stdout

  // The most and the least.
  size_t value_bytes() const { return field_count * field_length; }
  size_t min_value_bytes() const {
    return field_lengths == FieldLengths::kConstant ? value_bytes() : field_count * min_field_length;
  }
  // Returns one past the last record of the load phase.
  uint64_t loaded_end() const { return insert_start + insert_count; }
  OwnRecords own_records() const { return {insert_start, insert_count, record_count}; }

  // kInvalidArgument: a value is malformed or contradicts another. kUnsupported: scans, or another feature of YCSB that
  // this runner lacks. Settings that have no effect, and unknown keys, are described in *warnings.
  static Result<Workload> FromProperties(const Properties& properties, std::vector<std::string>* warnings);
};

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_WORKLOAD_H_

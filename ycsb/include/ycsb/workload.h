// Workload: what YCSB's CoreWorkload reads out of its properties, checked. Defaults are YCSB's own.
//
// Differences to YCSB's CoreWorkload, which works on tables with named fields: a record is one value of
// fieldcount x fieldlength bytes, reads return it whole and writes replace it whole (as with writeallfields=true).
//
// Thread safety: a value.
#ifndef YCSB_WORKLOAD_H_
#define YCSB_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/status.h"
#include "ycsb/properties.h"

namespace ycsb {

enum class Distribution : uint8_t { kUniform, kZipfian, kLatest, kHotspot, kSequential };
std::string_view DistributionName(Distribution distribution);
enum class FieldLengths : uint8_t { kConstant, kUniform, kZipfian };

// A client counts its own records: those of its range, and then those that it inserts. Clients whose ranges are
// disjoint insert other records each: the range repeats beyond all that were loaded, a distance of `all` further on.
struct OwnRecords {
  uint64_t start, count, all;
  // The record's number.
  uint64_t At(uint64_t own) const { return own < count ? start + own : own / count * all + start + own % count; }
};

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
  uint64_t zero_padding = 0;  // ordered keys have so many digits at least; 0: as many as key_length has room for
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

  // At most and at least.
  size_t value_bytes() const { return field_count * field_length; }
  size_t min_value_bytes() const {
    return field_lengths == FieldLengths::kConstant ? value_bytes() : field_count * min_field_length;
  }
  // One past the last record of the load phase.
  uint64_t loaded_end() const { return insert_start + insert_count; }
  OwnRecords own_records() const { return {insert_start, insert_count, record_count}; }

  // kInvalidArgument: a value is malformed or contradicts another. kUnsupported: scans, or a feature of YCSB's that
  // this runner lacks. Settings that have no effect, and unknown keys, are described in *warnings.
  static Result<Workload> FromProperties(const Properties& properties, std::vector<std::string>* warnings);
};

}  // namespace ycsb

#endif  // YCSB_WORKLOAD_H_

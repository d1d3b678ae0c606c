#include "ycsb/workload.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "kvs/client.h"
#include "ycsb/keys.h"

namespace ycsb {
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
                  "hashed keys have keylength bytes; set insertorder=ordered, or keylength and no zeropadding");
  }
  if (properties.Has("keylength")) {
    return Refuse(properties, "zeropadding", StatusCode::kInvalidArgument,
                  "it says how long keys are, as keylength does; set one of them");
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
  // Room for as many inserts again as the run phase could make.
  if (workload->record_count > keys.capacity() / 2) {
    return Refuse(properties, "keylength", StatusCode::kInvalidArgument,
                  std::to_string(workload->key_length) + "-byte keys cannot tell recordcount=" +
                      std::to_string(workload->record_count) + " records apart: set a larger keylength");
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
    // A record of one field is that field.
    const bool of_fields = line.find("allfields") != std::string::npos;
    if (!of_fields || workload.field_count > 1) warnings->push_back(std::move(line));
  }
  const bool updates = workload.update_proportion > 0 || workload.read_modify_write_proportion > 0;
  if (updates && workload.field_count > 1 && !properties.Has("writeallfields")) {
    warnings->push_back("updates replace all " + std::to_string(workload.field_count) +
                        " fields of a record, where YCSB replaces one: a record is one value here; -p "
                        "writeallfields=true makes YCSB do "
                        "the same, and says that it is meant");
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

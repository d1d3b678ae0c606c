#include "ycsb/workload/counts.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace ycsb {
namespace {

using nlohmann::ordered_json;

// All of kvs::ClientStats, in its order.
constexpr StoreCounter kStoreCounters[] = {
    {"operations", "Operations on the store", &kvs::ClientStats::operations},
    {"round_trips", "Batches of verbs waited for, upkeep included", &kvs::ClientStats::round_trips},
    {"operation_round_trips", "Batches of verbs waited for, of operations alone",
     &kvs::ClientStats::operation_round_trips},
    {"reads", "READ verbs", &kvs::ClientStats::reads},
    {"writes", "WRITE verbs", &kvs::ClientStats::writes},
    {"atomics", "Atomic verbs", &kvs::ClientStats::atomics},
    {"cas_failures", "CASes of slots that lost a race", &kvs::ClientStats::cas_failures},
    {"writes_done", "Writes that took effect; combined writes count once", &kvs::ClientStats::writes_done},
    {"write_attempts", "CASes of slots tried by writes", &kvs::ClientStats::write_attempts},
    {"cache_misses", "Keys that the address cache did not know", &kvs::ClientStats::cache_misses},
    {"cache_speculations", "Blocks read at an address from the address cache", &kvs::ClientStats::cache_speculations},
    {"cache_hits", "Addresses from the address cache that were right", &kvs::ClientStats::cache_hits},
    {"cache_switches", "Times that the address cache was turned off or on", &kvs::ClientStats::cache_switches},
    {"combined_operations", "Operations combined with another one of the same client",
     &kvs::ClientStats::combined_operations},
    {"restarts", "Operations that were restarted", &kvs::ClientStats::restarts},
    {"splits", "Splits of a subtable completed", &kvs::ClientStats::splits},
    {"split_takeovers", "Splits taken over from a client that had stopped", &kvs::ClientStats::split_takeovers},
    {"slots_migrated", "Slots that this client froze or freed as it moved keys to a new subtable",
     &kvs::ClientStats::slots_migrated},
    {"merges", "Merges of two subtables completed", &kvs::ClientStats::merges},
    {"merge_takeovers", "Merges taken over from a client that had stopped", &kvs::ClientStats::merge_takeovers},
    {"table_replacements", "Merges that ended in copied tables", &kvs::ClientStats::table_replacements},
    {"stale_directory_hits", "Times that the cached directory was out of date",
     &kvs::ClientStats::stale_directory_hits},
    {"directory_reads", "Reads of the directory", &kvs::ClientStats::directory_reads},
    {"checksum_retries", "Blocks read again because of a wrong checksum", &kvs::ClientStats::checksum_retries},
    {"blocks_retired", "Blocks given up", &kvs::ClientStats::blocks_retired},
    {"blocks_reused", "Blocks used again", &kvs::ClientStats::blocks_reused},
    {"chunks_taken", "Chunks of memory taken from memory nodes", &kvs::ClientStats::chunks_taken},
    {"expired", "Values removed or replaced because they had expired", &kvs::ClientStats::expired},
    {"chunks_freed", "Chunks of memory given back", &kvs::ClientStats::chunks_freed},
    {"compactions", "Runs of the mover", &kvs::ClientStats::compactions},
    {"blocks_moved", "Blocks moved by the mover", &kvs::ClientStats::blocks_moved},
    {"bytes_copied", "Bytes copied to memory nodes that join a mirrored pool", &kvs::ClientStats::bytes_copied},
    {"heartbeats", "Renewals of a client's lease", &kvs::ClientStats::heartbeats},
    {"expulsions", "Other clients expelled because they had not renewed their lease", &kvs::ClientStats::expulsions},
    {"dead_clients_found", "Dead clients whose entries were freed", &kvs::ClientStats::dead_clients_found},
    {"outcomes_looked_up", "Verbs that ended with an error and whose outcome was looked up",
     &kvs::ClientStats::outcomes_looked_up},
    {"fenced", "Times that a client was expelled by others", &kvs::ClientStats::fenced},
    {"fenced_restarts", "Operations restarted because their client was expelled", &kvs::ClientStats::fenced_restarts},
    {"rc_connects", "Times that a client switched to an RC queue for a memory node", &kvs::ClientStats::rc_connects},
    {"rc_reclaims", "RC queues given up", &kvs::ClientStats::rc_reclaims},
};
static_assert(std::size(kStoreCounters) * sizeof(uint64_t) == sizeof(kvs::ClientStats), "one is missing");

// Returns the ratio, rounded to three digits after the point; 0 of 0 is 0.
double Ratio(uint64_t count, uint64_t of) {
  return of == 0 ? 0 : std::round(1'000 * static_cast<double>(count) / static_cast<double>(of)) / 1'000;
}

}  // namespace

std::span<const StoreCounter> StoreCounters() { return kStoreCounters; }

ordered_json ClientStatsJson(const kvs::ClientStats& stats) {
  ordered_json json;
  for (const StoreCounter& counter : kStoreCounters) json[counter.name] = stats.*counter.count;
  json["round_trips_per_operation"] = Ratio(stats.operation_round_trips, stats.operations);
  json["attempts_per_write"] = Ratio(stats.write_attempts, stats.writes_done);
  return json;
}

ordered_json SoftwareDcJson(const krcore::SoftwareDcStats& stats) {
  return {{"sent", stats.sent},
          {"sent_again", stats.sent_again},
          {"timeouts", stats.timeouts},
          {"sessions", stats.sessions},
          {"sessions_gone", stats.sessions_gone},
          {"served", stats.served},
          {"served_again", stats.served_again},
          {"early", stats.early},
          {"expired", stats.expired},
          {"busy", stats.busy},
          {"atomic_repairs", stats.atomic_repairs},
          {"agent_cpu_us", stats.agent_cpu_ns / 1000}};
}

ordered_json PartUs(int64_t from_ns, int64_t to_ns) {
  if (from_ns == 0 || to_ns == 0) return nullptr;
  return static_cast<double>(to_ns - from_ns) / 1000;
}

}  // namespace ycsb

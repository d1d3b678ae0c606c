// The tables of the study.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/spike/model/study.h"
#include "bench/spike/model/table.h"

namespace spike_model {
namespace {

using nlohmann::ordered_json;

// Worker-hours paid in an hour with one such spike.
double HourOf(const SpikeConfig& config, const SpikeResult& result) {
  const double steady_s = 3600 - static_cast<double>(config.spike_ns + config.after_ns) / 1e9;
  return (result.workers_before * steady_s + result.worker_seconds_spike) / 3600;
}

std::string BootstrapText(const SpikeResult& result, int64_t ns) {
  return result.all_serving_ns < 0 ? "none" : Ns(static_cast<double>(ns));
}

ordered_json ResultJson(const SpikeConfig& config, const SpikeResult& result) {
  return {{"workers_before", result.workers_before},
          {"workers_started", result.workers_started},
          {"workers_plateau", result.workers_plateau},
          {"workers_peak", result.workers_peak},
          {"to_full_ns", result.to_full_ns},
          {"all_serving_ns", result.all_serving_ns},
          {"bootstrap_p50_ns", result.bootstrap_p50_ns},
          {"bootstrap_p99_ns", result.bootstrap_p99_ns},
          {"bootstrap_max_ns", result.bootstrap_max_ns},
          {"spike_wait_p99_ns", result.wait_p99_ns},
          {"spike_wait_max_ns", result.wait_max_ns},
          {"late_share", result.late_share},
          {"steady_wait_p99_ns", result.steady_wait_p99_ns},
          {"service_ns", result.service_ns},
          {"steady_per_worker_per_s", result.steady_per_worker_per_s},
          {"connections_made", result.connections_made},
          {"connections_plateau", result.connections_plateau},
          {"connection_bytes", result.connection_bytes},
          {"worker_seconds_from_spike", result.worker_seconds_spike},
          {"worker_hours_an_hour", HourOf(config, result)},
          {"requests_arrived", result.arrived},
          {"requests_begun", result.begun},
          {"requests_left", result.left}};
}

ordered_json PrintConstants() {
  std::printf("## Constants\n\n");
  std::vector<std::vector<std::string>> rows = {{"constant", "value", "source"}};
  ordered_json json;
  for (const ConstantInfo& info : ConstantTable()) {
    const double value = Constants().*info.member;
    rows.push_back({info.name, Format("%.10g", value), info.source});
    json[info.name] = {{"value", value}, {"source", info.source}};
  }
  Table(rows);
  return json;
}

ordered_json PrintBackTest(const StudyOptions& options) {
  std::printf(
      "## Back-test against the published RACE experiment\n\n"
      "Published (KRCORE; 10 client machines of 24 threads, one server): bootstrap 83%% shorter than verbs'; after "
      "the\n"
      "ramp verbs 5 to 8 Mops/s, krcore without promotion 4 to 5. Modelled, nothing fitted:\n\n");
  const Cluster cluster = ClusterAt(1);
  const Constants constants;
  ordered_json json;
  std::vector<std::vector<std::string>> rows = {
      {"240 workers at once, modelled", "verbs", "krcore", "shorter by", "published", "error"}};
  for (const Spawn spawn : kSpawns) {
    const auto verbs = static_cast<double>(ColdStartNs(Plane::kVerbs, spawn, cluster, constants, options.seed));
    const auto krcore = static_cast<double>(ColdStartNs(Plane::kKrcore, spawn, cluster, constants, options.seed));
    const double shorter = 100 * (1 - krcore / verbs);
    rows.push_back({std::string(SpawnName(spawn)), Ns(verbs), Ns(krcore), Format("%.1f%%", shorter), "83%",
                    Format("%+.1f points", shorter - 83)});
    json["cold_start"][std::string(SpawnName(spawn))] = {
        {"verbs_ns", verbs}, {"krcore_ns", krcore}, {"shorter_percent", shorter}};
  }
  Table(rows);
  const double verbs_mops = 1e3 / ServiceNs(Plane::kVerbs, cluster, constants, 0);
  const double krcore_mops = 1e3 / ServiceNs(Plane::kKrcore, cluster, constants, 0);
  const double limit = NicLimitPerS(cluster, constants) / 1e6;
  const double verbs_all = std::min(limit, verbs_mops * cluster.workers());
  const double krcore_all = std::min(limit, krcore_mops * cluster.workers());
  const double ratio = krcore_mops / verbs_mops;
  rows = {{"steady state", "modelled", "published", "error"}};
  rows.push_back({"verbs, 240 workers, Mops/s", Format("%.1f", verbs_all), "5 to 8",
                  Format("%.1f to %.1f times too high", verbs_all / 8, verbs_all / 5)});
  rows.push_back({"krcore, 240 workers, Mops/s", Format("%.1f", krcore_all), "4 to 5",
                  Format("%.1f to %.1f times too high", krcore_all / 5, krcore_all / 4)});
  rows.push_back({"krcore / verbs, per worker", Format("%.2f", ratio), "0.50 to 1.00 (middles: 0.69)",
                  Format("%+.0f%% of the middles' ratio", 100 * (ratio / (4.5 / 6.5) - 1))});
  Table(rows);
  std::printf(
      "The published bootstrap of krcore holds more than spawning and connecting, or verbs' less than a handshake "
      "after\n"
      "another: the micro-figures alone predict a larger difference. The published steady state is bound by something\n"
      "that none of them shows. So use the model's ratios, not its absolute throughput of a whole cluster.\n\n");
  json["steady"] = {{"verbs_mops", verbs_all}, {"krcore_mops", krcore_all}, {"per_worker_ratio", ratio}};
  return json;
}

ordered_json PrintScale(const StudyOptions& options, uint32_t scale) {
  std::vector<PlaneResult> results;
  for (const Plane plane : kPlanes) results.push_back(StudyPlane(ConfigOf(options, scale, plane, options.spawn)));
  const SpikeConfig& config = results[0].config;
  std::printf(
      "## Scale %u, modelled: %u hosts of %u cores, %u memory nodes; %.2f -> %.2f Mops/s at once for %.0f s; %s "
      "workers\n\n",
      scale, config.cluster.hosts, config.cluster.cores, config.cluster.memory_nodes, config.base_per_s / 1e6,
      config.base_per_s * config.spike_factor / 1e6, static_cast<double>(config.spike_ns) / 1e9,
      std::string(SpawnName(options.spawn)).c_str());
  std::printf("Without a reserve:\n\n");
  std::vector<std::vector<std::string>> rows = {{"modelled", "workers", "bootstrap p50", "p99", "spike to 90%",
                                                 "p99, first 100 ms", "longest wait", "late, whole spike",
                                                 "p99, steady", "connections made", "memory for connections"}};
  for (const PlaneResult& plane : results) {
    const SpikeResult& r = plane.none;
    rows.push_back({std::string(PlaneName(plane.config.plane)), Format("%u -> %u", r.workers_before, r.workers_plateau),
                    BootstrapText(r, r.bootstrap_p50_ns), BootstrapText(r, r.bootstrap_p99_ns),
                    Ns(static_cast<double>(r.to_full_ns)), Ns(r.wait_p99_ns + r.service_ns), Ns(r.wait_max_ns),
                    Format("%.2f%%", 100 * r.late_share), Ns(r.steady_wait_p99_ns + r.service_ns),
                    Format("%lu", static_cast<unsigned long>(r.connections_made)), Bytes(r.connection_bytes)});
  }
  Table(rows);
  std::printf("What the same SLO takes (queueing delay of at most %.3g ms for 99%% of the spike's first 100 ms):\n\n",
              options.slo_ms);
  rows = {{"modelled", "smallest reserve", "by the rule", "wait p99 with it", "workers at base", "at plateau",
           "worker-hours an hour", "to krcore + RC's"}};
  const PlaneResult& promoted = results[static_cast<size_t>(Plane::kKrcoreRc)];
  const double least = HourOf(promoted.config, promoted.with);
  for (const PlaneResult& plane : results) {
    const double hour = HourOf(plane.config, plane.with);
    rows.push_back({std::string(PlaneName(plane.config.plane)),
                    plane.reserve < 0 ? "none does" : Format("%.0f%%", 100 * plane.reserve),
                    Format("%.0f%% (p99 %s)", 100 * plane.by_rule, Ns(plane.rule.wait_p99_ns).c_str()),
                    Ns(plane.with.wait_p99_ns), Format("%u", plane.with.workers_before),
                    Format("%u", plane.with.workers_plateau), Format("%.1f", hour), Format("%.2f", hour / least)});
  }
  Table(rows);
  ordered_json json;
  for (const PlaneResult& plane : results) {
    json[std::string(PlaneName(plane.config.plane))] = {{"base_per_s", plane.config.base_per_s},
                                                        {"bootstrap_known_ns", plane.config.bootstrap_ns},
                                                        {"without_reserve", ResultJson(plane.config, plane.none)},
                                                        {"reserve", plane.reserve},
                                                        {"reserve_by_rule", plane.by_rule},
                                                        {"with_reserve", ResultJson(plane.config, plane.with)},
                                                        {"with_rule", ResultJson(plane.config, plane.rule)}};
  }
  return json;
}

ordered_json PrintSpawns(const StudyOptions& options) {
  std::printf("## By kind of worker, modelled, scale 1\n\n");
  std::vector<std::vector<std::string>> rows = {
      {"modelled", "workers", "bootstrap p99", "spike to 90%", "p99, first 100 ms", "smallest reserve"}};
  ordered_json json;
  for (const Plane plane : {Plane::kVerbs, Plane::kLite, Plane::kKrcore, Plane::kKrcoreUser}) {
    for (const Spawn spawn : kSpawns) {
      const PlaneResult result = StudyPlane(ConfigOf(options, 1, plane, spawn));
      rows.push_back({std::string(PlaneName(plane)), std::string(SpawnName(spawn)),
                      BootstrapText(result.none, result.none.bootstrap_p99_ns),
                      Ns(static_cast<double>(result.none.to_full_ns)),
                      Ns(result.none.wait_p99_ns + result.none.service_ns),
                      result.reserve < 0 ? "none does" : Format("%.0f%%", 100 * result.reserve)});
      json[std::string(PlaneName(plane))][std::string(SpawnName(spawn))] = {
          {"reserve", result.reserve}, {"without_reserve", ResultJson(result.config, result.none)}};
    }
  }
  Table(rows);
  return json;
}

// What promotion gains in the steady state, and how far it reaches.
ordered_json PrintPromotion(const StudyOptions& options) {
  std::printf("## A worker's steady state with and without RC promotion, modelled\n\n");
  std::vector<std::vector<std::string>> rows = {{"modelled, thousand ops/s of a worker with one operation in flight",
                                                 "verbs", "lite", "krcore, DC in the kernel", "+ RC in the kernel",
                                                 "+ RC from user space", "hot peers", "if all peers were hot"}};
  ordered_json json;
  for (const uint32_t scale : options.scales) {
    const SpikeConfig config = ConfigOf(options, scale, Plane::kKrcoreRc, options.spawn);
    const Cluster& cluster = config.cluster;
    const Constants& constants = config.constants;
    const auto kops = [](double service_ns) { return 1e6 / service_ns; };
    const uint32_t queues = PromotedQueues(cluster, constants, config.target_utilisation);
    const uint32_t most = std::min(cluster.memory_nodes, cluster.pool.max_rc_queues);
    const double share = PromotedShare(cluster, queues);
    const double best = PromotedShare(cluster, most);
    rows.push_back({Format("scale %u", scale), Format("%.1f", kops(ServiceNs(Plane::kVerbs, cluster, constants, 0))),
                    Format("%.1f", kops(ServiceNs(Plane::kLite, cluster, constants, 0))),
                    Format("%.1f", kops(ServiceNs(Plane::kKrcore, cluster, constants, 0))),
                    Format("%.1f", kops(KernelRcServiceNs(cluster, constants))),
                    Format("%.1f", kops(ServiceNs(Plane::kKrcoreRc, cluster, constants, share))),
                    Format("%u of %u", queues, cluster.memory_nodes),
                    Format("%.1f (%.0f%% of requests on RC)",
                           kops(ServiceNs(Plane::kKrcoreRc, cluster, constants, best)), 100 * best)});
    json[std::to_string(scale)] = {{"peers_on_rc", queues}, {"share_on_rc_at_most", best}};
  }
  Table(rows);
  std::printf(
      "By the published figures (%.2f us verbs, %.2f us DC through the kernel, %.2f us the kernel's tax) an RC queue "
      "that\n"
      "stays in the kernel gains nothing: what DC itself costs is within the spread of the tax. The gain of\n"
      "promotion is the way around the kernel.\n\n",
      Constants().read_verbs_ns / 1e3, Constants().read_dc_kernel_ns / 1e3, Constants().kernel_tax_ns / 1e3);
  return json;
}

ordered_json HeadlinesJson(const Headlines& headlines) {
  return {{"cold_start_shorter", headlines.cold_start_shorter},
          {"verbs_full_ms", headlines.verbs_full_ms},
          {"krcore_full_ms", headlines.krcore_full_ms},
          {"krcore_to_verbs", headlines.krcore_to_verbs},
          {"verbs_paid", headlines.verbs_paid}};
}

ordered_json PrintSensitivity(const StudyOptions& options) {
  std::printf("## Sensitivity, modelled, scale 1: each constant halved / doubled\n\n");
  std::vector<std::vector<std::string>> rows = {{"constant", "krcore's bootstrap shorter by", "verbs to 90%",
                                                 "krcore + RC to 90%", "krcore / verbs, steady, no promotion",
                                                 "workers at base: verbs / krcore + RC"}};
  const auto cells = [](const Headlines& h) {
    return std::vector<std::string>{Format("%.1f%%", 100 * h.cold_start_shorter), Ns(h.verbs_full_ms * 1e6),
                                    Ns(h.krcore_full_ms * 1e6), Format("%.2f", h.krcore_to_verbs),
                                    Format("%.2f", h.verbs_paid)};
  };
  const Headlines published = HeadlinesOf(options, {});
  const std::vector<std::string> as_published = cells(published);
  rows.push_back(as_published);
  rows.back().insert(rows.back().begin(), "all as published");
  ordered_json json = {{"as published", HeadlinesJson(published)}};
  for (const ConstantInfo& info : ConstantTable()) {
    std::vector<std::vector<std::string>> both;
    for (const double factor : {0.5, 2.0}) {
      Constants constants;
      constants.*info.member *= factor;
      const Headlines headlines = HeadlinesOf(options, constants);
      json[info.name][Format("x %g", factor)] = HeadlinesJson(headlines);
      both.push_back(cells(headlines));
    }
    rows.push_back({info.name});
    for (size_t i = 0; i < as_published.size(); ++i) {
      const bool same = both[0][i] == as_published[i] && both[1][i] == as_published[i];
      rows.back().push_back(same ? "=" : both[0][i] + " / " + both[1][i]);
    }
  }
  Table(rows);
  std::printf(
      "=: unchanged. The load is always 90%% of what the slowest plane can carry, so it changes with the READs. Where "
      "RC\n"
      "is much faster than DC, a policy that declares RC's capacity counts on more than a fresh worker has.\n\n");
  return json;
}

}  // namespace

std::string RunStudy(const StudyOptions& options) {
  std::printf(
      "# The modelled spike\n\n"
      "Everything below is modelled, in virtual time, from published micro-figures; nothing was measured on a NIC.\n"
      "seed %lu, load x %g at once, SLO %.3g ms of queueing delay, controller every %.3g ms, target utilisation "
      "%.2f\n\n",
      static_cast<unsigned long>(options.seed), options.spike_factor, options.slo_ms, options.interval_ms,
      SpikeConfig().target_utilisation);
  ordered_json json = {{"kind", "modelled"},
                       {"seed", options.seed},
                       {"spike_factor", options.spike_factor},
                       {"slo_ms", options.slo_ms},
                       {"interval_ms", options.interval_ms},
                       {"spike_s", options.spike_s},
                       {"spawn", SpawnName(options.spawn)},
                       {"rc_hot_wrs", options.rc_hot_wrs},
                       {"max_rc_queues", options.max_rc_queues}};
  json["constants"] = PrintConstants();
  json["back_test"] = PrintBackTest(options);
  for (const uint32_t scale : options.scales) json["scales"][std::to_string(scale)] = PrintScale(options, scale);
  std::printf(
      "The abstract's headline, for comparison only: KRCORE makes the bootstrap of RACE workers under a spike 83%% "
      "shorter.\n\n");
  json["promotion"] = PrintPromotion(options);
  json["spawns"] = PrintSpawns(options);
  json["sensitivity"] = PrintSensitivity(options);
  return json.dump(2) + "\n";
}

}  // namespace spike_model

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/size.h"
#include "tools/surge/cluster.h"

namespace surge {
namespace {

using nlohmann::ordered_json;

constexpr char kNothing[] = "-";

// Returns "4.2 s", "17 min", "3.5 h", "12 d".
std::string Duration(double seconds) {
  std::array<char, 32> text{};
  if (seconds < 120) {
    std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  } else if (seconds < 7200) {
    std::snprintf(text.data(), text.size(), "%.0f min", seconds / 60);
  } else if (seconds < 48.0 * 3600) {
    std::snprintf(text.data(), text.size(), "%.1f h", seconds / 3600);
  } else {
    std::snprintf(text.data(), text.size(), "%.0f d", seconds / 86400);
  }
  return text.data();
}

std::string Rate(double per_second) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), per_second < 100 ? "%.1f" : "%.0f", per_second);
  return text.data();
}

std::string Percent(uint64_t part, uint64_t whole) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.0f%%",
                whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text.data();
}

// Returns the workers that serve, of those wanted, and those that start or end.
std::string Workers(const metrics::Announcement& said) {
  std::string text = std::to_string(said.workers_serving) + "/" + std::to_string(said.workers_wanted);
  if (said.workers_starting > 0) text += " +" + std::to_string(said.workers_starting);
  if (said.workers_draining > 0) text += " -" + std::to_string(said.workers_draining);
  return text;
}

std::string Role(const NodeView& node) {
  std::string text = node.role;
  if (!node.announcement) return text;
  if ((node.announcement->flags & metrics::Announcement::kHome) != 0) text += ",home";
  const bool metaserver = (node.announcement->flags & metrics::Announcement::kMetaServer) != 0;
  if (metaserver && node.announcement->role != metrics::Role::kMetadata) text += ",metadata";
  return text;
}

using Row = std::vector<std::string>;

// Returns "1 tail", "spare".
std::string Place(const NodeView& node) {
  if (node.place.empty()) return kNothing;
  return node.pool == krcore::kNoNode ? node.place : std::to_string(node.pool) + " " + node.place;
}

// mirrored: whether there is a column for the place.
Row RowOf(const NodeView& node, bool mirrored) {
  const bool compute = node.announcement && node.announcement->role == metrics::Role::kCompute;
  const std::string metrics = node.announcement ? node.announcement->metrics() : "";
  Row row = {std::to_string(node.id), Role(node), node.state};
  if (mirrored) row.push_back(Place(node));
  const Row rest = {node.announcement ? Duration(node.uptime_s) : kNothing,
                    node.memory ? cli::FormatSize(node.memory->used) : kNothing,
                    node.memory ? cli::FormatSize(node.memory->free) : kNothing,
                    node.memory ? Percent(node.memory->used, node.memory->used + node.memory->free) : kNothing,
                    compute ? Workers(*node.announcement) : kNothing,
                    node.operations_per_s ? Rate(*node.operations_per_s) : kNothing,
                    metrics.empty() ? kNothing : metrics};
  row.insert(row.end(), rest.begin(), rest.end());
  return row;
}

ordered_json JsonOf(const Memory& memory) {
  ordered_json json = {{"total_bytes", memory.total},
                       {"used_bytes", memory.used},
                       {"free_bytes", memory.free},
                       {"reserved_bytes", memory.reserved}};
  json["live_bytes"] = memory.use ? ordered_json(memory.use->live) : ordered_json();
  json["open_bytes"] = memory.use ? ordered_json(memory.use->open) : ordered_json();
  json["unswept_bytes"] = memory.use ? ordered_json(memory.use->unswept) : ordered_json();
  return json;
}

// Returns what the used memory is used for.
std::string UseOf(const Memory& memory) {
  if (!memory.use) return "";
  return " (" + cli::FormatSize(memory.use->live) + " live, " + cli::FormatSize(memory.use->open) + " open, " +
         cli::FormatSize(memory.use->unswept) + " unswept)";
}

ordered_json JsonOf(const NodeView& node) {
  ordered_json json = {{"id", node.id}, {"role", node.role}, {"state", node.state}};
  json["pool"] = node.pool != krcore::kNoNode ? ordered_json(node.pool) : ordered_json();
  json["replica"] = node.place.empty() ? ordered_json() : ordered_json(node.place);
  json["memory"] = node.memory ? JsonOf(*node.memory) : ordered_json();
  if (!node.announcement) {
    for (const char* name : {"home", "metaserver", "pid", "uptime_s", "metrics", "workers", "operations"}) {
      json[name] = nullptr;
    }
  } else {
    const metrics::Announcement& said = *node.announcement;
    const std::string metrics = said.metrics();
    json["home"] = (said.flags & metrics::Announcement::kHome) != 0;
    json["metaserver"] = (said.flags & metrics::Announcement::kMetaServer) != 0;
    json["pid"] = said.pid;
    json["uptime_s"] = node.uptime_s;
    json["metrics"] = metrics.empty() ? ordered_json() : ordered_json(metrics);
    const bool compute = said.role == metrics::Role::kCompute;
    json["workers"] = compute ? ordered_json{{"wanted", said.workers_wanted},
                                             {"starting", said.workers_starting},
                                             {"serving", said.workers_serving},
                                             {"draining", said.workers_draining}}
                              : ordered_json();
    json["operations"] = compute ? ordered_json(said.operations) : ordered_json();
  }
  json["operations_per_s"] = node.operations_per_s ? ordered_json(*node.operations_per_s) : ordered_json();
  return json;
}

// The serving workers of the living compute nodes, and what they do.
struct Load {
  uint64_t workers = 0;
  double operations_per_s = 0;
};

Load LoadOf(const ClusterView& view) {
  Load load;
  for (const NodeView& node : view.nodes) {
    if (!node.announcement || node.state == "dead" || node.state == "silent") continue;
    load.workers += node.announcement->workers_serving;
    load.operations_per_s += node.operations_per_s.value_or(0);
  }
  return load;
}

}  // namespace

std::string Table(const ClusterView& view) {
  const bool mirrored = view.configuration.has_value();
  std::vector<Row> rows = {{"NODE", "ROLE", "STATE", "UPTIME", "USED", "FREE", "FULL", "WORKERS", "OPS/S", "METRICS"}};
  if (mirrored) rows[0].insert(rows[0].begin() + 3, "POOL");
  for (const NodeView& node : view.nodes) rows.push_back(RowOf(node, mirrored));
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      text += row[column];
      if (column + 1 < row.size()) text.append(widths[column] + 2 - row[column].size(), ' ');
    }
    text += '\n';
  }
  const Load load = LoadOf(view);
  text += "fabric " + view.fabric + ": memory " + cli::FormatSize(view.memory.used) + " used" + UseOf(view.memory) +
          ", " + cli::FormatSize(view.memory.free) + " free; " + std::to_string(load.workers) + " workers, " +
          std::to_string(view.clients) + " clients, " + Rate(load.operations_per_s) + " operations/s";
  if (mirrored) text += "; configuration " + std::to_string(*view.configuration);
  text += "\n";
  for (const std::string& problem : view.problems) text += "problem: " + problem + "\n";
  return text;
}

std::string Json(const ClusterView& view) {
  ordered_json nodes = ordered_json::array();
  for (const NodeView& node : view.nodes) nodes.push_back(JsonOf(node));
  const Load load = LoadOf(view);
  const ordered_json json = {{"fabric", view.fabric},
                             {"nodes", std::move(nodes)},
                             {"memory", JsonOf(view.memory)},
                             {"workers", load.workers},
                             {"clients", view.clients},
                             {"operations_per_s", load.operations_per_s},
                             {"configuration", view.configuration ? ordered_json(*view.configuration) : ordered_json()},
                             {"problems", view.problems}};
  return json.dump();
}

}  // namespace surge

// A ClusterView for people, and for programs.
#ifndef TOOLS_SURGE_RENDER_H_
#define TOOLS_SURGE_RENDER_H_

#include <string>

#include "tools/surge/cluster.h"

namespace surge {

// A table, a line a node; then the sums, and what could not be read.
std::string Table(const ClusterView& view);
// One JSON object, on one line. docs/operating.md has its members.
std::string Json(const ClusterView& view);

}  // namespace surge

#endif  // TOOLS_SURGE_RENDER_H_

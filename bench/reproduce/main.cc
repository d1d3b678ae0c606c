// reproduce_bench: the measurements of tools/reproduce, one figure a run, as lines of JSON (bench/reproduce/report.h).
// All of it is measured on sw; bench/results/README.md says what each figure is.
#include <gflags/gflags.h>

#include <cstdio>

#include "bench/reproduce/report.h"
#include "bench/reproduce/roles.h"
#include "cli/fail.h"

DEFINE_string(figure, "", "many_to_one, full_mesh, one_sided, two_sided or transfer");
DEFINE_string(fabric, "", "name of the fabric that it makes; no other program may use it");
DEFINE_uint32(rounds, 3, "how often everything is measured");
DEFINE_uint64(seed, 1, "of the order in a round, and of the bytes that are moved");
DEFINE_bool(quick, false, "short slices, few samples");
DEFINE_string(role, "", "internal: what this process is for another one of this program");
DEFINE_string(plane, "", "internal: of --role");
DEFINE_uint32(id, 0, "internal: of --role");
DEFINE_uint32(count, 0, "internal: of --role");
DEFINE_uint32(waves, 0, "internal: of --role");
DEFINE_uint64(bytes, 0, "internal: of --role");
DEFINE_int64(wanted_ns, 0, "internal: of --role");

namespace reproduce {
namespace {

template <typename Function>
struct Named {
  const char* name;
  Function* run;
};

constexpr Named<void(const Options&)> kFigures[] = {{"many_to_one", ManyToOne},
                                                    {"full_mesh", FullMesh},
                                                    {"one_sided", OneSided},
                                                    {"two_sided", TwoSided},
                                                    {"transfer", Transfer}};
constexpr Named<void(const Role&)> kRoles[] = {{"connector", BeConnector}, {"connecting-threads", BeConnectingThreads},
                                               {"mesh-node", BeMeshNode},  {"peer", BePeer},
                                               {"transfer", BeTransfer},   {"transfer-threads", BeTransferThreads}};

// Runs the one of that name; false: there is none.
template <typename Names, typename Argument>
bool RunNamed(const Names& names, const std::string& name, const Argument& argument) {
  for (const auto& one : names) {
    if (name != one.name) continue;
    one.run(argument);
    return true;
  }
  return false;
}

}  // namespace

int Main() {
  if (!FLAGS_role.empty()) {
    return RunNamed(kRoles, FLAGS_role,
                    Role{FLAGS_role, FLAGS_fabric, FLAGS_plane, FLAGS_id, FLAGS_count, FLAGS_waves, FLAGS_bytes,
                         FLAGS_seed, FLAGS_wanted_ns})
               ? 0
               : 2;
  }
  if (FLAGS_fabric.empty() || FLAGS_rounds == 0) {
    std::fprintf(stderr, "--fabric is missing, or --rounds is 0\n");
    return 2;
  }
  Child::CleanUpOnSignals();
  if (RunNamed(kFigures, FLAGS_figure, Options{FLAGS_fabric, FLAGS_seed, FLAGS_rounds, FLAGS_quick})) return 0;
  std::fprintf(stderr, "--figure: \"%s\" is none of:", FLAGS_figure.c_str());
  for (const auto& figure : kFigures) std::fprintf(stderr, " %s", figure.name);
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace reproduce

int main(int argc, char** argv) {
  cli::UseStandardStreams();
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return reproduce::Main();
}

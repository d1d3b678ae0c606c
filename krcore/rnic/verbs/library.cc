#include "krcore/rnic/verbs/library.h"

#include <dlfcn.h>

#include <string>

namespace krcore::rnic::verbs {
namespace {

class Loading {
 public:
  explicit Loading(const char* file) : library_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) error_ = dlerror();
  }

  template <typename Function>
  void Find(const char* name, Function* function) {
    if (library_ == nullptr) return;
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr && error_.empty()) error_ = dlerror();
  }

  const std::string& error() const { return error_; }  // empty: everything was found

 private:
  void* const library_;  // never unloaded
  std::string error_;
};

std::string FindAll(Libibverbs* library) {
  Loading loading("libibverbs.so.1");
#define KRCORE_FIND(name) loading.Find("ibv_" #name, &library->name);
  KRCORE_IBV_FUNCTIONS(KRCORE_FIND)
#undef KRCORE_FIND
  loading.Find("_ibv_query_gid_ex", &library->query_gid_ex);
  return loading.error();
}

std::string FindAll(Libmlx5* library) {
  Loading loading("libmlx5.so.1");
#define KRCORE_FIND(name) loading.Find("mlx5dv_" #name, &library->name);
  KRCORE_MLX5DV_FUNCTIONS(KRCORE_FIND)
#undef KRCORE_FIND
  return loading.error();
}

}  // namespace

Status LoadLibibverbs() {
  static const std::string error = FindAll(&ibv);
  if (error.empty()) return {};
  return {StatusCode::kUnavailable,
          "RDMA devices need libibverbs (Debian: ibverbs-providers), which cannot be used: " + error};
}

bool LoadLibmlx5() {
  static const std::string error = FindAll(&mlx5dv);
  return error.empty();
}

}  // namespace krcore::rnic::verbs

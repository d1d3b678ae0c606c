// oneTBB's concurrent_hash_map, inside the process.
#include <tbb/concurrent_hash_map.h>

#include "bench/peers/stores/serial_session.h"
#include "bench/peers/stores/server_process.h"

namespace peers {
namespace {

template <size_t kKeyBytes, size_t kValueBytes>
class TbbMap final : public Peer {
 public:
  std::unique_ptr<Session> NewSession() override { return std::make_unique<SerialSession<TbbMap>>(*this); }
  uint64_t MemoryBytes() override { return OwnAnonymousBytes() - before_; }

  bool Get(std::string_view key, std::string* value) {
    typename Map::const_accessor at;
    if (!map_.find(at, Key(key))) return false;
    at->second.CopyTo(value);
    return true;
  }
  bool Update(std::string_view key, std::string_view value) {
    typename Map::accessor at;
    if (!map_.find(at, Key(key))) return false;
    at->second = Value(value);
    return true;
  }
  bool Insert(std::string_view key, std::string_view value) { return map_.insert({Key(key), Value(value)}); }

 private:
  using Key = Bytes<kKeyBytes>;
  using Value = Bytes<kValueBytes>;
  struct HashCompare {
    size_t hash(const Key& key) const { return key.Hash(); }         // NOLINT(readability-identifier-naming)
    bool equal(const Key& a, const Key& b) const { return a == b; }  // NOLINT(readability-identifier-naming)
  };
  using Map = tbb::concurrent_hash_map<Key, Value, HashCompare>;

  const uint64_t before_ = OwnAnonymousBytes();
  Map map_;
};

}  // namespace

krcore::Result<std::unique_ptr<Peer>> MakeTbb(const Shape& shape) { return MakeOfShape<TbbMap>(shape); }

}  // namespace peers

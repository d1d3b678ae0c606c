// absl::flat_hash_map, inside the process, in 64 shards with a lock each.
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include "bench/peers/stores/serial_session.h"
#include "bench/peers/stores/server_process.h"

namespace peers {
namespace {

constexpr size_t kShards = 64;

template <size_t kKeyBytes, size_t kValueBytes>
class AbslMaps final : public Peer {
 public:
  std::unique_ptr<Session> NewSession() override { return std::make_unique<SerialSession<AbslMaps>>(*this); }
  uint64_t MemoryBytes() override { return OwnAnonymousBytes() - before_; }

  bool Get(std::string_view key, std::string* value) {
    const Hashed hashed(key);
    Shard& shard = Of(hashed);
    const absl::MutexLock lock(&shard.mutex);
    const auto at = shard.map.find(hashed.key, hashed.hash);
    if (at == shard.map.end()) return false;
    at->second.CopyTo(value);
    return true;
  }
  bool Update(std::string_view key, std::string_view value) {
    const Hashed hashed(key);
    Shard& shard = Of(hashed);
    const absl::MutexLock lock(&shard.mutex);
    const auto at = shard.map.find(hashed.key, hashed.hash);
    if (at == shard.map.end()) return false;
    at->second = Value(value);
    return true;
  }
  bool Insert(std::string_view key, std::string_view value) {
    const Hashed hashed(key);
    Shard& shard = Of(hashed);
    const absl::MutexLock lock(&shard.mutex);
    return shard.map.try_emplace(hashed.key, value).second;
  }

 private:
  using Key = Bytes<kKeyBytes>;
  using Value = Bytes<kValueBytes>;
  struct Hasher {
    size_t operator()(const Key& key) const { return key.Hash(); }
  };
  struct alignas(64) Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<Key, Value, Hasher> map;  // guarded by mutex
  };
  // Hashed once, for the shard and for its map.
  struct Hashed {
    explicit Hashed(std::string_view from) : key(from), hash(key.Hash()) {}
    Key key;
    size_t hash;
  };
  // By the highest bits: the map goes by the lower ones.
  Shard& Of(const Hashed& hashed) { return shards_[hashed.hash >> 58]; }
  static_assert(kShards == 64);

  const uint64_t before_ = OwnAnonymousBytes();
  std::array<Shard, kShards> shards_;
};

}  // namespace

krcore::Result<std::unique_ptr<Peer>> MakeAbsl(const Shape& shape) { return MakeOfShape<AbslMaps>(shape); }

}  // namespace peers

// Boost.Interprocess: hash maps in a mapped file in /dev/shm, in 64 shards with a mutex each that processes can share.
#include <boost/interprocess/allocators/allocator.hpp>
#include <boost/interprocess/managed_mapped_file.hpp>
#include <boost/interprocess/sync/interprocess_mutex.hpp>
#include <boost/interprocess/sync/scoped_lock.hpp>
#include <boost/unordered_map.hpp>

#include "bench/peers/stores/serial_session.h"
#include "bench/peers/stores/server_process.h"

namespace peers {
namespace {

namespace ipc = boost::interprocess;

constexpr size_t kShards = 64;
constexpr uint64_t kBesidesBytes = 128;  // of a record: generously
constexpr uint64_t kLeastBytes = uint64_t{64} << 20;

template <size_t kKeyBytes, size_t kValueBytes>
class BoostMaps final : public Peer {
 public:
  BoostMaps(const std::string& folder, uint64_t records)
      : memory_(ipc::create_only, (folder + "/boost").c_str(),
                kLeastBytes + records * (kKeyBytes + kValueBytes + kBesidesBytes)) {
    for (Shard*& shard : shards_) {
      shard = memory_.construct<Shard>(ipc::anonymous_instance)(memory_.get_segment_manager());
    }
  }
  std::unique_ptr<Session> NewSession() override { return std::make_unique<SerialSession<BoostMaps>>(*this); }
  uint64_t MemoryBytes() override { return memory_.get_size() - memory_.get_free_memory(); }

  bool Get(std::string_view key, std::string* value) {
    const Key wanted(key);
    Shard& shard = Of(wanted);
    const Lock lock(shard.mutex);
    const auto at = shard.map.find(wanted);
    if (at == shard.map.end()) return false;
    at->second.CopyTo(value);
    return true;
  }
  bool Update(std::string_view key, std::string_view value) {
    const Key wanted(key);
    Shard& shard = Of(wanted);
    const Lock lock(shard.mutex);
    const auto at = shard.map.find(wanted);
    if (at == shard.map.end()) return false;
    at->second = Value(value);
    return true;
  }
  bool Insert(std::string_view key, std::string_view value) {
    const Key wanted(key);
    Shard& shard = Of(wanted);
    const Lock lock(shard.mutex);
    return shard.map.emplace(wanted, Value(value)).second;
  }

 private:
  using Key = Bytes<kKeyBytes>;
  using Value = Bytes<kValueBytes>;
  using Lock = ipc::scoped_lock<ipc::interprocess_mutex>;
  using Manager = ipc::managed_mapped_file::segment_manager;
  using Allocator = ipc::allocator<std::pair<const Key, Value>, Manager>;
  struct Hasher {
    size_t operator()(const Key& key) const { return key.Hash(); }
  };
  struct alignas(64) Shard {
    explicit Shard(Manager* manager) : map(0, Hasher{}, std::equal_to<Key>{}, Allocator(manager)) {}
    ipc::interprocess_mutex mutex;
    boost::unordered_map<Key, Value, Hasher, std::equal_to<Key>, Allocator> map;  // guarded by mutex
  };
  Shard& Of(const Key& key) { return *shards_[key.Hash() >> 58]; }
  static_assert(kShards == 64);

  ipc::managed_mapped_file memory_;
  std::array<Shard*, kShards> shards_;
};

// The file goes when the map has gone.
template <size_t kKeyBytes, size_t kValueBytes>
class BoostPeer final : public Peer {
 public:
  BoostPeer(std::shared_ptr<PrivateFolder> folder, uint64_t records)
      : folder_(std::move(folder)), maps_(folder_->path(), records) {}
  std::unique_ptr<Session> NewSession() override { return maps_.NewSession(); }
  uint64_t MemoryBytes() override { return maps_.MemoryBytes(); }

 private:
  std::shared_ptr<PrivateFolder> folder_;
  BoostMaps<kKeyBytes, kValueBytes> maps_;
};

}  // namespace

krcore::Result<std::unique_ptr<Peer>> MakeBoost(const Shape& shape) {
  auto folder = PrivateFolder::Create();
  if (!folder.ok()) return folder.status();
  return MakeOfShape<BoostPeer>(shape, std::shared_ptr<PrivateFolder>(*std::move(folder)), shape.most_records());
}

}  // namespace peers

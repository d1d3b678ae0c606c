// The common part of stores without an interface for several operations in flight: a session that executes requests one
// by one, and keys and values of fixed size, which is faster for a map inside the process than strings would be.
#ifndef BENCH_PEERS_STORES_SERIAL_SESSION_H_
#define BENCH_PEERS_STORES_SERIAL_SESSION_H_

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "bench/peers/peer.h"

namespace peers {

// Map: bool Get(std::string_view key, std::string* value), bool Update(key, value), bool Insert(key, value), each from
// any thread.
template <typename Map>
class SerialSession final : public Session {
 public:
  explicit SerialSession(Map& map) : map_(map) {}
  void Run(Requests& requests, uint32_t /*in_flight*/) override {
    Request request;
    std::string value;
    while (requests.Next(0, &request)) {
      bool ok = false;
      switch (request.verb) {
        case Verb::kGet: ok = map_.Get(request.key, &value); break;
        case Verb::kUpdate: ok = map_.Update(request.key, request.value); break;
        case Verb::kInsert: ok = map_.Insert(request.key, request.value); break;
      }
      requests.Done(0, ok, value);
    }
  }

 private:
  Map& map_;
};

template <size_t kBytes>
struct Bytes {
  std::array<char, kBytes> bytes;

  Bytes() = default;
  explicit Bytes(std::string_view from) { std::memcpy(bytes.data(), from.data(), kBytes); }
  uint64_t Hash() const { return XXH3_64bits(bytes.data(), kBytes); }
  void CopyTo(std::string* to) const { to->assign(bytes.data(), kBytes); }
  friend bool operator==(const Bytes& a, const Bytes& b) { return std::memcmp(&a, &b, kBytes) == 0; }
};

// Map<key bytes, value bytes> of the shape's sizes, made of `arguments`.
template <template <size_t, size_t> typename Map, typename... Arguments>
krcore::Result<std::unique_ptr<Peer>> MakeOfShape(const Shape& shape, Arguments&&... arguments) {
  if (shape.key_bytes == 16 && shape.value_bytes == 100) {
    return std::unique_ptr<Peer>(std::make_unique<Map<16, 100>>(arguments...));
  }
  if (shape.key_bytes == 8 && shape.value_bytes == 8) {
    return std::unique_ptr<Peer>(std::make_unique<Map<8, 8>>(arguments...));
  }
  return krcore::Status(krcore::StatusCode::kInvalidArgument, "maps are made for 16 B/100 B and 8 B/8 B only");
}

}  // namespace peers

#endif  // BENCH_PEERS_STORES_SERIAL_SESSION_H_

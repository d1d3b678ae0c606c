#include "krcore/meta/meta_server.h"

#include <cstring>
#include <span>
#include <string>

#include "krcore/meta/record.h"

namespace krcore::meta {
namespace {

constexpr uint32_t kMaxCapacity = 1u << 20;  // 256 MiB of table

Status RefuseSecond(rnic::Device& device) {
  auto announced = device.LookupRecord(kBootstrapName);
  if (!announced.ok()) return announced.status() == StatusCode::kNotFound ? Status() : announced.status();
  Bootstrap bootstrap{};
  if (announced->size() == sizeof(bootstrap)) std::memcpy(&bootstrap, announced->data(), sizeof(bootstrap));
  return {StatusCode::kExists,
          "node " + std::to_string(bootstrap.address.node) + " hosts the fabric's metadata server"};
}

}  // namespace

Result<std::unique_ptr<MetaServer>> MetaServer::Host(rnic::Device& device, rnic::Pd& pd, const rnic::Dct& dct,
                                                     uint32_t capacity) {
  if (capacity == 0 || capacity > kMaxCapacity)
    return Status(StatusCode::kInvalidArgument,
                  "metadata server capacity must be 1 to " + std::to_string(kMaxCapacity) + " records");
  KRCORE_RETURN_IF_ERROR(RefuseSecond(device));
  const uint32_t buckets = BucketsFor(capacity);
  auto memory = device.AllocMemory(buckets * kBucketBytes, {});
  if (!memory.ok()) return memory.status();
  const std::span<std::byte> bytes = (*memory)->bytes();
  auto mr = pd.RegisterMemory(bytes.data(), bytes.size(), kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic);
  if (!mr.ok()) return mr.status();

  Bootstrap bootstrap{};
  bootstrap.magic = kBootstrapMagic;
  bootstrap.buckets = buckets;
  bootstrap.table_addr = reinterpret_cast<uint64_t>(bytes.data());
  bootstrap.table_rkey = (*mr)->rkey();
  bootstrap.address = device.address();
  bootstrap.dct_num = dct.num();
  bootstrap.dc_key = dct.dc_key();
  KRCORE_RETURN_IF_ERROR(device.PublishRecord(kBootstrapName, std::as_bytes(std::span(&bootstrap, 1))));

  std::unique_ptr<MetaServer> server(new MetaServer());
  server->memory_ = *std::move(memory);
  server->mr_ = *std::move(mr);
  return server;
}

}  // namespace krcore::meta

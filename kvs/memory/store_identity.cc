#include "kvs/memory/store_identity.h"

#include "kvs/layout/pool.h"
#include "kvs/memory/remote_pool.h"

namespace kvs {

using krcore::Status;

Status StoreIdentity::Gone() {
  return {krcore::StatusCode::kBadState, "the fabric has another store since this one was opened (open it again)"};
}

Status StoreIdentity::Confirm(const HashSeed& seed) {
  if (seed != seed_) gone_.store(true, std::memory_order_relaxed);
  return gone() ? Gone() : Status::Ok();
}

Status StoreIdentity::Check(krcore::Node& node, krcore::Deadline deadline) {
  if (gone()) return Gone();
  const auto pool = RemotePool::Create(node, sizeof(Superblock));
  if (!pool.ok()) return pool.status();
  Superblock super;
  KRCORE_RETURN_IF_ERROR((*pool)->Connect(home_, deadline, &super));
  return Confirm(super.hash_seed);  // of what is no home, it is zeroes
}

}  // namespace kvs

#include "tests/kvs/mirrored_store.h"

#include <cstring>
#include <span>

#include "kvs/memory/remote_pool.h"
#include "kvs/memory/views.h"

namespace surgekv_test {

using krcore::Status;

Status MakeMirroredStore(const std::vector<std::vector<MirrorNode>>& chains, const kvs::HomeOptions& options,
                         krcore::Deadline deadline) {
  kvs::Configuration configuration;
  configuration.number = 1;
  configuration.home = 1;
  configuration.replicas = static_cast<uint32_t>(chains.front().size());
  for (size_t i = 0; i < chains.size(); ++i) {
    const auto pool = static_cast<krcore::NodeId>(i + 1);
    kvs::PoolView view{
        .pool = pool, .bytes = chains[i].front().region->bytes().size(), .in_use = true, .chain = {}, .learner = {}};
    for (const MirrorNode& replica : chains[i]) {
      const std::span<std::byte> bytes = replica.region->bytes();
      KRCORE_RETURN_IF_ERROR(
          kvs::FormatPool(bytes, replica.node->id(), options.chunk_bytes, pool, replica.node->incarnation()));
      if (pool == configuration.home) {
        KRCORE_RETURN_IF_ERROR(kvs::FormatHome(bytes, options));
        kvs::HomeArea area;
        std::memcpy(&area, &bytes[kvs::kHomeAreaOffset], sizeof(area));
        for (size_t member = 1; member <= chains.size(); ++member) {
          area.members[member] = kvs::MemberWord().Joined(0).word();
        }
        area.counters.member_changes = chains.size();
        area.configuration = configuration.number;
        std::memcpy(&bytes[kvs::kHomeAreaOffset], &area, sizeof(area));
      }
      KRCORE_RETURN_IF_ERROR(replica.node->Publish(deadline));
      view.chain.push_back({replica.node->id(), replica.node->incarnation()});
    }
    configuration.pools.push_back(view);
  }
  return chains.front().front().node->CompareAndSetRecord(kvs::kConfigurationRecord, 0, Encode(configuration),
                                                          deadline);
}

Status PrepareLearner(krcore::Node& node, krcore::Region& region, krcore::NodeId pool, krcore::Deadline deadline) {
  const auto configuration = kvs::ReadConfiguration(node, deadline);
  if (!configuration.ok()) return configuration.status();
  const auto replica = kvs::RemotePool::Create(node, sizeof(kvs::Superblock));
  if (!replica.ok()) return replica.status();
  kvs::Superblock super;
  KRCORE_RETURN_IF_ERROR(node.Publish(deadline));
  KRCORE_RETURN_IF_ERROR((*replica)->Connect(configuration->Find(pool)->chain.back().node, deadline, &super));
  kvs::FormatLearner(region.bytes(), super, node.id(), node.incarnation());
  return Status::Ok();
}

}  // namespace surgekv_test

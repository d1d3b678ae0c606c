// What the clients of one process share.
//
// Thread safety: all methods from any thread.
#ifndef KVS_CLIENT_STORE_CORE_H_
#define KVS_CLIENT_STORE_CORE_H_

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "krcore/node.h"
#include "krcore/types.h"
#include "kvs/client.h"
#include "kvs/epochs/common.h"
#include "kvs/epochs/memory_state.h"
#include "kvs/layout/configuration.h"

namespace kvs {

class Caretaker;
class ClientCore;

// StoreCore has what the clients of one process share: the node (with the control plane "verbs" each client also has
// one of its own), the store's shape, what ended clients left for later ones (memory, and their entries at the home),
// and what was seen of chunks.
class StoreCore final : public Store {
 public:
  // `options` are those with which `node` was opened.
  StoreCore(std::unique_ptr<krcore::Node> node, const StoreOptions& options);
  ~StoreCore() override;

  // Finds the store's home and its shape.
  Status Attach(krcore::Deadline deadline);
  // Keeps the memory node of an embedded store alive as long as the store.
  void Own(std::unique_ptr<krcore::Node> memory_node, std::unique_ptr<krcore::Region> pool);

  Result<std::unique_ptr<Client>> NewClient(const ClientOptions& options) override;
  // The same for somebody who polls it as IdleUntil says.
  Result<std::unique_ptr<ClientCore>> NewPolledClient(const ClientOptions& options);
  Status PrepareClient(const ClientOptions& options) override;
  Status SetReplicas(uint32_t replicas) override;
  bool gone() const override { return state_.identity.gone(); }
  krcore::Node& node() override { return *node_; }
  std::optional<krcore::SoftwareDcStats> software_dc() override { return node_->software_dc(); }

  // Opens and publishes a node for one client. Null: clients share node().
  Result<std::unique_ptr<krcore::Node>> OpenClientNode(krcore::Deadline deadline);
  krcore::Clock& clock() { return node_->clock(); }
  // Whether a change of the replicas of mirrored pools is on its way. Whoever begins or ends a client waits for it.
  bool ViewPending();
  // Valid once the store is attached.
  const StoreShape& shape() const { return shape_; }
  // What its clients share.
  StoreState& state() { return state_; }

  // Returns the memory of an ended client, or a fresh state.
  std::unique_ptr<MemoryState> TakeMemory();
  void GiveMemory(std::unique_ptr<MemoryState> memory);
  // The memory nodes as the client that began last knew them, a hint. Empty: no client has begun.
  void NoteMembers(std::vector<krcore::NodeId> members);
  std::vector<krcore::NodeId> members();

 private:
  Result<std::unique_ptr<ClientCore>> MakeClient(const ClientOptions& options);
  // Gives the client to the caretaker.
  Result<std::unique_ptr<Client>> KeepClient(std::unique_ptr<ClientCore> client);
  // Takes a client that was prepared with these options. Null: there is none.
  std::unique_ptr<ClientCore> TakePrepared(const ClientOptions& options);
  // Reads the superblock of a replica of the home, through queues of its own. kExists: the pool is mirrored, and the
  // store's configuration is not known yet.
  Status ReadShape(const std::vector<Replica>& home, krcore::Deadline deadline);

  std::unique_ptr<krcore::Region> pool_;       // embedded only; destroyed after node_
  std::unique_ptr<krcore::Node> memory_node_;  // embedded only
  std::unique_ptr<krcore::Node> node_;
  const StoreOptions options_;
  StoreShape shape_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryState>> spare_memory_;  // guarded by mutex_
  std::vector<std::unique_ptr<ClientCore>> prepared_;       // guarded by mutex_
  std::vector<krcore::NodeId> members_;                     // guarded by mutex_
  std::unique_ptr<Caretaker> caretaker_;                    // guarded by mutex_; null: it has no clients yet
  StoreState state_;
};

}  // namespace kvs

#endif  // KVS_CLIENT_STORE_CORE_H_

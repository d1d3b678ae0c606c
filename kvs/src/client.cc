// The blocking calls: each drives the coroutine of its name.
#include "kvs/client.h"

namespace kvs {

void Client::Idle(uint32_t rounds) { krcore::RealClock()->Relax(rounds); }

template <typename T>
T Client::Wait(Task<T> task) {
  task.Start();
  for (uint32_t idle = 0; !task.done();) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      Idle(++idle);
    }
  }
  return task.Take();
}

Status Client::Get(std::string_view key, std::string* value) { return Wait(GetAsync(key, value)); }
Status Client::Put(std::string_view key, std::string_view value) { return Wait(PutAsync(key, value)); }
Status Client::Insert(std::string_view key, std::string_view value) { return Wait(InsertAsync(key, value)); }
Status Client::Update(std::string_view key, std::string_view value) { return Wait(UpdateAsync(key, value)); }
Status Client::Delete(std::string_view key) { return Wait(DeleteAsync(key)); }

Status Client::Compact(const CompactOptions& options, CompactReport* report) {
  CompactReport unwanted;
  return Wait(CompactAsync(options, report != nullptr ? report : &unwanted));
}

Status Client::DrainNode(krcore::NodeId node, const DrainOptions& options, DrainReport* report) {
  DrainReport unwanted;
  return Wait(DrainNodeAsync(node, options, report != nullptr ? report : &unwanted));
}

Status Client::UndrainNode(krcore::NodeId node) { return Wait(UndrainNodeAsync(node)); }

void Client::MultiGet(std::span<const std::string_view> keys, std::span<std::string> values,
                      std::span<Status> statuses) {
  Wait(MultiGetAsync(keys, values, statuses));
}

void Client::MultiWrite(std::span<WriteRequest> writes) { Wait(MultiWriteAsync(writes)); }

void Client::Drain() {
  for (uint32_t idle = 0; spawned() > 0;) {
    if (Poll() != 0) {
      idle = 0;
    } else {
      Idle(++idle);
    }
  }
}

}  // namespace kvs

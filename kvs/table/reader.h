// Reader: Get in every case. The steps are those of docs/protocol.md, "Get".
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_READER_H_
#define KVS_TABLE_READER_H_

#include <string>
#include <string_view>

#include "kvs/epochs/epochs.h"
#include "kvs/table/address_cache.h"
#include "kvs/table/combiner.h"
#include "kvs/table/directory.h"
#include "kvs/table/finder.h"
#include "kvs/table/writer.h"
#include "kvs/task.h"

namespace kvs {

class Reader : private Part {
 public:
  Reader(Epochs& epochs, AddressCache& addresses, Combiner& combiner, Directory& directory, Finder& finder,
         Writer& writer)
      : Part(epochs.common),
        operations_(epochs.operations),
        cache_(epochs.cache),
        addresses_(addresses),
        combiner_(combiner),
        directory_(directory),
        finder_(finder),
        writer_(writer) {}

  // The key's length must be valid.
  Task<Status> Get(std::string_view key, std::string* value);

 private:
  Task<Step> GetDuringSplit(Operation& op);
  Task<Step> GetFromClosed(Operation& op);
  Task<Step> ReadFrozenValue(Operation& op, Slot slot);

  Operations& operations_;
  DirectoryCache& cache_;
  AddressCache& addresses_;
  Combiner& combiner_;
  Directory& directory_;
  Finder& finder_;
  Writer& writer_;
};

}  // namespace kvs

#endif  // KVS_TABLE_READER_H_

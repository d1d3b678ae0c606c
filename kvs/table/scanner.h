// Scanner: Client::Scan. It goes over the keys of the store in the order of their bit-reversed hashes. The low bits of
// a hash are the index of its subtable. So a subtable is one range of that order, a split divides the range in the
// middle, and a merge joins two neighbours. A cursor is a position in that order and stays right whatever happens to
// the subtables between two calls. docs/protocol.md, "Scan over keys", says why no key is missed.
//
// Thread safety: the client's thread.
#ifndef KVS_TABLE_SCANNER_H_
#define KVS_TABLE_SCANNER_H_

#include <cstdint>
#include <vector>

#include "kvs/client.h"
#include "kvs/epochs/epochs.h"
#include "kvs/layout/subtable.h"
#include "kvs/table/directory.h"
#include "kvs/table/writer.h"
#include "kvs/task.h"

namespace kvs {

class Scanner : private Part {
 public:
  Scanner(Epochs& epochs, Directory& directory, Writer& writer)
      : Part(epochs.common), operations_(epochs.operations), directory_(directory), writer_(writer) {}

  Task<Status> Scan(uint64_t* cursor, ScanOptions options, std::vector<ScanRecord>* records);

 private:
  // A key that a table was seen to hold.
  struct Found {
    Slot slot;
    uint64_t position = 0;  // in the order of the scan
    uint32_t bytes = 0;     // of its block that are read
  };
  // What one call returns.
  struct Page {
    uint64_t begin = 0, end = 0;  // cursors
    ScanOptions options;
    uint32_t depth = 0;        // of the table
    GlobalAddress torn;        // the block whose checksum was wrong last
    std::vector<Found> found;  // at first, all that the table holds; in the end, what the call returns, in order
  };
  Task<Step> ReadPage(Operation& op, Page* page, std::vector<ScanRecord>* records);
  Task<Step> ReadTable(Operation& op, Page* page);
  Task<Step> ReadHashes(Operation& op, Page* page);
  static void Cut(const Operation& op, Page* page);
  Task<Step> ReadRecords(Operation& op, Page* page, std::vector<ScanRecord>* records);
  Step Torn(Operation& op, Page* page, Slot slot);
  Task<Status> RemoveExpired(const ScanOptions& options, std::vector<ScanRecord>* records);

  Operations& operations_;
  Directory& directory_;
  Writer& writer_;
};

}  // namespace kvs

#endif  // KVS_TABLE_SCANNER_H_

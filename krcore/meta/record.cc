#include "krcore/meta/record.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace krcore::meta {

uint64_t ChecksumOf(const Record& record) {
  Record copy = record;
  copy.checksum = 0;
  return XXH3_64bits(&copy, sizeof(copy));
}

}  // namespace krcore::meta

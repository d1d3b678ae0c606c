// Table: the extendible hash table as one client reads and changes it.
#ifndef KVS_TABLE_TABLE_H_
#define KVS_TABLE_TABLE_H_

#include "kvs/epochs/epochs.h"
#include "kvs/table/address_cache.h"
#include "kvs/table/combiner.h"
#include "kvs/table/directory.h"
#include "kvs/table/finder.h"
#include "kvs/table/merger.h"
#include "kvs/table/reader.h"
#include "kvs/table/scanner.h"
#include "kvs/table/splitter.h"
#include "kvs/table/workbench.h"
#include "kvs/table/writer.h"

namespace kvs {

// The members are in the order in which they build on each other.
struct Table {
  // `arena`: Workbench::ArenaBytes of registered memory.
  Table(Epochs& epochs, ArenaPart arena)
      : addresses(epochs.common.stats),
        combiner(epochs.common.stats),
        directory(epochs.common, epochs.cache),
        finder(epochs.common, epochs.cache, addresses),
        workbench(epochs.common, epochs.registrar, arena),
        merger(epochs, directory, workbench),
        splitter(epochs, directory, workbench, merger),
        writer(epochs, addresses, combiner, directory, finder, workbench, merger, splitter),
        reader(epochs, addresses, combiner, directory, finder, writer),
        scanner(epochs, directory, writer) {}

  AddressCache addresses;
  Combiner combiner;
  Directory directory;
  Finder finder;
  Workbench workbench;
  Merger merger;
  Splitter splitter;
  Writer writer;
  Reader reader;
  Scanner scanner;
};

}  // namespace kvs

#endif  // KVS_TABLE_TABLE_H_

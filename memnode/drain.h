// --drain and --undrain: an operator's requests about one memory node of a running fabric, carried out by a client of
// the store. The memory node itself takes no part.
#ifndef MEMNODE_DRAIN_H_
#define MEMNODE_DRAIN_H_

#include "memnode/options.h"

namespace memnode {

// Empties memory node options.drain and prints a line of progress a second on stdout. Blocks until it is empty or a
// stop is requested. Returns the exit status.
int Drain(const Options& options);
// Takes memory node options.undrain back into use. Returns the exit status.
int Undrain(const Options& options);

}  // namespace memnode

#endif  // MEMNODE_DRAIN_H_

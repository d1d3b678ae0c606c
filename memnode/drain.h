// --drain and --undrain: what an operator asks of a running fabric's memory node, by a client of the store. The memory
// node itself takes no part.
#ifndef MEMNODE_DRAIN_H_
#define MEMNODE_DRAIN_H_

#include "memnode/options.h"

namespace memnode {

// Empties memory node options.drain, with a line of progress a second on stdout; blocks until that is done, or until a
// stop is requested. Returns the exit status.
int Drain(const Options& options);
// Takes memory node options.undrain back into use.
int Undrain(const Options& options);

}  // namespace memnode

#endif  // MEMNODE_DRAIN_H_

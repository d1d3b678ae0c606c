// --drain, --undrain and --set_replicas: an operator's requests to a running store, made by a client.
#ifndef MEMNODE_REQUESTS_H_
#define MEMNODE_REQUESTS_H_

#include "memnode/options.h"

namespace memnode {

// Empties memory node options.drain and prints a line of progress a second on stdout. Blocks until it is empty or a
// stop is requested. Returns the exit status.
int Drain(const Options& options);
// Takes memory node options.undrain back into use. Returns the exit status.
int Undrain(const Options& options);
// Sets how many replicas each pool is to have. Returns the exit status.
int SetReplicas(const Options& options);

}  // namespace memnode

#endif  // MEMNODE_REQUESTS_H_

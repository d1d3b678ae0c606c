// The process that workers are forked from, and what it and WorkerProcesses tell each other: datagrams of one struct.
#ifndef COMPUTENODE_SRC_WORKER_TEMPLATE_H_
#define COMPUTENODE_SRC_WORKER_TEMPLATE_H_

#include <cstdint>

#include "computenode/worker_processes.h"

namespace computenode {

// To the template: fork a worker for a slot.
struct SpawnRequest {
  uint32_t slot;
};

// From it.
struct SpawnReport {
  enum class Kind : uint32_t { kSpawned, kNotSpawned, kEnded };
  Kind kind;
  uint32_t slot;
  int32_t pid;
  int32_t status;  // kNotSpawned: errno; kEnded: as waitpid tells it
};

// The template's life; does not return. `parent`: who made it.
[[noreturn]] void RunTemplate(const WorkerProcessesOptions& options, const WorkerBoard& board, int socket,
                              int32_t parent);

}  // namespace computenode

#endif  // COMPUTENODE_SRC_WORKER_TEMPLATE_H_

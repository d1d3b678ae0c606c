/*
 * krcore from C: one node exposes memory; another connects a queue to it in a microsecond, and writes and reads
 * one-sided. Both are in this process; the fabric "inproc:..." is private to it. Real nodes are processes that name the
 * same fabric.
 */
#define KRCORE_SHORT_NAMES
#include <krcore/krcore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t kSecond = 1000000000;

static void check(int error, const char* what) {
  if (error == KRCORE_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, krcore_strerror(error), krcore_last_error());
  exit(1);
}

int main(void) {
  /* A memory node. */
  krcore_node_t* memory_node = NULL;
  krcore_mr_t* exposed = NULL;
  struct krcore_mr_info remote;
  const struct krcore_node_options first = {.fabric = "inproc:example", .node = 1, .create_fabric = 1};
  check(krcore_open(&first, &memory_node), "open");
  check(krcore_host_meta(memory_node, 16), "host the metadata");
  check(qreg_mr(memory_node, NULL, 4096, KRCORE_REMOTE_READ | KRCORE_REMOTE_WRITE, &exposed), "qreg_mr");
  check(krcore_publish(memory_node, 5 * kSecond), "publish");
  krcore_mr_info(exposed, &remote);

  /* A worker: a node, a pool for its thread, memory of its own. */
  krcore_node_t* node = NULL;
  krcore_pool_t* pool = NULL;
  krcore_mr_t* mine = NULL;
  struct krcore_mr_info local;
  const struct krcore_node_options second = {.fabric = "inproc:example"};
  char buffer[64] = "written one-sided";
  check(krcore_open(&second, &node), "open");
  check(krcore_pool_open(node, NULL, &pool), "pool");
  check(qreg_mr(node, buffer, sizeof(buffer), 0, &mine), "qreg_mr");
  krcore_mr_info(mine, &local);

  const struct krcore_sge sge = {(uint64_t)(uintptr_t)buffer, sizeof(buffer), local.lkey};
  const struct krcore_wr wr = {.wr_id = 7,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = KRCORE_WRITE,
                               .flags = KRCORE_SIGNALED,
                               .remote_addr = (uint64_t)(uintptr_t)remote.addr,
                               .rkey = remote.rkey};
  struct krcore_completion completion;
  krcore_queue_t* q = NULL;

  check(queue(pool, 64, &q), "queue");
  check(qconnect(q, 1, KRCORE_NO_PORT, 5 * kSecond), "qconnect");
  check(qpush(q, &wr, 1, NULL), "qpush");
  while (qpop(q, &completion, 1) == 0) qpoll(pool);
  printf("request %u: %s; the memory node has \"%s\"\n", (unsigned)completion.wr_id,
         krcore_wc_strerror(completion.status), (const char*)remote.addr);
  const int ok = completion.status == KRCORE_WC_SUCCESS && strcmp(remote.addr, "written one-sided") == 0;

  qclose(q);
  qdereg_mr(mine);
  krcore_pool_close(pool);
  krcore_close(node);
  qdereg_mr(exposed);
  krcore_close(memory_node);
  return ok ? 0 : 1;
}

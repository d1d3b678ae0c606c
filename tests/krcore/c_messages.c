/* The C interface from C11: messages both ways, zero-copy, refusals with their codes, errors in words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "krcore/krcore.h"

#define STRERROR krcore_strerror
#define LAST_ERROR krcore_last_error
#include "tests/support/c_expect.h"

static const int64_t kSecond = 1000000000;

enum { kBufferBytes = 8192 };

struct party {
  krcore_node_t* node;
  krcore_pool_t* pool;
  krcore_mr_t* mr;
  struct krcore_mr_info memory;
};

static struct party start(uint32_t id) {
  struct party party;
  const struct krcore_node_options options = {.fabric = "inproc:c-messages", .node = id, .create_fabric = 1};
  EXPECT_OK(krcore_open(&options, &party.node));
  if (id == 1) EXPECT_OK(krcore_host_meta(party.node, 16));
  EXPECT_OK(krcore_qreg_mr(party.node, NULL, 4 * kBufferBytes, KRCORE_REMOTE_READ, &party.mr));
  EXPECT_OK(krcore_pool_open(party.node, NULL, &party.pool));
  krcore_mr_info(party.mr, &party.memory);
  return party;
}

static void stop(struct party* party) {
  krcore_pool_close(party->pool);
  krcore_qdereg_mr(party->mr);
  krcore_close(party->node);
}

static char* buffer(const struct party* party, unsigned index) {
  return (char*)party->memory.addr + (size_t)index * kBufferBytes;
}

static struct krcore_sge at(const struct party* party, unsigned index, uint32_t length) {
  const struct krcore_sge sge = {(uint64_t)(uintptr_t)buffer(party, index), length, party->memory.lkey};
  return sge;
}

static int next_message(krcore_queue_t* queue, struct krcore_message* message, struct party* a, struct party* b) {
  for (int polls = 0; polls < 1000000; ++polls) {
    if (krcore_qpop_msgs(queue, message, 1) == 1) return 1;
    krcore_qpoll(a->pool);
    krcore_qpoll(b->pool);
  }
  return 0;
}

static int next_completion(krcore_queue_t* queue, struct krcore_completion* completion, struct party* a,
                           struct party* b) {
  for (int polls = 0; polls < 1000000; ++polls) {
    if (krcore_qpop(queue, completion, 1) == 1) return 1;
    krcore_qpoll(a->pool);
    krcore_qpoll(b->pool);
  }
  return 0;
}

static void messages_and_a_reply(struct party* server, struct party* client) {
  krcore_queue_t *inbox = NULL, *both_ways = NULL, *reply = NULL;
  EXPECT_OK(krcore_queue(server->pool, 16, &inbox));
  EXPECT_OK(krcore_qbind(inbox, 7, NULL, 5 * kSecond));
  EXPECT(krcore_qport(inbox) == 7);
  const struct krcore_recv receives[2] = {{70, at(server, 0, kBufferBytes)}, {71, at(server, 1, kBufferBytes)}};
  EXPECT_OK(krcore_qpush_recv(inbox, receives, 2, NULL));

  EXPECT_OK(krcore_queue(client->pool, 16, &both_ways));
  EXPECT_OK(krcore_qbind(both_ways, KRCORE_NO_PORT, NULL, 5 * kSecond));
  EXPECT_OK(krcore_qconnect(both_ways, 1, 7, 5 * kSecond));
  EXPECT(krcore_qcredits(both_ways) > 0);
  const struct krcore_recv answer_here = {80, at(client, 2, kBufferBytes)};
  EXPECT_OK(krcore_qpush_recv(both_ways, &answer_here, 1, NULL));

  strcpy(buffer(client, 0), "question");
  memset(buffer(client, 1), 'z', kBufferBytes);
  const struct krcore_sge small = at(client, 0, 9), large = at(client, 1, kBufferBytes);
  const struct krcore_wr wrs[2] = {
      {.wr_id = 1, .sg_list = &small, .num_sge = 1, .opcode = KRCORE_SEND_IMM, .flags = KRCORE_SIGNALED, .imm = 42},
      {.wr_id = 2, .sg_list = &large, .num_sge = 1, .opcode = KRCORE_SEND, .flags = KRCORE_SIGNALED}};
  EXPECT_OK(krcore_qpush(both_ways, wrs, 2, NULL));
  struct krcore_message message;
  EXPECT(next_message(inbox, &message, server, client));
  EXPECT(message.wr_id == 70 && message.status == KRCORE_WC_SUCCESS && message.opcode == KRCORE_RECV);
  EXPECT(message.byte_len == 9 && strcmp(buffer(server, 0), "question") == 0 && message.zero_copy == 0);
  EXPECT((message.flags & KRCORE_WITH_IMM) != 0 && message.imm == 42);
  EXPECT(message.sender.node == krcore_node_id(client->node) && message.sender.port == krcore_qport(both_ways));
  const struct krcore_sender asked = message.sender;
  EXPECT(next_message(inbox, &message, server, client));
  EXPECT(message.wr_id == 71 && message.zero_copy == 1 && message.byte_len == kBufferBytes);
  EXPECT(memcmp(buffer(server, 1), buffer(client, 1), kBufferBytes) == 0);
  struct krcore_completion completion;
  for (uint64_t wr_id = 1; wr_id <= 2; ++wr_id) {
    EXPECT(next_completion(both_ways, &completion, client, server));
    EXPECT(completion.wr_id == wr_id && completion.status == KRCORE_WC_SUCCESS);
  }

  EXPECT_OK(krcore_queue(server->pool, 16, &reply));
  EXPECT_OK(krcore_qconnect_sender(reply, &asked, 5 * kSecond));
  strcpy(buffer(server, 3), "answer");
  const struct krcore_sge answer = at(server, 3, 7);
  const struct krcore_wr wr = {.wr_id = 3, .sg_list = &answer, .num_sge = 1, .opcode = KRCORE_SEND};
  EXPECT_OK(krcore_qpush(reply, &wr, 1, NULL));
  EXPECT(next_message(both_ways, &message, client, server));
  EXPECT(message.wr_id == 80 && strcmp(buffer(client, 2), "answer") == 0);
  krcore_qclose(reply);
  krcore_qclose(both_ways);
  krcore_qclose(inbox);
}

static void refusals(struct party* server, struct party* client) {
  krcore_queue_t* queue = NULL;
  EXPECT_OK(krcore_queue(client->pool, 2, &queue));
  const struct krcore_sge sge = at(client, 0, 8);
  struct krcore_wr wrs[3];
  memset(wrs, 0, sizeof(wrs));
  for (int i = 0; i < 3; ++i) {
    wrs[i].sg_list = &sge;
    wrs[i].num_sge = 1;
    wrs[i].opcode = KRCORE_READ;
    wrs[i].remote_addr = (uint64_t)(uintptr_t)server->memory.addr;
    wrs[i].rkey = server->memory.rkey;
  }
  size_t bad = 99;
  EXPECT_CODE(krcore_qpush(queue, wrs, 1, &bad), KRCORE_EBADSTATE);
  EXPECT_CODE(krcore_qconnect(queue, 99, KRCORE_NO_PORT, 5 * kSecond), KRCORE_ENOTFOUND);
  EXPECT(strlen(krcore_last_error()) > 0);
  EXPECT_CODE(krcore_qconnect(queue, 1, 8, 5 * kSecond), KRCORE_ENOTFOUND);
  EXPECT_OK(krcore_publish(server->node, 5 * kSecond));
  EXPECT_OK(krcore_qconnect(queue, 1, KRCORE_NO_PORT, 5 * kSecond));
  struct krcore_region region;
  EXPECT(krcore_qregions(queue, &region, 1) == 1 && region.rkey == server->memory.rkey);
  EXPECT_CODE(krcore_qpush(queue, wrs, 3, &bad), KRCORE_EQUEUEFULL);
  EXPECT(bad == 2);
  wrs[1].opcode = 200;
  EXPECT_CODE(krcore_qpush(queue, wrs, 2, &bad), KRCORE_EINVALID);
  EXPECT(bad == 1);
  wrs[1] = wrs[0];
  wrs[1].rkey ^= 0x5a5a;
  EXPECT_CODE(krcore_qpush(queue, wrs, 2, &bad), KRCORE_EPERMISSION);
  wrs[1].opcode = KRCORE_SEND;
  EXPECT_CODE(krcore_qpush(queue, wrs, 2, &bad), KRCORE_EBADSTATE); /* not connected to a port */
  EXPECT_CODE(krcore_qpush(queue, NULL, 2, &bad), KRCORE_EINVALID);
  const struct krcore_recv receive = {1, sge};
  EXPECT_CODE(krcore_qpush_recv(queue, &receive, 1, NULL), KRCORE_EBADSTATE);
  EXPECT_OK(krcore_qpush(queue, wrs, 1, NULL));
  krcore_qclose(queue);

  krcore_node_t* node = NULL;
  krcore_mr_t* mr = NULL;
  const struct krcore_node_options nowhere = {.fabric = "inproc:nowhere"};
  EXPECT_CODE(krcore_open(&nowhere, &node), KRCORE_ENOTFOUND);
  EXPECT(node == NULL);
  const struct krcore_node_options unknown = {.rnic = "carrier-pigeon", .fabric = "inproc:x"};
  EXPECT_CODE(krcore_open(&unknown, &node), KRCORE_EUNSUPPORTED);
  const struct krcore_node_options nowhere_on_a_network = {.rnic = "verbs", .fabric = "x", .rnic_port = "rxe0"};
  EXPECT_CODE(krcore_open(&nowhere_on_a_network, &node), KRCORE_EINVALID);
  EXPECT(strstr(krcore_last_error(), "fabric_address") != NULL);
  const struct krcore_node_options no_network = {.fabric = "inproc:x", .fabric_address = "::1"};
  EXPECT_CODE(krcore_open(&no_network, &node), KRCORE_EINVALID);
  EXPECT_CODE(krcore_open(NULL, &node), KRCORE_EINVALID);
  char own[64];
  EXPECT_CODE(krcore_qreg_mr(client->node, own, sizeof(own), KRCORE_REMOTE_READ, &mr), KRCORE_EUNSUPPORTED);
  EXPECT(mr == NULL);
  krcore_qclose(NULL);
  krcore_close(NULL);
  EXPECT(strcmp(krcore_strerror(KRCORE_EQUEUEFULL), "queue full") == 0);
  EXPECT(strcmp(krcore_strerror(-1000), krcore_strerror(1)) == 0);
  EXPECT(strlen(krcore_wc_strerror(KRCORE_WC_FLUSHED)) > 0);
}

int main(void) {
  struct party server = start(1), client = start(KRCORE_NO_NODE);
  messages_and_a_reply(&server, &client);
  refusals(&server, &client);
  stop(&client);
  stop(&server);
  if (failures != 0) return 1;
  printf("ok\n");
  return 0;
}

// The C interface over the C++ classes. It decides nothing itself.
#include "kvs/kvs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "krcore/capi/errors.h"
#include "kvs/client.h"

using krcore::capi::Fail;
using krcore::capi::Guarded;
using krcore::capi::Missing;
using krcore::capi::Refuse;
using krcore::capi::Report;
using kvs::Modification;
using kvs::Status;
using kvs::StatusCode;

struct kvs_store {
  std::unique_ptr<kvs::Store> store;
};
struct kvs_client {
  std::unique_ptr<kvs::Client> client;
};

namespace {

static_assert(-KVS_EINTERNAL == static_cast<int>(StatusCode::kInternal) &&
              -KVS_EQUEUEFULL == static_cast<int>(StatusCode::kQueueFull) &&
              -KVS_EUNKNOWN == static_cast<int>(StatusCode::kUnknown));
static_assert(KVS_PUT == static_cast<int>(kvs::WriteKind::kPut) &&
              KVS_INSERT == static_cast<int>(kvs::WriteKind::kInsert) &&
              KVS_UPDATE == static_cast<int>(kvs::WriteKind::kUpdate) &&
              KVS_DELETE == static_cast<int>(kvs::WriteKind::kDelete));
static_assert(KVS_MAX_KEY_BYTES == kvs::kMaxKeyBytes && KVS_MAX_VALUE_BYTES == kvs::kMaxValueBytes);

bool LacksBytes(const void* bytes, size_t length) { return bytes == nullptr && length != 0; }
std::string_view View(const void* bytes, size_t length) { return {static_cast<const char*>(bytes), length}; }
std::optional<std::string_view> Optional(const void* bytes, size_t length) {
  return bytes != nullptr ? std::optional(View(bytes, length)) : std::nullopt;
}

void Set(std::string* option, const char* given) {
  if (given != nullptr) *option = given;
}
template <typename T, typename Given>
void Set(T* option, Given given) {
  if (given != 0) *option = static_cast<T>(given);
}

// What kvs_free frees.
void* Allocate(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Copies `bytes`, with a NUL byte after them, to `to`, which has room for that, and returns where they end.
char* CopyTo(char* to, std::string_view bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  to[bytes.size()] = '\0';
  return to + bytes.size() + 1;
}
char* Copied(std::string_view bytes) {
  char* const copy = static_cast<char*>(Allocate(bytes.size() + 1));
  CopyTo(copy, bytes);
  return copy;
}

// Each call of one key.
template <typename Call>
int OnKey(kvs_client_t* client, const void* key, size_t key_length, const Call& call) {
  if (client == nullptr) return Missing("client");
  if (LacksBytes(key, key_length)) return Missing("key");
  return Guarded([&] { return Report(call(*client->client, View(key, key_length))); });
}

using WriteCall = Status (kvs::Client::*)(std::string_view key, std::string_view value, uint64_t expires_at_ms);
int Write(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length,
          WriteCall write) {
  if (LacksBytes(value, value_length)) return Missing("value");
  return OnKey(client, key, key_length,
               [&](kvs::Client& to, std::string_view of) { return (to.*write)(of, View(value, value_length), 0); });
}

struct Counter {
  const char* name;
  uint64_t kvs::ClientStats::*value;
};
#define KVS_COUNTER(name) \
  { #name, &kvs::ClientStats::name }
constexpr Counter kCounters[] = {
    KVS_COUNTER(operations),
    KVS_COUNTER(round_trips),
    KVS_COUNTER(operation_round_trips),
    KVS_COUNTER(reads),
    KVS_COUNTER(writes),
    KVS_COUNTER(atomics),
    KVS_COUNTER(cas_failures),
    KVS_COUNTER(writes_done),
    KVS_COUNTER(write_attempts),
    KVS_COUNTER(cache_misses),
    KVS_COUNTER(cache_speculations),
    KVS_COUNTER(cache_hits),
    KVS_COUNTER(cache_switches),
    KVS_COUNTER(combined_operations),
    KVS_COUNTER(restarts),
    KVS_COUNTER(splits),
    KVS_COUNTER(split_takeovers),
    KVS_COUNTER(slots_migrated),
    KVS_COUNTER(merges),
    KVS_COUNTER(merge_takeovers),
    KVS_COUNTER(table_replacements),
    KVS_COUNTER(stale_directory_hits),
    KVS_COUNTER(directory_reads),
    KVS_COUNTER(checksum_retries),
    KVS_COUNTER(expired),
    KVS_COUNTER(blocks_retired),
    KVS_COUNTER(blocks_reused),
    KVS_COUNTER(chunks_taken),
    KVS_COUNTER(chunks_freed),
    KVS_COUNTER(compactions),
    KVS_COUNTER(blocks_moved),
    KVS_COUNTER(bytes_copied),
    KVS_COUNTER(heartbeats),
    KVS_COUNTER(expulsions),
    KVS_COUNTER(dead_clients_found),
    KVS_COUNTER(outcomes_looked_up),
    KVS_COUNTER(fenced),
    KVS_COUNTER(fenced_restarts),
    KVS_COUNTER(rc_connects),
    KVS_COUNTER(rc_reclaims),
};
#undef KVS_COUNTER
static_assert(std::size(kCounters) * sizeof(uint64_t) == sizeof(kvs::ClientStats), "one is missing");

}  // namespace

extern "C" {

const char* kvs_version(void) { return SURGEKV_VERSION; }
const char* kvs_strerror(int error) { return krcore::capi::NameOf(error); }
const char* kvs_last_error(void) { return krcore::capi::last_error.c_str(); }
void kvs_free(void* memory) { std::free(memory); }

// ---- stores and clients. A structured binding does not compile any more when the C++ struct gets another member.

int kvs_open(const struct kvs_store_options* options, kvs_store_t** store) {
  if (store == nullptr) return Missing("store");
  *store = nullptr;
  return Guarded([&] {
    kvs::StoreOptions all;
    auto& [rnic, fabric, fabric_address, rnic_port, control_plane, operation_ms, open_ms, clock] = all;
    (void)clock;
    if (options != nullptr) {
      Set(&rnic, options->rnic);
      Set(&fabric, options->fabric);
      Set(&fabric_address, options->fabric_address);
      Set(&rnic_port, options->rnic_port);
      Set(&control_plane, options->control_plane);
      Set(&operation_ms, options->operation_timeout_ms);
      Set(&open_ms, options->open_timeout_ms);
    }
    auto opened = kvs::Store::Open(all);
    if (!opened.ok()) return Fail(opened.status());
    *store = new kvs_store_t{*std::move(opened)};
    return int{KVS_OK};
  });
}

int kvs_open_embedded(const struct kvs_embedded_options* options, kvs_store_t** store) {
  if (store == nullptr) return Missing("store");
  *store = nullptr;
  return Guarded([&] {
    kvs::EmbeddedOptions all;
    auto& [memory_bytes, expected_records, operation_ms] = all;
    if (options != nullptr) {
      Set(&memory_bytes, options->memory_bytes);
      Set(&expected_records, options->expected_records);
      Set(&operation_ms, options->operation_timeout_ms);
    }
    auto opened = kvs::Store::OpenEmbedded(all);
    if (!opened.ok()) return Fail(opened.status());
    *store = new kvs_store_t{*std::move(opened)};
    return int{KVS_OK};
  });
}
void kvs_close(kvs_store_t* store) { delete store; }

int kvs_client_open(kvs_store_t* store, const struct kvs_client_options* options, kvs_client_t** client) {
  if (store == nullptr || client == nullptr) return Missing("store or client");
  *client = nullptr;
  return Guarded([&] {
    kvs::ClientOptions all;
    if (options != nullptr) {
      Set(&all.max_in_flight, options->max_in_flight);
      Set(&all.address_cache_entries, options->address_cache_entries);
    }
    auto made = store->store->NewClient(all);
    if (!made.ok()) return Fail(made.status());
    *client = new kvs_client_t{*std::move(made)};
    return int{KVS_OK};
  });
}
void kvs_client_close(kvs_client_t* client) { delete client; }

int64_t kvs_poll(kvs_client_t* client) {
  if (client == nullptr) return 0;
  client->client->Poll();
  const int64_t until_ns = client->client->IdleUntil(), now_ns = krcore::RealClock()->NowNs();
  return until_ns > now_ns ? until_ns - now_ns : 0;
}

// ---- one key

int kvs_get(kvs_client_t* client, const void* key, size_t key_length, void** value, size_t* value_length) {
  if (value == nullptr || value_length == nullptr) return Missing("value or value_length");
  *value = nullptr;
  *value_length = 0;
  return OnKey(client, key, key_length, [&](kvs::Client& from, std::string_view of) {
    std::string got;
    Status status = from.Get(of, &got);
    if (!status.ok()) return status;
    *value = Copied(got);
    *value_length = got.size();
    return status;
  });
}

int kvs_put(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length) {
  return Write(client, key, key_length, value, value_length, &kvs::Client::Put);
}
int kvs_insert(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length) {
  return Write(client, key, key_length, value, value_length, &kvs::Client::Insert);
}
int kvs_update(kvs_client_t* client, const void* key, size_t key_length, const void* value, size_t value_length) {
  return Write(client, key, key_length, value, value_length, &kvs::Client::Update);
}
int kvs_delete(kvs_client_t* client, const void* key, size_t key_length) {
  return OnKey(client, key, key_length, [](kvs::Client& from, std::string_view of) { return from.Delete(of); });
}

int kvs_compare_and_set(kvs_client_t* client, const void* key, size_t key_length, const void* expected,
                        size_t expected_length, const void* desired, size_t desired_length) {
  if (LacksBytes(expected, expected_length)) return Missing("expected");
  if (LacksBytes(desired, desired_length)) return Missing("desired");
  if (desired_length > KVS_MAX_VALUE_BYTES) return Refuse("desired", " is too long");  // before anything copies it
  return OnKey(client, key, key_length, [&](kvs::Client& in, std::string_view of) {
    return in.CompareAndSet(of, Optional(expected, expected_length), Optional(desired, desired_length));
  });
}

int kvs_modify(kvs_client_t* client, const void* key, size_t key_length, kvs_modify_function function, void* context) {
  if (function == nullptr) return Missing("function");
  bool refused = false;
  const auto decide = [&](const std::optional<kvs::Record>& record) {
    kvs_value old{}, wanted{};
    if (record) old = {record->value.data(), record->value.size(), record->expires_at_ms};
    const int action = function(context, record ? &old : nullptr, &wanted);
    const bool sets = action == KVS_MODIFY_SET;
    refused = sets ? LacksBytes(wanted.value, wanted.value_length) || wanted.value_length > KVS_MAX_VALUE_BYTES
                   : action != KVS_MODIFY_KEEP && action != KVS_MODIFY_DELETE;
    if (refused || action == KVS_MODIFY_KEEP) return Modification::Keep();
    if (!sets) return Modification::Delete();
    return Modification::Set(std::string(View(wanted.value, wanted.value_length)), wanted.expires_at_ms);
  };
  return OnKey(client, key, key_length, [&](kvs::Client& in, std::string_view of) -> Status {
    Status status = in.Modify(of, decide);
    if (!status.ok() || !refused) return status;
    return {StatusCode::kInvalidArgument, "the function's answer is no action, or its value is NULL or too long"};
  });
}

// ---- many keys

int kvs_multi_get(kvs_client_t* client, struct kvs_read* reads, size_t count) {
  if (client == nullptr) return Missing("client");
  if (LacksBytes(reads, count)) return Missing("reads");
  return Guarded([&] {
    std::vector<std::string_view> keys(count);
    for (size_t i = 0; i < count; ++i) {
      if (LacksBytes(reads[i].key, reads[i].key_length)) return Missing("a key");
      keys[i] = View(reads[i].key, reads[i].key_length);
    }
    std::vector<std::string> values(count);
    std::vector<Status> statuses(count);
    client->client->MultiGet(keys, values, statuses);
    for (size_t i = 0; i < count; ++i) {
      reads[i].value = nullptr;
      reads[i].value_length = 0;
      reads[i].status = Guarded([&] {
        if (!statuses[i].ok()) return Fail(statuses[i]);
        reads[i].value = Copied(values[i]);
        reads[i].value_length = values[i].size();
        return int{KVS_OK};
      });
    }
    return int{KVS_OK};
  });
}

int kvs_multi_write(kvs_client_t* client, struct kvs_write* writes, size_t count) {
  if (client == nullptr) return Missing("client");
  if (LacksBytes(writes, count)) return Missing("writes");
  return Guarded([&] {
    std::vector<kvs::WriteRequest> requests(count);
    for (size_t i = 0; i < count; ++i) {
      const struct kvs_write& from = writes[i];
      if (from.kind < KVS_PUT || from.kind > KVS_DELETE) return Refuse("kind", " is not of enum kvs_write_kind");
      if (LacksBytes(from.key, from.key_length)) return Missing("a key");
      const bool has_value = from.kind != KVS_DELETE;
      if (has_value && LacksBytes(from.value, from.value_length)) return Missing("a value");
      requests[i].kind = static_cast<kvs::WriteKind>(from.kind);
      requests[i].key = View(from.key, from.key_length);
      if (has_value) requests[i].value = View(from.value, from.value_length);
      if (has_value) requests[i].expires_at_ms = from.expires_at_ms;
    }
    client->client->MultiWrite(requests);
    for (size_t i = 0; i < count; ++i) writes[i].status = Guarded([&] { return Report(requests[i].status); });
    return int{KVS_OK};
  });
}

int kvs_scan(kvs_client_t* client, uint64_t* cursor, const struct kvs_scan_options* options,
             struct kvs_record** records, size_t* count) {
  if (records == nullptr || count == nullptr) return Missing("records or count");
  *records = nullptr;
  *count = 0;
  if (client == nullptr || cursor == nullptr) return Missing("client or cursor");
  return Guarded([&] {
    kvs::ScanOptions all;
    auto& [wanted, max_bytes, values] = all;
    if (options != nullptr) {
      Set(&wanted, options->count);
      Set(&max_bytes, options->max_bytes);
      values = options->keys_only == 0;
    }
    uint64_t next = *cursor;
    std::vector<kvs::ScanRecord> found;
    if (const Status status = client->client->Scan(&next, &found, all); !status.ok()) return Fail(status);
    size_t bytes = found.size() * sizeof(struct kvs_record);
    for (const auto& [key, value, expires_at_ms] : found) bytes += key.size() + 1 + value.size() + 1;
    auto* const out = static_cast<struct kvs_record*>(Allocate(std::max<size_t>(bytes, 1)));
    char* text = reinterpret_cast<char*>(out + found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& [key, value, expires_at_ms] = found[i];
      char* const value_at = CopyTo(text, key);
      out[i] = {text, key.size(), value_at, value.size(), expires_at_ms};
      text = CopyTo(value_at, value);
    }
    *cursor = next;
    *records = out;
    *count = found.size();
    return int{KVS_OK};
  });
}

// ---- statistics

size_t kvs_client_stats(const kvs_client_t* client, struct kvs_counter* counters, size_t count) {
  if (client == nullptr) return 0;
  const kvs::ClientStats& stats = client->client->stats();
  for (size_t i = 0; counters != nullptr && i < std::min(count, std::size(kCounters)); ++i)
    counters[i] = {kCounters[i].name, stats.*kCounters[i].value};
  return std::size(kCounters);
}

int kvs_read_table_stats(kvs_client_t* client, struct kvs_table_stats** stats) {
  if (stats == nullptr) return Missing("stats");
  *stats = nullptr;
  if (client == nullptr) return Missing("client");
  return Guarded([&] {
    const auto read = client->client->ReadTableStats();
    if (!read.ok()) return Fail(read.status());
    const auto& [depth, subtables, slots, used, load_factor, nodes] = read.value();
    auto* const out = static_cast<struct kvs_table_stats*>(
        Allocate(sizeof(struct kvs_table_stats) + nodes.size() * sizeof(struct kvs_memory_node)));
    auto* const to = reinterpret_cast<struct kvs_memory_node*>(out + 1);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto& [node, capacity, taken, draining] = nodes[i];
      to[i] = {node, draining ? 1u : 0u, capacity, taken};
    }
    *out = {depth, subtables, slots, used, load_factor, to, nodes.size()};
    *stats = out;
    return int{KVS_OK};
  });
}

}  // extern "C"

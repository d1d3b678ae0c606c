// A whole store inside one process: fabric, memory node and client. All of it is gone when the process ends.
#include <kvs/client.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace {

// Many of these run at once on one thread: each suspends while its verbs are under way, and they share doorbells.
kvs::Task<void> Move(kvs::Client& client, std::string_view from, std::string_view to, int* moved) {
  std::string value;
  const kvs::Status found = co_await client.GetAsync(from, &value);
  if (!found.ok()) co_return;
  const kvs::Status put = co_await client.PutAsync(to, value);
  if (!put.ok()) co_return;
  const kvs::Status deleted = co_await client.DeleteAsync(from);
  if (deleted.ok()) ++*moved;
}

}  // namespace

int main() {
  auto store = kvs::Store::OpenEmbedded({}).value();
  auto client = store->NewClient().value();
  // One operation; then several that share their round trips.
  const kvs::Status put = client->Put("hello", "there");
  std::array<kvs::WriteRequest, 2> writes = {
      {{kvs::WriteKind::kUpdate, "hello", "world"}, {kvs::WriteKind::kInsert, "colour", "blue"}}};
  client->MultiWrite(writes);
  if (!put.ok() || !writes[0].status.ok() || !writes[1].status.ok()) return 1;

  int moved = 0;
  client->Spawn(Move(*client, "hello", "greeting", &moved));
  client->Spawn(Move(*client, "colour", "color", &moved));
  client->Drain();

  // Reads, and publishes what the function makes of it, in one atomic step.
  const kvs::Status counted = client->Modify("visits", [](std::optional<std::string_view> visits) {
    return kvs::Modification::Set(std::string(visits.value_or("")) + "I");
  });
  const kvs::Status swapped = client->CompareAndSet("visits", "I", "one");
  if (!counted.ok() || !swapped.ok()) return 1;

  const std::array<std::string_view, 3> keys = {"greeting", "color", "hello"};
  std::array<std::string, 3> values;
  std::array<kvs::Status, 3> statuses;
  client->MultiGet(keys, values, statuses);
  for (size_t i = 0; i < keys.size(); ++i) {
    std::printf("%s: %s\n", keys[i].data(), statuses[i].ok() ? values[i].c_str() : statuses[i].ToString().c_str());
  }
  const bool right = values[0] == "world" && values[1] == "blue" && statuses[2] == kvs::StatusCode::kNotFound;
  return moved == 2 && right ? 0 : 1;
}

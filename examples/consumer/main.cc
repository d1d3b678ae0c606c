#include <kvs/client.h>

#include <cstdio>
#include <string>

int main() {
  auto store = kvs::Store::OpenEmbedded({.memory_bytes = size_t{64} << 20}).value();
  auto client = store->NewClient().value();
  const kvs::Status put = client->Put("hello", "world");
  std::string value;
  const kvs::Status got = client->Get("hello", &value);
  std::printf("put: %s, get: %s, value: %s\n", put.ToString().c_str(), got.ToString().c_str(), value.c_str());
  return put.ok() && got.ok() && value == "world" ? 0 : 1;
}

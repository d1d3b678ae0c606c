// A client of a running fabric. Start one first:
//   build/bin/memnode --fabric=demo --node=1 --memory=1G --metaserver
//   build/bin/example_client demo
#include <kvs/client.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FABRIC\n", argv[0]);
    return 2;
  }
  auto store = kvs::Store::Open({.fabric = argv[1]});
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  auto client = (*store)->NewClient().value();
  const kvs::Status put = client->Put("hello", "world");
  std::string value;
  const kvs::Status got = client->Get("hello", &value);
  if (!put.ok() || !got.ok()) {
    std::fprintf(stderr, "put: %s, get: %s\n", put.ToString().c_str(), got.ToString().c_str());
    return 1;
  }
  std::printf("hello: %s\n", value.c_str());
  return value == "world" ? 0 : 1;
}

// What the tests of the metadata servers share.
#ifndef TESTS_KRCORE_META_FIXTURE_H_
#define TESTS_KRCORE_META_FIXTURE_H_

#include <algorithm>
#include <array>
#include <span>

#include "krcore/peers/meta_client.h"
#include "krcore/peers/meta_server.h"
#include "krcore/rnic.h"
#include "tests/krcore/fixture.h"

namespace krcore::test {

using peers::Key;
using peers::MetaClient;
using peers::NodePayload;
using peers::Record;

// A device with a MetaClient but without a Node. Closing it leaves its records behind, as a crash does.
struct Party {
  std::unique_ptr<rnic::Device> device;
  std::unique_ptr<rnic::Pd> pd;
  std::unique_ptr<MetaClient> client;
  Clock* clock = nullptr;
  NodeId published_as = kNoNode;

  // `as`: the node id under which it publishes; its own if kNoNode.
  static Party Join(const std::string& fabric, Clock& clock, NodeId as = kNoNode) {
    Party party;
    party.device = rnic::OpenDevice({.provider = kRnic,
                                     .fabric = fabric,
                                     .node = kNoNode,
                                     .create_fabric = true,
                                     .address = AddressOf(fabric),
                                     .clock = &clock})
                       .value();
    party.pd = party.device->CreatePd().value();
    party.clock = &clock;
    party.Rename(as == kNoNode ? party.device->address().node : as);
    return party;
  }
  // From now on it publishes as another node.
  void Rename(NodeId as) {
    rnic::DeviceAddress self = device->address();
    self.node = published_as = as;
    client = MetaClient::Create(*device, *pd, *clock, self).value();
  }
  Status PublishNode(const NodePayload& payload, Deadline deadline) {
    return client->Publish(Key::Node(published_as), std::as_bytes(std::span(&payload, 1)), deadline);
  }
  void Close(Deadline deadline) {
    client->RemoveAll(deadline);
    client.reset();
    pd.reset();
    device.reset();
  }
  ~Party() {
    client.reset();
    pd.reset();
    device.reset();
  }
  Party() = default;
  Party(Party&&) = default;
};

inline std::array<std::byte, kMaxServiceBytes> Filled(std::byte fill) {
  std::array<std::byte, kMaxServiceBytes> value;
  value.fill(fill);
  return value;
}

class MetaTable : public ::testing::Test {
 protected:
  void Host(uint32_t capacity, Clock* clock = nullptr) {
    host_ = OpenNode(fabric_, 1, clock);
    ASSERT_OK(host_->HostMetaServer(capacity));
  }
  Deadline Soon() { return Deadline::After(ClockOf(fabric_), 10 * kSecondNs); }
  // Returns the records as they lie in this process's memory, at the server announced as number `index`.
  std::span<Record> Table(rnic::Device& device, uint32_t index = 0) {
    peers::Bootstrap bootstrap;
    const auto bytes = device.LookupRecord(peers::BootstrapName(index)).value();
    std::memcpy(&bootstrap, bytes.data(), sizeof(bootstrap));
    return {reinterpret_cast<Record*>(bootstrap.table_addr), bootstrap.geometry.bytes() / sizeof(Record)};
  }
  Record* Find(rnic::Device& device, const Key& key, uint32_t index = 0) {
    Record* found = nullptr;
    for (Record& record : Table(device, index)) {
      if (record.kind != key.kind || !key.Names(record)) continue;
      EXPECT_EQ(found, nullptr) << "a key has two records";
      found = &record;
    }
    return found;
  }

  const std::string fabric_ = UniqueFabric(true);
  FakeClock fake_clock_;  // outlives the host, which reads it until its end
  std::unique_ptr<Node> host_;
};

}  // namespace krcore::test

#endif  // TESTS_KRCORE_META_FIXTURE_H_

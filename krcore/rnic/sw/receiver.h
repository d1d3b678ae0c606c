#ifndef KRCORE_RNIC_SW_RECEIVER_H_
#define KRCORE_RNIC_SW_RECEIVER_H_
namespace krcore::rnic::sw {
class Receiver {
 public:
  void Drain() {}
};
}  // namespace krcore::rnic::sw
#endif

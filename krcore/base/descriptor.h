// Descriptors 0 to 2 are the user's, even while they are closed: what a program prints goes to their numbers. So this
// library has its own above them, in any process.
#ifndef KRCORE_BASE_DESCRIPTOR_H_
#define KRCORE_BASE_DESCRIPTOR_H_

namespace krcore {

// Where this process's own begin.
inline constexpr int kFirstDescriptor = 3;

// `fd`, which was just made and closes on exec, or a duplicate of it that is above 2 and replaces it. Negative, with
// errno: `fd` is, or there is no descriptor left. May be called in a forked child.
int AboveStandard(int fd);

// For descriptors that other libraries make: those of 0 to 2 that are closed are taken, so that nobody gets them. To
// read or write them fails as before, and their owner may still put something there, by close() and by dup2().
void HoldStandard();

}  // namespace krcore

#endif  // KRCORE_BASE_DESCRIPTOR_H_

#include "bench/reproduce/roles.h"

#include <iostream>
#include <sstream>

#include "bench/reproduce/report.h"

namespace reproduce {

Child StartRole(const Role& role) {
  return Child::Exec({"--role=" + role.name, "--fabric=" + role.fabric, "--plane=" + role.plane,
                      "--id=" + std::to_string(role.id), "--count=" + std::to_string(role.count),
                      "--waves=" + std::to_string(role.waves), "--bytes=" + std::to_string(role.bytes),
                      "--seed=" + std::to_string(role.seed), "--wanted_ns=" + std::to_string(role.wanted_ns)});
}

void BePeer(const Role& role) {
  timed::Peer peer({.fabric = role.fabric}, role.bytes);
  Fill(peer.bytes(), role.seed);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    uint64_t bytes = 0, seed = 0;
    if (!(words >> bytes >> seed) || bytes > peer.bytes().size()) return;
    std::cout << (Matches(peer.bytes().first(bytes), seed) ? "yes" : "no") << std::endl;
  }
}

PeerProcess::PeerProcess(const std::string& fabric, uint64_t bytes, uint64_t seed)
    : child_(StartRole({.name = "peer", .fabric = fabric, .bytes = bytes, .seed = seed})) {
  (void)child_.Hear();
}

bool PeerProcess::Holds(uint64_t bytes, uint64_t seed) {
  child_.Say(std::to_string(bytes) + " " + std::to_string(seed));
  return child_.Hear() == "yes";
}

}  // namespace reproduce

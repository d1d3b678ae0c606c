#include "tests/model/monitor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace model {
namespace {

// A configuration has the value in 4 bits, and then 5 bits for each process.
constexpr uint32_t kIdle = 0, kPending = 1, kDoneWith = 2;  // kDoneWith + result

uint32_t ValueOf(uint32_t configuration) { return configuration & 15; }
uint32_t PhaseOf(uint32_t configuration, int process) { return configuration >> (4 + 5 * process) & 31; }
uint32_t WithValue(uint32_t configuration, uint32_t value) { return (configuration & ~15u) | value; }
uint32_t WithPhase(uint32_t configuration, int process, uint32_t phase) {
  const int shift = 4 + 5 * process;
  return (configuration & ~(31u << shift)) | phase << shift;
}

// Returns the configuration after the pending operation of `process` takes effect.
uint32_t Linearize(uint32_t configuration, int process, const Op& op) {
  const uint32_t value = ValueOf(configuration);
  uint32_t after = value, result = 0;
  switch (op.kind) {
    case OpKind::kGet: result = value; break;
    case OpKind::kPut: result = 1, after = op.value; break;
    case OpKind::kInsert:
      if (value == 0) result = 1, after = op.value;
      break;
    case OpKind::kUpdate:
      if (value != 0) result = 1, after = op.value;
      break;
    case OpKind::kDelete:
      if (value != 0) result = 1, after = 0;
      break;
    case OpKind::kModify: result = value, after = op.value; break;
    case OpKind::kStructural: break;
  }
  return WithPhase(WithValue(configuration, after), process, kDoneWith + result);
}

}  // namespace

void Monitor::Assign(std::vector<uint32_t>* configurations) {
  std::sort(configurations->begin(), configurations->end());
  if (configurations->size() > kMaxConfigurations) {
    std::fprintf(stderr, "a configuration with too many operations on one key at a time\n");
    std::exit(3);
  }
  configurations_.fill(0);
  count_ = static_cast<uint32_t>(configurations->size());
  std::copy(configurations->begin(), configurations->end(), configurations_.begin());
}

void Monitor::Invoke(int process, const InFlight& ops) {
  std::vector<uint32_t> all(configurations_.begin(), configurations_.begin() + count_);
  for (uint32_t& configuration : all) configuration = WithPhase(configuration, process, kPending);
  // Add all that can be reached by linearizing pending operations, in every order.
  for (size_t i = 0; i < all.size(); ++i) {
    for (int p = 0; p < kMaxProcesses; ++p) {
      if (PhaseOf(all[i], p) != kPending) continue;
      const uint32_t next = Linearize(all[i], p, ops[p]);
      if (std::find(all.begin(), all.end(), next) == all.end()) all.push_back(next);
    }
  }
  Assign(&all);
}

void Monitor::Respond(int process, uint8_t result) { Keep(process, kDoneWith + result); }
void Monitor::RespondNoEffect(int process) { Keep(process, kPending); }

void Monitor::Keep(int process, uint32_t phase) {
  std::vector<uint32_t> kept;
  for (uint32_t i = 0; i < count_; ++i) {
    if (PhaseOf(configurations_[i], process) != phase) continue;
    kept.push_back(WithPhase(configurations_[i], process, kIdle));
  }
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  Assign(&kept);
}

bool Monitor::MayHold(uint8_t value) const {
  return std::any_of(configurations_.begin(), configurations_.begin() + count_,
                     [value](uint32_t configuration) { return ValueOf(configuration) == value; });
}

void Monitor::Hash(Hasher* hasher) const {
  hasher->Add(count_);
  for (uint32_t i = 0; i < count_; ++i) hasher->Add(configurations_[i]);
}

std::vector<Program> ParsePrograms(std::span<const std::string> texts, const std::string& structural,
                                   std::string* error) {
  const std::string kinds = "GPIUDC";
  std::vector<Program> programs;
  uint8_t value = 0;
  for (const std::string& text : texts) {
    Program program;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ') continue;
      Op op;
      const size_t kind = kinds.find(text[i]);
      if (kind != std::string::npos) {
        op.kind = static_cast<OpKind>(kind);
      } else if (structural.find(text[i]) != std::string::npos) {
        op.kind = OpKind::kStructural;
        op.structural = text[i];
      } else {
        *error = "\"" + text + "\": no operation '" + text[i] + "'";
        return {};
      }
      if (++i == text.size() || text[i] < '0' || text[i] > '9') {
        *error = "\"" + text + "\": a digit follows every letter";
        return {};
      }
      op.key = static_cast<uint8_t>(text[i] - '0');
      if (op.kind != OpKind::kStructural && op.key >= kKeys) {
        *error = "\"" + text + "\": keys are 0 and 1";
        return {};
      }
      op.value = ++value;
      program.push_back(op);
    }
    programs.push_back(program);
  }
  if (programs.empty() || programs.size() > kMaxProcesses || value > 13) {
    *error = "1 to 4 programs, of 13 operations in all";
    return {};
  }
  return programs;
}

}  // namespace model

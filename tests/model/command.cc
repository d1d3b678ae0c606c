#include "tests/model/command.h"

#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "tests/model/cache_model.h"
#include "tests/model/directory_model.h"
#include "tests/model/epoch_model.h"
#include "tests/model/home_model.h"
#include "tests/model/join_model.h"
#include "tests/model/replication_model.h"
#include "tests/model/sweep_model.h"
#include "tests/model/table_model.h"

namespace model {
namespace {

// The options that a model understands: each name comes with a function that takes the option's value. That of a text
// returns false if the model does not understand the value.
struct Options {
  std::map<std::string, std::function<void()>> flags;
  std::map<std::string, std::function<void(int)>> numbers;
  std::map<std::string, std::function<bool(const std::string&)>> texts;
  std::function<bool(const std::string&)> mutation;
};

template <typename Mutation>
auto MutationByName(std::set<Mutation>* mutations) {
  return [mutations](const std::string& name) {
    for (int i = 0; i < static_cast<int>(Mutation::kCount); ++i) {
      if (name != Name(static_cast<Mutation>(i))) continue;
      mutations->insert(static_cast<Mutation>(i));
      return true;
    }
    return false;
  };
}

template <typename Mutation>
std::string MutationNames() {
  std::string names;
  for (int i = 0; i < static_cast<int>(Mutation::kCount); ++i) {
    names += std::string(i % 4 == 0 ? "\n   " : "") + " " + Name(static_cast<Mutation>(i));
  }
  return names + "\n";
}

// Takes the options from `words` and leaves the programs.
bool ParseOptions(std::span<const std::string> words, const Options& options, Command* command,
                  std::vector<std::string>* programs, std::string* error) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.rfind("--", 0) != 0) {
      programs->push_back(word);
      continue;
    }
    const std::string name = word.substr(2);
    if (const auto flag = options.flags.find(name); flag != options.flags.end()) {
      flag->second();
      continue;
    }
    if (name == "trace") {
      command->trace = true;
      continue;
    }
    if (i + 1 == words.size()) {
      *error = word + ": unknown, or a value is missing";
      return false;
    }
    const std::string& value = words[++i];
    if (const auto number = options.numbers.find(name); number != options.numbers.end()) {
      number->second(std::atoi(value.c_str()));
    } else if (const auto text = options.texts.find(name); text != options.texts.end()) {
      if (!text->second(value)) {
        *error = word + ": a value that it does not understand";
        return false;
      }
    } else if (name == "seconds") {
      command->limits.seconds = std::atof(value.c_str());
    } else if (name == "states") {
      command->limits.max_states = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "without") {
      if (!options.mutation(value)) {
        *error = "--without " + value + ": no such protection";
        return false;
      }
    } else {
      *error = word + ": unknown option";
      return false;
    }
  }
  return true;
}

template <typename Model, typename Config>
void SetRun(const Config& config, Command* command) {
  command->run = [config](const Limits& limits) {
    const Model model(config);
    return Explore(model, model.Initial(), limits);
  };
}

bool InRange(int value, int low, int high, const char* what, std::string* error) {
  if (value >= low && value <= high) return true;
  *error = std::string(what) + " is " + std::to_string(low) + " to " + std::to_string(high);
  return false;
}

bool ParseTable(std::span<const std::string> words, Command* command, std::string* error) {
  TableConfig config;
  Options options;
  options.flags = {{"merge", [&] { config.merge = true; }},
                   {"split-before", [&] { config.split_before = true; }},
                   {"in-order", [&] { config.any_order = false; }}};
  options.numbers = {{"slots", [&](int n) { config.slots = n; }},
                     {"key0", [&](int n) { config.initial[0] = n; }},
                     {"key1", [&](int n) { config.initial[1] = n; }},
                     {"reuse",
                      [&](int n) {
                        config.reuse = true;
                        config.spare_blocks = n;
                      }},
                     {"expel", [&](int n) { config.may_be_expelled = static_cast<uint8_t>(n); }}};
  options.mutation = MutationByName(&config.mutations);
  std::vector<std::string> programs;
  if (!ParseOptions(words, options, command, &programs, error)) return false;
  config.programs = ParsePrograms(programs, "X", error);
  if (config.programs.empty()) return false;
  size_t operations = 0;
  for (const Program& program : config.programs) operations += program.size();
  const int blocks = config.reuse ? config.spare_blocks : static_cast<int>(operations);
  if (!InRange(config.slots, 1, TableModel::kSlots, "--slots", error) ||
      !InRange(blocks, 0, TableModel::kBlocks - 2, "the number of blocks", error) ||
      !InRange(config.initial[0], -1, config.slots - 1, "--key0", error) ||
      !InRange(config.initial[1], -1, config.slots - 1, "--key1", error)) {
    return false;
  }
  SetRun<TableModel>(config, command);
  return true;
}

bool ParseDirectory(std::span<const std::string> words, Command* command, std::string* error) {
  DirectoryConfig config;
  Options options;
  options.flags = {{"split-before", [&] { config.split_before = true; }},
                   {"in-order", [&] { config.any_order = false; }},
                   {"fresh", [&] { config.fresh = true; }},
                   {"any-outcome", [&] { config.any_outcome = true; }},
                   {"solo", [&] { config.solo = true; }}};
  options.numbers = {{"slots", [&](int n) { config.slots = n; }},
                     {"buckets", [&](int n) { config.buckets = n; }},
                     {"key0", [&](int n) { config.initial[0] = n; }},
                     {"key1", [&](int n) { config.initial[1] = n; }},
                     {"hash0", [&](int n) { config.hash[0] = static_cast<uint8_t>(n & 3); }},
                     {"hash1", [&](int n) { config.hash[1] = static_cast<uint8_t>(n & 3); }}};
  options.mutation = MutationByName(&config.mutations);
  std::vector<std::string> programs;
  if (!ParseOptions(words, options, command, &programs, error)) return false;
  config.programs = ParsePrograms(programs, "SM", error);
  if (config.programs.empty()) return false;
  if (!InRange(config.slots, 1, DirectoryModel::kSlots, "--slots", error) ||
      !InRange(config.buckets, 1, DirectoryModel::kBuckets, "--buckets", error) ||
      !InRange(config.initial[0], -1, config.slots - 1, "--key0", error) ||
      !InRange(config.initial[1], -1, config.slots - 1, "--key1", error)) {
    return false;
  }
  SetRun<DirectoryModel>(config, command);
  return true;
}

// "02": the mask of replicas 0 and 2.
auto ReplicaMask(uint8_t* mask) {
  return [mask](const std::string& text) {
    for (const char digit : text) {
      if (digit < '0' || digit >= '0' + kMaxReplicas) return false;
      *mask |= static_cast<uint8_t>(1 << (digit - '0'));
    }
    return true;
  };
}
auto Views(std::vector<ChainView>* views) {
  return [views](const std::string& text) { return ParseViews(text, views); };
}

bool ParseReplication(std::span<const std::string> words, Command* command, std::string* error) {
  ReplicationConfig config;
  ParseViews("01", &config.views);
  Options options;
  options.flags = {{"absent", [&] { config.present = false; }}, {"solo", [&] { config.solo = true; }}};
  options.numbers = {{"slots", [&](int n) { config.slots = n; }}, {"expel", [&](int n) { config.expel = n; }}};
  options.texts = {{"views", Views(&config.views)},
                   {"blocks", Views(&config.block_views)},
                   {"mortal", ReplicaMask(&config.mortal)},
                   {"suspect", ReplicaMask(&config.suspect)}};
  options.mutation = MutationByName(&config.mutations);
  std::vector<std::string> programs;
  if (!ParseOptions(words, options, command, &programs, error)) return false;
  config.programs = ParsePrograms(programs, "FS", error);
  if (config.programs.empty() ||
      !InRange(static_cast<int>(config.programs.size()), 1, ReplicationModel::kClients, "the number of programs",
               error) ||
      !InRange(config.slots, 1, ReplicationModel::kSlots, "--slots", error) ||
      !InRange(config.expel, 0, ReplicationModel::kClients, "--expel", error)) {
    return false;
  }
  if (!config.block_views.empty() && config.block_views.size() != config.views.size()) {
    *error = "--blocks has as many views as --views";
    return false;
  }
  for (const Program& program : config.programs) {
    const int operations = static_cast<int>(program.size());
    if (!InRange(operations, 1, ReplicationModel::kOperations, "a program's length", error)) return false;
    for (const Op& op : program) {
      if (op.kind != OpKind::kPut && op.key == 0) continue;
      *error = "this model has no Put, and key 0 alone";
      return false;
    }
  }
  SetRun<ReplicationModel>(config, command);
  return true;
}

bool ParseHome(std::span<const std::string> words, Command* command, std::string* error) {
  HomeConfig config;
  ParseViews("01", &config.views);
  Options options;
  options.flags = {{"claims", [&] { config.claims = true; }}};
  options.numbers = {{"leaseless", [&](int n) { config.leaseless = static_cast<uint8_t>(n); }},
                     {"ghosts", [&](int n) { config.ghosts = n; }}};
  options.texts = {{"views", Views(&config.views)}};
  options.mutation = MutationByName(&config.mutations);
  std::vector<std::string> programs;
  if (!ParseOptions(words, options, command, &programs, error)) return false;
  config.programs = ParsePrograms(programs, "NR", error);
  if (config.programs.empty() ||
      !InRange(static_cast<int>(config.programs.size()), 1, HomeModel::kClients, "the number of programs", error)) {
    return false;
  }
  int increments = 0;
  for (const Program& program : config.programs) {
    for (const Op& op : program) {
      increments += op.structural == 'N';
      if (op.kind == OpKind::kStructural) continue;
      *error = "this model has the operations N and R";
      return false;
    }
  }
  if (!InRange(increments, 0, HomeModel::kIncrements, "the number of N", error)) return false;
  SetRun<HomeModel>(config, command);
  return true;
}

bool ParseNoPrograms(std::span<const std::string> words, const Options& options, Command* command, std::string* error) {
  std::vector<std::string> programs;
  if (!ParseOptions(words, options, command, &programs, error)) return false;
  if (programs.empty()) return true;
  *error = programs[0] + ": this model has no programs";
  return false;
}

bool ParseEpoch(std::span<const std::string> words, Command* command, std::string* error) {
  EpochConfig config;
  Options options;
  options.flags = {{"cached", [&] { config.cached = true; }}, {"expel", [&] { config.expel = true; }}};
  options.numbers = {{"blocks", [&](int n) { config.blocks = n; }}, {"epochs", [&](int n) { config.epochs = n; }}};
  options.mutation = MutationByName(&config.mutations);
  if (!ParseNoPrograms(words, options, command, error) ||
      !InRange(config.blocks, 2, EpochModel::kBlocks, "--blocks", error) ||
      !InRange(config.epochs, 1, 9, "--epochs", error)) {
    return false;
  }
  SetRun<EpochModel>(config, command);
  return true;
}

bool ParseSweep(std::span<const std::string> words, Command* command, std::string* error) {
  SweepConfig config;
  Options options;
  options.flags = {{"split", [&] { config.split = true; }},
                   {"insert", [&] { config.insert = true; }},
                   {"late", [&] { config.insert = config.late = true; }},
                   {"die", [&] { config.insert = config.die = true; }},
                   {"read", [&] { config.read = true; }}};
  options.numbers = {{"epochs", [&](int n) { config.epochs = n; }}};
  options.mutation = MutationByName(&config.mutations);
  if (!ParseNoPrograms(words, options, command, error) || !InRange(config.epochs, 1, 9, "--epochs", error)) {
    return false;
  }
  SetRun<SweepModel>(config, command);
  return true;
}

bool ParseJoin(std::span<const std::string> words, Command* command, std::string* error) {
  JoinConfig config;
  Options options;
  options.numbers = {{"moves", [&](int n) { config.moves = n; }}, {"updates", [&](int n) { config.updates = n; }}};
  options.mutation = MutationByName(&config.mutations);
  if (!ParseNoPrograms(words, options, command, error) ||
      !InRange(config.moves, 0, JoinModel::kTables - 1, "--moves", error) ||
      !InRange(config.updates, 0, JoinModel::kBlocks - 1, "--updates", error)) {
    return false;
  }
  SetRun<JoinModel>(config, command);
  return true;
}

bool ParseCache(std::span<const std::string> words, Command* command, std::string* error) {
  CacheConfig config;
  Options options;
  options.numbers = {{"blocks", [&](int n) { config.blocks = n; }},
                     {"updates", [&](int n) { config.updates = n; }},
                     {"gets", [&](int n) { config.gets = n; }}};
  options.mutation = MutationByName(&config.mutations);
  if (!ParseNoPrograms(words, options, command, error) ||
      !InRange(config.blocks, 2, CacheModel::kBlocks, "--blocks", error) ||
      !InRange(config.updates, 0, 13, "--updates", error) || !InRange(config.gets, 0, 13, "--gets", error)) {
    return false;
  }
  SetRun<CacheModel>(config, command);
  return true;
}

}  // namespace

std::string Usage() {
  return std::string(R"(Usage: kvs_model MODEL [option]... PROGRAM...
Visits every state that a configuration of a protocol model can reach (docs/protocol.md).
Exit status: 0 holds, 1 violated, 2 a limit was met first, 3 wrong usage.

PROGRAM: what one process does, 1 to 4 of them: a letter and a digit for each operation, without blanks between.
  G Get, P Put, I Insert, U Update, D Delete, of key 0 or 1.

  --without NAME   leave a protection out (several times: several)
  --trace          print the steps that lead to the violation
  --states N       stop after so many states (default 400000000); --seconds S (default 600)

kvs_model table: one subtable that splits, or is merged away; key 1 moves, key 0 stays. X1: split (or merge).
  --key0 SLOT, --key1 SLOT   the keys that are there in the beginning; -1: absent (default)
  --slots N        slots of a table, 1 to 3 (default 2)
  --merge          X1 merges instead
  --split-before   the split is over when everything begins
  --in-order       the words of a READ are read in ascending order, not in any
  --reuse N        blocks are reused; N beside those of the initial keys
  --expel MASK     processes that may be expelled
 protections:)") +
         MutationNames<TableMutation>() + R"(
kvs_model directory: splits, merges, splits again. S0: split dir[0]; M0: merge dir[0] with its sibling.
  --hash0 H, --hash1 H       the keys' two bits (default 0 and 1)
  --key0 SLOT, --key1 SLOT   as above (default -1 and 0); --slots, --in-order, too
  --buckets N      1 or 2 (default 1)
  --split-before   dir[0] and dir[1] are there when everything begins
  --fresh          operations start at the table that the directory names, not at any that it ever named
  --any-outcome    whoever merges may choose to replace the two tables, though they would fit into one
  --solo           check in every state that each process, running alone, comes to its end
 protections:)" +
         MutationNames<DirectoryMutation>() + R"(
kvs_model replication: the slots of one key, mirrored. 1 to 3 programs of 1 or 2 operations of key 0 without Put.
  F0: freeze slot 0, or kill INS there; S0: one pass of copy or sweep.
  --views 01,1,1+2,12  the chains, head to tail, one a view; +2: replica 2 is the learner; =2: with a handover
  --blocks 2,2+3,23  the blocks are in another pool, which has these views: one for each of --views, other replicas
  --mortal 01      replicas that may die; --suspect 01: that may be removed though they live
  --slots N        slots of the key, 1 or 2 (default 1); --absent: the key is not there at the beginning
  --expel N        so many clients may be expelled or die; what they had posted may execute later
  --solo           as above
 protections:)" +
         MutationNames<ReplicationMutation>() + R"(
kvs_model home: a word of the home that clients without a lease change, too. 1 to 3 programs. N0: n -> n + 1; R0: READ.
  --views V        as above
  --leaseless MASK clients that have no lease
  --claims         each writer's words are its own
  --ghosts N       so often a client gives up a CAS that it has posted
 protections:)" +
         MutationNames<HomeMutation>() + R"(
kvs_model join: a replica joins while the table is replaced. --moves N (default 2); --updates N (default 1)
 protections:)" +
         MutationNames<JoinMutation>();
}

bool ParseCommand(std::span<const std::string> words, Command* command, std::string* error) {
  if (words.empty()) {
    *error = "which model?";
    return false;
  }
  const std::span<const std::string> rest = words.subspan(1);
  if (words[0] == "table") return ParseTable(rest, command, error);
  if (words[0] == "directory") return ParseDirectory(rest, command, error);
  if (words[0] == "epoch") return ParseEpoch(rest, command, error);
  if (words[0] == "sweep") return ParseSweep(rest, command, error);
  if (words[0] == "replication") return ParseReplication(rest, command, error);
  if (words[0] == "home") return ParseHome(rest, command, error);
  if (words[0] == "join") return ParseJoin(rest, command, error);
  if (words[0] == "cache") return ParseCache(rest, command, error);
  *error = "\"" + words[0] + "\": no such model";
  return false;
}

}  // namespace model

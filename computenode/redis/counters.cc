// Values as numbers.
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "computenode/redis/command.h"
#include "computenode/redis/on_store.h"

namespace redis {
namespace {

using kvs::Modification;
using kvs::Record;
using kvs::Task;

Task<void> AddInteger(Call& call, int64_t amount) {
  struct {
    int64_t amount;
    std::optional<int64_t> old, sum;
  } add{amount, {}, {}};
  // One reference fits into a std::function without an allocation.
  const kvs::ModifyFunction decide = [&add](const std::optional<Record>& record) {
    add.old = record ? ParseInteger(record->value) : 0;
    add.sum = add.old ? Add(*add.old, add.amount) : std::nullopt;
    return add.sum ? Modification::Set(std::to_string(*add.sum), ExpiryOf(record)) : Modification::Keep();
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (!done) co_return;
  if (!add.old) co_return call.reply.Error(kNotAnInteger);
  if (!add.sum) co_return call.reply.Error("ERR increment or decrement would overflow");
  call.reply.Integer(*add.sum);
}

Task<void> Incr(Call& call) { return AddInteger(call, 1); }
Task<void> Decr(Call& call) { return AddInteger(call, -1); }

Task<void> Incrby(Call& call) {
  const std::optional<int64_t> amount = ParseInteger(call.argument(2));
  if (!amount) co_return call.reply.Error(kNotAnInteger);
  co_await AddInteger(call, *amount);
}

Task<void> Decrby(Call& call) {
  const std::optional<int64_t> amount = ParseInteger(call.argument(2));
  if (!amount) co_return call.reply.Error(kNotAnInteger);
  if (*amount == std::numeric_limits<int64_t>::min()) co_return call.reply.Error("ERR decrement would overflow");
  co_await AddInteger(call, -*amount);
}

Task<void> Incrbyfloat(Call& call) {
  const std::optional<long double> amount = ParseFloat(call.argument(2));
  std::optional<long double> old;
  std::string sum;
  const kvs::ModifyFunction decide = [&](const std::optional<Record>& record) {
    sum.clear();
    old = record ? ParseFloat(record->value) : 0;
    if (!old || !amount || !std::isfinite(*old + *amount)) return Modification::Keep();
    sum = FormatFloat(*old + *amount);
    return Modification::Set(sum, ExpiryOf(record));
  };
  const bool done = co_await ModifyKey(call, call.argument(1), decide);
  if (!done) co_return;
  if (!old || !amount) co_return call.reply.Error("ERR value is not a valid float");
  if (sum.empty()) co_return call.reply.Error("ERR increment would produce NaN or Infinity");
  call.reply.Bulk(sum);
}

constexpr Command kCounterCommands[] = {
    {"incr", 2, Command::kWrite | Command::kFast, 1, 1, 1, Incr},
    {"decr", 2, Command::kWrite | Command::kFast, 1, 1, 1, Decr},
    {"incrby", 3, Command::kWrite | Command::kFast, 1, 1, 1, Incrby},
    {"decrby", 3, Command::kWrite | Command::kFast, 1, 1, 1, Decrby},
    {"incrbyfloat", 3, Command::kWrite | Command::kFast, 1, 1, 1, Incrbyfloat},
};

}  // namespace

std::span<const Command> CounterCommands() { return kCounterCommands; }

}  // namespace redis

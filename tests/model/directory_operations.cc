// The directory model: Get and the writers.
#include <algorithm>

#include "tests/model/directory_stepper.h"

namespace model {

// ---- operations: begin and end

void DirectoryModel::Stepper::Begin() {
  const Op& o = op();
  if (o.kind == OpKind::kStructural) {
    if (o.structural == 'S') {
      Split(o.key, Then::kEnd);
    } else {
      Clear();
      p().index = o.key;
      Go(Step::kMergeReadParent);
    }
    return Emit();
  }
  Monitor::InFlight in_flight{};
  for (size_t q = 0; q < config_.programs.size(); ++q) {
    if (b().processes[q].op < config_.programs[q].size()) in_flight[q] = config_.programs[q][b().processes[q].op];
  }
  s_.monitors[o.key].Invoke(id_, in_flight);
  if (config_.fresh) {
    Resolve(Purpose::kBegin);
    return Emit();
  }
  // The directory cache may name any table that was ever published for the hash.
  const State invoked = s_;
  for (uint8_t t = 0; t < b().tables_used; ++t) {
    s_ = invoked;
    const uint8_t index = table(t).index;
    if (!table(t).published || LowBits(hash(), std::bit_width(index)) != index) continue;
    Scan(Purpose::kFirst, t);
    Emit();
  }
}

void DirectoryModel::Stepper::Return(uint8_t result) {
  s_.monitors[op().key].Respond(id_, result);
  End();
}

void DirectoryModel::Stepper::End() {
  const uint8_t next = static_cast<uint8_t>(p().op + 1);
  p() = Process{};
  p().op = next;
  Go(next < config_.programs[id_].size() ? Step::kIdle : Step::kDone);
}

void DirectoryModel::Stepper::Continue(Then then) {
  if (then == Then::kEnd) return End();
  Resolve(Purpose::kBegin);
}

// ---- finding the table

void DirectoryModel::Stepper::Resolve(Purpose purpose) {
  const Process old = p();
  Clear();
  if (purpose != Purpose::kBegin) {  // the results of the scan are kept
    p().table = old.table;
    p().frozen_slot = old.frozen_slot;
  }
  p().purpose = static_cast<uint8_t>(purpose);
  p().cursor = 0;
  Go(Step::kResolve);
}

// Reads one entry per step, the deepest first: what a child's entry says is not older than what its parent's says.
void DirectoryModel::Stepper::ResolveStep() {
  const int depth = ResolveDepth(p().cursor++);
  p().entries[depth] = b().directory[LowBits(hash(), depth)];
  if (p().cursor <= kMaxDepth) return;
  Settle(kMaxDepth);
}

// Takes the deepest present entry of depth `from` or less.
void DirectoryModel::Stepper::Settle(int from) {
  int depth = from;
  while (depth > 0 &&
         (!Entry(p().entries[depth]).present() || (LowBits(hash(), depth) == LowBits(hash(), depth - 1)))) {
    --depth;  // each index is considered once, at its lowest depth
  }
  const Entry entry(p().entries[depth]);
  p().index = LowBits(hash(), depth);
  p().cursor = static_cast<uint8_t>(depth);
  if (entry.Is(EntryState::kMerging)) {
    p().record = entry.target();
    return Go(Step::kReadStatus);
  }
  Found(entry.target(), false);
}

void DirectoryModel::Stepper::ReadStatusStep() {
  const Record& d = b().records[p().record];
  const uint8_t index = p().index;
  const int depth = std::bit_width(d.child) - 1;  // the depth of M
  const bool parent_is_d = Entry(p().entries[DepthOf(d.parent)]).Is(EntryState::kMerging) &&
                           Entry(p().entries[DepthOf(d.parent)]).target() == p().record;
  const bool replaced = d.status == kReplace && !Mutated(M::kReadClosedParentOnly);
  if (index == d.child && !parent_is_d && !replaced && !Mutated(M::kKeepMergedChild)) {
    return Settle(DepthOf(d.child) - 1);  // published, except for step 8: the child's entry counts as ABSENT
  }
  // An entry that was read before a split, and one that was read after it: this merge is not of the key's tables.
  if (LowBits(hash(), depth) != d.parent && !Mutated(M::kReadForeignRecord)) return Resolve(Purpose::kBegin);
  const bool upper = (hash() >> depth & 1) != 0;
  // For a table that is replaced by itself, its own entry decides; for one that is merged, the parent's.
  const bool valid = replaced ? (upper ? index == d.child : index == d.parent) : parent_is_d;
  const bool closed = d.status == kEngaged || d.status == kJoin || d.status == kReplace;
  Found(Entry(upper && !Mutated(M::kReadWrongHalf) ? d.old_child : d.old_parent).target(), valid && closed);
}

// `closed`: the table is closed, and what is frozen in it is authoritative.
void DirectoryModel::Stepper::Found(uint8_t t, bool closed) {
  const Purpose purpose = static_cast<Purpose>(p().purpose);
  const uint8_t scanned = p().table;
  switch (purpose) {
    case Purpose::kHelpMerge:
      if (closed) {
        const uint8_t record = p().record;
        Clear();
        return HelpMerge(record, Then::kOperation);
      }
      break;
    case Purpose::kSplitting:
    case Purpose::kHelpSplit: {
      const Entry entry(p().entries[DepthOf(table(t).index)]);
      const bool splits = t == scanned && (entry.Is(EntryState::kSplitting) || Mutated(M::kSplitSetsNoState));
      if (!splits) break;  // the child is published, or this table is not the key's for other reasons
      if (purpose == Purpose::kSplitting) return Return(BlockOf(p().frozen_slot));  // [Get 4]
      return Split(table(t).index, Then::kOperation);                               // [Write 4]
    }
    default: break;
  }
  Scan(Purpose::kFirst, t);
  p().engaged = closed;
}

// ---- reading a table

void DirectoryModel::Stepper::Scan(Purpose purpose, uint8_t t) {
  Clear();
  p().table = t;
  p().purpose = static_cast<uint8_t>(purpose);
  p().remaining = static_cast<uint8_t>((1 << (config_.buckets + config_.slots)) - 1);
  Go(Step::kScan);
}

void DirectoryModel::Stepper::ScanWord() {
  const uint8_t remaining = p().remaining;
  for (int word = 0; word < config_.buckets + config_.slots; ++word) {
    if ((remaining >> word & 1) == 0) continue;
    s_ = before_;
    p().remaining = static_cast<uint8_t>(remaining & ~(1 << word));
    if (word < config_.buckets) {
      SeeHeader(table(p().table).header[word]);
    } else {
      p().slots[word - config_.buckets] = table(p().table).slots[word - config_.buckets];
    }
    if (p().remaining != 0) {
      Emit();
    } else {
      Scanned();
    }
    if (!config_.any_order) break;
  }
}

void DirectoryModel::Stepper::SeeHeader(uint8_t header) {
  if (header == kClosed) {
    p().closed = 1;
  } else if (LowBits(hash(), header) != table(p().table).index) {
    p().moved = 1;
  }
}

int DirectoryModel::Stepper::Find(SlotState state, int except) {
  for (int i = 0; i < config_.slots; ++i) {
    if (i != except && StateOf(p().slots[i]) == state && HasBlock(p().slots[i]) && KeyOf(p().slots[i]) == op().key)
      return i;
  }
  return -1;
}

void DirectoryModel::Stepper::Scanned() {
  switch (static_cast<Purpose>(p().purpose)) {
    case Purpose::kFirst:
      if (op().kind == OpKind::kGet) {
        GetScanned();
      } else if (WriteScanned()) {
        return;  // it has emitted its choices
      }
      break;
    default: InserterScanned(); break;
  }
  Emit();
}

void DirectoryModel::Stepper::CheckHeaders() {
  const uint8_t t = p().table;
  Clear();
  p().table = t;
  p().remaining = static_cast<uint8_t>(config_.buckets);
  Go(Step::kCheckHeaders);
}

void DirectoryModel::Stepper::CheckHeadersStep() {
  SeeHeader(table(p().table).header[--p().remaining]);
  if (p().moved || p().closed) return Resolve(Purpose::kBegin);
  if (p().remaining == 0) Return(0);
}

// ---- Get

void DirectoryModel::Stepper::GetScanned() {
  const int val = Find(SlotState::kVal);
  if (val >= 0) return Return(BlockOf(p().slots[val]));  // [Get 1]
  const int frozen = Find(SlotState::kFrz);
  p().frozen_slot = frozen >= 0 ? p().slots[frozen] : 0;
  if (p().closed) {  // [Get 5]
    const bool counts = p().engaged || Mutated(M::kReadClosedUnasked);
    return counts ? Return(BlockOf(p().frozen_slot)) : Resolve(Purpose::kBegin);
  }
  if (!p().moved && frozen < 0) return CheckHeaders();  // [Get 2]
  if (Mutated(M::kReadSplittingUnasked)) return Return(BlockOf(p().frozen_slot));
  Resolve(Purpose::kSplitting);  // [Get 3]
}

// ---- writers

// Returns true if it has emitted its successors itself.
bool DirectoryModel::Stepper::WriteScanned() {
  const int val = Find(SlotState::kVal);
  if (val >= 0) {  // [Write 2]
    if (op().kind == OpKind::kInsert) {
      Return(0);
      return false;
    }
    const uint8_t t = p().table, expected = p().slots[val];
    Clear();
    p().table = t;
    p().cursor = static_cast<uint8_t>(val);
    p().expected = expected;
    Go(Step::kSwap);
    return false;
  }
  if (p().closed) {
    Resolve(Purpose::kHelpMerge);
  } else if (p().moved || Find(SlotState::kFrz) >= 0) {  // [Write 3]
    Resolve(Purpose::kHelpSplit);
  } else if (op().kind == OpKind::kUpdate || op().kind == OpKind::kDelete) {  // [Write 5]
    CheckHeaders();
  } else {
    return ChooseSlot();  // [Write 6]
  }
  return false;
}

bool DirectoryModel::Stepper::ChooseSlot() {
  const State scanned = s_;
  bool any = false;
  for (int i = 0; i < config_.slots; ++i) {
    s_ = scanned;
    if (p().slots[i] != kFreeSlot) continue;
    const uint8_t t = p().table;
    Clear();
    p().table = t;
    p().own = static_cast<uint8_t>(i);
    Go(Step::kTentative);
    Emit();
    any = true;
  }
  s_ = scanned;
  if (!any) Scan(Purpose::kFirst, p().table);  // wait for room
  return any;
}

void DirectoryModel::Stepper::SwapStep() {
  uint8_t* slot = &table(p().table).slots[p().cursor];
  const uint8_t desired = op().kind == OpKind::kDelete ? kFreeSlot : MakeSlot(SlotState::kVal, op().value);
  if (Cas(slot, p().expected, desired)) return Return(op().kind == OpKind::kModify ? BlockOf(p().expected) : 1);
  Scan(Purpose::kFirst, p().table);
}

void DirectoryModel::Stepper::TentativeStep() {
  const uint8_t t = p().table, own = p().own;
  const bool taken = Cas(&table(t).slots[own], kFreeSlot, OwnIns());
  Scan(taken ? Purpose::kInserter : Purpose::kFirst, t);
  if (taken) p().own = own;
}

void DirectoryModel::Stepper::InserterScanned() {
  const uint8_t t = p().table, own = p().own;
  const bool headers = (p().moved || p().closed) && !Mutated(M::kInsertWithoutHeaders);
  const bool value = Find(SlotState::kVal, own) >= 0, frozen = Find(SlotState::kFrz, own) >= 0;
  const int rival = Find(SlotState::kIns, own);
  const bool killed = p().slots[own] != OwnIns();
  const uint8_t rival_slot = rival >= 0 ? p().slots[rival] : 0;
  const bool more_rivals = rival >= 0 && [&] {
    for (int i = rival + 1; i < config_.slots; ++i) {
      if (i != own && StateOf(p().slots[i]) == SlotState::kIns && KeyOf(p().slots[i]) == op().key) return true;
    }
    return false;
  }();
  Clear();
  p().table = t;
  p().own = own;
  if (headers || value || frozen) {  // b, d
    p().waits = value && op().kind == OpKind::kInsert && !headers ? 1 : 0;
    return Go(Step::kAbort);
  }
  if (killed) return Scan(Purpose::kFirst, t);  // c
  if (rival < 0) return Go(Step::kConfirm);
  p().victim = static_cast<uint8_t>(rival);  // e
  p().expected = rival_slot;
  p().waits = more_rivals ? 1 : 0;
  Go(Step::kKillRival);
}

void DirectoryModel::Stepper::AbortStep() {
  const bool exists = p().waits != 0;
  Cas(&table(p().table).slots[p().own], OwnIns(), kFreeSlot);
  if (exists) return Return(0);
  Resolve(Purpose::kBegin);
}

void DirectoryModel::Stepper::KillRivalStep() {
  const uint8_t t = p().table, own = p().own;
  const bool killed = Cas(&table(t).slots[p().victim], p().expected, kFreeSlot);
  const bool more = p().waits != 0;
  Clear();
  p().table = t;
  p().own = own;
  if (killed && !more) return Go(Step::kConfirm);
  Scan(Purpose::kInserter, t);
  p().own = own;
}

void DirectoryModel::Stepper::ConfirmStep() {
  if (Cas(&table(p().table).slots[p().own], OwnIns(), MakeSlot(SlotState::kVal, op().value))) {
    return Return(op().kind == OpKind::kModify ? 0 : 1);
  }
  Scan(Purpose::kFirst, p().table);
}

}  // namespace model

// The block of a write: its memory, what is in it, and what becomes of it and of the one that it replaces.
#include <span>

#include "kvs/src/client_core.h"
#include "kvs/src/mutation.h"
#include "kvs/src/pending_write.h"
#include "kvs/src/store_core.h"

namespace kvs {

// Memory for the block, if the client has some at hand. kRun: it has not, and Allocate() gets it.
Step ClientCore::PlaceBlock(PendingWrite& write) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  block.content_bytes = BlockBytes(op.key.size(), write.value.size());
  block.bytes = RoundBlockBytes(block.content_bytes, chunk_bytes_);
  // On the node of the key's subtable, if that is known: one queue then orders its READ behind the bucket's.
  TableRef table;
  block.preferred = directory_.Lookup(op.hash, &table) ? table.address.node : krcore::kNoNode;
  return AllocateAtOnce(op, block.bytes, block.preferred, &block.address) ? Step::kOk : Step::kRun;
}

// Writes the block, which has its memory, into a buffer of the client's. kFull: there is none for so large a block.
Step ClientCore::BuildNewBlock(PendingWrite& write) {
  Operation& op = *write.op;
  NewBlock& block = write.block;
  std::span<std::byte> local;
  if (block.content_bytes <= kMaxSmallBlockBytes) {
    local = std::span(op.buffers->block).first(block.content_bytes);
    block.lkey = arena_->lkey();
  } else {
    if (!AllocateLarge(block.content_bytes, &op.large_write)) return Step::kFull;
    local = {op.large_write.memory.get(), block.content_bytes};
    block.lkey = op.large_write.region->lkey();
  }
  block.birth = epoch_;
  BuildBlock(local, op.hash.h1, block.birth, op.key, write.value);
  block.local = local.data();
  return Step::kOk;
}

// Adds the block's WRITE to the operation's next batch. False: its memory node cannot be reached.
bool ClientCore::SendBlock(Operation& op, NewBlock* block) {
  if (!connections_.Reach(block->address.node)) return false;
  if (!Mutated(Mutation::kBlockNotAwaited) || block->content_bytes > kMaxSmallBlockBytes) {
    op.batch.Write(block->local, block->address, static_cast<uint32_t>(block->content_bytes), block->lkey);
  }
  block->in_doubt = true;
  return true;
}

// The block of a slot that this client emptied or replaced.
void ClientCore::RetireOld(Operation& op, Slot old) {
  const TableRef& table = op.scan.table;
  const uint64_t bytes = old.length_units() == kLargeBlock ? RoundBlockBytes(op.scan.block.bytes(), chunk_bytes_)
                                                           : uint64_t{old.length_units()} * kUnitBytes;
  ++stats_.blocks_retired;
  const Extent extent{old.block(), bytes, false, op.scan.block.header().birth_epoch};
  if (Mutated(Mutation::kNoGrace)) {
    MemoryOf(op.batch).Free(extent);
  } else if (table.migrating() && !Mutated(Mutation::kNoHold)) {
    MemoryOf(op.batch).RetireHeld(table.index, extent);
  } else {
    MemoryOf(op.batch).Retire(extent);
  }
}

// The operation's own block, if no VAL slot names it.
void ClientCore::GiveBackUnused(const PendingWrite& write) {
  const NewBlock& block = write.block;
  if (!block.address.valid() || block.published || write.op->batch.Stale()) return;
  if (block.in_doubt && !Mutated(Mutation::kInDoubtReused)) return;
  const Extent extent{block.address, block.bytes, false, block.birth};
  if (!block.shown || Mutated(Mutation::kShownReused)) {
    memory_->Free(extent);
  } else {
    memory_->Retire(extent);  // never frozen, so there is no split to wait for
  }
}

}  // namespace kvs

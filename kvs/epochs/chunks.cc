#include <algorithm>
#include <cstddef>

#include "kvs/epochs/allocator.h"

namespace kvs {
namespace {

constexpr uint64_t kCursorOffset = offsetof(Superblock, chunk_cursor);
constexpr uint64_t kTablesChunkOffset = offsetof(Superblock, tables_chunk);
// How many chunk words are read at once: as many as an operation's buffer holds, and only a few at first.
constexpr uint64_t kWindow = kMatchBytes / sizeof(ChunkWord);
constexpr uint64_t kFirstWindow = 64;
static_assert(kMaxValueBytes / kMinChunkBytes + 4 < kWindow);

uint64_t CountFree(std::span<const ChunkWord> words) {
  return static_cast<uint64_t>(
      std::count_if(words.begin(), words.end(), [](ChunkWord word) { return word.kind() == ChunkKind::kFree; }));
}

}  // namespace

Task<Step> Chunks::TakeSpan(Operation& op, krcore::NodeId node, uint64_t least, Span* span) {
  const uint64_t unit = common_.shape.chunk_bytes / kUnitsOfCut;
  uint64_t bytes = std::max(memory_.Of(op.batch).NextSpan(node), (least + unit - 1) / unit * unit);
  if (bytes > common_.shape.chunk_bytes / 2) bytes = common_.shape.chunk_bytes;
  *span = {.end = bytes};
  const uint32_t cut = ChunkWord().Cut(bytes, common_.shape.chunk_bytes).count();
  const Step taken =
      co_await TakeChunks(op, node, ChunkKind::kBlocks, 1, cut, span, bytes < common_.shape.chunk_bytes ? least : 0);
  if (taken != Step::kFull || bytes < common_.shape.chunk_bytes || least > common_.shape.chunk_bytes / 2)
    co_return taken;
  // No chunk is FREE. A begun one must do.
  *span = {.end = (least + unit - 1) / unit * unit};
  const uint32_t least_cut = ChunkWord().Cut(span->end, common_.shape.chunk_bytes).count();
  co_return co_await TakeChunks(op, node, ChunkKind::kBlocks, 1, least_cut, span, least);
}

// Takes a span of one of the chunks with these words, the first of which is chunk `begin`. The span has at most the
// length of *span, and at least `least` bytes. kFull: there is none.
Task<Step> Chunks::CutSpan(Operation& op, krcore::NodeId node, std::span<const ChunkWord> words, uint64_t begin,
                           Span* span, uint64_t least) {
  for (uint64_t i = 0; i < words.size(); ++i) {
    ChunkWord word = words[i];
    uint64_t& old = op.buffers->cas[0];
    while (word.kind() == ChunkKind::kBlocks &&
           word.cut_bytes(common_.shape.chunk_bytes) + least <= common_.shape.chunk_bytes &&
           !memory_.Of(op.batch).IsEvacuating({node, (begin + i) * common_.shape.chunk_bytes})) {
      const uint64_t cut = word.cut_bytes(common_.shape.chunk_bytes),
                     end = std::min(common_.shape.chunk_bytes, cut + span->end - span->begin);
      op.batch.CompareSwap({node, ChunkWordOffset(begin + i)}, word.word(),
                           word.Cut(end, common_.shape.chunk_bytes).word(), &old);
      KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
      if (old == word.word()) {
        *span = {begin + i, word.generation(), cut, end};
        co_return Step::kOk;
      }
      word = ChunkWord(old);
    }
  }
  co_return Step::kFull;
}

Task<Step> Chunks::TakeChunks(Operation& op, krcore::NodeId node, ChunkKind kind, uint32_t count, uint32_t tag,
                              Span* taken, uint64_t least) {
  if (!common_.connections.Reach(node)) co_return Step::kUnavailable;
  const uint64_t pool_bytes = common_.connections.PoolBytes(node);
  const uint64_t chunks = pool_bytes / common_.shape.chunk_bytes,
                 reserved = ReservedChunks(pool_bytes, common_.shape.chunk_bytes);
  // The mover leaves some for its copies when it merges tables.
  const uint64_t kept = ChunksKeptForMover(chunks - reserved);
  const bool keeps = !op.makes_room || op.drains;
  const uint64_t wanted = count + (keeps ? kept : kind == ChunkKind::kTables ? kept / 2 : 0);
  const auto* const words = reinterpret_cast<const ChunkWord*>(op.buffers->match.data());
  // The first pass reads a few words where this client last found room, in one round trip with the cursor. The second
  // goes from the cursor to the end. The third goes from the first chunk to the cursor, and so far beyond it that no
  // run is missed.
  uint32_t& guess = chunk_guess_[node];
  if (guess < reserved || guess >= chunks) guess = static_cast<uint32_t>(reserved);
  uint64_t& cursor = op.buffers->slots[0];
  op.batch.Read({node, kCursorOffset}, &cursor, sizeof(cursor));
  uint64_t hint = 0, start = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const uint64_t end = pass == 0   ? std::min<uint64_t>(chunks, guess + std::max<uint64_t>(kFirstWindow, 2 * count))
                         : pass == 1 ? chunks
                                     : std::min(chunks, start + count - 1);
    uint64_t begin = pass == 0 ? guess : pass == 1 ? start : reserved;
    while (begin + count <= end || pass == 0) {
      const uint64_t window = std::min(kWindow, end - begin);
      op.batch.Read({node, ChunkWordOffset(begin)}, op.buffers->match.data(),
                    static_cast<uint32_t>(window * sizeof(ChunkWord)));
      KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
      if (pass == 0) {
        hint = cursor;
        start = hint < reserved || hint >= chunks ? reserved : hint;
      }
      if (least > 0) {
        const Step cut = co_await CutSpan(op, node, {words, window}, begin, taken, least);
        if (cut != Step::kFull) co_return cut;
      }
      if (pass == 0 && CountFree({words, window}) < wanted) {
        const Step enough = co_await LookForFree(op, node, wanted, taken, least);
        if (enough != Step::kRun) co_return enough;
        break;  // these words are gone
      }
      uint64_t free = 0;  // in a row, up to i
      for (uint64_t i = 0; i < window; ++i) {
        free = words[i].kind() == ChunkKind::kFree ? free + 1 : 0;
        if (free < count) continue;
        const uint64_t chunk = i + 1 - count;
        // The cursor tells the next taker to look after this chunk, or at what is left of it. It does not move for a
        // run, which may have left smaller gaps.
        if (count == 1) {
          op.batch.CompareSwap({node, kCursorOffset}, hint, begin + chunk + (least > 0 ? 0 : 1), &cursor);
        }
        const Step claimed = co_await ClaimRun(op, node, begin + chunk, std::span(&words[chunk], count), kind, tag);
        if (claimed == Step::kUnavailable) co_return claimed;
        if (claimed != Step::kOk) {
          free = 0;
          continue;
        }
        taken->chunk = begin + chunk;
        taken->generation = words[chunk].generation();
        guess = static_cast<uint32_t>(taken->chunk);
        common_.stats.chunks_taken += count;
        co_return Step::kOk;
      }
      if (pass == 0) break;
      begin += window == end - begin ? window : window - (count - 1);
    }
  }
  co_return Step::kFull;
}

// Counts FREE chunks. kRun: the node has `wanted` of them. kFull: it has fewer. kOk: with `least`, a span of a begun
// chunk was taken. Uses the operation's buffer for matching blocks.
Task<Step> Chunks::LookForFree(Operation& op, krcore::NodeId node, uint64_t wanted, Span* taken, uint64_t least) {
  const uint64_t chunks = common_.connections.PoolBytes(node) / common_.shape.chunk_bytes;
  const auto* const words = reinterpret_cast<const ChunkWord*>(op.buffers->match.data());
  uint64_t free = 0;
  for (uint64_t begin = 0; begin < chunks && free < wanted; begin += kWindow) {
    const uint64_t window = std::min(kWindow, chunks - begin);
    op.batch.Read({node, ChunkWordOffset(begin)}, op.buffers->match.data(),
                  static_cast<uint32_t>(window * sizeof(ChunkWord)));
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
    free += CountFree({words, window});
    if (least == 0) continue;
    const Step cut = co_await CutSpan(op, node, {words, window}, begin, taken, least);
    if (cut != Step::kFull) co_return cut;
  }
  co_return free < wanted ? Step::kFull : Step::kRun;
}

// Takes the first word first; it is given back last. So a client that finds a run's first chunk finds all of it.
// kRestart: another client was faster.
Task<Step> Chunks::ClaimRun(Operation& op, krcore::NodeId node, uint64_t first, std::span<const ChunkWord> words,
                            ChunkKind kind, uint32_t tag) {
  const auto count = static_cast<uint32_t>(words.size());
  uint32_t claimed = 0;
  while (claimed < count) {
    const uint32_t begin = claimed;
    const uint32_t end = begin == 0 ? 1 : std::min(count, begin + kCandidates);
    for (uint32_t i = begin; i < end; ++i) {
      const ChunkWord now = i == 0 ? words[i].As(kind, tag) : words[i].As(ChunkKind::kRunRest, 0);
      op.batch.CompareSwap({node, ChunkWordOffset(first + i)}, words[i].word(), now.word(),
                           &op.buffers->cas[i - begin]);
    }
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
    uint32_t lost = end;
    for (uint32_t i = begin; i < end; ++i) {
      if (op.buffers->cas[i - begin] != words[i].word()) {
        lost = std::min(lost, i);
      } else if (i > lost) {  // a later one of this group: give it back at once
        op.batch.CompareSwap({node, ChunkWordOffset(first + i)}, words[i].As(ChunkKind::kRunRest, 0).word(),
                             words[i].Freed().word(), &op.buffers->cas[i - begin]);
      }
    }
    if (lost == end) {
      claimed = end;
      continue;
    }
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
    if (lost > 0) {
      const Step released =
          co_await ReleaseChunks(op.batch, op.buffers->cas, node, first, words.first(lost), kind, tag);
      if (released == Step::kUnavailable) co_return released;
    }
    co_return Step::kRestart;
  }
  co_return Step::kOk;
}

Task<Step> Chunks::ReleaseChunks(Batch& batch, std::span<uint64_t> scratch, krcore::NodeId node, uint64_t first,
                                 std::span<const ChunkWord> words, ChunkKind kind, uint32_t tag) {
  for (auto left = static_cast<uint32_t>(words.size()); left > 0;) {
    const uint32_t end = left;
    const uint32_t begin = end == 1 ? 0 : std::max<uint32_t>(1, end > scratch.size() ? end - scratch.size() : 1);
    for (uint32_t i = begin; i < end; ++i) {
      const ChunkWord taken = i == 0 ? words[i].As(kind, tag) : words[i].As(ChunkKind::kRunRest, 0);
      batch.CompareSwap({node, ChunkWordOffset(first + i)}, taken.word(), words[i].Freed().word(), &scratch[i - begin]);
    }
    KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
    left = begin;
  }
  co_return Step::kOk;
}

Task<Step> Chunks::GiveBackRun(Extent run) {
  Batch& batch = home_.batch();
  const std::span<ChunkWord> window = home_.words().chunks;
  const std::span<uint64_t> scratch = home_.words().old;
  const krcore::NodeId node = run.address.node;
  const uint64_t first = run.address.offset / common_.shape.chunk_bytes;
  const uint64_t count = run.bytes / common_.shape.chunk_bytes;
  if (count > window.size() || !common_.connections.Reach(common_.shape.home)) co_return Step::kUnavailable;
  batch.Read({node, ChunkWordOffset(first)}, window.data(), static_cast<uint32_t>(count * sizeof(ChunkWord)));
  KVS_CO_RETURN_UNLESS_OK(co_await batch.Run());
  if (window[0].kind() != ChunkKind::kRun || window[0].count() != count) co_return Step::kRestart;
  const Step released =
      co_await ReleaseChunks(batch, scratch, node, first, window.first(count), ChunkKind::kRun, window[0].count());
  if (released != Step::kOk) co_return released;
  common_.stats.chunks_freed += count;
  co_return co_await home_.Count(batch, kFreedChunksOffset, count, &scratch[0]);
}

Task<Step> Chunks::CutTable(Operation& op, krcore::NodeId node, GlobalAddress* table) {
  const auto per_chunk = static_cast<uint32_t>(common_.shape.chunk_bytes / common_.shape.geometry.bytes());
  uint64_t& word = op.buffers->cas[1];
  for (;;) {
    op.batch.Read({node, kTablesChunkOffset}, &op.buffers->cas[0], sizeof(uint64_t));
    KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
    const uint64_t hint = op.buffers->cas[0];
    if (hint != 0 && hint < common_.connections.PoolBytes(node) / common_.shape.chunk_bytes) {
      op.batch.Read({node, ChunkWordOffset(hint)}, &word, sizeof(word));
      KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
      for (ChunkWord seen(word); seen.kind() == ChunkKind::kTables && seen.count() < per_chunk;
           seen = ChunkWord(word)) {
        op.batch.CompareSwap({node, ChunkWordOffset(hint)}, seen.word(),
                             seen.As(ChunkKind::kTables, seen.count() + 1).word(), &word);
        KVS_CO_RETURN_UNLESS_OK(co_await op.batch.Run());
        if (word != seen.word()) continue;
        *table = {node, hint * common_.shape.chunk_bytes + seen.count() * common_.shape.geometry.bytes()};
        co_return Step::kOk;
      }
    }
    if (home_.IsFull(node) && !op.makes_room) co_return Step::kFull;
    Span fresh;
    const Step taken = co_await TakeChunks(op, node, ChunkKind::kTables, 1, 1, &fresh);
    if (taken == Step::kFull && !op.makes_room) home_.NoteFull(node);
    if (taken != Step::kOk) co_return taken;
    op.batch.CompareSwap({node, kTablesChunkOffset}, hint, fresh.chunk, &op.buffers->cas[0]);
    const Outcome told = co_await op.batch.Run();
    if (told != Outcome::kOk || op.buffers->cas[0] == hint) {
      *table = {node, fresh.chunk * common_.shape.chunk_bytes};
      co_return Step::kOk;
    }
    // All clients know another client's new chunk instead, so nobody would cut another table from this one.
    const ChunkWord before = ChunkWord::Make(ChunkKind::kFree, 0, fresh.generation);
    KVS_CO_RETURN_UNLESS_OK(co_await ReleaseChunks(op.batch, std::span(op.buffers->cas).first(1), node, fresh.chunk,
                                                   {&before, 1}, ChunkKind::kTables, 1));
    ++common_.stats.chunks_freed;
    // Others may have found the node full meanwhile, and look again when they hear of this.
    KVS_CO_RETURN_UNLESS_OK(co_await home_.Count(op.batch, kFreedChunksOffset, 1, &op.buffers->cas[0]));
  }
}

}  // namespace kvs

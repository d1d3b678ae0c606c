#include "krcore/messages/mailbox.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

namespace krcore::messages {
namespace {

constexpr uint32_t kPollsPerLook = 8;                // for new senders
constexpr int64_t kDeadLookIntervalNs = 20'000'000;  // a system call for each sender
constexpr int64_t kUnpublishNs = 1'000'000'000;
constexpr uint32_t kMaxReceiveDepth = 1u << 16;
constexpr uint32_t kMailboxRights = kLocalWrite | kRemoteRead | kRemoteWrite | kRemoteAtomic;

}  // namespace

Result<Card> CardOf(const Sender& sender) {
  Card card;
  std::memcpy(static_cast<void*>(&card), sender.route.data(), sizeof(card));
  if (card.checksum != ChecksumOf(card)) return Status(StatusCode::kInvalidArgument, "not the sender of a message");
  if (card.port == kNoPort)
    return Status(StatusCode::kInvalidArgument, "the sender's queue is not bound, so it cannot be replied to");
  return card;
}

// ---- opening and closing

Result<std::unique_ptr<Mailbox>> Mailbox::Open(queue::QueuePoolImpl& pool, Ports& ports, Port port,
                                               const BindOptions& options, Deadline deadline) {
  if (options.senders == 0 || options.senders > kMaxSenders || options.slots == 0 || options.slots > kMaxSlots ||
      options.copy_bytes > kMaxCopyBytes || options.receive_depth == 0 || options.receive_depth > kMaxReceiveDepth)
    return Status(StatusCode::kInvalidArgument, "options of Bind: senders 1 to " + std::to_string(kMaxSenders) +
                                                    ", slots 1 to " + std::to_string(kMaxSlots) +
                                                    ", copy_bytes up to " + std::to_string(kMaxCopyBytes) +
                                                    ", receive_depth 1 to " + std::to_string(kMaxReceiveDepth));
  const queue::PoolContext& context = pool.context();
  PortInfo info;
  info.incarnation = context.self.address.incarnation;
  info.copy_bytes = options.copy_bytes;
  info.senders = options.senders;
  info.slots = options.slots;
  const Port bound = ports.Take(port);
  if (bound == kNoPort)
    return Status(StatusCode::kExists, port == kNoPort ? std::string("every port of this node is bound")
                                                       : "port " + std::to_string(port) + " is bound on this node");
  std::unique_ptr<Mailbox> mailbox(new Mailbox(pool, ports, bound, info, options.receive_depth));
  auto memory = context.device->AllocMemory(mailbox->layout_.bytes(), {});
  if (!memory.ok()) return memory.status();
  mailbox->memory_ = *std::move(memory);
  auto mr = context.pd->RegisterMemory(mailbox->at(0), mailbox->layout_.bytes(), kMailboxRights);
  if (!mr.ok()) return mr.status();
  mailbox->mr_ = *std::move(mr);
  mailbox->info_.addr = reinterpret_cast<uint64_t>(mailbox->at(0));
  mailbox->info_.rkey = mailbox->mr_->rkey();
  pool.AddWork(mailbox.get());
  mailbox->published_ = true;  // also if that fails: some servers may have the record
  KRCORE_RETURN_IF_ERROR(ports.records().PublishPort(bound, std::as_bytes(std::span(&mailbox->info_, 1)), deadline));
  return mailbox;
}

Mailbox::~Mailbox() {
  pool_.RemoveWork(this);
  Node& node = pool_.node();
  // A sender that comes too late finds the memory gone.
  if (published_) ports_.records().WithdrawPort(port_, Deadline::After(node.clock(), kUnpublishNs));
  for (Place& place : places_) place.reader.reset();  // waits for its READs
  mr_.reset();
  memory_.reset();
  ports_.Free(port_);
}

// ---- for the user

Status Mailbox::PushRecv(std::span<const Receive> receives, size_t* bad_index) {
  const size_t used = receives_.size() + taken_receives_ + ready_.size();
  if (receives.size() > receive_depth_ - used) {
    *bad_index = receive_depth_ - used;
    return StatusCode::kQueueFull;
  }
  peers::RegionView& local = pool_.regions();
  local.Sync();
  for (size_t i = 0; i < receives.size(); ++i) {
    const Sge& buffer = receives[i].buffer;
    if (buffer.length == 0) continue;
    const peers::LocalRegion* region = local.Find(buffer.lkey);
    if (region != nullptr && region->Covers(buffer.addr, buffer.length) && (region->rights & kLocalWrite) != 0)
      continue;
    *bad_index = i;
    return StatusCode::kPermissionDenied;
  }
  receives_.insert(receives_.end(), receives.begin(), receives.end());
  return {};
}

size_t Mailbox::Pop(std::span<Message> out) {
  const size_t count = std::min(out.size(), ready_.size());
  std::copy_n(ready_.begin(), count, out.begin());
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

// ---- memory that senders write

// Acquire: what the sender wrote before the word is seen after it, where the NIC keeps that order.
uint64_t Mailbox::Load(size_t offset) const {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(at(offset))).load(std::memory_order_acquire);
}

// Release: a sender that READs the word finds everything before it done.
void Mailbox::Store(size_t offset, uint64_t value) {
  std::atomic_ref(*reinterpret_cast<uint64_t*>(at(offset))).store(value, std::memory_order_release);
}

// Checksums tell whether the words belong together. Acquire: what the sender did before its WRITE, such as filling a
// buffer that is then READ, is seen after it.
void Mailbox::Copy(void* to, size_t offset, size_t bytes) const {
  auto* const out = static_cast<std::byte*>(to);
  size_t done = 0;
  for (; done + 8 <= bytes; done += 8) {
    const uint64_t word = Load(offset + done);
    std::memcpy(out + done, &word, sizeof(word));
  }
  if (done == bytes) return;
  const uint64_t word = Load(offset + done);
  std::memcpy(out + done, &word, bytes - done);
}

// ---- places

void Mailbox::LookForSenders() {
  for (uint32_t index = 0; index < places_.size(); ++index) {
    if (places_[index].owner != 0) continue;
    const uint64_t owner = Load(layout_.owner(index));
    if (owner == 0) continue;
    Card card;
    Copy(&card, layout_.control(index) + offsetof(Control, card), sizeof(card));
    if (card.owner == owner && card.checksum == ChecksumOf(card)) OpenPlace(index, card);
  }
}

void Mailbox::OpenPlace(uint32_t index, const Card& card) {
  Place& place = places_[index];
  place = {};
  place.owner = card.owner;
  place.card = card;
  place.next = Load(layout_.control(index) + offsetof(Control, released));
  place.sender.node = card.address.node;
  place.sender.incarnation = card.address.incarnation;
  place.sender.queue = peers::PlaceOwnerNumber(card.owner);
  place.sender.port = card.port;
  std::memcpy(place.sender.route.data(), &card, sizeof(card));
  open_.push_back(index);
}

// Plain stores are enough even where CPU and NIC are not atomic to each other: nobody else changes the owner of a place
// with a card, or of one whose owner is kBeingFreed (wire.h). The card is cleared in between, because its owner word
// may be used again some thousand queues later.
void Mailbox::FreePlace(uint32_t index) {
  const size_t control = layout_.control(index);
  Store(layout_.owner(index), kBeingFreed);
  Store(control + offsetof(Control, closing), 0);
  Store(control + offsetof(Control, card), 0);      // its checksum
  Store(control + offsetof(Control, card) + 8, 0);  // its owner
  places_[index].owner = 0;
  std::erase(open_, index);
  Store(layout_.owner(index), 0);
}

void Mailbox::LookForDeadSenders() {
  const int64_t now_ns = pool_.node().clock().NowNs();
  if (now_ns - last_look_ns_ < kDeadLookIntervalNs) return;
  last_look_ns_ = now_ns;
  rnic::Device& device = *pool_.context().device;
  const Deadline deadline{now_ns + rnic::kPollingAskNs};  // for all of them together
  for (const uint32_t index : open_) {
    Place& place = places_[index];
    if (place.sender_is_dead || device.QueryPeer(place.card.address, deadline) != rnic::PeerState::kDead) continue;
    place.sender_is_dead = true;  // from now on nothing in its slots changes
    place.put_back_from = place.next - place.taken.size();
  }
}

bool Mailbox::IsFree(uint32_t index) const {
  const Place& place = places_[index];
  if (!place.taken.empty()) return false;
  if (Load(layout_.control(index) + offsetof(Control, closing)) == Closing(place.owner, place.next)) return true;
  if (!place.sender_is_dead) return false;
  Header header;
  Copy(&header, layout_.slot(index, place.next), sizeof(header));
  return header.number != place.next || header.checksum != ChecksumOf(header);
}

// ---- messages

size_t Mailbox::Work() {
  if (polls_++ % kPollsPerLook == 0) {
    LookForSenders();
    if (!open_.empty()) LookForDeadSenders();
  }
  size_t found = 0;
  const size_t count = open_.size();
  if (count == 0) return 0;
  ++turn_;
  std::vector<uint32_t> done;  // allocates only when a place is freed
  for (size_t i = 0; i < count; ++i) {
    const uint32_t index = open_[(turn_ + i) % count];
    found += Advance(index);
    if (places_[index].taken.empty() && IsFree(index)) done.push_back(index);
  }
  for (const uint32_t index : done) FreePlace(index);
  return found;
}

size_t Mailbox::Advance(uint32_t index) {
  Place& place = places_[index];
  if (place.reader != nullptr) FinishReads(index);
  if (place.put_back_from == UINT64_MAX || PutBack(place)) TakeArrived(index);
  return Deliver(index);
}

void Mailbox::TakeArrived(uint32_t index) {
  Place& place = places_[index];
  while (place.taken.size() < info_.slots) {
    const size_t slot = layout_.slot(index, place.next);
    if (Load(slot + offsetof(Header, number)) != place.next) return;
    Header header;
    Copy(&header, slot, sizeof(header));
    if (header.number != place.next || header.checksum != ChecksumOf(header)) return;  // not all of it is there
    if (!Take(index, header)) return;
    ++place.next;
  }
}

bool Mailbox::Take(uint32_t index, const Header& header) {
  Place& place = places_[index];
  const bool cannot_be_read = header.kind == MessageKind::kZeroCopy && place.sender_is_dead;
  if (header.kind == MessageKind::kVoid || cannot_be_read) {
    place.taken.push_back({.state = Taken::kVoid});
    return true;
  }
  if (receives_.empty()) return false;
  TakenMessage taken;
  taken.receive = receives_.front();
  taken.header_checksum = header.checksum;
  Message& message = taken.message;
  message.wr_id = taken.receive.wr_id;
  message.opcode = header.kind == MessageKind::kWritten ? Opcode::kRecvWithImm : Opcode::kRecv;
  message.flags = header.with_imm != 0 ? kWithImm : 0;
  message.byte_len = header.length;
  message.imm = header.imm;
  message.sender = place.sender;
  const bool has_payload = header.kind == MessageKind::kCopy || header.kind == MessageKind::kZeroCopy;
  if (has_payload && header.length > taken.receive.buffer.length) {
    // The receive goes back to the user, the message waits for a longer one.
    if (!place.taken.empty()) return false;  // after those that were sent before
    message.status = WcStatus::kLocalLengthError;
    ready_.push_back(message);
    receives_.pop_front();
    return false;
  }
  if (header.kind == MessageKind::kCopy) {
    if (!CopyPayload(index, header, taken.receive)) {
      // The rest of a dead sender's message never comes.
      if (place.sender_is_dead) place.taken.push_back({.state = Taken::kVoid});
      return place.sender_is_dead;
    }
  } else if (header.kind == MessageKind::kZeroCopy) {
    if (place.back_off.Skips() || !StartRead(place, header, taken.receive)) return false;
    message.zero_copy = true;
    taken.state = Taken::kReading;
  }
  receives_.pop_front();
  ++taken_receives_;
  place.taken.push_back(taken);
  return true;
}

bool Mailbox::CopyPayload(uint32_t index, const Header& header, const Receive& receive) {
  if (header.length > info_.copy_bytes) return false;
  Copy(reinterpret_cast<std::byte*>(receive.buffer.addr), layout_.slot(index, header.number) + sizeof(Header),
       header.length);
  const Sge received{receive.buffer.addr, header.length, 0};
  return HashPayload({&received, 1}) == header.payload_hash;
}

bool Mailbox::StartRead(Place& place, const Header& header, const Receive& receive) {
  if (place.reader == nullptr) place.reader = std::make_unique<queue::OneSidedQueue>(pool_, info_.slots);
  queue::OneSidedQueue& reader = *place.reader;
  if (!reader.ready()) {
    if (reader.outstanding() != 0) return false;
    // The sender gets a Peer of its own, whose one region is what the message's description names.
    auto ah = pool_.context().device->CreateAddressHandle(place.card.address);
    if (!ah.ok()) return false;  // it is dying; LookForDeadSenders will tell
    place.peer = std::make_shared<peers::Peer>();
    place.peer->target = {place.card.address, place.card.dct_num, place.card.dc_key};
    place.peer->region_count = 1;
    place.peer->ah = *std::move(ah);
    reader.Adopt(place.peer);
  }
  if (!reader.has_room()) return false;
  place.peer->regions[0] = {header.addr, header.length, header.rkey, 0};
  const Sge into{receive.buffer.addr, header.length, receive.buffer.lkey};
  WorkRequest wr;
  wr.wr_id = header.number;
  wr.sg_list = &into;
  wr.num_sge = 1;
  wr.remote_addr = header.addr;
  wr.rkey = header.rkey;
  return reader.Stage({&wr, 1}, nullptr).ok();
}

void Mailbox::FinishReads(uint32_t index) {
  Place& place = places_[index];
  Completion completions[16];
  for (size_t count; (count = place.reader->Pop(completions)) != 0;) {
    for (const Completion& completion : std::span(completions, count)) {
      const uint64_t first = place.next - place.taken.size();
      if (completion.wr_id < first || completion.wr_id >= place.next) continue;  // it was put back
      const size_t i = completion.wr_id - first;
      TakenMessage& taken = place.taken[i];
      if (taken.state != Taken::kReading) continue;
      if (completion.status == WcStatus::kSuccess) {
        place.back_off.Succeeded();
        taken.state = Taken::kDone;
        // The sender may have taken the message back while it was READ: then its buffer had other contents already.
        const size_t slot = layout_.slot(index, completion.wr_id);
        if (Load(slot + offsetof(Header, checksum)) == taken.header_checksum) continue;
        taken.state = Taken::kVoid;
        receives_.push_front(taken.receive);
        --taken_receives_;
      } else if (completion.status == WcStatus::kRemoteAccessError) {
        taken.state = Taken::kFailed;
        taken.message.status = completion.status;
      } else {
        place.put_back_from = std::min(place.put_back_from, completion.wr_id);
        place.back_off.Failed();
      }
    }
  }
}

bool Mailbox::PutBack(Place& place) {
  if (place.reader != nullptr && place.reader->outstanding() != 0) return false;  // their buffers are in use
  while (!place.taken.empty() && place.next > place.put_back_from) {
    const TakenMessage& last = place.taken.back();
    if (last.state != Taken::kVoid) {
      receives_.push_front(last.receive);
      --taken_receives_;
    }
    place.taken.pop_back();
    --place.next;
  }
  place.put_back_from = UINT64_MAX;
  return true;
}

size_t Mailbox::Deliver(uint32_t index) {
  Place& place = places_[index];
  size_t delivered = 0, released = 0;
  while (!place.taken.empty() && place.taken.front().state != Taken::kReading &&
         place.next - place.taken.size() < place.put_back_from) {
    const TakenMessage& taken = place.taken.front();
    if (taken.state != Taken::kVoid) {
      ready_.push_back(taken.message);
      --taken_receives_;
      ++delivered;
    }
    place.taken.pop_front();
    ++released;
  }
  if (released != 0) Store(layout_.control(index) + offsetof(Control, released), place.next - place.taken.size());
  return delivered;
}

}  // namespace krcore::messages

// LMDB in /dev/shm, without syncing. One operation at a time is one transaction; those in flight together share one,
// which promises more than the others' do.
#include <lmdb.h>
#include <sys/stat.h>

#include <array>
#include <string>
#include <utility>

#include "bench/peers/peer.h"
#include "bench/peers/stores/server_process.h"

namespace peers {
namespace {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

constexpr uint64_t kBesidesBytes = 384;  // of a record: pages are half full at worst
constexpr uint64_t kLeastBytes = uint64_t{64} << 20;

MDB_val ValueOf(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

class LmdbSession final : public Session {
 public:
  LmdbSession(MDB_env* env, MDB_dbi map) : env_(env), map_(map) {
    if (mdb_txn_begin(env, nullptr, MDB_RDONLY, &reader_) == MDB_SUCCESS) mdb_txn_reset(reader_);
  }
  ~LmdbSession() override {
    if (reader_ != nullptr) mdb_txn_abort(reader_);
  }

  void Run(Requests& requests, uint32_t in_flight) override {
    for (;;) {
      size_t count = 0;
      bool writes = false;
      for (uint32_t lane = 0; lane < in_flight; ++lane) {
        if (!requests.Next(lane, &batch_[count].request)) continue;
        writes |= batch_[count].request.verb != Verb::kGet;
        batch_[count++].lane = lane;
      }
      if (count == 0) return;
      MDB_txn* txn = reader_;
      bool ok = (writes ? mdb_txn_begin(env_, nullptr, 0, &txn) : mdb_txn_renew(reader_)) == MDB_SUCCESS;
      for (size_t i = 0; i < count; ++i) Execute(requests, txn, &batch_[i], ok);
      if (writes) {
        ok = ok && mdb_txn_commit(txn) == MDB_SUCCESS;
      } else {
        mdb_txn_reset(reader_);
      }
      for (size_t i = 0; i < count; ++i) {
        if (batch_[i].request.verb != Verb::kGet) requests.Done(batch_[i].lane, ok && batch_[i].ok);
      }
    }
  }

 private:
  struct Operation {
    Request request;
    uint32_t lane = 0;
    bool ok = false;
  };

  void Execute(Requests& requests, MDB_txn* txn, Operation* op, bool begun) {
    MDB_val key = ValueOf(op->request.key), value = ValueOf(op->request.value);
    switch (op->request.verb) {
      case Verb::kGet: {
        const bool found = begun && mdb_get(txn, map_, &key, &value) == MDB_SUCCESS;
        requests.Done(op->lane, found,
                      {found ? static_cast<const char*>(value.mv_data) : "", found ? value.mv_size : 0});
        break;
      }
      case Verb::kUpdate: {
        MDB_val before;
        op->ok = begun && mdb_get(txn, map_, &key, &before) == MDB_SUCCESS &&
                 mdb_put(txn, map_, &key, &value, 0) == MDB_SUCCESS;
        break;
      }
      case Verb::kInsert: op->ok = begun && mdb_put(txn, map_, &key, &value, MDB_NOOVERWRITE) == MDB_SUCCESS; break;
    }
  }

  MDB_env* const env_;
  const MDB_dbi map_;
  MDB_txn* reader_ = nullptr;
  std::array<Operation, kMaxInFlight> batch_;
};

class LmdbPeer final : public Peer {
 public:
  LmdbPeer(std::unique_ptr<PrivateFolder> folder, MDB_env* env, MDB_dbi map)
      : folder_(std::move(folder)), env_(env), map_(map) {}
  ~LmdbPeer() override { mdb_env_close(env_); }
  std::unique_ptr<Session> NewSession() override { return std::make_unique<LmdbSession>(env_, map_); }
  uint64_t MemoryBytes() override {
    struct stat file {};
    stat((folder_->path() + "/data.mdb").c_str(), &file);
    return static_cast<uint64_t>(file.st_blocks) * 512;
  }

 private:
  std::unique_ptr<PrivateFolder> folder_;
  MDB_env* const env_;
  const MDB_dbi map_;
};

Status Open(MDB_env* env, const std::string& folder, const Shape& shape, MDB_dbi* map) {
  int error = mdb_env_set_mapsize(env, kLeastBytes + shape.most_records() * (shape.data_bytes() + kBesidesBytes));
  constexpr unsigned kFlags = MDB_NOSYNC | MDB_WRITEMAP | MDB_NOTLS | MDB_NOMEMINIT | MDB_NORDAHEAD;
  if (error == 0) error = mdb_env_open(env, folder.c_str(), kFlags, 0600);
  MDB_txn* txn = nullptr;
  if (error == 0) error = mdb_txn_begin(env, nullptr, 0, &txn);
  if (error == 0) error = mdb_dbi_open(txn, nullptr, 0, map);
  if (error == 0) error = mdb_txn_commit(txn);
  return error == 0 ? Status::Ok() : Status(StatusCode::kUnavailable, std::string("LMDB: ") + mdb_strerror(error));
}

}  // namespace

Result<std::unique_ptr<Peer>> MakeLmdb(const Shape& shape) {
  auto folder = PrivateFolder::Create();
  if (!folder.ok()) return folder.status();
  MDB_env* env = nullptr;
  if (mdb_env_create(&env) != 0) return Status(StatusCode::kOutOfMemory, "LMDB");
  MDB_dbi map = 0;
  if (Status opened = Open(env, (*folder)->path(), shape, &map); !opened.ok()) {
    mdb_env_close(env);
    return opened;
  }
  return std::unique_ptr<Peer>(std::make_unique<LmdbPeer>(*std::move(folder), env, map));
}

}  // namespace peers

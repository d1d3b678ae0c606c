#include "tools/surge/backup.h"

#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "cli/fail.h"
#include "cli/size.h"
#include "cli/stop_signal.h"
#include "krcore/clock.h"
#include "kvs/client.h"
#include "tools/surge/backup_file.h"

namespace surge {
namespace {

// A step of the scan reads one subtable; this is more than one has, and bounds the memory.
constexpr kvs::ScanOptions kStep{.count = 100'000, .max_bytes = uint64_t{4} << 20, .values = true};
// Restored records up to kSmallBytes go together. A client keeps a buffer for each operation, as long as its largest
// value was; so larger ones go through a client of their own.
constexpr uint32_t kWritesInFlight = 256, kLargeWritesInFlight = 2;
constexpr size_t kSmallBytes = size_t{64} << 10;
constexpr int64_t kProgressNs = 2'000'000'000;

// Says on stderr how far the work has come, every two seconds.
class Progress {
 public:
  explicit Progress(const char* what) : what_(what) {}
  // `part`: of the work that is done, if that is known.
  void Show(std::optional<double> part, uint64_t records, uint64_t bytes) {
    const int64_t now_ns = krcore::RealClock()->NowNs();
    if (now_ns < next_ns_) return;
    next_ns_ = now_ns + kProgressNs;
    char percent[16] = "";
    if (part) std::snprintf(percent, sizeof(percent), "%3.0f%%, ", *part * 100);
    std::fprintf(stderr, "surge: %s %s%" PRIu64 " records, %s\n", what_, percent, records,
                 cli::FormatSize(bytes).c_str());
  }
  // The last line: what was done in all, and how fast.
  std::string Summary(uint64_t records, uint64_t bytes) const {
    const double s = static_cast<double>(krcore::RealClock()->NowNs() - begun_ns_) / 1e9;
    char text[160];
    std::snprintf(text, sizeof(text), "%" PRIu64 " records, %s of keys and values, in %.1f s (%.0f records/s)", records,
                  cli::FormatSize(bytes).c_str(), s, static_cast<double>(records) / (s > 0 ? s : 1));
    return text;
  }

 private:
  const char* const what_;
  const int64_t begun_ns_ = krcore::RealClock()->NowNs();
  int64_t next_ns_ = begun_ns_ + kProgressNs;
};

int Stopped(const std::string& what_is_left) {
  std::fprintf(stderr, "surge: stopped by a signal\n%s\n", what_is_left.c_str());
  return cli::kExitInterrupt;
}

// A store and its clients.
struct Session {
  std::unique_ptr<kvs::Store> store;
  std::vector<std::unique_ptr<kvs::Client>> clients;

  // Makes a client for each of the `options`. Returns an exit status; 0: it is open.
  int Open(std::initializer_list<kvs::ClientOptions> options) {
    kvs::StoreOptions open;
    cli::SetFabric(&open);
    open.control_plane = FLAGS_control_plane;
    open.operation_timeout_ms = FLAGS_operation_timeout_ms;
    open.open_timeout_ms = FLAGS_open_timeout_ms;
    auto opened = kvs::Store::Open(open);
    if (cli::StopSignal::Requested()) return Stopped("Nothing was done.");
    if (!opened.ok()) return cli::FailToOpen(opened.status());
    store = *std::move(opened);
    for (const kvs::ClientOptions& each : options) {
      auto made = store->NewClient(each);
      if (!made.ok()) return cli::Fail(made.status());
      clients.push_back(*std::move(made));
    }
    return 0;
  }
};

// Were it written, it would take the place of what is there, and then expire.
bool HasExpired(const BackupReader::Record& record) {
  return record.expires_at_ms != 0 && record.expires_at_ms <= krcore::RealClock()->UnixMs();
}

// Writes the records, large ones through the second client. `done` counts those that were written.
Status WriteAll(Session& session, const std::vector<BackupReader::Record>& records, uint64_t* done) {
  std::vector<kvs::WriteRequest> writes[2];
  for (const BackupReader::Record& record : records) {
    writes[record.value.size() > kSmallBytes].push_back({.kind = kvs::WriteKind::kPut,
                                                         .key = record.key,
                                                         .value = record.value,
                                                         .expires_at_ms = record.expires_at_ms});
  }
  Status failed;
  for (size_t i = 0; i < 2; ++i) {
    session.clients[i]->MultiWrite(writes[i]);
    for (const kvs::WriteRequest& write : writes[i]) {
      *done += write.status.ok() ? 1 : 0;
      if (write.status.ok() || !failed.ok()) continue;
      failed = write.status;
      if (failed == krcore::StatusCode::kTimeout) {
        failed = {failed.code(), "a record of " + std::to_string(write.key.size() + write.value.size()) +
                                     " bytes could not be written in time (see with surge status whether the memory "
                                     "nodes serve and have room)"};
      }
    }
  }
  return failed;
}

}  // namespace

int Backup(const std::string& path, bool overwrite) {
  if (const Status status = cli::StopSignal::Install(); !status.ok()) return cli::Fail(status);
  (void)std::signal(SIGXFSZ, SIG_IGN);  // a file that gets too long is a failed write
  auto created = BackupWriter::Create(path, overwrite);
  if (!created.ok()) return cli::Fail(created.status());
  BackupWriter& file = **created;
  Session session;
  if (const int status = session.Open({{}}); status != 0) return status;
  Progress progress("backup");
  uint64_t cursor = 0;
  std::vector<kvs::ScanRecord> records;
  do {
    if (cli::StopSignal::Requested()) {
      return Stopped("No file was written.");
    }
    Status status = session.clients.front()->Scan(&cursor, &records, kStep);
    for (size_t i = 0; status.ok() && i < records.size(); ++i) {
      status = file.Add(records[i].key, records[i].value, records[i].expires_at_ms);
    }
    if (!status.ok()) return cli::Fail(status, "No file was written.");
    progress.Show(cursor == 0 ? 1 : static_cast<double>(cursor) * 0x1p-64, file.records(), file.raw_bytes());
  } while (cursor != 0);
  if (const Status status = file.Finish(); !status.ok()) return cli::Fail(status);
  std::printf("backup of fabric %s: %s;\n%s has %s\n", FLAGS_fabric.c_str(),
              progress.Summary(file.records(), file.raw_bytes()).c_str(), path.c_str(),
              cli::FormatSize(file.file_bytes()).c_str());
  return 0;
}

int Restore(const std::string& path, bool check_only) {
  if (const Status status = cli::StopSignal::Install(); !status.ok()) return cli::Fail(status);
  auto opened = BackupReader::Open(path);
  if (!opened.ok()) return cli::Fail(opened.status());
  BackupReader& file = **opened;
  Session session;
  if (!check_only) {
    const int status = session.Open(
        {{.max_in_flight = kWritesInFlight}, {.max_in_flight = kLargeWritesInFlight, .address_cache_entries = 0}});
    if (status != 0) return status;
  }
  Progress progress(check_only ? "check" : "restore");
  uint64_t done = 0, expired = 0, bytes = 0;
  const auto so_far = [&] {
    return check_only ? std::string() : "Restored so far, and kept: " + std::to_string(done) + " records.";
  };
  std::vector<BackupReader::Record> records;
  bool more = true;
  do {
    if (cli::StopSignal::Requested()) {
      return Stopped(so_far());
    }
    if (const Status status = file.Next(&records); !status.ok()) return cli::Fail(status, so_far());
    more = !records.empty();
    if (!check_only) expired += std::erase_if(records, HasExpired);
    for (const BackupReader::Record& record : records) bytes += record.key.size() + record.value.size();
    if (check_only) {
      done += records.size();
    } else if (const Status status = WriteAll(session, records, &done); !status.ok()) {
      return cli::Fail(status, so_far());
    }
    std::optional<double> part;
    if (file.file_bytes() > 0) part = static_cast<double>(file.offset()) / static_cast<double>(file.file_bytes());
    progress.Show(part, done, bytes);
  } while (more);
  if (check_only) {
    std::printf("%s is complete: %s\n", path.c_str(), progress.Summary(done, bytes).c_str());
  } else {
    std::printf("restore to fabric %s: %s\n", FLAGS_fabric.c_str(), progress.Summary(done, bytes).c_str());
    if (expired > 0) std::printf("left out: %" PRIu64 " records that have expired since the backup\n", expired);
  }
  return 0;
}

}  // namespace surge

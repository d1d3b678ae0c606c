#include "tools/surge/backup_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zstd.h>

#include "kvs/client.h"

namespace surge {
namespace {

using krcore::StatusCode;

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'S', 'U', 'R', 'G', 'E', 'B', 'A', 'K'};
constexpr uint32_t kVersion = 2;  // 1: records without a time to expire
// A block is written when it has so many raw bytes. One record may be longer.
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr size_t kLengthBytes = 2 * sizeof(uint32_t);
constexpr size_t kMaxBlockBytes = kBlockBytes + kLengthBytes + kvs::kMaxKeyBytes + kvs::kMaxValueBytes;
constexpr int kCompressionLevel = 1;  // a store in memory is read faster than higher levels compress

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t flags;
  uint64_t id;  // drawn for each file
  uint64_t checksum;
};
struct BlockHeader {
  uint32_t kind;
  uint32_t records;
  uint32_t raw_bytes;
  uint32_t stored_bytes;
  uint64_t stored_checksum;
  uint64_t checksum;
};
struct Trailer {
  uint32_t kind;
  uint32_t zero;
  uint64_t blocks;
  uint64_t records;
  uint64_t checksum;
};
constexpr uint32_t kBlock = 1, kTrailer = 2;
// Before each record of a block.
struct RecordHeader {
  uint32_t key_bytes, value_bytes;
  uint64_t expires_at_ms;
};
static_assert(sizeof(RecordHeader) == 16);
static_assert(sizeof(FileHeader) == 32 && sizeof(BlockHeader) == 32 && sizeof(Trailer) == 32);

template <typename Header>
uint64_t ChecksumOf(const Header& header, uint64_t id, uint64_t offset) {
  static_assert(std::is_trivially_copyable_v<Header>);
  return XXH3_64bits_withSeed(&header, sizeof(header) - sizeof(header.checksum), id + offset);
}

}  // namespace

// ---- files

File::~File() {
  if (fd_ >= 0) (void)close(fd_);
}

// ---- writing

BackupWriter::BackupWriter(std::string path, bool overwrite, uint64_t id)
    : path_(std::move(path)),
      temporary_(path_ + ".partial-" + std::to_string(id)),
      overwrite_(overwrite),
      file_(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)),
      id_(id) {}

BackupWriter::~BackupWriter() {
  if (file_.fd() >= 0 && !finished_) (void)unlink(temporary_.c_str());
}

// May the file get its name? If it is to replace another one, sets *mode to that one's.
Status BackupWriter::CheckPlace(std::optional<mode_t>* mode) const {
  struct stat there {};
  if (lstat(path_.c_str(), &there) != 0) {
    return errno == ENOENT ? Status::Ok() : Status(StatusCode::kInvalidArgument, path_ + ": " + std::strerror(errno));
  }
  if (!S_ISREG(there.st_mode)) return {StatusCode::kInvalidArgument, path_ + " exists and is no regular file"};
  if (!overwrite_) return {StatusCode::kExists, path_ + " exists (--overwrite replaces it)"};
  *mode = there.st_mode & 07777;
  return Status::Ok();
}

Result<std::unique_ptr<BackupWriter>> BackupWriter::Create(std::string path, bool overwrite) {
  std::random_device random;
  const uint64_t id = uint64_t{random()} << 32 | random();
  std::unique_ptr<BackupWriter> writer(new BackupWriter(std::move(path), overwrite, id));
  if (writer->file_.fd() < 0) {
    return Status(StatusCode::kInvalidArgument, writer->temporary_ + ": " + std::strerror(errno));
  }
  std::optional<mode_t> mode;
  KRCORE_RETURN_IF_ERROR(writer->CheckPlace(&mode));
  if (mode && fchmod(writer->file_.fd(), *mode) != 0) return Status::FromErrno(errno, writer->temporary_);
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.id = id;
  header.checksum = ChecksumOf(header, header.id, 0);
  KRCORE_RETURN_IF_ERROR(writer->Write(&header, sizeof(header)));
  return writer;
}

Status BackupWriter::Write(const void* data, size_t bytes) {
  for (const char* from = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = write(file_.fd(), from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Status::FromErrno(errno, path_ + ": writing");
    from += written;
    bytes -= static_cast<size_t>(written);
    file_bytes_ += static_cast<uint64_t>(written);
  }
  return Status::Ok();
}

Status BackupWriter::Add(std::string_view key, std::string_view value, uint64_t expires_at_ms) {
  const RecordHeader record{static_cast<uint32_t>(key.size()), static_cast<uint32_t>(value.size()), expires_at_ms};
  const char* const bytes = reinterpret_cast<const char*>(&record);
  block_.insert(block_.end(), bytes, bytes + sizeof(record));
  block_.insert(block_.end(), key.begin(), key.end());
  block_.insert(block_.end(), value.begin(), value.end());
  ++block_records_;
  raw_bytes_ += key.size() + value.size();
  return block_.size() < kBlockBytes ? Status::Ok() : WriteBlock();
}

Status BackupWriter::WriteBlock() {
  stored_.resize(ZSTD_compressBound(block_.size()));
  const size_t stored = ZSTD_compress(stored_.data(), stored_.size(), block_.data(), block_.size(), kCompressionLevel);
  if (ZSTD_isError(stored) != 0) {
    return {StatusCode::kInternal, path_ + ": compressing: " + ZSTD_getErrorName(stored)};
  }
  BlockHeader header{.kind = kBlock,
                     .records = block_records_,
                     .raw_bytes = static_cast<uint32_t>(block_.size()),
                     .stored_bytes = static_cast<uint32_t>(stored),
                     .stored_checksum = XXH3_64bits(stored_.data(), stored),
                     .checksum = 0};
  header.checksum = ChecksumOf(header, id_, file_bytes_);
  KRCORE_RETURN_IF_ERROR(Write(&header, sizeof(header)));
  KRCORE_RETURN_IF_ERROR(Write(stored_.data(), stored));
  ++blocks_;
  records_ += block_records_;
  block_records_ = 0;
  block_.clear();
  return Status::Ok();
}

Status BackupWriter::Finish() {
  if (block_records_ > 0) KRCORE_RETURN_IF_ERROR(WriteBlock());
  Trailer trailer{.kind = kTrailer, .zero = 0, .blocks = blocks_, .records = records_, .checksum = 0};
  trailer.checksum = ChecksumOf(trailer, id_, file_bytes_);
  KRCORE_RETURN_IF_ERROR(Write(&trailer, sizeof(trailer)));
  if (fsync(file_.fd()) != 0) return Status::FromErrno(errno, path_ + ": writing to the disk");
  std::optional<mode_t> mode;
  KRCORE_RETURN_IF_ERROR(CheckPlace(&mode));  // again: a file may have come meanwhile
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Status::FromErrno(errno, path_ + ": renaming");
  finished_ = true;
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const File of_folder(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (of_folder.fd() >= 0 && fsync(of_folder.fd()) == 0) return Status::Ok();
  return Status::FromErrno(errno, path_ + " is complete, but its folder could not be written to the disk");
}

// ---- reading

BackupReader::BackupReader(std::string path)
    : path_(std::move(path)), file_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {}

Status BackupReader::Damaged(uint64_t at, const std::string& what) const {
  return {StatusCode::kCorrupt, path_ + " is damaged at byte " + std::to_string(at) + ": " + what};
}

Status BackupReader::Read(void* to, size_t bytes) {
  const uint64_t begin = offset_;
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = read(file_.fd(), at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::FromErrno(errno, path_ + ": reading");
    if (got == 0) {
      return {StatusCode::kCorrupt, path_ + " is cut at byte " + std::to_string(offset_) + ", in what begins at byte " +
                                        std::to_string(begin)};
    }
    at += got;
    bytes -= static_cast<size_t>(got);
    offset_ += static_cast<uint64_t>(got);
  }
  return Status::Ok();
}

Result<std::unique_ptr<BackupReader>> BackupReader::Open(std::string path) {
  std::unique_ptr<BackupReader> reader(new BackupReader(std::move(path)));
  struct stat about {};
  if (reader->file_.fd() < 0 || fstat(reader->file_.fd(), &about) != 0) {
    return Status(StatusCode::kInvalidArgument, reader->path_ + ": " + std::strerror(errno));
  }
  reader->file_bytes_ = static_cast<uint64_t>(about.st_size);
  FileHeader header{};
  KRCORE_RETURN_IF_ERROR(reader->Read(&header, sizeof(header)));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return Status(StatusCode::kInvalidArgument, reader->path_ + " is no file of surge backup");
  }
  if (header.checksum != ChecksumOf(header, header.id, 0)) {
    return reader->Damaged(0, "the checksum of the file's header is wrong");
  }
  if (header.version != kVersion || header.flags != 0) {
    return Status(StatusCode::kUnsupported, reader->path_ + " has version " + std::to_string(header.version) +
                                                " and flags " + std::to_string(header.flags) +
                                                " of the format, this program knows version " +
                                                std::to_string(kVersion) + " without flags");
  }
  reader->id_ = header.id;
  return reader;
}

Status BackupReader::Next(std::vector<Record>* records) {
  records->clear();
  const uint64_t at = offset_;
  BlockHeader header{};
  KRCORE_RETURN_IF_ERROR(Read(&header, sizeof(header)));
  if (header.checksum != ChecksumOf(header, id_, at)) return Damaged(at, "the checksum of a block's header is wrong");
  if (header.kind == kTrailer) {
    Trailer trailer;
    static_assert(sizeof(trailer) == sizeof(header));
    std::memcpy(&trailer, &header, sizeof(trailer));
    return ReadTrailer(at, trailer.blocks, trailer.records);
  }
  // Checksums are no signatures: a wrong program may have written this.
  const bool plausible = header.kind == kBlock && header.records > 0 && header.raw_bytes <= kMaxBlockBytes &&
                         header.stored_bytes <= ZSTD_compressBound(kMaxBlockBytes);
  if (!plausible) return Damaged(at, "a block's header makes no sense");
  stored_.resize(header.stored_bytes);
  KRCORE_RETURN_IF_ERROR(Read(stored_.data(), stored_.size()));
  if (XXH3_64bits(stored_.data(), stored_.size()) != header.stored_checksum) {
    return Damaged(at, "the checksum of the block that begins there is wrong");
  }
  block_.resize(header.raw_bytes);
  const size_t raw = ZSTD_decompress(block_.data(), block_.size(), stored_.data(), stored_.size());
  if (ZSTD_isError(raw) != 0 || raw != block_.size()) return Damaged(at, "the block cannot be decompressed");

  size_t next = 0;
  for (uint32_t r = 0; r < header.records; ++r) {
    RecordHeader record{};
    if (block_.size() - next < sizeof(record)) return Damaged(at, "the block has fewer records than it says");
    std::memcpy(&record, &block_[next], sizeof(record));
    next += sizeof(record);
    const auto [key_bytes, value_bytes, expires_at_ms] = record;
    const bool fits = key_bytes > 0 && key_bytes <= kvs::kMaxKeyBytes && value_bytes <= kvs::kMaxValueBytes &&
                      uint64_t{key_bytes} + value_bytes <= block_.size() - next;
    if (!fits) return Damaged(at, "a record of the block has impossible lengths");
    const char* const key = block_.data() + next;
    records->push_back({{key, key_bytes}, {key + key_bytes, value_bytes}, expires_at_ms});
    next += key_bytes + value_bytes;
  }
  if (next != block_.size()) return Damaged(at, "the block has more than its records");
  ++blocks_;
  records_ += header.records;
  return Status::Ok();
}

Status BackupReader::ReadTrailer(uint64_t at, uint64_t blocks, uint64_t records) {
  if (blocks != blocks_ || records != records_) {
    return Damaged(at, "the file has " + std::to_string(blocks_) + " blocks and " + std::to_string(records_) +
                           " records, and its end says " + std::to_string(blocks) + " and " + std::to_string(records));
  }
  char more = 0;
  if (Read(&more, 1).ok()) return Damaged(offset_ - 1, "something follows the end");
  return Status::Ok();
}

}  // namespace surge

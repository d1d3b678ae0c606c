// Reply: writes one reply at the end of what is to be sent, in the protocol's version 2 or 3 (RESP2, RESP3).
//
// Thread safety: one thread at a time.
#ifndef COMPUTENODE_REDIS_REPLY_H_
#define COMPUTENODE_REDIS_REPLY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace redis {

class Reply {
 public:
  Reply(std::string& out, int protocol) : out_(out), begin_(out.size()), protocol_(protocol) {}

  // Of what follows.
  void SetProtocol(int protocol) { protocol_ = protocol; }
  // Takes back what was written.
  void TakeBack() { out_.resize(begin_); }
  size_t bytes() const { return out_.size() - begin_; }

  // `text` has no line end.
  void Simple(std::string_view text);
  void Ok() { Simple("OK"); }
  // `text` begins with a code in capitals. Line ends in it become blanks.
  void Error(std::string_view text);
  void Integer(int64_t number) { Header(':', number); }
  void Bulk(std::string_view text);
  void Null();
  // Text for people, which a client may show as it is.
  void Verbatim(std::string_view text);
  // So many elements follow; of a map, twice as many.
  void Array(size_t elements) { Header('*', static_cast<int64_t>(elements)); }
  void Map(size_t entries);
  void Set(size_t elements) { Header(protocol_ == 3 ? '~' : '*', static_cast<int64_t>(elements)); }
  // Elements that were written as a reply elsewhere.
  void Raw(std::string_view bytes) { out_ += bytes; }

 private:
  void Header(char type, int64_t number);

  std::string& out_;
  const size_t begin_;
  int protocol_;
};

}  // namespace redis

#endif  // COMPUTENODE_REDIS_REPLY_H_

// Properties: YCSB's key=value settings, out of .properties files (-P) and single overrides (-p key=value). Each
// value remembers where it came from, so that an error can say so.
//
// Thread safety: a value; distinct objects may be used by distinct threads.
#ifndef YCSB_PROPERTIES_H_
#define YCSB_PROPERTIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "krcore/status.h"

namespace ycsb {

using krcore::Result;
using krcore::Status;
using krcore::StatusCode;

// How this runner treats a property of YCSB's core, or of its own.
enum class Support : uint8_t {
  kDone,
  kWarned,   // it has no effect: a warning says what happens instead
  kRefused,  // without it this would be another experiment
};
struct KnownProperty {
  std::string_view name;
  Support support;
  std::string_view same;  // kWarned, kRefused: values, with blanks between, that say what happens anyway
  std::string_view text;  // for users: what happens
};
// By name. docs/operating.md has it as a table.
std::span<const KnownProperty> KnownProperties();

class Properties {
 public:
  // Reads a file of `key=value`, `key: value` or `key value` lines; a line that begins with # or ! is a comment, one
  // that ends in a backslash goes on in the next. Later settings replace earlier ones. kNotFound: no such file;
  // kInvalidArgument: a line without a key, named by file:line.
  Status AddFile(const std::string& path);
  // The same for text; `origin` names it in errors.
  Status AddText(std::string_view text, const std::string& origin);
  // One `key=value` of the command line. kInvalidArgument: no '=' or no key.
  Status AddOverride(std::string_view assignment);
  void Set(const std::string& key, std::string value, std::string origin);

  bool Has(const std::string& key) const { return entries_.contains(key); }
  // Each leaves *out alone when the key is not set. kInvalidArgument: the value does not parse, or lies outside
  // [min, max]; the message names key, value, origin.
  Status Read(const std::string& key, std::string* out) const;
  Status Read(const std::string& key, uint64_t min, uint64_t max, uint64_t* out) const;
  Status Read(const std::string& key, double min, double max, double* out) const;
  Status Read(const std::string& key, bool* out) const;

  // Where the key was set: "ycsb/workloads/workloada:12" or "-p". Empty: not set.
  std::string Origin(const std::string& key) const;
  // kUnsupported: one that is set would make this another experiment.
  Status CheckRefused() const;
  // A line for the user of each key that has no effect: what happens instead; or, if neither YCSB's core nor this
  // runner knows it, what it may be a misspelling of.
  std::vector<std::string> Ineffective() const;
  std::map<std::string, std::string> ToMap() const;

 private:
  struct Entry {
    std::string value;
    std::string origin;
  };
  Status Bad(const std::string& key, const Entry& entry, const std::string& expected) const;
  std::map<std::string, Entry> entries_;
};

}  // namespace ycsb

#endif  // YCSB_PROPERTIES_H_

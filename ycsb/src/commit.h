// The commit that was built; its definition is generated at build time (ycsb/commit.cmake).
#ifndef YCSB_SRC_COMMIT_H_
#define YCSB_SRC_COMMIT_H_

namespace ycsb {

extern const char* const kCommit;  // "unknown" outside a git work tree

}  // namespace ycsb

#endif  // YCSB_SRC_COMMIT_H_

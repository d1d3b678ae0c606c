// `surge backup` and `surge restore`. docs/operating.md.
#ifndef TOOLS_SURGE_BACKUP_H_
#define TOOLS_SURGE_BACKUP_H_

#include <string>

namespace surge {

// Writes all keys and values of the fabric's store to a file. Returns the program's exit status.
int Backup(const std::string& path, bool overwrite);
// Writes all keys and values of such a file to the fabric's store. `check_only`: only reads the file.
int Restore(const std::string& path, bool check_only);

}  // namespace surge

#endif  // TOOLS_SURGE_BACKUP_H_

// Markdown tables on stdout, and the units in them.
#ifndef BENCH_SPIKE_MODEL_TABLE_H_
#define BENCH_SPIKE_MODEL_TABLE_H_

#include <string>
#include <vector>

namespace spike_model {

// printf to a string of at most 255 characters.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
// "1.2 us", "3.40 ms", "5.00 s"; "never" below 0.
std::string Ns(double ns);
// "1.5 KiB", ...
std::string Bytes(double bytes);
// Prints `rows`, all of one length, the first as the head, and an empty line.
void Table(const std::vector<std::vector<std::string>>& rows);

}  // namespace spike_model

#endif  // BENCH_SPIKE_MODEL_TABLE_H_

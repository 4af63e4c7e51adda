// SPDX-License-Identifier: Apache-2.0
#include "lib/cpu.h"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <unordered_set>

namespace ckpt {
namespace {

// The kernel lists a flag only if it keeps the registers that go with it.
TEST_CASE("cpu features: as /proc/cpuinfo has them") {
  std::ifstream file("/proc/cpuinfo");
#if defined(__x86_64__)
  const std::string key = "flags";
#else
  const std::string key = "Features";  // an emulator has the other one
#endif
  std::string line;
  while (std::getline(file, line) && !line.starts_with(key)) {
  }
  if (line.empty()) return;  // another processor
  std::istringstream words(line);
  std::unordered_set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  const CpuFeatures& found = cpu_features();
  struct Row {
    const char* flag;
    bool found;
  };
  const Row rows[] = {
      {"sse4_1", found.sse41},      {"pclmulqdq", found.pclmul},
      {"avx2", found.avx2},         {"fma", found.fma},
      {"f16c", found.f16c},         {"avx512f", found.avx512f},
      {"avx512bw", found.avx512bw}, {"avx512dq", found.avx512dq},
      {"avx512vl", found.avx512vl}, {"sha_ni", found.sha},
      {"pmull", found.pmull},       {"sha2", found.sha2},
  };
  for (const Row& row : rows) {
    CAPTURE(row.flag);
    CHECK(row.found == flags.contains(row.flag));
  }
}

}  // namespace
}  // namespace ckpt

// SPDX-License-Identifier: Apache-2.0
// `--dry-run --html`: the bytes that go from each source file to each file of
// the target, and the topologies before and after.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "app/print/write_report.h"
#include "ckpt/catalog.h"
#include "reshard/plan/plan.h"

namespace ckpt::app {

// Sums over a plan as it is made, part by part and by many threads. Groups
// neighbouring files when there are many, so that the sums stay few.
class FlowSums {
 public:
  void add(const reshard::Plan& plan, const Catalog& source,
           const Catalog& target);
  std::string page(const WriteReport& report) const;

 private:
  struct Side {
    std::vector<uint32_t> group;  // of each file
    std::vector<std::string> names;
  };
  static Side side_of(const Catalog& catalog, const std::string& single);

  std::mutex mutex_;
  Side source_, target_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> bytes_;
};

}  // namespace ckpt::app

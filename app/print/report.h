// SPDX-License-Identifier: Apache-2.0
// The JSON documents on stdout. Stable: keys are only ever added.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/check/compare.h"
#include "api/check/spectra.h"
#include "ckpt/catalog.h"
#include "ckpt/check.h"
#include "convert/config/facts.h"
#include "lib/hash/digest.h"
#include "reshard/numbers/stats.h"

namespace ckpt::app {

class JsonWriter;

// What `inspect --json` shows besides the catalog itself.
struct InspectParts {
  std::span<const Digest> digests = {};   // none, or one per tensor in order
  std::span<const reshard::Stats> stats;  // likewise
  std::span<const library::SpectrumOf> spectra = {};  // by tensor
  families::Facts facts = {};    // what the configuration says
  bool shards = false;           // the place of every piece
  std::string fingerprint = {};  // of a whole model, if it was read
  // What was read for digests and statistics, if it was.
  std::optional<uint64_t> bytes_read = {};    // of tensors
  std::optional<uint64_t> header_bytes = {};  // before that
};
std::string inspect_json(const Catalog& catalog,
                         const InspectParts& parts = {});

// "stats": a tensor's statistics in `inspect --stats`.
void write_stats(JsonWriter& json, const reshard::Stats& stats,
                 std::string_view key = "stats");

// The fields of a difference that programs read: dtype_a, shape_a, dtype_b,
// shape_b, and those of a distance; if known.
void write_numbers(JsonWriter& json, const Difference& difference);
// elements, differing, relative_l2, rms, cosine, max_abs, max_rel.
void write_distance(JsonWriter& json, const Distance& distance);

// `verify --json`
struct VerifyReport : Report {
  // For two checkpoints: one for each problem, in order.
  std::vector<Difference> differences = {};
  std::vector<families::FactDifference> facts = {};
  std::vector<library::Rounded> rounded = {};
  uint64_t within = 0;  // tensors that differ, but within the tolerance
};
std::string verify_json(const VerifyReport& report);

// Tensors and values that the other has no place for.
size_t not_compared_of(const VerifyReport& report);

// Sums that reports and headers show.
struct Totals {
  uint64_t bytes = 0;       // of all tensors
  uint64_t files = 0;       // that hold them
  uint64_t parameters = 0;  // elements of model tensors; tied ones once
  uint64_t of_experts = 0;  // those that routers choose among
  uint64_t model = 0;       // tensors of each kind
  uint64_t optim = 0;
  uint64_t other = 0;
};
Totals totals(const Catalog& catalog);
// The parameters that one token meets in a mixture of experts. Nothing if there
// are no experts, or no configuration says how many a token meets.
std::optional<uint64_t> active_parameters(const Catalog& catalog,
                                          const Totals& sums);

// Values of objects as JSON; tensors in them go by their catalog names.
class ObjectValues {
 public:
  explicit ObjectValues(const Catalog& catalog);
  nlohmann::ordered_json json(const Object& object, uint64_t budget) const;
  // For people: on one line of about `length` bytes, escaped.
  std::string line(const Object& object, size_t length) const;

 private:
  const pickle::Document* document_ = nullptr;  // that `names_` are of
  std::unordered_map<uint32_t, std::string> names_;
};

// The type of an object as Python names it: "int", "dict", or for a call
// the class, "argparse.Namespace".
std::string type_name(const Object& object);

}  // namespace ckpt::app

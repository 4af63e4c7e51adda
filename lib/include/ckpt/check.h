// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds, proven: whether it is whole, whether it equals
// another, its digests, and what its configuration says.
//
//   ckpt::Report report = ckpt::verify("step_5000", {.deep = true});
//   for (const ckpt::Problem& problem : report.problems) …
//
//   ckpt::Comparison same = ckpt::diff(ckpt::open("a").catalog(),
//                                      ckpt::open("b").catalog());
//
// Every function throws ckpt::Error (error.h). Nothing prints.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/ckpt.h"
#include "ckpt/read_mode.h"
#include "ckpt/select.h"

namespace ckpt {

// How payload is read.
struct ReadOptions {
  uint32_t threads = 0;                  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;  // bound of all buffers, bytes
  bool cuda = false;                     // digests on a GPU
  ReadMode io = ReadMode::kAuto;
  // Progress in payload bytes, from any thread. Each stage counts from zero.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> note = {};
};

struct VerifyOptions {
  bool deep = false;    // read everything, and compare replicas
  bool finite = false;  // report NaN and infinities
  bool quick = false;   // headers, sizes and bounds: no payload is read
  bool strict = false;  // warnings and kCantTell are failures
  // Reads everything, and writes a manifest beside what has no problem at all:
  // the one write beside a source. Never over another manifest.
  bool seal = false;
  Selection selection = {};
  OpenOptions open = {};
  ReadOptions read = {};
};

// One word for what was found. The first three are no failure.
enum class Verdict : uint8_t {
  kOk,
  kWarnings,    // whole; something optional is odd
  kCantTell,    // nothing wrong was found, and nothing says what the whole is
  kIncomplete,  // tensors, layers or files are missing, or hold nothing
  kMismatch,    // what is there is not what the configuration says
  kDamaged,
  kUnsafe,  // loading it elsewhere runs code
};
// "ok", "warnings", "cant_tell", "incomplete" …
std::string_view name(Verdict verdict);

struct Report {
  bool ok = true;  // kOk, kWarnings, kCantTell; with `strict` kOk alone
  Verdict verdict = Verdict::kOk;
  std::string open = {};  // kCantTell: why
  // Nothing was found to compare the bytes with: no stored checksums, no
  // manifest. Or options.quick left that out.
  bool unproven = false;
  // Tensors without a checksum, neither stored nor in a manifest.
  uint64_t without_checksum = 0;
  // One string for all weights, the same for any topology and for formats that
  // keep names (docs/digest.md); "" if not all of them were read.
  std::string fingerprint = {};
  std::string sealed = {};  // the manifest that VerifyOptions::seal wrote
  uint64_t tensors = 0;     // checked
  uint64_t bytes = 0;       // read
  uint64_t files = 0;
  std::vector<Problem> problems = {};
};

// Checks headers and their bounds, the exact cover by pieces, stored checksums,
// the files of every rank, what loading its pickles elsewhere would run, and a
// manifest's sizes and digests if there is one. The report has what is wrong;
// an Error is thrown only for a path that is missing or not a checkpoint.
Report verify(const std::string& path, const VerifyOptions& options = {});

// How far the elements of two tensors are apart, whatever their dtypes.
// Elements that are NaN, or the same infinity, on both sides are equal.
struct Distance {
  uint64_t elements = 0;
  uint64_t differing = 0;
  double max_abs = 0;  // |a - b|; inf if only one of a pair is finite
  double max_rel = 0;  // |a - b| / |b|; ruled by elements near zero
  // Sums of doubles: those of several tensors add up.
  double squares = 0;  // of a - b
  double squares_a = 0, squares_b = 0;
  double products = 0;  // of a and b

  Distance& operator+=(const Distance& other);
};
// Of the Euclidean norms: that of b - a to that of a. Inf if a is zero.
double relative_l2(const Distance& distance);
double rms(const Distance& distance);  // of b - a
// Of the angle between a and b. NaN if one of them is zero.
double cosine(const Distance& distance);

// A tensor on one of the two sides.
struct Side {
  DType dtype;
  Shape shape;
};

struct Difference {
  // only_in_a, only_in_b, dtype, shape, values, arrangement, object, file;
  // fact: the configurations mean two models; replica: copies within one of the
  // two differ; padding: one has more rows at the end, all of them zero; tied:
  // one has a tensor a second time; not_compared: state of training, and B
  // holds weights alone
  std::string kind;
  std::string tensor;  // or the name of the object or fact
  std::string message;
  std::optional<Side> a = {}, b = {};  // where the tensor is
  std::optional<Distance> distance = {};
  std::string file = {};  // of a replica
  // Of values and dtype: what explains them, "B is A rounded to bf16"; a part
  // of the message.
  std::string why = {};
};

// True for differences in storage alone, not in the model: padding, tied.
bool is_note(const Difference& difference);

struct DiffOptions {
  double rtol = 0;
  double atol = 0;
  bool numeric = false;  // values may differ by rtol and atol, and dtypes too
  bool objects = true;   // compare values that are not tensors, too
  bool describe = true;  // measure how far values are apart
  bool arrangements = true;  // and find the rearrangement that makes them equal
  std::string family = {};   // for models that don't name theirs
  Selection selection = {};
  ReadOptions read = {};
};

struct Comparison {
  // Those with a distance last, the largest relative_l2 first.
  std::vector<Difference> differences;
  uint64_t tensors = 0;  // compared on both sides
  uint64_t bytes = 0;    // read

  bool same() const;  // apart from notes
};

// Two checkpoints, tensor by tensor, whatever their topologies, formats and
// dialects, and what their configurations mean. Memory is bounded by
// options.read.max_mem.
Comparison diff(Catalog a, Catalog b, const DiffOptions& options = {});

// The content of each tensor as 32 hexadecimal digits, the same for any
// sharding (docs/digest.md). Reads everything.
std::map<std::string, std::string> digest(Catalog catalog,
                                          const ReadOptions& options = {});

// What changes the function of a model, as its configuration says it
// (docs/facts.md): the value as JSON, and where it is said.
struct ModelFact {
  std::string value;   // "10000.0", "\"silu\"", "null"
  std::string source;  // "config.json rope_theta"
};
// Empty without a configuration, or for an unknown family.
std::map<std::string, ModelFact> facts(const Catalog& catalog);

}  // namespace ckpt

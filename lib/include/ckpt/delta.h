// SPDX-License-Identifier: Apache-2.0
// What distinguishes two checkpoints, as files: their difference, a LoRA, or
// what restores the second from the first byte for byte (docs/deltas.md).
//
//   const ckpt::DeltaReport done = ckpt::write_delta(
//       ckpt::open("base").catalog(), ckpt::open("tuned").catalog(),
//       "tuned-lora", {.form = ckpt::DeltaForm::kLora, .rank = 16});
//   for (const ckpt::LoraModule& module : done.modules)
//     use(module.name, module.error());
//
// Both are read; the target appears whole, or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/select.h"

namespace ckpt {

enum class DeltaForm : uint8_t {
  kDifference,  // B - A of each tensor: a .safetensors file, or a directory of
                // it and B's configuration
  kLora,        // a folder of PEFT's
  kLossless,    // one file, for restore_delta
};

struct DeltaOptions {
  DeltaForm form = DeltaForm::kDifference;
  uint64_t rank = 0;         // kLora: at least 1
  DType dtype = DType::f32;  // of differences and factors
  Selection selection = {};  // of both; not with kLossless
  std::string family = {};   // "": as the checkpoints say
  std::string base = {};     // A's name in what is written; "": its path
  uint32_t threads = 0;      // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;
  bool overwrite = false;
  bool sync = true;  // wait for the disk
  // Writes nothing. Both are read all the same, but by kLossless and
  // restore_delta: equal tensors take no place in a LoRA.
  bool dry_run = false;
  // Payload bytes, from any thread. Each stage counts from zero.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> note = {};
};

// A linear layer whose difference is a product of two factors.
struct LoraModule {
  std::string name;
  uint64_t rows = 0, columns = 0;
  uint64_t rank = 0;  // the matrix may have fewer
  double norm = 0;    // of the difference; 0 in a dry run
  double left = 0;    // of the difference without the product; likewise
  double error() const { return norm == 0 ? 0 : left / norm; }
};

struct DeltaReport {
  // Path in the target (or its name), bytes; of kLossless in a dry run: at
  // most.
  std::vector<std::pair<std::string, uint64_t>> written;
  uint64_t tensors = 0;             // of B; kLossless: of A that are needed
  std::vector<LoraModule> modules;  // kLora: the largest error first
  std::vector<std::string> saved;   // kLora: modules that are whole in it
  uint64_t files = 0;               // kLossless, of B
  uint64_t bytes = 0;               // likewise, of them
  uint64_t xored = 0;               // of those, which are packed against A's
};

// Throws unfaithful_error for tensors that only one of the two has, or whose
// differences the form does not hold; input_error for a source that its stored
// checksums contradict; resource_error for kLora without libtorch's module.
DeltaReport write_delta(Catalog a, Catalog b, const std::string& target,
                        const DeltaOptions& options = {});

// Makes the files of B again, of A and a lossless delta: a directory or one
// file, as B was. Throws unfaithful_error, naming the tensor, if `base` is not
// what A was.
DeltaReport restore_delta(Catalog base, const std::string& delta,
                          const std::string& target,
                          const DeltaOptions& options = {});

// True for a difference that was opened as a checkpoint: its tensors are no
// weights of a model.
bool is_difference(const Catalog& catalog);

}  // namespace ckpt

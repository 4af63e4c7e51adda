// SPDX-License-Identifier: Apache-2.0
// The headers of files whose metadata can be edited: all before the tensors'
// bytes, which follow unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/keep.h"
#include "lib/io/file.h"

namespace ckpt::library {

struct Wish {
  std::string key;
  std::string type;  // of GGUF; "": as it is
  std::string value;
  bool unset = false;
};

// --set and --unset. Throws usage_error for a key that is given twice.
std::vector<Wish> wishes_of(const EditOptions& options);

struct Head {
  std::string bytes;
  uint64_t old_size = 0;                // where the tensors' bytes begin now
  std::vector<Edited::Change> changes;  // none: it stays as it is
};

// True for a file of a kind that can be edited.
bool has_head(const io::Handle& file);
// Throws as edit() does.
Head new_head(const io::Handle& file, const std::vector<Wish>& wishes);
// Throws bug_error unless `staged` has the same tensors, so many bytes further.
void check_staged(const io::Handle& file, const io::Handle& staged,
                  const Head& head);

}  // namespace ckpt::library

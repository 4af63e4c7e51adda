// SPDX-License-Identifier: Apache-2.0
// tokenizer.ggml.pre: how llama.cpp cuts text into words before byte-level BPE.
// models/families/gguf_pre.json has its names (tests/generators/gguf_pre.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/numbers.h"

namespace ckpt::families {

struct GgufPre {
  std::vector<std::string> names;     // all of them
  std::vector<std::string> written;   // those that the converter writes
  std::vector<std::string> regexes;   // as llama.cpp has them
  std::vector<std::string> original;  // as tokenizer.json has them
  bool ignore_merges = false;
  bool add_bos = false;  // where no key says so
  bool add_sep = false;
  bool raw = false;  // text in BPE is UTF-8, not GPT-2's letters for bytes
  bool escape_whitespaces = false;
};

const std::vector<GgufPre>& gguf_pres();
// nullptr if there is no such name.
const GgufPre* gguf_pre_named(std::string_view name);

// What tells names apart that mean the same: the architecture, the tokenizer's
// class.
using PreHints = std::vector<std::string>;

// The names for a tokenizer.json's pre_tokenizer, the best first; empty if none
// does what it does. A row of the table may stand there for its ignore_merges
// alone; the caller looks whether that makes a difference.
struct PreName {
  std::string name;
  const GgufPre* pre;
};
std::vector<PreName> gguf_pres_of(const Json& pre_tokenizer, bool roberta,
                                  const PreHints& hints);

// The pre_tokenizer that does what the row says.
Json pre_tokenizer_of(const GgufPre& pre);

}  // namespace ckpt::families

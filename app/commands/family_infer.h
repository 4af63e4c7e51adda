// SPDX-License-Identifier: Apache-2.0
// `ckpt family infer`: drafts the family of a model of unknown type from the
// known family that fits it best.
#pragma once

#include <string>

#include "app/options/options.h"
#include "ckpt/error.h"

namespace ckpt::app {

struct InferOptions {
  std::string path;  // a directory of Hugging Face
  std::string file;  // where the draft goes; "": stdout
  OutputOptions output = {};
};

// Writes the draft, and to stderr what the files don't say. kNegative if some
// tensors have no rule in any known family. Throws usage_error for a type that
// is known, unfaithful_error without a config.json.
ExitCode infer_family(const InferOptions& options);

}  // namespace ckpt::app

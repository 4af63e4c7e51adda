// SPDX-License-Identifier: Apache-2.0
// Where the tokenizer of a GGUF target comes from: the files beside the source,
// those of --tokenizer-from or --config-from, or the keys of another GGUF file.
// Private to this room.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "convert/config/facts.h"
#include "convert/options.h"
#include "convert/tokenizer/gguf_keys.h"

namespace ckpt::families {

// None, with a warning, if there is no tokenizer anywhere. Throws
// unfaithful_error for one that GGUF's keys can't say.
GgufKeys tokenizer_keys(Catalog& catalog, const TranslateOptions& options,
                        const Json& config, const Facts& facts,
                        const std::string& architecture);

}  // namespace ckpt::families

// SPDX-License-Identifier: Apache-2.0
// Which dialect and which family the names of a checkpoint are of.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "convert/options.h"

namespace ckpt::families {

// The dialect of a format that has only one; "" for a container of any.
std::string_view dialect_of_format(std::string_view format);
// As messages call it: "Megatron".
std::string_view owner_of(std::string_view dialect);
// By the format or by the names of the tensors; "" if neither says.
std::string_view dialect_of(const Catalog& catalog);

// What stands before all names of the model where those behind it are another
// dialect's than transformers' ("model." before Meta's); "" if nothing does.
std::string foreign_prefix(const Catalog& catalog);

// The family that the options, the source's configuration or the source itself
// name, or null.
std::shared_ptr<const Family> find_family(const Catalog& source,
                                          const TranslateOptions& options);

// The family of the config.json beside or inside the source; null if there is
// none that can be read, or no family has its model_type.
std::shared_ptr<const Family> configured_family(const Catalog& source);

// The family that the source's own configuration names, whatever the options
// say; null if it names none that is known.
struct NamedFamily {
  std::shared_ptr<const Family> family;
  std::string said;  // "args say ckpt_family"
  std::string name;  // as it is there
};
NamedFamily named_family(const Catalog& source);

}  // namespace ckpt::families

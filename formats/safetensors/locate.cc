// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors/locate.h"

#include <algorithm>
#include <string_view>

#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/hf/weight_names.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/format.h"

namespace ckpt::safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

// Mistral's and Meta's, beside which the Hub's names come first.
constexpr std::string_view kConsolidated = "consolidated";

struct Listing {
  std::vector<std::string> weights;  // *.safetensors, sorted
  std::vector<std::string> indexes;
};

Listing list(const std::string& directory) {
  Listing listing;
  for (std::string& name : io::list_directory(directory)) {
    if (io::is_listed_directory(io::join(directory, name))) continue;
    if (is_weights_name(name))
      listing.weights.push_back(std::move(name));
    else if (!name.starts_with('.') && formats::is_index_name(name, kSuffix))
      listing.indexes.push_back(std::move(name));
  }
  return listing;
}

// Fills names or index; false if there is nothing with this stem.
bool take_stem(std::string_view stem, const Listing& listing, Files& files) {
  constexpr std::string_view kOptim = "optim.safetensors";
  auto found = formats::find_weight_files(stem, kSuffix, listing.weights,
                                          listing.indexes);
  files.names = std::move(found.names);
  files.index = std::move(found.index);
  // OLMo-core's form of whole tensors: the optimizer in a separate file.
  if (files.names == std::vector<std::string>{"model.safetensors"} &&
      std::ranges::binary_search(listing.weights, kOptim))
    files.names.emplace_back(kOptim);
  return !files.names.empty() || !files.index.empty();
}

void take_others(const Listing& listing, Files& files) {
  if (listing.indexes.size() > 1)
    throw usage_error(
        {files.directory, {}},
        "several indexes, and none is model.safetensors's: {}, {}",
        text::printable(listing.indexes[0]),
        text::printable(listing.indexes[1]))
        .with_hint("open the index file that you mean");
  if (listing.indexes.size() == 1)
    files.index = listing.indexes[0];
  else
    files.names = listing.weights;
  if (files.names.empty() && files.index.empty())
    throw missing_error({files.directory, {}},
                        "no .safetensors file and no index of any");
}

}  // namespace

bool is_weights_name(std::string_view name) {
  return name.ends_with(kSuffix) && !name.starts_with('.');
}

Files locate(const std::string& directory) {
  const Listing listing = list(directory);
  Files files{directory, {}, {}, {}};
  const bool known =
      std::ranges::any_of(formats::weight_names(),
                          [&](const formats::WeightNames& names) {
                            return take_stem(names.safetensors, listing, files);
                          }) ||
      take_stem(kConsolidated, listing, files);
  if (!known) take_others(listing, files);
  formats::check_complete_sets(directory, files.names);
  std::ranges::set_difference(listing.weights, files.names,
                              std::back_inserter(files.unread));
  return files;
}

}  // namespace ckpt::safetensors

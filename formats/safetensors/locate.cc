#include "formats/safetensors/locate.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ckpt/error.h"
#include "formats/index.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

// In the order in which loaders look for them.
constexpr auto kStems = std::to_array<std::string_view>(
    {"model", "diffusion_pytorch_model", "adapter_model", "consolidated"});

struct Listing {
  std::vector<std::string> weights;  // *.safetensors, sorted
  std::vector<std::string> indexes;
};

Listing list(const std::string& directory) {
  Listing listing;
  for (std::string& name : io::list_directory(directory)) {
    if (io::is_directory(io::join(directory, name))) continue;
    if (is_weights_name(name))
      listing.weights.push_back(std::move(name));
    else if (!name.starts_with('.') && formats::is_index_name(name, kSuffix))
      listing.indexes.push_back(std::move(name));
  }
  return listing;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::binary_search(names, name);
}

// The files STEM-x-of-N.safetensors.
std::vector<std::string> set_of(const std::vector<std::string>& names,
                                std::string_view stem) {
  std::vector<std::string> set;
  for (const std::string& name : names) {
    const auto numbered = formats::parse_numbered(name);
    if (numbered && numbered->stem == stem && numbered->rest == kSuffix)
      set.push_back(name);
  }
  return set;
}

// Fills names or index; false if nothing of this stem is there.
bool take_stem(std::string_view stem, const Listing& listing, Files& files) {
  const std::string single = std::string(stem) + std::string(kSuffix);
  const std::string index = single + ".index.json";
  if (contains(listing.weights, single)) {
    files.names = {single};
    // OLMo-core's form of whole tensors: the optimizer in a file beside.
    if (stem == "model" && contains(listing.weights, "optim.safetensors"))
      files.names.push_back("optim.safetensors");
  } else if (contains(listing.indexes, index)) {
    files.index = index;
  } else {
    files.names = set_of(listing.weights, stem);
  }
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
  const bool known = std::ranges::any_of(kStems, [&](std::string_view stem) {
    return take_stem(stem, listing, files);
  });
  if (!known) take_others(listing, files);
  formats::check_complete_sets(directory, files.names);
  std::ranges::set_difference(listing.weights, files.names,
                              std::back_inserter(files.unread));
  return files;
}

}  // namespace ckpt::safetensors

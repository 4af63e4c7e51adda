// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/zarr/array.h"
#include "formats/dcp/objects.h"
#include "formats/megatron/dist/catalog.h"
#include "formats/megatron/dist/zarr_scan.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/state/bucket_key.h"
#include "formats/megatron/zarr.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using formats::ReadOptions;
using formats::Support;

// The first array of a directory; "" without one.
std::string first_array(const std::string& directory) {
  for (const std::string& name : io::list_directory(directory))
    if (zarr::is_array(io::join(directory, name))) return name;
  return {};
}

// The .zarray of some array, if there is one.
std::string unfinished_zarr(const std::string& directory) {
  if (!io::is_directory(directory)) return {};
  const std::string array = first_array(directory);
  if (array.empty()) return {};
  return io::join(array, ".zarray");
}

constexpr DistContainer kContainer{
    .format = "megatron_zarr",
    .backend = "zarr",
    .unfinished = unfinished_zarr,
    .hint =
        "Megatron writes it last; use an older iteration, or fetch the "
        "checkpoint again"};

// A step whose save was cut short says more than a missing file.
std::string why_not(const std::string& path, const std::string& why) {
  if (!io::is_directory(path)) return why;
  for (const std::string& name : io::list_directory(path)) {
    const std::string step = io::join(path, name);
    if (iteration_number(name) && io::is_directory(step) &&
        !unfinished_zarr(step).empty())
      return fmt::format("{} has no {}: an incomplete save",
                         text::printable(name), kConfigFile);
  }
  return why;
}

Support supports_zarr(const std::string& path) {
  try {
    const DistFound found = locate_dist(path);
    if (!found.path.empty())
      return {found.config.sharded_backend == kContainer.backend, found.why};
    const std::string sign = unfinished_zarr(path);
    if (sign.empty()) return {false, why_not(path, found.why)};
    return {true, "an unfinished save: " + text::printable(sign)};
  } catch (const Error& error) {
    return {false, error.problem()};
  }
}

Common read_common(const std::string& directory, Catalog& catalog,
                   const ReadOptions& options) {
  const std::string path = io::join(directory, kCommonFile);
  if (io::is_file(path)) return read_common_file(path, catalog, options);
  throw missing_error({path, {}}, "is missing")
      .with_hint(
          "without it Megatron can't load the checkpoint; fetch it again");
}

// The objects that cut a rank's flat buffers into parameters, which Megatron
// asks for by name. Without an index nothing else says that they were there.
// per_bucket_numel_unpadded came later than the others.
void check_bucket_objects(Catalog& catalog) {
  std::set<std::string> prefixes, there;
  for (const Tensor& tensor : catalog.tensors)
    if (const auto key = parse_bucket_key(tensor.name))
      prefixes.insert(object_prefix({key->chain, key->group}));
  if (prefixes.empty()) return;
  bool unpadded = false;
  constexpr std::string_view kUnpadded = "per_bucket_numel_unpadded";
  for (const Object& object : catalog.objects) {
    std::string key = object.name.substr(0, object.name.rfind("/shard_"));
    unpadded = unpadded || key.ends_with(kUnpadded);
    there.insert(std::move(key));
  }
  for (const std::string& prefix : prefixes)
    for (const std::string_view name :
         {std::string_view("optimizer"), std::string_view("per_bucket_numel"),
          kUnpadded}) {
      const std::string key = prefix + std::string(name);
      if (there.contains(key) || (name == kUnpadded && !unpadded)) continue;
      catalog.problems.push_back(damage(
          "missing_object", {io::join(catalog.path, key), key},
          "is missing, but flat buffers that it is about are there; Megatron "
          "can't load them without it"));
    }
}

Catalog read_catalog_zarr(const std::string& path, const ReadOptions& options) {
  Catalog catalog = open_dist_catalog(path, kContainer, options);
  scan_zarr(catalog.path, catalog);
  check_cut_grids(catalog);
  check_bucket_objects(catalog);
  catalog.object_opener = dcp::object_opener(options.restrict_globals);
  const Common common = read_common(catalog.path, catalog, options);
  finish_dist_catalog(catalog, common);
  add_strays(catalog.path, catalog);
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_zarr_reader() {
  return formats::reader_of(kContainer.format, supports_zarr,
                            read_catalog_zarr);
}

}  // namespace ckpt::megatron

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/nemo/nemo.h"
#include "lib/io/file.h"
#include "lib/io/mount.h"
#include "lib/io/tar.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"

namespace ckpt::nemo {
namespace {

using formats::Support;
using text::printable;

constexpr std::string_view kFile = "model_weights.ckpt";
constexpr std::string_view kDirectory = "model_weights";

bool is_gzip(const io::Handle& file) {
  return file.size() >= 2 && file.read_string(0, 2) == "\x1f\x8b";
}

bool is_rank(std::string_view name) {
  return name.starts_with("mp_rank_") || name.starts_with("tp_rank_");
}

// The name of a model's weights in a directory or an archive's root.
std::string weights_in(const std::string& root) {
  if (io::is_file(io::join(root, kFile))) return std::string(kFile);
  if (io::is_directory(io::join(root, kDirectory)))
    return std::string(kDirectory);
  for (const std::string& name : io::list_directory(root))
    if (is_rank(name) &&
        io::is_file(io::join(io::join(root, name), std::string(kFile))))
      return name;
  return {};
}

Support supports_directory(const std::string& path) {
  if (!io::is_file(io::join(path, kConfig)))
    return {false, "no model_config.yaml in it"};
  const std::string weights = weights_in(path);
  if (weights.empty()) return {false, "no model_weights in it"};
  return {true, "holds model_config.yaml and " + printable(weights)};
}

bool has_config(const std::string& path, const io::Handle& file) {
  try {
    const auto members = io::read_tar(file);
    return std::ranges::any_of(members, [](const io::TarMember& member) {
      return member.name == kConfig;
    });
  } catch (const Error&) {
    return path.ends_with(".nemo");  // the reader says what is wrong
  }
}

// Adds the configuration as an object, unless what is inside has args.
void add_args(const std::string& path, Catalog& catalog) {
  if (std::ranges::find(catalog.objects, "args", &Object::name) !=
      catalog.objects.end())
    return;
  std::string why;
  auto args = read_args(path, &why);
  if (!args) {
    catalog.problems.push_back(warning("model_config", {path, {}}, "{}", why));
    return;
  }
  // The tokenizer, not the configuration, says how many rows are in use.
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.name.ends_with("embedding.word_embeddings.weight") &&
        tensor.shape.size() == 2) {
      (*args)["padded_vocab_size"] = tensor.shape[0];
      if (!args->contains("vocab_size")) {
        (*args)["vocab_size"] = tensor.shape[0];
        catalog.assumptions.push_back(fmt::format(
            "vocab_size {}: the rows of the embedding; --set vocab_size=N "
            "leaves out those that pad it",
            tensor.shape[0]));
      }
    }
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id node = pickle::from_json(*document, *args);
  catalog.objects.push_back(
      {.name = "args", .document = std::move(document), .node = node});
}

void mount(const std::string& path) {
  const io::Handle file = io::Handle::open_read(path);
  if (is_gzip(file))
    throw unfaithful_error({path, {}},
                           "is compressed as a whole: its tensors can't be "
                           "read in place")
        .with_hint("unpack it once: gzip -dc OLD.nemo > NEW.nemo");
  io::mount_tar(path);
}

Support supports(const std::string& path) {
  if (io::is_directory(path)) return supports_directory(path);
  const io::Handle file = io::Handle::open_read(path);
  if (is_gzip(file) && path.ends_with(".nemo"))
    return {true, "is a gzip file named .nemo"};
  if (!io::is_tar(file)) return {false, "not a tar archive"};
  if (!has_config(path, file)) return {false, "no model_config.yaml in it"};
  return {true, "is a tar archive with model_config.yaml"};
}

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  if (!io::is_directory(path)) mount(path);
  const std::string config = io::join(path, kConfig);
  if (!io::is_file(config))
    throw missing_error({path, {}}, "has no {}", kConfig)
        .with_hint("a .nemo archive begins with its configuration");
  const std::string weights = weights_in(path);
  if (weights.empty())
    throw missing_error({path, {}},
                        "has no model_weights: neither a file, a "
                        "directory nor those of ranks")
        .with_hint("let NeMo write the archive again (save_to)");
  formats::ReadOptions inside = options;
  inside.trainer = "none";
  const bool ranks = is_rank(weights);
  Catalog catalog = formats::open(ranks ? path : io::join(path, weights),
                                  ranks ? "megatron_legacy" : "", inside);
  catalog.root = path;
  catalog.assumptions.push_back(fmt::format(
      "{} of a NeMo archive, which is read in place", printable(weights)));
  add_args(config, catalog);
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::nemo

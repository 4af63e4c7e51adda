// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/foreign.h"
#include "containers/hf/hf.h"
#include "containers/hf/index.h"
#include "containers/hf/weight_names.h"
#include "containers/safetensors/header.h"
#include "formats/fsdp/rank_files.h"
#include "formats/rank_share.h"
#include "formats/safetensors/locate.h"
#include "formats/safetensors/paddle.h"
#include "formats/safetensors/safetensors.h"
#include "lib/io/file.h"
#include "lib/io/huge_pages.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/name_table.h"
#include "lib/text/other_json.h"

namespace ckpt::safetensors {
namespace {

using formats::Index;
using formats::Located;
using formats::Support;
using text::printable;
using Severity = Problem::Severity;

constexpr uint64_t kMostConfig = uint64_t{4} << 20;

// torch's DCP marks files that hold parts of tensors with these keys; what they
// say holds for that file only.
constexpr std::string_view kDcpInfo = "DCP_SHARDING_INFO";
constexpr std::string_view kDcpVersion = "DCP_VERSION";

bool is_index_path(const std::string& path) {
  return formats::is_index_name(io::base_name(path), ".safetensors");
}

Support supports_file(const std::string& path) {
  const std::string name = io::base_name(path);
  if (is_index_path(path)) return {true, "is the index of safetensors files"};
  const io::Handle file = io::Handle::open_read(path);
  const std::string head = file.read_string(
      0, std::min<uint64_t>(file.size(), formats::kForeignHead));
  if (looks_like_header(head, file.size()))
    return {true, "begins with a header length and a JSON object"};
  if (head.starts_with("PK\3\4")) return {false, "starts with PK\\3\\4"};
  // Damaged, but nothing else: read_catalog says what is wrong with it.
  if (is_weights_name(name))
    return {true, "is named .safetensors, though its header is damaged"};
  return {false, "does not begin with a header length and a JSON object"};
}

// An adapter in safetensors may be beside a model in another format.
bool is_of_a_model(std::string_view name) {
  return name.starts_with("pytorch_model") || name == "latest";
}

Support supports_directory(const std::string& path) {
  std::string adapter;
  bool model = false;
  for (const std::string& name : io::list_directory(path)) {
    model = model || is_of_a_model(name);
    if (name.starts_with('.')) continue;
    if (!is_weights_name(name) && !is_index_path(name)) continue;
    if (io::is_directory(io::join(path, name))) continue;
    if (is_index_path(name) && name == formats::index_of_torch_files(path))
      return {false, printable(name) + " names torch files"};
    if (!name.starts_with("adapter_model"))
      return {true, "holds " + printable(name)};
    adapter = name;
  }
  if (adapter.empty()) return {false, "no .safetensors file in it"};
  if (model) return {false, printable(adapter) + " is not its model"};
  return {true, "holds " + printable(adapter)};
}

Problem problem(Severity severity, std::string kind, std::string file,
                std::string tensor, std::string message) {
  return {severity, std::move(kind), std::move(file), std::move(tensor),
          std::move(message)};
}

// Joins the headers of a checkpoint's files.
class Assembly {
 public:
  explicit Assembly(std::string path) {
    catalog_.format = kFormat;
    catalog_.path = std::move(path);
  }

  void read_files(const std::vector<std::string>& paths) {
    read_headers(paths, [&](size_t, FileHeader one) {
      headers_.push_back(std::move(one.header));
      catalog_.files.push_back(std::move(one.file));
    });
  }

  void take_all(const formats::ReadOptions& options = {}) {
    if (const auto order = rank_order(); !order.empty())
      return take_ranks(order, options);
    std::vector<Located> all;
    for (uint32_t f = 0; f < headers_.size(); ++f) {
      for (uint32_t t = 0; t < headers_[f].entries.size(); ++t) {
        all.push_back({f, t});
      }
    }
    check_unique(all);
    add_tensors(all);
  }

  void take_indexed(const std::string& directory, Index& index) {
    std::vector<std::vector<std::string_view>> found;
    for (const Header& header : headers_) {
      auto& names = found.emplace_back();
      for (const Entry& entry : header.entries) names.push_back(entry.name);
    }
    auto selected =
        formats::select_indexed(directory, index, found, catalog_.problems);
    std::vector<Tensor> second;
    for (const Located& at : selected)
      if (at.copy) second.push_back(take(at));
    std::erase_if(selected, [](const Located& at) { return at.copy; });
    check_unique(selected);
    add_tensors(selected);
    formats::add_copies(catalog_, std::move(second));
    formats::check_index_metadata(
        index, std::array{bytes(), bytes() + tied_bytes()}, catalog_.problems);
    keep_index_metadata(index.metadata);
  }

  // Before the metadata is kept: from here on the tensors are torch's.
  void turn(const std::string& directory) {
    const auto is_paddle = [&](const Header& header) {
      if (!header.metadata) return false;
      return std::ranges::any_of(*header.metadata, [&](const auto& item) {
        return item.first == "format" && is_paddles(item.second, directory);
      });
    };
    if (headers_.empty() || !std::ranges::all_of(headers_, is_paddle)) return;
    turn_paddles(catalog_, directory);
    for (Header& header : headers_)
      for (auto& [key, value] : *header.metadata)
        if (key == "format") value = "pt";
  }

  void keep_metadata() {
    auto document = std::make_shared<pickle::Document>();
    const pickle::Id dict = document->add_container(pickle::Type::kDict);
    document->set_root(dict);
    bool present = false;
    for (size_t f = 0; f < headers_.size(); ++f) {
      if (!headers_[f].metadata) continue;
      present = true;
      for (const auto& [key, value] : *headers_[f].metadata)
        merge_metadata(f, key, value, *document);
    }
    // Packed files are no weights.
    if (const pickle::Id format = document->find(dict, "format");
        document->is(format, pickle::Type::kString) &&
        document->text(format) == kLosslessFormat)
      for (Tensor& tensor : catalog_.tensors) tensor.kind = Kind::other;
    if (present)
      catalog_.objects.push_back({std::string(kMetadata), document, dict});
  }

  Catalog& catalog() { return catalog_; }

 private:
  // The files in the order of their ranks, if their names number them and each
  // has a part of the same tensors; else nothing.
  std::vector<uint32_t> rank_order() const {
    std::vector<std::string> names;
    for (const File& file : catalog_.files)
      names.push_back(io::base_name(file.path));
    if (names.size() < 2) return {};
    const auto sets = fsdp::by_rank(names);
    if (sets.size() != names.size()) return {};
    const auto parts = [](const Header& header) {
      std::vector<std::pair<std::string_view, Shape>> all;
      for (const Entry& entry : header.entries)
        all.emplace_back(entry.name, entry.shape);
      std::ranges::sort(all);
      return all;
    };
    const auto first = parts(headers_[0]);
    for (const Header& header : headers_)
      if (first.empty() || parts(header) != first) return {};
    std::vector<uint32_t> order;
    order.reserve(sets.size());
    for (const auto& set : sets)
      order.push_back(static_cast<uint32_t>(
          std::ranges::find(names, set.at(0)) - names.begin()));
    return order;
  }

  // Joins what --shard-dims has a rule for; nothing else says how ranks share
  // it.
  void take_ranks(const std::vector<uint32_t>& order,
                  const formats::ReadOptions& options) {
    families::Rules rules;
    if (!options.shard_dims_file.empty())
      rules = families::Rules::from_file(options.shard_dims_file);
    std::vector<size_t> ranks(order.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    std::map<std::string_view, std::vector<Piece>> pieces;
    for (const uint32_t file : order)
      for (const Entry& entry : headers_[file].entries)
        pieces[entry.name].push_back(
            safetensors::tensor_of(entry, file).pieces[0]);
    for (const Entry& entry : headers_[order[0]].entries) {
      Tensor tensor = safetensors::tensor_of(entry, order[0]);
      tensor.pieces = std::move(pieces.at(entry.name));
      formats::share_by_rule(tensor, ranks, order.size(), rules, catalog_);
      catalog_.tensors.push_back(std::move(tensor));
    }
    catalog_.topology.tp = static_cast<uint32_t>(order.size());
    const std::string maker = maker_of_ranks();
    catalog_.problems.push_back(warning(
        "rank_files", {catalog_.path, {}},
        "{} files{}, each with one rank's part of the same tensors, {} first",
        order.size(), maker.empty() ? "" : " of " + maker,
        printable(io::base_name(catalog_.files[order[0]].path))));
  }

  // TensorRT-LLM's config.json has the sizes of its mesh.
  std::string maker_of_ranks() const {
    const std::string path = io::join(catalog_.path, "config.json");
    if (!io::is_file(path)) return "";
    const auto config = text::parse_or_discard<nlohmann::json>(
        io::read_file(path, kMostConfig));
    if (!config.is_object() || !config.contains("architecture")) return "";
    const auto mapping = config.find("mapping");
    if (mapping == config.end() || !mapping->is_object() ||
        !mapping->contains("tp_size"))
      return "";
    return fmt::format("TensorRT-LLM (mapping in config.json: tp {}, pp {})",
                       mapping->value("tp_size", 0),
                       mapping->value("pp_size", 1));
  }

  // Checks across files; within one, the header was already checked.
  void check_unique(const std::vector<Located>& taken) {
    if (headers_.size() < 2) return;
    text::NameTable names;
    names.reserve(taken.size());
    for (uint32_t i = 0; const Located& at : taken)
      names.add(headers_[at.file].entries[at.tensor].name, i++);
    names.sort();
    const auto twice = names.duplicate();
    if (!twice) return;
    const auto path = [&](uint32_t i) {
      return io::base_name(catalog_.files[taken[i].file].path);
    };
    throw input_error(
        {catalog_.path, std::string(twice->name)}, "is in two files: {} and {}",
        printable(path(twice->first)), printable(path(twice->second)))
        .with_hint(
            "if the files are variants of one model, open one of them; "
            "if they are shards of each tensor, this is another format: "
            "name it with --from");
  }

  void add_tensors(std::span<const Located> taken) {
    io::reserve_huge(catalog_.tensors, taken.size());
    io::expect_small_blocks(taken.size() * (sizeof(Piece) + sizeof(void*)));
    for (const Located& at : taken) catalog_.tensors.push_back(take(at));
  }

  Tensor take(const Located& at) {
    return safetensors::tensor_of(
        std::move(headers_[at.file].entries[at.tensor]), at.file);
  }

  uint64_t bytes() const {
    uint64_t sum = 0;  // of parts of real files: can't overflow
    for (const Tensor& tensor : catalog_.tensors) sum += byte_size(tensor);
    return sum;
  }

  // safetensors holds one of a tensor's several names. For a model without an
  // output layer that is the embedding; writers may have counted both.
  uint64_t tied_bytes() const {
    uint64_t bytes = 0;
    for (const Tensor& tensor : catalog_.tensors) {
      if (tensor.name.ends_with("lm_head.weight")) return 0;
      if (tensor.name.ends_with("embed_tokens.weight") ||
          tensor.name.ends_with("wte.weight") ||
          tensor.name.ends_with("embed_in.weight") ||
          tensor.name.ends_with("word_embeddings.weight"))
        bytes = byte_size(tensor);
    }
    return bytes;
  }

  // torch DCP's rank 0 can write whole tensors, all at offset 0, under the
  // names of a Hugging Face directory.
  static bool is_whole(const std::string& path, const std::string& info) {
    if (!io::base_name(path).starts_with("model-")) return false;
    nlohmann::json document;
    try {
      document = text::parse_json(info, path);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged) throw;
    }
    if (!document.is_object()) return false;
    for (const auto& tensor : document) {
      const auto offsets =
          tensor.is_object() ? tensor.find("saved_offsets") : tensor.end();
      if (offsets == tensor.end() || !offsets->is_array()) return false;
      for (const auto& offset : *offsets)
        if (offset != 0) return false;
    }
    return true;
  }

  void merge_metadata(size_t f, const std::string& key,
                      const std::string& value, pickle::Document& merged) {
    const std::string& path = catalog_.files[f].path;
    if (key == kDcpInfo && !is_whole(path, value))
      catalog_.problems.push_back(problem(
          Severity::kWarning, "dcp_shard", path, {},
          "torch DCP wrote this file as a shard (DCP_SHARDING_INFO): its "
          "tensors may be parts of larger ones, and are read as they are"));
    const bool of_one_file = key == kDcpInfo || key == kDcpVersion;
    if (of_one_file && headers_.size() > 1) return;
    const pickle::Id earlier = merged.find(merged.root(), key);
    if (earlier == pickle::kNoId) {
      merged.set(merged.root(), key, merged.add_string(value));
    } else if (merged.text(earlier) != value) {
      catalog_.problems.push_back(
          problem(Severity::kNote, "metadata_differs", path, {},
                  fmt::format("__metadata__ \"{}\" differs from an earlier "
                              "file's; that one is kept",
                              printable(key))));
    }
  }

  // Keeps what an index says besides total_size, which is made anew.
  void keep_index_metadata(const std::shared_ptr<pickle::Document>& rest) {
    if (!rest || rest->items(rest->root()).empty()) return;
    catalog_.objects.push_back(
        {std::string(kIndexMetadata), rest, rest->root()});
  }

  Catalog catalog_;
  std::vector<Header> headers_;  // one per file in catalog_.files
};

void read_indexed(const std::string& directory, const std::string& index_file,
                  Assembly& assembly, std::vector<std::string>& unread) {
  Index index = formats::read_index(directory, index_file);
  assembly.read_files(io::join_each(directory, index.files));
  assembly.take_indexed(directory, index);
  std::erase_if(unread, [&](const std::string& name) {
    return std::ranges::binary_search(index.files, name);
  });
}

// Tensors in a file of another name that are none of the model's: a value head
// of TRL's or LLaMA-Factory's. A second form of the model has a loader's name.
bool has_own_tensors(const std::string& directory, const std::string& name,
                     const Catalog& catalog) {
  if (name.starts_with("consolidated") ||
      std::ranges::any_of(formats::weight_names(),
                          [&](const formats::WeightNames& one) {
                            return name.starts_with(one.safetensors);
                          }))
    return false;
  bool own = false;
  try {
    read_headers({io::join(directory, name)}, [&](size_t, FileHeader one) {
      text::NameTable names;
      names.reserve(catalog.tensors.size());
      for (uint32_t i = 0; const Tensor& tensor : catalog.tensors)
        names.add(tensor.name, i++);
      names.sort();
      own = !one.header.entries.empty() &&
            std::ranges::all_of(one.header.entries, [&](const Entry& entry) {
              return names.find(entry.name).empty();
            });
    });
  } catch (const Error&) {
    return false;
  }
  return own;
}

void read_directory(const std::string& directory,
                    const formats::ReadOptions& options, Assembly& assembly) {
  Files files = locate(directory);
  if (!files.index.empty()) {
    read_indexed(directory, files.index, assembly, files.unread);
  } else {
    assembly.read_files(io::join_each(directory, files.names));
    assembly.take_all(options);
    formats::check_has_index(directory, files.names,
                             assembly.catalog().problems);
  }
  Catalog& catalog = assembly.catalog();
  const std::string taken = files.index.empty() ? files.names[0] : files.index;
  formats::check_opened_unasked(directory, taken, catalog.problems);
  if (files.names.size() == 1 &&
      formats::indexes_others(directory, taken + ".index.json", taken))
    catalog.problems.push_back(warning(
        "stale_index", {io::join(directory, taken + ".index.json"), {}},
        "names other files than {}, which is beside it: transformers takes "
        "the file, vLLM what the index names; remove what is not meant",
        printable(taken)));
  for (const std::string& name : files.unread) {
    const bool own = has_own_tensors(directory, name, catalog);
    catalog.problems.push_back(problem(
        Severity::kNote, own ? "own_tensors" : "unread_file",
        io::join(directory, name), {},
        (own ? "has tensors of its own, and is not part of the checkpoint that "
             : "is not part of the checkpoint that ") +
            printable(taken) + " begins"));
  }
  formats::add_sidecars(directory, catalog);
}

Support supports(const std::string& path) {
  return io::is_directory(path) ? supports_directory(path)
                                : supports_file(path);
}

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  Assembly assembly(path);
  assembly.catalog().family = options.family;
  const bool directory = io::is_directory(path);
  std::vector<std::string> unread;
  if (directory) {
    read_directory(path, options, assembly);
  } else if (is_index_path(path)) {
    read_indexed(io::parent(path), io::base_name(path), assembly, unread);
  } else {
    assembly.read_files({path});
    assembly.take_all();
  }
  assembly.turn(directory ? path : io::parent(path));
  assembly.keep_metadata();
  formats::detect_dialect(directory ? path : io::parent(path),
                          assembly.catalog());
  return std::move(assembly.catalog());
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::safetensors

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/gguf/header.h"
#include "formats/gguf/gguf.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::gguf {
namespace {

using formats::Support;
using text::printable;

// NAME-00002-of-00005.gguf.
struct Part {
  std::string stem;
  uint64_t number = 1, count = 1;
};

Part part_of(const std::string& name) {
  Part part{name.substr(0, name.size() - kEnding.size())};
  constexpr size_t kTail = std::string_view("-00001-of-00003").size();
  if (part.stem.size() <= kTail) return part;
  const std::string tail = part.stem.substr(part.stem.size() - kTail);
  const auto number = text::number(tail.substr(1, 5));
  const auto count = text::number(tail.substr(10, 5));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number || !count)
    return part;
  part.stem.resize(part.stem.size() - kTail);
  part.number = *number;
  part.count = *count;
  return part;
}

bool is_gguf(const std::string& name) { return name.ends_with(kEnding); }

// The files of one model, in order.
std::vector<std::string> parts_of_file(const std::string& path) {
  const std::string name = io::base_name(path);
  const Part part = is_gguf(name) ? part_of(name) : Part();
  if (part.count < 2) return {path};
  std::vector<std::string> paths;
  for (uint64_t i = 1; i <= part.count; ++i) {
    paths.push_back(io::join(
        io::parent(path),
        fmt::format("{}-{:05}-of-{:05}.gguf", part.stem, i, part.count)));
    if (!io::is_file(paths.back()))
      throw input_error({paths.back(), {}},
                        "is missing: {} is one of {} parts of a model",
                        printable(name), part.count)
          .with_hint("fetch or copy the other parts beside it");
  }
  return paths;
}

// The first files of the models in a directory: parts of one count as one.
std::vector<std::string> models_in(const std::string& directory) {
  std::map<std::string, std::string> models;
  for (const std::string& name : io::list_directory(directory)) {
    if (!is_gguf(name) || name.starts_with('.') ||
        io::is_directory(io::join(directory, name)))
      continue;
    const Part part = part_of(name);
    models.emplace(fmt::format("{} {}", part.stem, part.count), name);
  }
  std::vector<std::string> names;
  for (const auto& [stem, name] : models) names.push_back(name);
  return names;
}

class Assembly {
 public:
  explicit Assembly(const std::string& path) {
    catalog_.format = kFormat;
    catalog_.path = path;
  }

  void read(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const io::Handle file = io::Handle::open_read(path);
      headers_.push_back(read_header(file));
      catalog_.files.push_back({.path = path, .size = file.size()});
    }
    check_parts();
    files_ = std::make_shared<const std::vector<File>>(catalog_.files);
    for (uint32_t f = 0; f < headers_.size(); ++f)
      for (const Entry& entry : headers_[f].entries) add(entry, f);
    keep_metadata();
  }

  Catalog& catalog() { return catalog_; }

 private:
  void check_parts() {
    std::set<std::string_view> names;
    for (size_t f = 0; f < headers_.size(); ++f) {
      const Header& header = headers_[f];
      const std::string& path = catalog_.files[f].path;
      for (const Entry& entry : header.entries)
        if (!names.insert(entry.name).second)
          throw input_error({path, entry.name}, "is in an earlier part, too");
      if (const auto no = whole(header, "split.no");
          no && headers_.size() > 1 && *no != static_cast<int64_t>(f))
        throw input_error({path, "split.no"}, "is {}, and its name says {}",
                          *no, f);
      const uint64_t rest = catalog_.files[f].size - header.data_end;
      if (rest >= header.alignment)
        catalog_.problems.push_back(
            warning("trailing_bytes", {path, {}},
                    "{} bytes behind the last tensor belong to nothing", rest));
    }
    const auto parts = whole(headers_[0], "split.count");
    if (parts && *parts > 1 && static_cast<size_t>(*parts) != headers_.size())
      throw input_error({catalog_.path, "split.count"},
                        "is {}: this is one of {} parts, and its name does "
                        "not say so",
                        *parts, *parts)
          .with_hint("parts are named NAME-00001-of-00003.gguf");
    const auto count = whole(headers_[0], "split.tensors.count");
    if (count && static_cast<size_t>(*count) != names.size())
      throw input_error({catalog_.path, "split.tensors.count"},
                        "is {}, and the parts hold {} tensors", *count,
                        names.size());
  }

  static std::optional<int64_t> whole(const Header& header,
                                      std::string_view name) {
    for (const Key& key : header.keys)
      if (key.name == name) return header.document->as_int(key.value);
    return std::nullopt;
  }

  void add(const Entry& entry, uint32_t file) {
    Tensor& tensor = catalog_.tensors.emplace_back();
    tensor.name = entry.name;
    tensor.shape = entry.shape;
    Piece piece{.box = Box::whole(entry.shape),
                .flat = {},
                .extent = {.offset = entry.begin, .strides = {}, .file = file}};
    if (entry.type->dtype) {
      tensor.dtype = *entry.type->dtype;
      if (headers_[file].big_endian) piece.transform = kSwapBytes;
    } else {
      tensor.dtype = DType::f32;
      piece.extent = {.offset = 0,
                      .strides = {},
                      .file = static_cast<uint32_t>(catalog_.files.size())};
      add_decoded(entry, file);
    }
    tensor.pieces.push_back(std::move(piece));
  }

  void add_decoded(const Entry& entry, uint32_t file) {
    const std::string& path = catalog_.files[file].path;
    if (headers_[file].big_endian)
      throw unfaithful_error({path, entry.name},
                             "blocks of {} in a file of big-endian numbers "
                             "are not read",
                             entry.type->name)
          .with_hint(
              "gguf_convert_endian.py of the gguf package makes a "
              "little-endian file of it");
    if (!entry.type->decodes)
      throw unfaithful_error({path, entry.name},
                             "it is not known what numbers blocks of {} stand "
                             "for",
                             entry.type->name);
    const auto size = byte_size(DType::f32, entry.shape);
    if (!size)
      throw input_error({path, entry.name}, "{} is too large",
                        to_string(entry.shape));
    const uint64_t columns = entry.shape.empty() ? 1 : entry.shape.back();
    const uint64_t rows = columns ? *size / 4 / columns : 0;
    const uint64_t row_bytes =
        columns / entry.type->elements * entry.type->bytes;
    Decoding made;
    made.coding = Coding::kGgml;
    made.ggml = entry.type->type;
    made.dtype = DType::f32;
    made.rows = rows;
    made.columns = columns;
    made.name = entry.name;
    made.files = files_;
    made.codes.name = entry.name;
    made.codes.dtype = DType::u8;
    made.codes.shape = {1, rows, row_bytes};
    made.codes.pieces.push_back(
        {.box = Box::whole(made.codes.shape),
         .flat = {},
         .extent = {.offset = entry.begin,
                    .strides = {rows * row_bytes, row_bytes, 1},
                    .file = file}});
    catalog_.files.push_back(
        decoded_file(fmt::format("gguf:{} {} {} at {}", entry.name,
                                 entry.type->name, path, entry.begin),
                     *size, std::move(made)));
  }

  void keep_metadata() {
    const Header& header = headers_[0];
    auto types = std::make_shared<pickle::Document>();
    const pickle::Id dict = types->add_container(pickle::Type::kDict);
    types->set_root(dict);
    for (const Key& key : header.keys) {
      // Of the parts, and not of the model.
      if (key.name.starts_with("split.")) continue;
      types->set(dict, key.name, types->add_string(key.type));
      catalog_.objects.push_back({key.name, header.document, key.value});
    }
    catalog_.objects.push_back({std::string(kTypes), types, dict});
    catalog_.version = std::to_string(header.version);
  }

  Catalog catalog_;
  std::vector<Header> headers_;
  std::shared_ptr<const std::vector<File>> files_;  // without those decoded
};

Support supports(const std::string& path) {
  if (io::is_directory(path)) {
    const auto names = models_in(path);
    if (names.empty()) return {false, "no .gguf file in it"};
    return {true, "holds " + printable(names[0])};
  }
  const io::Handle file = io::Handle::open_read(path);
  if (file.size() >= kMagic.size() &&
      file.read_string(0, kMagic.size()) == kMagic)
    return {true, "starts with GGUF"};
  if (is_gguf(io::base_name(path)))
    return {true, "is named .gguf, though it does not start so"};
  return {false, "does not start with GGUF"};
}

// The one model of a directory.
std::string model_in(const std::string& directory) {
  const auto names = models_in(directory);
  if (names.size() == 1) return io::join(directory, names[0]);
  if (names.empty())
    throw missing_error({directory, {}}, "there is no .gguf file in it");
  std::string list;
  for (const std::string& one : names)
    list += (list.empty() ? "" : ", ") + printable(one);
  throw usage_error({directory, {}}, "holds {} models: {}", names.size(), list)
      .with_hint("name one of the files");
}

Catalog read_catalog(const std::string& path, const formats::ReadOptions&) {
  Assembly assembly(path);
  assembly.read(parts_of_file(io::is_directory(path) ? model_in(path) : path));
  return std::move(assembly.catalog());
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::gguf

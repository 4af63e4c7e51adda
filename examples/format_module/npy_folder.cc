// SPDX-License-Identifier: Apache-2.0
// A directory with a .npy file for each tensor, as numpy.save writes them:
//
//   | \x93NUMPY | 1 0 | u16 length | {'descr': '<f4', …} spaces \n | elements |
//
// The header is a multiple of 64 bytes, so elements are aligned.
#include <ckpt/error.h>
#include <ckpt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;
using ckpt::DType;

constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kPrefix = 10;  // magic, version and the header's length
constexpr size_t kAlignment = 64;

constexpr std::pair<DType, std::string_view> kDescr[] = {
    {DType::f64, "<f8"}, {DType::f32, "<f4"},  {DType::f16, "<f2"},
    {DType::i64, "<i8"}, {DType::i32, "<i4"},  {DType::i16, "<i2"},
    {DType::i8, "|i1"},  {DType::u64, "<u8"},  {DType::u32, "<u4"},
    {DType::u16, "<u2"}, {DType::u8, "|u1"},   {DType::bool_, "|b1"},
    {DType::c64, "<c8"}, {DType::c128, "<c16"}};

struct Header {
  DType dtype = DType::f32;
  ckpt::Shape shape;
  uint64_t bytes = 0;  // before the elements
};

// What follows `key` in a header: "'<f4'" for 'descr'.
std::string_view value_of(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == text.npos) return {};
  text.remove_prefix(at + key.size());
  return text.substr(std::min(text.find_first_not_of(" :"), text.size()));
}

std::optional<ckpt::Shape> parse_shape(std::string_view text) {
  if (!text.starts_with('(') || text.find(')') == text.npos)
    return std::nullopt;
  text = text.substr(1, text.find(')') - 1);
  std::vector<uint64_t> sizes;
  while (
      !(text = text.substr(std::min(text.find_first_not_of(" ,"), text.size())))
           .empty()) {
    uint64_t size = 0;
    const auto [end, failure] =
        std::from_chars(text.data(), text.data() + text.size(), size);
    if (failure != std::errc{} || sizes.size() == 32) return std::nullopt;
    sizes.push_back(size);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
  return ckpt::Shape(sizes);
}

Header read_header(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char prefix[kPrefix] = {};
  file.read(prefix, kPrefix);
  if (!file || std::string_view(prefix, kMagic.size()) != kMagic)
    throw ckpt::input_error({path, {}}, "no .npy file of version 1.0");
  const auto low = static_cast<uint8_t>(prefix[8]);
  const auto high = static_cast<uint8_t>(prefix[9]);
  std::string text(low + 256u * high, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file)
    throw ckpt::input_error({path, {}}, "ends within its header of {} bytes",
                            text.size());
  Header header{.bytes = kPrefix + text.size()};
  const std::string_view descr = value_of(text, "'descr'");
  const auto known = std::ranges::find_if(kDescr, [&](const auto& one) {
    return descr.starts_with("'" + std::string(one.second) + "'");
  });
  const auto shape = parse_shape(value_of(text, "'shape'"));
  if (known == std::end(kDescr) || !shape ||
      !value_of(text, "'fortran_order'").starts_with("False"))
    throw ckpt::input_error({path, {}}, "has a header that is not read: {}",
                            text.substr(0, 80));
  header.dtype = known->first;
  header.shape = *shape;
  return header;
}

std::string write_header(DType dtype, const ckpt::Shape& shape,
                         const std::string& name) {
  const auto known = std::ranges::find(
      kDescr, dtype, &std::pair<DType, std::string_view>::first);
  if (known == std::end(kDescr))
    throw ckpt::unfaithful_error({{}, name}, "numpy has no {}",
                                 ckpt::name(dtype))
        .with_hint("--dtype f32 is exact for bf16 and f8");
  std::string sizes;
  for (const uint64_t size : shape) sizes += std::to_string(size) + ", ";
  if (shape.size() > 1) sizes.resize(sizes.size() - 2);
  if (shape.size() == 1) sizes.pop_back();
  std::string text = "{'descr': '" + std::string(known->second) +
                     "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  text.append(kAlignment - (kPrefix + text.size() + 1) % kAlignment, ' ');
  text += '\n';
  std::string header(kMagic);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

std::vector<std::string> npy_files(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (entry.path().extension() == ".npy" && entry.is_regular_file(ignored))
      names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

class Reader final : public ckpt::FormatReader {
 public:
  bool supports(const std::string& path, std::string& why) const override {
    const size_t files = npy_files(path).size();
    why = files ? "has " + std::to_string(files) + " .npy files"
                : "has no .npy file";
    return files != 0;
  }
  ckpt::Catalog read_catalog(const std::string& path) const override {
    ckpt::Catalog catalog;
    for (const std::string& name : npy_files(path)) {
      const std::string file = path + "/" + name;
      const Header header = read_header(file);
      const auto number = static_cast<uint32_t>(catalog.files.size());
      catalog.files.push_back({.path = file, .size = fs::file_size(file)});
      ckpt::Tensor& tensor = catalog.tensors.emplace_back();
      tensor.name = name.substr(0, name.size() - 4);
      tensor.dtype = header.dtype;
      tensor.shape = header.shape;
      tensor.pieces.push_back(
          {.box = ckpt::Box::whole(header.shape),
           .flat = {},
           .extent = {.offset = header.bytes, .strides = {}, .file = number}});
    }
    return catalog;
  }
};

class Writer final : public ckpt::FormatWriter {
 public:
  ckpt::Target lay_out(const ckpt::Catalog& source,
                       const ckpt::Layout&) const override {
    ckpt::Target target;
    for (const ckpt::Tensor& from : source.tensors) {
      if (from.name.empty() || from.name.find('/') != from.name.npos ||
          from.name.size() > 250)
        throw ckpt::unfaithful_error({{}, from.name}, "can't name a file");
      std::string header = write_header(from.dtype, from.shape, from.name);
      const uint64_t begin = header.size();
      const uint64_t size =
          begin + ckpt::byte_size(from.dtype, from.shape).value_or(0);
      const auto number = static_cast<uint32_t>(target.files.size());
      ckpt::TargetFile file{.path = from.name + ".npy", .size = size};
      file.literals.push_back({0, std::move(header)});
      target.files.push_back(std::move(file));
      target.catalog.files.push_back(
          {.path = from.name + ".npy", .size = size});
      ckpt::Tensor tensor = from;
      tensor.pieces = {
          {.box = ckpt::Box::whole(from.shape),
           .flat = {},
           .extent = {.offset = begin, .strides = {}, .file = number}}};
      target.catalog.tensors.push_back(std::move(tensor));
    }
    return target;
  }
};

void add_npy_folder(ckpt::FormatRegistry& registry) {
  registry.add({.name = "npy_folder",
                .what = "a directory with a .npy file for each tensor",
                .reader = std::make_unique<Reader>(),
                .writer = std::make_unique<Writer>()});
  // Megatron-Core's metadata.json beside the files may say that they belong to
  // this backend: {"sharded_backend": "npy", "sharded_backend_version": 1}.
  for (const char* action : {"load_sharded", "save_sharded"})
    registry.add_strategy({.action = action,
                           .backend = "npy",
                           .version = 1,
                           .format = "npy_folder"});
  // A model of one's own, too: here Llama under another name.
  registry.add_family("npy_llama", R"({
    "schema": "ckpt-family/2",
    "family": "npy_llama",
    "extends": "llama",
    "hf": {"model_type": ["npy_llama"], "architectures": ["NpyLlama"]},
    "dialects": {"mcore": {}}
  })");
}

}  // namespace

CKPT_FORMAT_MODULE(add_npy_folder)

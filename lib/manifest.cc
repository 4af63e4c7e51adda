#include "lib/manifest.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/json.h"

namespace ckpt {
namespace {

using nlohmann::json;

// A JSON string. What is not UTF-8 can't be written as it is.
std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

constexpr uint64_t kMaxManifest = uint64_t{4} << 30;

DType read_dtype(const json& entry, const std::string& path) {
  const std::string text = text::string_member(entry, "dtype", path);
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  throw input_error({path, {}}, "unknown dtype {}", text);
}

Digest read_digest(const json& entry, const std::string& path) {
  const std::string text = text::string_member(entry, "digest", path);
  if (const auto digest = Digest::parse(text)) return *digest;
  throw input_error({path, {}}, "'{}' is no digest of 32 hex digits", text);
}

Shape read_shape(const json& entry, const std::string& path) {
  Shape shape;
  for (const json& n : text::member(entry, "shape", path)) {
    if (!n.is_number_unsigned())
      throw input_error({path, {}}, "a shape holds {}", n.dump());
    shape.push_back(n.get<uint64_t>());
  }
  return shape;
}

}  // namespace

std::string manifest_path(const std::string& checkpoint) {
  if (io::is_directory(checkpoint)) return io::join(checkpoint, kManifestName);
  return checkpoint + std::string(kManifestName);
}

// Written front to back: a tree of 100,000 tensors costs more than the tensors.
bool is_part(const Shape& shape, const Manifest::Entry& entry) {
  return !shape.empty() && shape.size() == entry.shape.size() &&
         shape[0] < entry.shape[0] &&
         std::equal(shape.begin() + 1, shape.end(), entry.shape.begin() + 1);
}

std::string to_json(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\n \"ckpt_manifest\": 1,\n \"format\": {},\n"
      " \"source\": {{\"path\": {}, \"format\": {}}},\n \"files\": {{",
      quoted(manifest.format), quoted(manifest.source_path),
      quoted(manifest.source_format));
  const char* separator = "\n";
  for (const auto& [path, size] : manifest.files) {
    text += fmt::format("{}  {}: {}", separator, quoted(path), size);
    separator = ",\n";
  }
  text += "\n },\n \"tensors\": {";
  separator = "\n";
  for (const auto& [name, tensor] : manifest.tensors) {
    text += fmt::format(
        "{}  {}: {{\"dtype\": \"{}\", \"shape\": {}, \"digest\": \"{}\"",
        separator, quoted(name), ckpt::name(tensor.dtype),
        to_string(tensor.shape), tensor.digest.hex());
    if (tensor.source)
      text += fmt::format(
          ", \"source\": {{\"dtype\": \"{}\", \"digest\": \"{}\"}}",
          ckpt::name(tensor.source->first), tensor.source->second.hex());
    text += "}";
    separator = ",\n";
  }
  return text + "\n }\n}\n";
}

Manifest read_manifest(const std::string& path) {
  const json root = text::parse_json(io::read_file(path, kMaxManifest), path);
  if (text::uint_member(root, "ckpt_manifest", path) != 1)
    throw input_error({path, {}}, "a manifest of version {}, this is 1",
                      root["ckpt_manifest"].dump());
  Manifest manifest;
  manifest.format = text::string_member(root, "format", path);
  const json& source = text::member(root, "source", path);
  manifest.source_path = text::string_member(source, "path", path);
  manifest.source_format = text::string_member(source, "format", path);
  const json& files = text::member(root, "files", path);
  for (const auto& [name, size] : files.items())
    manifest.files[name] = text::uint_member(files, name, path);
  for (const auto& [name, entry] :
       text::member(root, "tensors", path).items()) {
    Manifest::Entry& tensor = manifest.tensors[name];
    tensor.dtype = read_dtype(entry, path);
    tensor.shape = read_shape(entry, path);
    tensor.digest = read_digest(entry, path);
    if (entry.contains("source"))
      tensor.source = {read_dtype(entry["source"], path),
                       read_digest(entry["source"], path)};
  }
  return manifest;
}

}  // namespace ckpt

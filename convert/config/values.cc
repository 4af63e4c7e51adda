// SPDX-License-Identifier: Apache-2.0
#include "convert/config/values.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "convert/config/gguf.h"
#include "convert/config/trainer.h"
#include "convert/config/yaml_values.h"
#include "formats/deepspeed/neox.h"
#include "formats/fairseq2/model_yaml.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/forks.h"
#include "formats/megatron/model/sizes.h"
#include "formats/modelopt/modelopt.h"
#include "formats/traits.h"
#include "lib/io/file.h"
#include "lib/pickle/config.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMaxConfig = uint64_t{16} << 20;
constexpr uint64_t kMaxArgs = 100'000;  // values

std::string file_name(std::string_view side) {
  if (side == "meta") return "params.json";
  if (side == "fairseq2") return "model.yaml";
  return "config.json";
}

Values parse_json(const std::string& text, const std::string& path) {
  Json json = text::parse_python_json(text, path);
  if (!json.is_object())
    throw input_error({path, {}}, "expected an object of numbers");
  return {std::move(json), io::base_name(path)};
}

// Some params.json wrap the numbers in {"model": {…}}.
Values unwrapped(Values values) {
  const auto model = values.values.find("model");
  if (model != values.values.end() && model->is_object() &&
      !values.values.contains("dim"))
    values.values = Json(*model);
  return values;
}

Values values_of_yaml(const fairseq2::ModelYaml& yaml,
                      const std::string& path) {
  return {nested_values(yaml.config), io::base_name(path), yaml.family};
}

// `path` is for messages.
Values parse_side(const std::string& text, const std::string& path,
                  std::string_view side) {
  if (side == "meta") return unwrapped(parse_json(text, path));
  if (side == "fairseq2")
    return values_of_yaml(fairseq2::model_yaml_of(path, text), path);
  return parse_json(text, path);
}

Values read_side(const std::string& path, std::string_view side) {
  return parse_side(io::read_file(path, kMaxConfig), path, side);
}

// Numbers in a value of the catalog's, which --layers and others change.
Values read_object(const Catalog& catalog, std::string_view name,
                   std::string source) {
  for (const Object& object : catalog.objects) {
    if (object.name != name || !object.document) continue;
    const pickle::Id dict = megatron::args_dict(*object.document, object.node);
    if (dict == pickle::kNoId) continue;
    Json args = pickle::to_config(*object.document, dict, kMaxArgs);
    if (!args.is_object()) continue;
    args.update(megatron::words_of_fork(*object.document, dict, catalog.path));
    return {.values = std::move(args),
            .source = std::move(source),
            .written = megatron::keys_of_fork(*object.document, dict)};
  }
  return {};
}

// A sidecar of the checkpoint, or the file beside it.
std::string find_beside(const Catalog& catalog, const std::string& name) {
  const auto sidecar =
      std::ranges::find(catalog.sidecars, name, &Sidecar::name);
  if (sidecar != catalog.sidecars.end()) return sidecar->path;
  const std::string directory =
      io::is_directory(catalog.path) ? catalog.path : io::parent(catalog.path);
  const std::string path = io::join(directory, name);
  if (io::is_file(path)) return path;
  const std::string foreign = io::join(directory, formats::kForeignConfig);
  return name == formats::kConfig && io::is_file(foreign) ? foreign : "";
}

// The text of a file of the checkpoint, or of the one beside it; its path, for
// messages, in `path`. Nothing if there is none.
std::optional<std::string> text_of(const Catalog& catalog,
                                   const std::string& name, std::string& path) {
  path = name;
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == name && sidecar.text) return *sidecar.text;
  path = find_beside(catalog, name);
  if (path.empty()) return std::nullopt;
  return io::read_file(path, kMaxConfig);
}

// configs/*.yml of GPT-NeoX, with the numbers that its model states hold.
Json numbers_of_neox(const Catalog& catalog) {
  if (!io::is_directory(catalog.path)) return nullptr;
  const Config config = deepspeed::neox_config(catalog.path);
  if (config.empty()) return nullptr;
  Json numbers = listed_values(config);
  numbers["args"] = read_object(catalog, "args", "args").values;
  return numbers;
}

Values values_of_trainer(const Catalog& catalog, const TrainerConfig& table) {
  Json numbers;
  std::string path = catalog.path;
  if (table.is_several()) {
    numbers = numbers_of_neox(catalog);
  } else if (!table.file().empty()) {
    if (const auto text = text_of(catalog, table.file(), path))
      numbers = table.numbers_of(*text, path);
  } else {
    for (const Object& object : catalog.objects)
      if (object.name == table.object() && object.document)
        numbers = table.numbers_in(*object.document, object.node);
  }
  if (!numbers.is_object()) return {};
  TrainerConfig::Said said = table.read(numbers, catalog, path);
  return {.values = std::move(said.config),
          .source = table.source(),
          .unknown = table.unknown(numbers),
          .told = std::move(said.told)};
}

// Where no config.json is beside it: what another program's amounts to.
Values values_of_names(const Catalog& catalog) {
  const bool gguf = formats::traits_of(catalog.format).dialect == kGguf;
  const TrainerConfig* table =
      gguf ? nullptr : TrainerConfig::of_names(catalog);
  if (!gguf && table == nullptr) return {};
  try {
    if (gguf) return values_of_gguf(catalog);
    Values values = values_of_trainer(catalog, *table);
    return table->is_whole(values.values) ? values : Values();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    return {};  // whoever needs the numbers says why
  }
}

}  // namespace

Values values_of(const Catalog& catalog, std::string_view side) {
  if (side == kGguf) return values_of_gguf(catalog);
  if (const TrainerConfig* table = TrainerConfig::of(side))
    return TrainerConfig::of_names(catalog) == table
               ? values_of_trainer(catalog, *table)
               : Values();
  if (side == "mcore") {
    Values args = read_object(catalog, "args", "args");
    if (!args.source.empty()) return args;
    Json shapes = megatron::args_of_shapes(catalog);
    if (shapes.empty()) return {};
    return {std::move(shapes), "the shapes"};
  }
  const std::string name = file_name(side);
  if (side == "meta")
    if (Values params = read_object(catalog, "params", name);
        !params.source.empty())
      return unwrapped(std::move(params));
  std::string path;
  if (const auto text = text_of(catalog, name, path))
    return parse_side(*text, path, side);
  return side == "hf" ? values_of_names(catalog) : Values();
}

std::optional<Sidecar> config_sidecar(const Catalog& catalog) {
  const std::string name = file_name("hf");
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == name) return sidecar;
  const std::string path = find_beside(catalog, name);
  if (path.empty()) return std::nullopt;
  return Sidecar{
      .name = name, .path = path, .size = io::Handle::open_read(path).size()};
}

Values values_of_file(const std::string& path, std::string_view side) {
  if (io::is_directory(path))
    return read_side(io::join(path, file_name(side)), side);
  return read_side(path, side);
}

double theta_of(const Catalog& catalog) {
  constexpr double kUsual = 10000;
  for (const char* side : {"hf", "meta"}) {
    const Values values = values_of(catalog, side);
    if (values.source.empty()) continue;
    const Json* at = &values.values;
    for (const char* inner : {"text_config", "rope_parameters"})
      if (const auto found = at->find(inner);
          found != at->end() && found->is_object())
        at = &*found;
    for (const Json* object : {at, &values.values})
      if (const auto theta = object->find("rope_theta");
          theta != object->end() && theta->is_number())
        return theta->get<double>();
  }
  return kUsual;
}

bool repeats_tied_head(const Catalog& catalog) {
  return formats::traits_of(catalog.format).repeats_tied_head ||
         modelopt::is_lone_shard(catalog);
}

}  // namespace ckpt::families

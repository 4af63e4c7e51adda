// What is asked of a checkpoint as a whole.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/ckpt.h"
#include "lib/pickle/json.h"

namespace ckpt {
namespace {

std::string text_of(const Object& object) {
  return pickle::to_json(*object.document, object.node)
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::map<std::string, std::string> object_texts(const Catalog& unopened) {
  Catalog opened;
  if (unopened.load_objects) {
    opened = unopened;
    load_objects(opened);
  }
  const Catalog& catalog = unopened.load_objects ? opened : unopened;
  std::map<std::string, std::string> texts;
  for (const Object& object : catalog.objects)
    texts[object.name] = text_of(object);
  return texts;
}

}  // namespace

std::map<std::string, TensorMetadata> load_tensors_metadata(
    const std::string& path, const OpenOptions& options) {
  std::map<std::string, TensorMetadata> all;
  const Checkpoint checkpoint = open(path, options);
  for (const Tensor& tensor : checkpoint.catalog().tensors)
    all[tensor.name] = {tensor.dtype, tensor.shape, tensor.kind};
  return all;
}

std::map<std::string, TensorData> load_plain_tensors(
    const std::string& path, bool optimizer, const OpenOptions& options) {
  std::map<std::string, TensorData> all;
  const Checkpoint checkpoint = open(path, options);
  for (const Tensor& tensor : checkpoint.catalog().tensors)
    if (optimizer || tensor.kind != Kind::optim)
      all[tensor.name] = checkpoint.read(tensor.name);
  return all;
}

void rename_tensors(
    Catalog& catalog,
    const std::function<std::string(const std::string&)>& rename) {
  std::unordered_map<std::string, std::string> before;  // new -> old
  std::unordered_map<std::string, std::string> after;   // old -> new
  for (const Tensor& tensor : catalog.tensors) {
    const std::string name = rename(tensor.name);
    const auto [other, fresh] = before.emplace(name, tensor.name);
    if (!fresh)
      throw unfaithful_error({catalog.path, tensor.name},
                             "would be called {}, as {} is", name,
                             other->second);
    after.emplace(tensor.name, name);
  }
  for (Tensor& tensor : catalog.tensors) {
    tensor.name = after.at(tensor.name);
    const auto param = after.find(tensor.param);
    if (param != after.end()) tensor.param = param->second;
  }
  for (Claim& claim : catalog.claims)
    for (std::string* name : {&claim.exact, &claim.rounded})
      if (const auto found = after.find(*name); found != after.end())
        *name = found->second;
  if (!catalog.skeleton) return;
  for (auto& [node, name] : catalog.skeleton->tensors)
    if (const auto found = after.find(name); found != after.end())
      name = found->second;
}

void apply_prefix_mapping(Catalog& catalog,
                          const std::map<std::string, std::string>& prefixes) {
  const auto mapped = [&](const std::string& name) {
    const std::pair<const std::string, std::string>* best = nullptr;
    for (const auto& entry : prefixes)
      if (name.starts_with(entry.first) &&
          (!best || entry.first.size() > best->first.size()))
        best = &entry;
    return best ? best->second + name.substr(best->first.size()) : name;
  };
  // State that is named after its parameter is renamed with it: the prefix is
  // one of both names.
  rename_tensors(catalog, mapped);
}

void replace_prefix(Catalog& catalog, const std::string& prefix,
                    const std::string& replacement) {
  rename_tensors(catalog, [&](const std::string& name) {
    if (!name.starts_with(prefix))
      throw usage_error({catalog.path, name}, "does not begin with '{}'",
                        prefix);
    return replacement + name.substr(prefix.size());
  });
}

std::vector<ObjectDifference> diff_objects(const Catalog& left,
                                           const Catalog& right) {
  const auto a = object_texts(left), b = object_texts(right);
  std::vector<ObjectDifference> differences;
  for (const auto& [name, text] : a) {
    const auto other = b.find(name);
    if (other == b.end())
      differences.push_back({name, text, ""});
    else if (other->second != text)
      differences.push_back({name, text, other->second});
  }
  for (const auto& [name, text] : b)
    if (!a.contains(name)) differences.push_back({name, "", text});
  return differences;
}

Catalog merge(const Catalog& first, const Catalog& second) {
  Catalog left = first, right = second;
  for (Catalog* side : {&left, &right}) {
    locate(*side);
    load_objects(*side);
  }
  Catalog merged = left;
  merged.skeleton.reset();
  const auto shift = static_cast<uint32_t>(left.files.size());
  merged.files.insert(merged.files.end(), right.files.begin(),
                      right.files.end());
  std::unordered_set<std::string_view> names;
  uint32_t ties = 0;
  for (const Tensor& tensor : left.tensors) {
    names.insert(tensor.name);
    ties = std::max(ties, tensor.tie);
  }
  for (Tensor tensor : right.tensors) {
    if (names.contains(tensor.name))
      throw unfaithful_error({right.path, tensor.name}, "{} has it too",
                             left.path);
    for (Piece& piece : tensor.pieces) piece.extent.file += shift;
    if (tensor.tie) tensor.tie += ties;
    merged.tensors.push_back(std::move(tensor));
  }
  for (StoredCrc crc : right.crcs) {
    crc.file += shift;
    merged.crcs.push_back(std::move(crc));
  }
  merged.claims.insert(merged.claims.end(), right.claims.begin(),
                       right.claims.end());
  const auto texts = object_texts(left);
  for (const Object& object : right.objects) {
    const auto other = texts.find(object.name);
    if (other == texts.end())
      merged.objects.push_back(object);
    else if (other->second != text_of(object))
      throw unfaithful_error({right.path, object.name},
                             "{} has another value of it", left.path);
  }
  return merged;
}

}  // namespace ckpt

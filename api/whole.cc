// SPDX-License-Identifier: Apache-2.0
// Operations on a checkpoint as a whole.
#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/ckpt.h"
#include "ckpt/trees.h"
#include "containers/torch/inline.h"
#include "lib/pickle/json.h"
#include "lib/pickle/parts.h"

namespace ckpt {
namespace {

std::string text_of(const Object& object) {
  return pickle::to_json(*object.document, object.node)
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The objects, opened, with the bytes of what they hold. Doesn't copy the rest
// of the catalog, which may have millions of pieces.
struct Values {
  std::vector<Object> objects;
  std::optional<Skeleton> skeleton;
};

Values opened_values(const Catalog& catalog) {
  if (!catalog.object_opener) return {catalog.objects, catalog.skeleton};
  Catalog opened;
  opened.format = catalog.format;
  opened.path = catalog.path;
  opened.root = catalog.root;
  opened.files = catalog.files;
  opened.objects = catalog.objects;
  opened.skeleton = catalog.skeleton;
  opened.object_opener = catalog.object_opener;
  load_objects(opened);
  return {std::move(opened.objects), std::move(opened.skeleton)};
}

uint64_t count_differing(std::string_view a, std::string_view b) {
  uint64_t count = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    count += a[i] != b[i];
  return count;
}

// What the storages below a value hold, in its order. Nothing for those that
// nobody keeps: they were too large, or their reader leaves them in their file.
std::vector<std::optional<Content>> contents_of(const Values& values,
                                                const Object& object) {
  const pickle::Document& document = *object.document;
  std::unordered_map<uint32_t, const Content*> known;
  if (values.skeleton && values.skeleton->document == object.document)
    for (const auto& [node, content] : values.skeleton->storages)
      known.emplace(node, &content);
  std::vector<std::optional<Content>> contents;
  for (const pickle::Id node : pickle::storages_below(document, object.node)) {
    const auto found = known.find(node);
    if (found != known.end())
      contents.emplace_back(*found->second);
    else
      contents.push_back(torch::inline_content(document, node));
  }
  return contents;
}

// Why the bytes inside two values that look alike are not the same; "" if they
// are, or if nobody keeps them.
std::string differing_bytes(const Values& left, const Object& a,
                            const Values& right, const Object& b) {
  const auto x = contents_of(left, a), y = contents_of(right, b);
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!x[i] || !y[i]) continue;
    for (const auto* one : {&x[i], &y[i]})
      if (const auto& damage = (*one)->damage()) return damage->what();
    if (x[i]->bytes() != y[i]->bytes())
      return fmt::format(
          "tensor {} of {} inside has other values ({} of {} bytes differ)",
          i + 1, x.size(), count_differing(x[i]->bytes(), y[i]->bytes()),
          x[i]->bytes().size());
  }
  return {};
}

using ObjectIndex = std::map<std::string, const Object*>;
ObjectIndex index_of(const std::vector<Object>& objects) {
  ObjectIndex index;
  for (const Object& object : objects) index[object.name] = &object;
  return index;
}

// Long bytes and large values are shown in part, so comparing the text is not
// enough.
bool same_values(const Object& a, const std::string& left, const Object& b,
                 const std::string& right) {
  if (left != right) return false;
  const bool whole = left.find("\"!bytes\"") == left.npos &&
                     left.find("\"!elided\"") == left.npos;
  return whole || diff_trees(a, b).empty();
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
  Catalog catalog = open(path, options).catalog();
  if (!optimizer)
    std::erase_if(catalog.tensors,
                  [](const Tensor& t) { return t.kind == Kind::optim; });
  locate(catalog);  // once, not for each tensor
  const Checkpoint checkpoint(std::move(catalog));
  std::map<std::string, TensorData> all;
  for (const Tensor& tensor : checkpoint.catalog().tensors)
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

void apply_prefix_mapping(
    Catalog& catalog,
    const std::vector<std::pair<std::string, std::string>>& prefixes) {
  const auto mapped = [&](const std::string& name) {
    const auto first = std::ranges::find_if(prefixes, [&](const auto& entry) {
      return name.starts_with(entry.first);
    });
    return first == prefixes.end()
               ? name
               : first->second + name.substr(first->first.size());
  };
  // State named after its parameter is renamed with it: both names share the
  // prefix.
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
  const Values left_values = opened_values(left);
  const Values right_values = opened_values(right);
  const ObjectIndex a = index_of(left_values.objects);
  const ObjectIndex b = index_of(right_values.objects);
  std::vector<ObjectDifference> differences;
  for (const auto& [name, object] : a) {
    std::string text = text_of(*object);
    const auto other = b.find(name);
    if (other == b.end()) {
      differences.push_back({name, text, ""});
      continue;
    }
    std::string other_text = text_of(*other->second);
    if (!same_values(*object, text, *other->second, other_text))
      differences.push_back({name, text, std::move(other_text)});
    else if (std::string why = differing_bytes(left_values, *object,
                                               right_values, *other->second);
             !why.empty())
      differences.push_back(
          {name, std::move(text), std::move(other_text), std::move(why)});
  }
  for (const auto& [name, object] : b)
    if (!a.contains(name)) differences.push_back({name, "", text_of(*object)});
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
  const ObjectIndex known = index_of(left.objects);
  for (const Object& object : right.objects) {
    const auto other = known.find(object.name);
    if (other == known.end())
      merged.objects.push_back(object);
    else if (!same_values(*other->second, text_of(*other->second), object,
                          text_of(object)))
      throw unfaithful_error({right.path, object.name},
                             "{} has another value of it", left.path);
  }
  return merged;
}

}  // namespace ckpt

// SPDX-License-Identifier: Apache-2.0
#include "api/edit/model_part.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "containers/hf/numbered.h"
#include "convert/whole/models_of.h"
#include "formats/component_tree.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

// What is beside the model is what its own folder has; a folder of several
// models is nobody's own.
void move_into(const Component& model, const std::vector<Component>& all,
               const std::string& trainer, Catalog& catalog) {
  if (model.folder.empty()) {
    const runs::Trainer& known = runs::find_trainer(trainer);
    const auto is_sign = [&](const std::vector<std::string>& signs,
                             const std::string& name) {
      return std::ranges::any_of(signs, [&](const std::string& sign) {
        return runs::match(sign, name).has_value();
      });
    };
    const auto is_others = [&](const std::string& name) {
      return is_sign(known.signature, name) || is_sign(known.traces, name) ||
             std::ranges::any_of(all, [&](const auto& other) {
               return !other.folder.empty() &&
                      name.starts_with(other.folder + "/");
             });
    };
    std::erase_if(catalog.file_list,
                  [&](const SourceFile& file) { return is_others(file.path); });
    std::erase_if(catalog.sidecars, [&](const Sidecar& sidecar) {
      return is_others(sidecar.name);
    });
    formats::detect_dialect(catalog.path, catalog);
    return;
  }
  const std::string own = model.folder.substr(0, model.folder.find('/'));
  std::erase_if(catalog.file_list, [&](const SourceFile& file) {
    return !file.path.starts_with(own + "/");
  });
  for (SourceFile& file : catalog.file_list) file.path.erase(0, own.size() + 1);
  catalog.file_root = io::join(catalog.file_root, own);
  catalog.sidecars.clear();
  formats::add_sidecars(io::join(catalog.path, model.folder), catalog);
  formats::detect_dialect(io::join(catalog.path, model.folder), catalog);
  catalog.path = io::join(catalog.path, own);
}

}  // namespace

std::string keep_model(Catalog& catalog, const std::vector<Component>& all,
                       const std::string& name) {
  const auto found = std::ranges::find(all, name, families::word_of);
  if (found == all.end()) {
    std::vector<std::string> words;
    words.reserve(all.size());
    for (const Component& one : all) words.push_back(families::word_of(one));
    throw unfaithful_error({catalog.path, {}},
                           "--part {}: no model has this name; there are {}",
                           text::printable(name), formats::list_some(words))
        .with_hint("`ckpt inspect` lists them with their sizes");
  }
  const size_t before = catalog.tensors.size();
  const Component& model = *found;
  const auto at = static_cast<size_t>(found - all.begin());
  std::erase_if(catalog.tensors, [&](const Tensor& tensor) {
    return tensor.kind == Kind::optim ||
           formats::component_of(all, tensor.name) != at;
  });
  rename_tensors(catalog, [&](const std::string& one) {
    return one.substr(model.prefix.size());
  });
  catalog.objects.clear();  // the state of the training
  catalog.skeleton.reset();
  const std::string trainer = catalog.run->trainer;
  catalog.run.reset();
  catalog.family.clear();
  catalog.dialect.clear();
  move_into(model, all, trainer, catalog);
  return fmt::format("--part {}: {} of {} tensors", text::printable(name),
                     catalog.tensors.size(), before);
}

}  // namespace ckpt::library

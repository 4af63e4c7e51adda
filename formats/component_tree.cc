// SPDX-License-Identifier: Apache-2.0
#include "formats/component_tree.h"

#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "formats/target.h"
#include "formats/unsharded.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::formats {
namespace {

bool is_tree(const Catalog& source, const Layout& layout) {
  return source.run && !source.run->components.empty() && !layout.single_file &&
         !is_unsharded(layout);
}

class TreeBuilder {
 public:
  TreeBuilder(const Writer& writer, const Catalog& source, const Layout& layout)
      : writer_(writer),
        source_(source),
        layout_(layout),
        tensors_(source.run->components.size()) {}

  Target build() {
    target_.catalog = catalog_like(source_, layout_.format);
    sort();
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (!tensors_[i].empty()) add(source_.run->components[i], tensors_[i]);
    copy_sidecars(source_, source_.dialect == "hf", {}, target_);
    return std::move(target_);
  }

 private:
  void sort() {
    const std::vector<Component>& all = source_.run->components;
    for (uint32_t t = 0; t < source_.tensors.size(); ++t) {
      const std::string& name = source_.tensors[t].name;
      const size_t best = component_of(all, name);
      if (best == all.size())
        throw unfaithful_error({source_.path, text::printable(name)},
                               "is of none of the folders that the loader of "
                               "the whole looks into")
            .with_hint("leave --rename out, or convert one folder by itself");
      tensors_[best].push_back(t);
    }
  }

  Catalog catalog_of(const Component& component,
                     const std::vector<uint32_t>& tensors) const {
    Catalog catalog;
    catalog.format = source_.format;
    catalog.path = io::join(source_.path, component.folder);
    catalog.files = source_.files;
    for (const uint32_t t : tensors) {
      Tensor& tensor = catalog.tensors.emplace_back(source_.tensors[t]);
      tensor.name.erase(0, component.prefix.size());
    }
    return catalog;
  }

  void add(const Component& component, const std::vector<uint32_t>& tensors) {
    Target part = writer_.lay_out(catalog_of(component, tensors), layout_);
    for (Tensor& tensor : part.catalog.tensors)
      tensor.name.insert(0, component.prefix);
    for (File& file : part.catalog.files)
      file.path = io::join(component.folder, file.path);
    for (TargetFile& file : part.files)
      file.path = io::join(component.folder, file.path);
    add_part(std::move(part), tensors, target_);
  }

  const Writer& writer_;
  const Catalog& source_;
  const Layout& layout_;
  std::vector<std::vector<uint32_t>> tensors_;  // by component
  Target target_;
};

class WithComponents : public Writer {
 public:
  explicit WithComponents(std::unique_ptr<Writer> container)
      : container_(std::move(container)) {}

  std::string_view name() const override { return container_->name(); }
  bool wants_objects() const override { return container_->wants_objects(); }

  Catalog review(Catalog source, const Layout& layout) const override {
    // Nothing is mixed where each has a folder.
    if (is_tree(source, layout)) source.run->models.clear();
    return container_->review(std::move(source), layout);
  }

  Target lay_out(const Catalog& source, const Layout& layout) const override {
    if (!is_tree(source, layout)) return container_->lay_out(source, layout);
    return TreeBuilder(*container_, source, layout).build();
  }

 private:
  std::unique_ptr<Writer> container_;
};

}  // namespace

size_t component_of(const std::vector<Component>& all, std::string_view name) {
  size_t best = all.size();
  for (size_t i = 0; i < all.size(); ++i)
    if (name.starts_with(all[i].prefix) &&
        (best == all.size() || all[i].prefix.size() > all[best].prefix.size()))
      best = i;
  return best;
}

std::unique_ptr<Writer> with_components(std::unique_ptr<Writer> container) {
  return std::make_unique<WithComponents>(std::move(container));
}

}  // namespace ckpt::formats

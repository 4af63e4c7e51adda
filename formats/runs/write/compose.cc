// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/compose.h"

#include <algorithm>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/write/composing.h"
#include "formats/target.h"
#include "lib/io/file.h"

namespace ckpt::runs {

using pickle::Document;
using pickle::Id;

Composing::Composing(const Catalog& source, const Layout& layout)
    : source_(source),
      form_(find_form(layout, trainer_in(source))),
      writes_(find_trainer(form_.trainer).writes),
      ranks_(layout.topology.dp),
      layout_(layout),
      adam_(find_adam(source)),
      states_(find_states(source, adam_)),
      groups_(groups_for(form_, adam_, source)) {
  target_.catalog = formats::catalog_like(source, kRunFormat);
  target_.catalog.topology = {.dp = ranks_};
  target_.catalog.run = Run{layout.option(kTrainer), states_.step};
  target_.beside = form_.home;
}

Target Composing::build() {
  if (form_.one_file)
    add_one_file();
  else if (form_.rank_files)
    add_rank_files();
  else if (form_.sharded)
    add_sharded();
  else
    add_plain();
  add_states();
  for (const SourceFile& file : source_.file_list) settle(file);
  add_config();
  say();
  target_.files = std::move(payload_);
  std::ranges::move(rest_, std::back_inserter(target_.files));
  check_own();
  return std::move(target_);
}

// A record may describe a step that it doesn't find again.
void Composing::check_own() const {
  if (form_.one_file) return;
  const Trainer& trainer = find_trainer(form_.trainer);
  const auto is_written = [&](std::string_view alternatives) {
    while (!alternatives.empty()) {
      const size_t end = std::min(alternatives.find('|'), alternatives.size());
      const std::string_view pattern = alternatives.substr(0, end);
      alternatives.remove_prefix(std::min(end + 1, alternatives.size()));
      for (const TargetFile& file : target_.files)
        if (match(pattern, file.path) ||
            (pattern.ends_with('/') && file.path.starts_with(pattern)))
          return true;
    }
    return false;
  };
  const auto sign = std::ranges::find_if_not(trainer.signature, is_written);
  const bool has_model =
      trainer.models.empty() ||
      std::ranges::any_of(trainer.models, is_written, &Source::file);
  if (sign == trainer.signature.end() && has_model) return;
  throw unfaithful_error(
      {}, "{}: what its record writes, it does not read: {}", trainer.name,
      has_model ? "no " + *sign + ", which is in its signature"
                : "no file of its models' (" + trainer.models[0].file + ")")
      .with_hint("docs/trainers.md: `writes` and `models` name the same files");
}

std::vector<size_t> Composing::model() const {
  std::vector<size_t> all;
  for (size_t t = 0; t < source_.tensors.size(); ++t)
    if (source_.tensors[t].kind == Kind::model) all.push_back(t);
  return all;
}

// Makes a container's target part of this one; its tensor i is `of[i]`.
void Composing::place(Target part, const std::vector<size_t>& of,
                      const std::string& folder) {
  const auto base = static_cast<uint32_t>(target_.catalog.files.size());
  const size_t payload = part.catalog.files.size();
  for (size_t i = 0; i < part.catalog.tensors.size(); ++i) {
    Tensor& mine = target_.catalog.tensors[of[i]];
    mine.pieces = std::move(part.catalog.tensors[i].pieces);
    mine.tie = part.catalog.tensors[i].tie;
    for (Piece& piece : mine.pieces) piece.extent.file += base;
  }
  for (File& file : part.catalog.files) {
    file.path = io::join(folder, file.path);
    target_.catalog.files.push_back(std::move(file));
  }
  for (size_t f = 0; f < part.files.size(); ++f) {
    part.files[f].path = io::join(folder, part.files[f].path);
    (f < payload ? payload_ : rest_).push_back(std::move(part.files[f]));
  }
  std::ranges::move(part.problems, std::back_inserter(target_.problems));
  std::ranges::move(part.assumptions, std::back_inserter(target_.assumptions));
}

void Composing::place_file(Document& document, Id root,
                           const std::vector<torch::TensorSlot>& slots,
                           const std::vector<size_t>& of,
                           const std::string& path) {
  torch::FilePlan plan = torch::plan_file(
      document, root, slots,
      torch::archive_root_of(path.empty() ? layout_.name : path));
  const auto file = static_cast<uint32_t>(target_.catalog.files.size());
  target_.catalog.files.push_back(
      {.path = path, .size = plan.file.size, .fill = {}});
  for (size_t i = 0; i < of.size(); ++i) {
    Tensor& tensor = target_.catalog.tensors[of[i]];
    tensor.pieces.push_back(
        {.box = Box::whole(tensor.shape),
         .flat = std::nullopt,
         .extent = {
             .offset = plan.data_offsets[i], .strides = {}, .file = file}});
    tensor.tie = slots[i].tie == torch::kOwnStorage ? 0 : slots[i].tie;
  }
  plan.file.path = path;
  payload_.push_back(std::move(plan.file));
}

Target compose(const Catalog& source, const Layout& layout) {
  return Composing(source, layout).build();
}

}  // namespace ckpt::runs

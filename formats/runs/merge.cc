// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/merge.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "containers/torch/container.h"

namespace ckpt::runs {
namespace {

void shift(Tensor& tensor, uint32_t files, uint32_t ties) {
  for (Piece& piece : tensor.pieces) piece.extent.file += files;
  if (tensor.tie != 0) tensor.tie += ties;
}

// An opener that does the work of both.
class BothOpeners : public ArchiveOpener {
 public:
  using Opener = std::shared_ptr<const ArchiveOpener>;
  BothOpeners(Opener first, Opener second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void locate(Catalog& catalog) const override {
    first_->locate(catalog);
    second_->locate(catalog);
  }
  bool only_checks() const override {
    return first_->only_checks() && second_->only_checks();
  }

 private:
  Opener first_;
  Opener second_;
};

void add_opener(Catalog& into, std::shared_ptr<const ArchiveOpener> next) {
  if (!next || next == into.archive_opener) return;
  if (into.archive_opener)
    next = std::make_shared<const BothOpeners>(std::move(into.archive_opener),
                                               std::move(next));
  into.archive_opener = std::move(next);
}

}  // namespace

size_t Merger::add(Catalog part, std::span<const std::string_view> dropped) {
  const auto files = static_cast<uint32_t>(into_.files.size());
  uint32_t ties = 0;
  for (const Tensor& tensor : into_.tensors) ties = std::max(ties, tensor.tie);
  std::ranges::move(part.files, std::back_inserter(into_.files));
  for (StoredCrc& crc : part.crcs) {
    crc.file += files;
    into_.crcs.push_back(std::move(crc));
  }
  const size_t first = into_.tensors.size();
  for (Tensor& tensor : part.tensors) {
    shift(tensor, files, ties);
    into_.tensors.push_back(std::move(tensor));
  }
  for (Object& object : part.objects) {
    if (object.bytes > 0) object.file += files;
    into_.objects.push_back(std::move(object));
  }
  for (Problem& problem : part.problems)
    if (std::ranges::find(dropped, problem.kind) == dropped.end())
      into_.problems.push_back(std::move(problem));
  std::ranges::move(part.assumptions, std::back_inserter(into_.assumptions));
  std::ranges::move(part.claims, std::back_inserter(into_.claims));
  for (Redundant& redundant : part.redundant) {
    shift(redundant.tensor, files, ties);
    if (redundant.same_as) shift(*redundant.same_as, files, ties);
    into_.redundant.push_back(std::move(redundant));
  }
  torch::add_globals(into_, part.globals);
  add_opener(into_, std::move(part.archive_opener));
  return first;
}

}  // namespace ckpt::runs

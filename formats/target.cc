// SPDX-License-Identifier: Apache-2.0
#include "formats/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "ckpt/error.h"
#include "formats/beside.h"
#include "formats/file_list.h"
#include "formats/traits.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::formats {

Tensor without_pieces(const Tensor& tensor) {
  // Lists all members, or it does not compile.
  const auto& [name, dtype, shape, grid, kind, param, state, tp, pinned,
               dp_replicated, pieces, tie, requires_grad, parameter] = tensor;
  return {name, dtype,  shape,         grid, kind, param,         state,
          tp,   pinned, dp_replicated, {},   tie,  requires_grad, parameter};
}

Catalog catalog_like(const Catalog& source, std::string_view format) {
  Catalog catalog;
  catalog.format = format;
  catalog.family = source.family;
  catalog.dialect = source.dialect;
  catalog.tensors.reserve(source.tensors.size());
  for (const Tensor& tensor : source.tensors)
    catalog.tensors.emplace_back(without_pieces(tensor)).tie = 0;
  return catalog;
}

void refuse_quantized(const Catalog& source, std::string_view format) {
  for (const Tensor& tensor : source.tensors) {
    const bool bytes = tensor.dtype == DType::qi8 || tensor.dtype == DType::qu8;
    if (!bytes && tensor.dtype != DType::qi32 && tensor.dtype != DType::qu4x2 &&
        tensor.dtype != DType::qu2x4)
      continue;
    throw unfaithful_error({source.path, text::printable(tensor.name)},
                           "{} has no place for the scale and the zero point "
                           "that make numbers of {}",
                           format, info(tensor.dtype).torch)
        .with_hint(fmt::format(
            "{}one .pt file keeps all; --exclude leaves tensors out",
            bytes ? "--dtype f32 (or bf16, f16) writes the numbers; " : ""));
  }
}

TargetFile literal_file(std::string path, std::string content) {
  TargetFile file;
  file.path = std::move(path);
  file.size = content.size();
  if (!content.empty()) file.literals.push_back({0, std::move(content)});
  return file;
}

TargetFile copied_file(std::string path, const Sidecar& sidecar) {
  TargetFile file;
  file.path = std::move(path);
  file.size = sidecar.size;
  file.copy_of = sidecar.path;
  return file;
}

void add_part(Target part, std::span<const uint32_t> tensors, Target& target) {
  const auto file = static_cast<uint32_t>(target.catalog.files.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& tensor = part.catalog.tensors[i];
    for (Piece& piece : tensor.pieces) piece.extent.file += file;
    target.catalog.tensors[tensors[i]] = std::move(tensor);
  }
  // Payload comes before the small files of all parts.
  const auto payload = static_cast<ptrdiff_t>(part.catalog.files.size());
  target.files.insert(target.files.begin() + static_cast<ptrdiff_t>(file),
                      std::make_move_iterator(part.files.begin()),
                      std::make_move_iterator(part.files.begin() + payload));
  target.files.insert(target.files.end(),
                      std::make_move_iterator(part.files.begin() + payload),
                      std::make_move_iterator(part.files.end()));
  std::ranges::move(part.catalog.files,
                    std::back_inserter(target.catalog.files));
  std::ranges::move(part.catalog.objects,
                    std::back_inserter(target.catalog.objects));
  std::ranges::move(part.problems, std::back_inserter(target.problems));
  for (std::string& line : part.assumptions)
    if (std::ranges::find(target.assumptions, line) == target.assumptions.end())
      target.assumptions.push_back(std::move(line));
}

void copy_sidecars(const Catalog& source, bool keep, std::string_view folder,
                   Target& target) {
  target.beside = folder;
  // Of another format, what training goes on with and its own lists stay
  // there: settle_files() says so.
  const bool foreign = !traits_of(source.format).is_container;
  const auto stays = [&](const Sidecar& sidecar) {
    return foreign && (is_state(part_by_name(sidecar.name)) ||
                       is_format_file(source.format, sidecar.name));
  };
  for (const Sidecar& sidecar : source.sidecars) {
    if ((keep && !stays(sidecar)) || sidecar.text)
      target.files.push_back(
          copied_file(io::join(folder, sidecar.name), sidecar));
  }
}

}  // namespace ckpt::formats

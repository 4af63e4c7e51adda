// SPDX-License-Identifier: Apache-2.0
#include "api/reread.h"

#include <string_view>
#include <vector>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/traits.h"
#include "reshard/planner.h"

namespace ckpt::library {
namespace {

constexpr std::string_view kListHint =
    "`ckpt verify` lists all that changed since it was written; "
    "--ignore-checksums copies what is there";

}  // namespace

Error differs(const Catalog& source, const std::string& tensor,
              const Digest& found, const Digest& written,
              const std::string& manifest_path) {
  return input_error({source.path, tensor},
                     "has digest {}, it was written with {} ({})", found.hex(),
                     written.hex(), manifest_path)
      .with_hint(std::string(kListHint));
}

bool may_be_padded(const Catalog& source, const Shape& shape,
                   const Manifest::Entry& written) {
  return formats::traits_of(source.format).pads_rows && is_part(shape, written);
}

void check_by_reading(const Catalog& source, const Manifest& manifest,
                      const std::string& manifest_path,
                      const std::set<std::string>& names,
                      const reshard::RunOptions& options) {
  // A trainer's step is more than the container named by its format.
  Catalog again = formats::open(source.path,
                                source.run ? std::string() : source.format, {});
  std::erase_if(again.tensors, [&](const Tensor& tensor) {
    return !names.contains(tensor.name);
  });
  locate(again);
  const reshard::Plan plan = reshard::make_read_plan(again, false);
  reshard::RunOptions reading;
  reading.threads = options.threads;
  reading.max_mem = options.max_mem;
  reading.io = options.io;
  reading.progress = options.progress;
  reading.progress.begin("checking the source", plan.bytes_read);
  reshard::Output nowhere;
  const reshard::RunResult result = reshard::run(plan, again, nowhere, reading);
  reading.progress.end();
  for (size_t i = 0; i < again.tensors.size(); ++i) {
    const Manifest::Entry& entry = manifest.tensors.at(again.tensors[i].name);
    if (!entry.unproven.empty()) continue;
    const Tensor& tensor = again.tensors[i];
    if (tensor.dtype != entry.dtype ||
        may_be_padded(source, tensor.shape, entry))
      continue;
    if (tensor.shape != entry.shape)
      throw input_error(
          {source.path, tensor.name}, "is {}, it was written as {} ({})",
          to_string(tensor.shape), to_string(entry.shape), manifest_path)
          .with_hint(std::string(kListHint));
    if (entry.digest != result.source[i])
      throw differs(source, tensor.name, result.source[i], entry.digest,
                    manifest_path);
  }
}

}  // namespace ckpt::library

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/delta/blocks.h"
#include "api/delta/index.h"
#include "api/delta/lossless.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "lib/codec/pack.h"
#include "lib/hash/digest.h"
#include "lib/hash/sha256.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/staging.h"
#include "lib/session.h"
#include "reshard/run/read.h"

namespace ckpt::library {

LosslessResult restore_lossless(Catalog base, const std::string& delta,
                                const std::string& target,
                                const LosslessOptions& options,
                                const Progress& progress) {
  const io::Handle in = io::Handle::open_read(delta);
  const DeltaIndex index(delta, safetensors::read_header(in), in);
  locate(base);
  const heap::Unbounded blocks;
  std::unordered_map<std::string_view, const Tensor*> named;
  for (const Tensor& tensor : base.tensors) named[tensor.name] = &tensor;
  std::vector<const Tensor*> tensors;
  const auto other_base = [&](const std::string& tensor,
                              const std::string& why) {
    return unfaithful_error({base.path, tensor},
                            "not the base that {} was made from: {}", delta,
                            why)
        .with_hint("give the checkpoint that was A in `ckpt diff A B`");
  };
  for (const BaseTensor& wanted : index.tensors()) {
    const auto found = named.find(wanted.name);
    if (found == named.end())
      throw other_base(wanted.name, "it has no such tensor");
    const Tensor& tensor = *found->second;
    if (tensor.dtype != wanted.dtype || tensor.shape != wanted.shape)
      throw other_base(
          wanted.name,
          fmt::format("{} {}, expected {} {}", ckpt::name(tensor.dtype),
                      to_string(tensor.shape), ckpt::name(wanted.dtype),
                      to_string(wanted.shape)));
    tensors.push_back(&tensor);
  }

  LosslessResult result{.files = index.files().size(),
                        .tensors = index.tensors().size(),
                        .packed = in.size()};
  for (const PackedFile& file : index.files()) {
    result.bytes += file.bytes;
    result.written.emplace_back(
        index.folder() ? file.path : io::base_name(target), file.bytes);
  }
  const io::StagingOptions place{.single_file = !index.folder(),
                                 .overwrite = options.overwrite,
                                 .sync = options.sync};
  if (options.dry_run) {
    io::Staging::check(target, place);
    return result;
  }
  const InterruptScope scope;
  io::Staging staging(target, place);
  staging.check_space(result.bytes);
  progress.begin("restoring", result.bytes);
  const size_t at_once = blocks_at_once(options);
  std::vector<Bytes> made(at_once);
  const auto unpack = [&](const Block& block) {
    Bytes frame(block.end - block.begin);
    in.read(index.payload() + block.begin, frame);
    Bytes planes(block.bytes), bytes(block.bytes);
    codec::unpack_zstd(frame, planes, {delta, {}});
    codec::join_planes(planes, block.step, bytes);
    if (!block.tensor) return bytes;
    const Tensor& tensor = *tensors[*block.tensor];
    const Bytes other =
        reshard::read_box(base, tensor, block.box, one_thread());
    if (digest(0, other) != block.digest)
      throw other_base(tensor.name,
                       fmt::format("other values in {} at {}",
                                   to_string(Shape(block.box.shape)),
                                   to_string(Shape(block.box.offset))));
    xor_with(bytes, other);
    return bytes;
  };
  for (const PackedFile& file : index.files()) {
    const std::string path = index.folder() ? file.path : io::base_name(target);
    staging.create(path, file.bytes);
    const io::Handle out =
        io::Handle::open_write(io::join(staging.root(), path));
    progress.file(path);
    Sha256 sum;
    uint64_t at = 0;
    in_batches(
        file.blocks.size(), at_once,
        [&](size_t i, size_t slot) { made[slot] = unpack(file.blocks[i]); },
        [&](size_t i, size_t slot) {
          sum.update(made[slot]);
          out.write(at, std::span<const std::byte>(made[slot]));
          at += made[slot].size();
          if (file.blocks[i].tensor) result.xored += made[slot].size();
          progress.advance(made[slot].size());
        });
    if (sum.hex() != file.sha256)
      throw input_error({delta, {}}, "{}: its bytes don't have their SHA-256",
                        file.path);
  }
  progress.end();
  staging.flush();
  Session::current()->watch.check_unchanged();
  staging.publish();
  return result;
}

}  // namespace ckpt::library

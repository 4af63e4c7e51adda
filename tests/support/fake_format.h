// SPDX-License-Identifier: Apache-2.0
// A format that a test registers: ranks cut dimension 0, and it owns an option.
//
//   rank_0.fake, rank_1.fake …   rows of all tensors, `pad` zeros before them
//
// Its row claims nothing but its name, as a newcomer's first row does.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/format.h"

namespace ckpt::test {

class FakeWriter final : public FormatWriter {
 public:
  // `honest`: cuts for the requested ranks, or claims none.
  explicit FakeWriter(bool honest) : honest_(honest) {}
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    const uint64_t ranks = honest_ ? layout.topology.tp : 1;
    const std::string text = layout.option("fake-pad");
    const uint64_t pad = text.empty() ? 0 : std::stoull(text);
    Target target;
    target.catalog.topology.tp = static_cast<uint32_t>(ranks);
    for (uint64_t r = 0; r < ranks; ++r) {
      TargetFile file{.path = "rank_" + std::to_string(r) + ".fake",
                      .size = pad};
      file.literals.push_back({0, std::string(pad, '\0')});
      target.files.push_back(std::move(file));
    }
    for (const Tensor& from : source.tensors) add(from, ranks, target);
    for (const TargetFile& file : target.files)
      target.catalog.files.push_back({.path = file.path, .size = file.size});
    return target;
  }

 private:
  static void add(const Tensor& from, uint64_t ranks, Target& target) {
    Tensor tensor = from;
    tensor.pieces.clear();
    if (from.shape.empty() || from.shape[0] % ranks != 0)
      throw unfaithful_error({{}, from.name}, "does not divide");
    for (uint64_t r = 0; r < ranks; ++r) {
      Box box = Box::whole(from.shape);
      box.shape[0] /= ranks;
      box.offset[0] = r * box.shape[0];
      TargetFile& file = target.files[r];
      tensor.pieces.push_back({.box = box,
                               .flat = {},
                               .extent = {.offset = file.size,
                                          .strides = {},
                                          .file = static_cast<uint32_t>(r)}});
      file.size += *byte_size(from.dtype, box.shape);
    }
    target.catalog.tensors.push_back(std::move(tensor));
  }

  bool honest_;
};

inline void check_pad(const FormatOption& option, const std::string& text) {
  const bool digits = !text.empty() && text.size() < 4 &&
                      text.find_first_not_of("0123456789") == text.npos;
  if (!digits) throw usage_error({}, "--{} '{}': a number", option.name, text);
}

// Registers "fake" and "fake_flat", whose writer ignores ranks, and a family
// "fake_llama". Call it from an initializer, before formats are first looked
// up.
inline bool register_fakes() {
  register_format({.name = "fake",
                   .what = "ranks of a test",
                   .writer = std::make_unique<FakeWriter>(true),
                   .options = {{.name = "fake-pad",
                                .type = "N",
                                .help = "zeros before the tensors",
                                .check = check_pad}}});
  register_format({.name = "fake_flat",
                   .what = "one file of a test",
                   .writer = std::make_unique<FakeWriter>(false)});
  register_strategy({.action = "save_sharded",
                     .backend = "fake",
                     .version = 2,
                     .format = "fake"});
  register_family("fake_llama", R"({"schema": "ckpt-family/2",
    "family": "fake_llama", "extends": "llama",
    "hf": {"model_type": ["fake_llama"], "architectures": ["FakeLlama"]},
    "dialects": {"mcore": {}}})");
  return true;
}

}  // namespace ckpt::test

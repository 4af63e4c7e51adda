// SPDX-License-Identifier: Apache-2.0
#include "api/check/spectra.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/processors.h"
#include "lib/text/format.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/values.h"
#include "reshard/run/read.h"
#include "reshard/torch/load.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kTile = uint64_t{4} << 20;  // bytes read at a time

bool is_weight(const Tensor& tensor) {
  return tensor.kind == Kind::model && tensor.shape.size() == 2 &&
         reshard::is_float(tensor.dtype) && tensor.shape[0] != 0 &&
         tensor.shape[1] != 0;
}

// The matrix as f32, its copy in the order of columns that LAPACK works in, and
// its blocks.
uint64_t memory_of(const Tensor& tensor) {
  return 3 * sizeof(float) * volume(Box::whole(tensor.shape)) + 2 * kTile;
}

reshard::RunOptions reading(const Engine& engine) {
  reshard::RunOptions run;
  run.threads = engine.threads;
  run.max_mem = std::max<uint64_t>(engine.max_mem / 8, uint64_t{1} << 20);
  run.io = engine.io;
  run.digest = false;
  return run;
}

// False if an element is not finite.
bool read_matrix(const Catalog& catalog, const Tensor& tensor,
                 const Engine& engine, std::vector<float>& out) {
  out.resize(volume(Box::whole(tensor.shape)));
  float* at = out.data();
  for (const Box& box : reshard::tiles(tensor, kTile)) {
    const std::vector<std::byte> bytes =
        reshard::read_box(catalog, tensor, box, reading(engine));
    const uint64_t count = volume(box);
    if (tensor.dtype == DType::f32)
      std::memcpy(at, bytes.data(), bytes.size());
    else
      reshard::best_cast_kernel().cast(tensor.dtype, DType::f32, bytes.data(),
                                       reinterpret_cast<std::byte*>(at), count);
    at += count;
  }
  return std::ranges::all_of(out, [](float x) { return std::isfinite(x); });
}

Spectrum spectrum_of(const std::vector<float>& values) {
  Spectrum spectrum{.norm = static_cast<double>(values.front())};
  double sum = 0, squares = 0, entropy = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  if (spectrum.norm == 0) return spectrum;
  for (const float value : values)
    if (const double share = static_cast<double>(value) / sum; share > 0)
      entropy -= share * std::log(share);
  spectrum.effective_rank = std::exp(entropy);
  spectrum.stable_rank = squares / (spectrum.norm * spectrum.norm);
  return spectrum;
}

}  // namespace

std::vector<SpectrumOf> spectra(Catalog& catalog, const Engine& engine) {
  // libtorch, and matrices: memory_of counts those.
  const heap::Unbounded counted;
  const reshard::TorchModule& torch = reshard::TorchModule::get();
  locate(catalog);
  std::vector<SpectrumOf> all;
  uint64_t total = 0;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (!is_weight(catalog.tensors[i])) continue;
    all.push_back({.tensor = i, .spectrum = {}, .left_out = {}});
    total += byte_size(catalog.tensors[i]);
  }
  const InterruptScope scope;
  const uint32_t threads = engine.threads != 0 ? engine.threads : processors();
  Progress progress = engine.make_progress();
  progress.begin("decomposing", total);
  std::vector<float> matrix, values;
  for (SpectrumOf& one : all) {
    const Tensor& tensor = catalog.tensors[one.tensor];
    const uint64_t needed = memory_of(tensor);
    if (needed > engine.max_mem) {
      one.left_out =
          fmt::format("it takes {}, --max-mem is {}", text::iec_size(needed),
                      text::iec_size(engine.max_mem));
    } else if (!read_matrix(catalog, tensor, engine, matrix)) {
      one.left_out = "it has elements that are not finite";
    } else {
      values.resize(std::min(tensor.shape[0], tensor.shape[1]));
      torch.require(torch.api().singular_values(matrix.data(), tensor.shape[0],
                                                tensor.shape[1], values.data(),
                                                threads));
      one.spectrum = spectrum_of(values);
    }
    progress.advance(byte_size(tensor));
    if (interrupted()) throw Interrupted("");
  }
  progress.end();
  return all;
}

}  // namespace ckpt::library

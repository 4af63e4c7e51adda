// SPDX-License-Identifier: Apache-2.0
#include "api/delta/tensor_file.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "api/deltas.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/staging.h"
#include "lib/session.h"
#include "reshard/numbers/cast.h"
#include "reshard/numbers/values.h"
#include "reshard/run/read.h"

namespace ckpt::library {

void TensorFile::add(std::string name, DType dtype, Shape shape) {
  const uint64_t bytes = byte_size(dtype, shape).value_or(0);
  entries_.push_back(
      {std::move(name), info(dtype).safetensors, std::move(shape), bytes});
}

std::string TensorFile::lay_out(
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::ranges::sort(entries_, [](const Entry& one, const Entry& other) {
    const size_t left = safetensors::dtype_rank(one.dtype);
    const size_t right = safetensors::dtype_rank(other.dtype);
    return left != right ? left < right : one.name < other.name;
  });
  std::vector<safetensors::Described> described;
  for (const Entry& entry : entries_)
    described.push_back({entry.name, entry.dtype, entry.shape, entry.bytes});
  safetensors::Metadata all{{"format", "pt"}};
  all.insert(all.end(), metadata.begin(), metadata.end());
  std::string header = safetensors::encode_header(described, all);
  size_ = header.size();
  for (const Entry& entry : entries_) {
    begins_[entry.name] = size_;
    size_ += entry.bytes;
  }
  return header;
}

void read_difference(const TensorOf& a, const TensorOf& b, const Box& box,
                     const reshard::RunOptions& options,
                     std::vector<double>& out) {
  const uint64_t count = volume(box);
  std::vector<double> left(count);
  out.resize(count);
  const auto read = [&](const TensorOf& of, double* to) {
    const auto bytes = reshard::read_box(of.catalog, of.tensor, box, options);
    reshard::to_doubles(of.tensor.dtype, bytes.data(), count, to);
  };
  read(a, left.data());
  read(b, out.data());
  for (uint64_t i = 0; i < count; ++i) out[i] -= left[i];
}

namespace {

// "" where there is none.
std::string config_text_of(const Catalog& catalog) {
  constexpr uint64_t kMost = 64 << 20;
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == "config.json")
      return sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMost);
  return "";
}

}  // namespace

std::vector<std::pair<std::string, uint64_t>> write_difference(
    Catalog a, Catalog b, const std::vector<std::string>& differing,
    const std::string& target, bool folder, const DifferenceOptions& options,
    const Progress& progress) {
  locate(a);
  locate(b);
  const heap::Unbounded tiles;
  std::unordered_map<std::string_view, const Tensor*> of_a;
  for (const Tensor& tensor : a.tensors) of_a[tensor.name] = &tensor;
  const auto is_number = [](const Tensor& tensor) {
    return (info(tensor.dtype).name.starts_with('f') ||
            tensor.dtype == DType::bf16) &&
           reshard::has_values(tensor.dtype);
  };
  TensorFile file;
  uint64_t total = 0;
  for (const Tensor& tensor : b.tensors) {
    if (!of_a.contains(tensor.name)) continue;  // the same tensor once more
    if (of_a.at(tensor.name)->shape != tensor.shape)
      throw unfaithful_error({b.path, tensor.name}, "A has {}, B has {}",
                             to_string(of_a.at(tensor.name)->shape),
                             to_string(tensor.shape))
          .with_hint("--exclude " + tensor.name);
    if (!is_number(tensor) &&
        std::ranges::find(differing, tensor.name) != differing.end())
      throw unfaithful_error({b.path, tensor.name},
                             "differs, and differences of {} are not written",
                             ckpt::name(tensor.dtype))
          .with_hint("--exclude " + tensor.name);
    file.add(tensor.name, is_number(tensor) ? options.dtype : tensor.dtype,
             tensor.shape);
    total += byte_size(tensor);
  }
  const std::string header =
      file.lay_out({{std::string(kDeltaOf), delta_mark(options.base)}});
  const std::string config = folder ? config_text_of(b) : std::string();

  const std::string name = folder ? "model.safetensors" : io::base_name(target);
  std::vector<std::pair<std::string, uint64_t>> written{{name, file.size()}};
  if (!config.empty()) written.emplace_back("config.json", config.size());
  const io::StagingOptions place{.single_file = !folder,
                                 .overwrite = options.overwrite,
                                 .sync = options.sync};
  if (options.dry_run) {
    io::Staging::check(target, place);
    return written;
  }
  const InterruptScope scope;
  io::Staging staging(target, place);
  staging.check_space(file.size());
  staging.create(name, file.size());
  const io::Handle out = io::Handle::open_write(io::join(staging.root(), name));
  out.write(0, std::string_view(header));
  if (!config.empty()) {
    staging.create("config.json", config.size());
    io::Handle::open_write(io::join(staging.root(), "config.json"))
        .write(0, std::string_view(config));
  }
  progress.begin("subtracting", total);
  reshard::RunOptions run;
  run.threads = options.threads;
  run.max_mem = std::max<uint64_t>(options.max_mem / 8, 1 << 20);
  run.digest = false;
  std::vector<double> apart;
  std::vector<std::byte> bytes;
  const reshard::Caster cast;
  for (const Tensor& tensor : b.tensors) {
    const auto other = of_a.find(tensor.name);
    // Created files are zeros.
    if (other == of_a.end() || !is_number(tensor)) continue;
    uint64_t at = file.begin(tensor.name);
    for (const Box& box : reshard::tiles(tensor, kTensorTile)) {
      if (interrupted()) throw Interrupted("stopped; nothing was written");
      read_difference({a, *other->second}, {b, tensor}, box, run, apart);
      bytes.resize(apart.size() * element_size(options.dtype));
      cast(DType::f64, options.dtype,
           reinterpret_cast<const std::byte*>(apart.data()), bytes.data(),
           apart.size());
      out.write(at, std::span<const std::byte>(bytes));
      at += bytes.size();
    }
    progress.advance(byte_size(tensor));
  }
  progress.end();
  staging.flush();
  Session::current()->watch.check_unchanged();
  staging.publish();
  return written;
}

}  // namespace ckpt::library

// SPDX-License-Identifier: Apache-2.0
#include "api/delta/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>

#include "api/delta/tensor_file.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "formats/peft/config.h"
#include "formats/peft/names.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/staging.h"
#include "lib/processors.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "reshard/numbers/values.h"
#include "reshard/run/read.h"
#include "reshard/torch/load.h"

namespace ckpt::library {
namespace {

using Json = nlohmann::json;
using Named = std::unordered_map<std::string_view, const Tensor*>;

Named named_tensors(const Catalog& catalog) {
  Named named;
  for (const Tensor& tensor : catalog.tensors) named[tensor.name] = &tensor;
  return named;
}

// "model.norm" of "model.norm.weight"
std::string module_of(std::string_view tensor) {
  const size_t dot = tensor.rfind('.');
  return std::string(dot == tensor.npos ? std::string_view()
                                        : tensor.substr(0, dot));
}

std::string last_part(std::string_view module) {
  return std::string(module.substr(module.rfind('.') + 1));
}

// PEFT adds factors to nn.Linear. Embeddings, and routers, which are modules of
// their own class, look alike from outside.
bool is_linear(const Tensor& tensor) {
  if (tensor.shape.size() != 2 || !tensor.name.ends_with(".weight") ||
      !reshard::has_values(tensor.dtype))
    return false;
  const std::string part = last_part(module_of(tensor.name));
  constexpr std::string_view kOthers[] = {"embed", "wte", "wpe", "router"};
  return part != "gate" &&
         std::ranges::none_of(kOthers, [&](std::string_view other) {
           return part.find(other) != part.npos;
         });
}

// What becomes of the tensors that differ.
struct Parts {
  std::vector<const Tensor*> linears;  // of B
  std::vector<std::string> saved;      // modules
  std::vector<const Tensor*> wholes;   // all tensors of those
};

Parts sorted_parts(const Catalog& b,
                   const std::vector<std::string>& differing) {
  const std::set<std::string_view> names(differing.begin(), differing.end());
  std::set<std::string> saved;
  for (const Tensor& tensor : b.tensors)
    if (names.contains(tensor.name) && !is_linear(tensor)) {
      std::string module = module_of(tensor.name);
      if (module.empty())
        throw unfaithful_error({b.path, tensor.name},
                               "differs, and is in no module: an adapter has "
                               "no place for it")
            .with_hint("leave it out: --exclude " + tensor.name);
      saved.insert(std::move(module));
    }
  Parts parts;
  for (const Tensor& tensor : b.tensors) {
    if (saved.contains(module_of(tensor.name)))
      parts.wholes.push_back(&tensor);
    else if (names.contains(tensor.name))
      parts.linears.push_back(&tensor);
  }
  parts.saved.assign(saved.begin(), saved.end());
  return parts;
}

// The last parts of names where that finds the same modules, else whole names.
std::vector<std::string> target_names(const Catalog& b, const Parts& parts) {
  std::map<std::string, uint64_t> all, chosen;
  for (const Tensor& tensor : b.tensors)
    if (tensor.name.ends_with(".weight"))
      ++all[last_part(module_of(tensor.name))];
  for (const Tensor* tensor : parts.linears)
    ++chosen[last_part(module_of(tensor->name))];
  std::set<std::string> targets;
  for (const Tensor* tensor : parts.linears) {
    const std::string module = module_of(tensor->name);
    const std::string part = last_part(module);
    targets.insert(all[part] == chosen[part] ? part : module);
  }
  return {targets.begin(), targets.end()};
}

uint64_t rank_of(const Tensor& tensor, uint64_t rank) {
  return std::min({rank, tensor.shape[0], tensor.shape[1]});
}

std::string config_text(const Catalog& a, const Catalog& b, const Parts& parts,
                        const LoraOptions& options) {
  Json config{{"peft_type", "LORA"},
              {"base_model_name_or_path", options.base},
              {"r", options.rank},
              {"lora_alpha", options.rank},
              {"target_modules", target_names(b, parts)},
              {"modules_to_save", nullptr},
              {"bias", "none"},
              {"fan_in_fan_out", false},
              {"inference_mode", true},
              {"init_lora_weights", true},
              {"lora_dropout", 0.0},
              {"rank_pattern", Json::object()},
              {"alpha_pattern", Json::object()},
              {"task_type", nullptr},
              {"use_dora", false},
              {"use_rslora", false}};
  if (!parts.saved.empty()) config["modules_to_save"] = parts.saved;
  for (const Tensor* tensor : parts.linears)
    if (const uint64_t rank = rank_of(*tensor, options.rank);
        rank != options.rank)
      for (const char* const key : {"rank_pattern", "alpha_pattern"})
        config[key][module_of(tensor->name)] = rank;
  const auto model = formats::config_json_of(a);
  if (model.is_object() && model.contains("architectures") &&
      model["architectures"].dump().find("ForCausalLM") != std::string::npos)
    config["task_type"] = "CAUSAL_LM";
  return config.dump(2) + "\n";
}

reshard::RunOptions reading(const LoraOptions& options) {
  reshard::RunOptions run;
  run.threads = options.threads;
  run.max_mem = std::max<uint64_t>(options.max_mem / 8, 1 << 20);
  run.digest = false;
  return run;
}

// b - a, in f32.
void read_matrix(const Catalog& a, const Tensor& x, const Catalog& b,
                 const Tensor& y, const LoraOptions& options,
                 std::vector<float>& out) {
  out.resize(volume(Box::whole(y.shape)));
  std::vector<double> apart;
  uint64_t at = 0;
  for (const Box& box : reshard::tiles(y, kTensorTile)) {
    read_difference({a, x}, {b, y}, box, reading(options), apart);
    std::ranges::transform(
        apart, out.begin() + static_cast<ptrdiff_t>(at),
        [](double element) { return static_cast<float>(element); });
    at += apart.size();
  }
}

// Singular values are of numbers.
void need_finite(const std::vector<float>& matrix, const Catalog& b,
                 const Tensor& tensor) {
  const auto wrong = std::ranges::find_if_not(
      matrix, [](float x) { return std::isfinite(x); });
  if (wrong == matrix.end()) return;
  const auto at = static_cast<uint64_t>(wrong - matrix.begin());
  throw unfaithful_error({b.path, tensor.name},
                         "B - A is {} at [{}, {}]: it has no singular values",
                         *wrong, at / tensor.shape[1], at % tensor.shape[1])
      .with_hint(fmt::format("`ckpt verify {} --finite` counts such elements; "
                             "--exclude {} leaves the tensor out",
                             text::shell_path(b.path), tensor.name));
}

std::string factor(const Tensor& tensor, char which) {
  return fmt::format("{}{}.lora_{}.weight", peft::kPrefix,
                     module_of(tensor.name), which);
}

// The matrix, what is left of it, and vectors of all of its ranks if it is
// small.
void check_lora_memory(const Tensor& tensor, const LoraOptions& options) {
  const uint64_t bytes = 4 * volume(Box::whole(tensor.shape));
  const uint64_t needed = 4 * bytes;
  if (needed > options.max_mem)
    throw resource_error({{}, tensor.name},
                         "the singular values of {} need {}, --max-mem is {}",
                         to_string(tensor.shape), text::iec_size(needed),
                         text::iec_size(options.max_mem))
        .with_hint("--max-mem " + text::iec_size(needed));
}

}  // namespace

LoraResult write_lora(Catalog a, Catalog b,
                      const std::vector<std::string>& differing,
                      const std::string& target, const LoraOptions& options,
                      const Progress& progress) {
  // libtorch, and a matrix with its tiles: check_lora_memory counts those.
  const heap::Unbounded counted;
  const reshard::TorchModule& torch = reshard::TorchModule::get();
  locate(a);
  locate(b);
  const Named of_a = named_tensors(a);
  const Parts parts = sorted_parts(b, differing);
  if (parts.linears.empty() && parts.wholes.empty())
    throw unfaithful_error({b.path, {}}, "no tensor of the model differs");
  TensorFile file;
  for (const Tensor* tensor : parts.linears) {
    check_lora_memory(*tensor, options);
    const uint64_t rank = rank_of(*tensor, options.rank);
    file.add(factor(*tensor, 'A'), options.dtype, {rank, tensor->shape[1]});
    file.add(factor(*tensor, 'B'), options.dtype, {tensor->shape[0], rank});
  }
  const auto whole_name = [](const Tensor& tensor) {
    return std::string(peft::kPrefix) + tensor.name;
  };
  for (const Tensor* tensor : parts.wholes)
    file.add(whole_name(*tensor), tensor->dtype, tensor->shape);
  const std::string header = file.lay_out();

  const std::string config = config_text(a, b, parts, options);
  const std::string weights(peft::kWeightsFile), about(peft::kConfigFile);
  const io::StagingOptions place{.overwrite = options.overwrite,
                                 .sync = options.sync};
  LoraResult result{
      .saved = parts.saved,
      .written = {{about, config.size()}, {weights, file.size()}}};
  const auto module_for = [&](const Tensor& tensor) {
    return LoraModule{.name = module_of(tensor.name),
                      .rows = tensor.shape[0],
                      .columns = tensor.shape[1],
                      .rank = rank_of(tensor, options.rank)};
  };
  if (options.dry_run) {
    io::Staging::check(target, place);
    for (const Tensor* tensor : parts.linears)
      result.modules.push_back(module_for(*tensor));
    return result;
  }
  const InterruptScope scope;
  io::Staging staging(target, place);
  staging.check_space(file.size());
  staging.create(about, config.size());
  io::Handle::open_write(io::join(staging.root(), about))
      .write(0, std::string_view(config));
  staging.create(weights, file.size());
  const io::Handle out =
      io::Handle::open_write(io::join(staging.root(), weights));
  out.write(0, std::string_view(header));

  uint64_t total = 0;
  for (const auto* some : {&parts.linears, &parts.wholes})
    for (const Tensor* tensor : *some) total += byte_size(*tensor);
  progress.begin("decomposing", total);
  const auto go_on = [&](const Tensor& tensor) {
    progress.advance(byte_size(tensor));
    if (interrupted()) throw Interrupted("stopped; nothing was written");
  };
  std::vector<float> matrix;
  const int32_t type = torch.number(options.dtype, "");
  const uint32_t threads =
      options.threads != 0 ? options.threads : processors();
  for (const Tensor* tensor : parts.linears) {
    read_matrix(a, *of_a.at(tensor->name), b, *tensor, options, matrix);
    need_finite(matrix, b, *tensor);
    LoraModule module = module_for(*tensor);
    const uint64_t size = element_size(options.dtype);
    std::vector<std::byte> left(module.rows * module.rank * size);
    std::vector<std::byte> right(module.rank * module.columns * size);
    double norms[2] = {};
    torch.require(torch.api().low_rank(
        matrix.data(), module.rows, module.columns, module.rank, type,
        left.data(), right.data(), norms, threads));
    module.left = norms[0];
    module.norm = norms[1];
    out.write(file.begin(factor(*tensor, 'A')),
              std::span<const std::byte>(right));
    out.write(file.begin(factor(*tensor, 'B')),
              std::span<const std::byte>(left));
    result.modules.push_back(std::move(module));
    go_on(*tensor);
  }
  for (const Tensor* tensor : parts.wholes) {
    uint64_t at = file.begin(whole_name(*tensor));
    for (const Box& box : reshard::tiles(*tensor, kTensorTile)) {
      const auto bytes = reshard::read_box(b, *tensor, box, reading(options));
      out.write(at, std::span<const std::byte>(bytes));
      at += bytes.size();
    }
    go_on(*tensor);
  }
  progress.end();
  staging.flush();
  Session::current()->watch.check_unchanged();
  staging.publish();
  std::ranges::stable_sort(result.modules, std::ranges::greater(),
                           &LoraModule::error);
  return result;
}

}  // namespace ckpt::library

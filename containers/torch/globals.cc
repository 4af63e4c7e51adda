// SPDX-License-Identifier: Apache-2.0
// The globals that torch.load(weights_only=True) allows in torch 2.13, under
// their Python 3 names.
#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::torch {
namespace {

constexpr std::array<std::string_view, 30> kAllowed = {
    "_codecs encode",
    "builtins bytearray",
    "builtins complex",
    "builtins set",
    "collections Counter",
    "collections OrderedDict",
    "torch Size",
    "torch Tensor",
    "torch device",
    "torch per_channel_affine",
    "torch per_channel_affine_float_qparams",
    "torch per_channel_symmetric",
    "torch per_tensor_affine",
    "torch per_tensor_symmetric",
    "torch.nn.parameter Parameter",
    "torch.serialization _get_layout",
    "torch.storage TypedStorage",
    "torch.storage UntypedStorage",
    "torch._tensor _rebuild_from_type_v2",
    "torch._utils _rebuild_device_tensor_from_cpu_tensor",
    "torch._utils _rebuild_device_tensor_from_numpy",
    "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._utils _rebuild_nested_tensor",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_parameter_with_state",
    "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
};
constexpr std::string_view kWrapper = "torch._utils _rebuild_wrapper_subclass";

// Allowed once torch.distributed.tensor is imported, as a trainer does.
constexpr std::string_view kDistributed =
    "DTensor DTensorSpec DeviceMesh Partial Replicate Shard ShardOrderEntry "
    "TensorMeta _StridedShard _MeshLayout";

bool all_digits(std::string_view text) {
  return !text.empty() && text.size() <= 2 &&
         text.find_first_not_of("0123456789") == text.npos;
}

// int1 … int7 and uint1 … uint7 are dtypes, but have no tensors yet.
bool is_dtype_name(std::string_view name) {
  if (dtype_from_torch(name)) return true;
  if (name.starts_with("u")) name.remove_prefix(1);
  return name.starts_with("int") && all_digits(name.substr(3));
}

bool is_tensor_class(std::string_view module, std::string_view name) {
  if (module != "torch" && !module.starts_with("torch.")) return false;
  constexpr std::string_view kTensor = "Tensor";
  if (!name.ends_with(kTensor)) return false;
  name.remove_suffix(kTensor.size());
  return dtype_from_storage(std::string(name) + "Storage").has_value();
}

// The package itself, or a module of it.
bool is_in(std::string_view module, std::string_view package) {
  if (!module.starts_with(package)) return false;
  module.remove_prefix(package.size());
  return module.empty() || module.starts_with('.');
}

}  // namespace

bool is_allowed_global(std::string_view global) {
  const size_t space = global.rfind(' ');
  if (space == global.npos) return false;
  const std::string_view module = global.substr(0, space);
  const std::string_view name = global.substr(space + 1);
  if (std::ranges::find(kAllowed, global) != kAllowed.end()) return true;
  if (global == kWrapper) return true;
  if (module == "torch" && is_dtype_name(name)) return true;
  if ((module == "torch" || module == "torch.cuda") && dtype_from_storage(name))
    return true;
  if (is_tensor_class(module, name)) return true;
  const bool distributed = is_in(module, "torch.distributed.tensor") ||
                           is_in(module, "torch.distributed._tensor") ||
                           module == "torch.distributed.device_mesh" ||
                           module == "torch.distributed._mesh_layout";
  return distributed &&
         (text::has_word(kDistributed, name) || name == "_FlatLayout");
}

void check_globals(const std::vector<std::string>& globals,
                   const std::string& path) {
  std::string refused;
  size_t count = 0;
  for (const std::string& global : globals) {
    if (is_allowed_global(global)) continue;
    if (++count > 8) continue;
    if (count > 1) refused += ", ";
    refused += text::printable(global);
  }
  if (count == 0) return;
  if (count > 8) refused += fmt::format(" and {} more", count - 8);
  throw unsafe_error({path, {}},
                     "the pickle names globals outside weights-only loading: "
                     "{}",
                     refused)
      .with_hint(
          "nothing of them is executed; leave out --restrict to read the "
          "tensors and keep these objects as opaque values");
}

void add_globals(Catalog& catalog, const std::vector<std::string>& globals) {
  auto& all = catalog.globals;
  all.insert(all.end(), globals.begin(), globals.end());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

}  // namespace ckpt::torch

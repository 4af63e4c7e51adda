// SPDX-License-Identifier: Apache-2.0
#include "reshard/torch/load.h"

#include "ckpt/error.h"
#include "lib/module.h"

namespace ckpt::reshard {

const TorchModule& TorchModule::get() {
  static const TorchModule module;
  return module;
}

TorchModule::TorchModule() {
  const Module module = Module::open("torch");
  const auto entry =
      reinterpret_cast<CkptTorchEntry>(module.symbol(CKPT_TORCH_ENTRY));
  api_ = entry();
  if (api_->abi != CKPT_TORCH_ABI)
    throw module_error("torch", module.path(),
                       fmt::format("has version {}, this program needs {}",
                                   api_->abi, CKPT_TORCH_ABI));
  numbers_.fill(-1);
  for (const DTypeInfo& row : all_dtypes())
    if (!row.torch.empty())
      numbers_.at(static_cast<size_t>(row.dtype)) =
          api_->dtype(std::string(row.torch).c_str());
}

int32_t TorchModule::number(DType dtype, const std::string& tensor) const {
  const int32_t number = numbers_[static_cast<size_t>(dtype)];
  if (number < 0)
    throw unfaithful_error({{}, tensor},
                           "torch {} can't convert {} to or from numbers",
                           api_->torch_version, name(dtype))
        .with_hint("keep its dtype, or leave it out with --exclude");
  return number;
}

void TorchModule::require(int32_t status) const {
  if (status != 0)
    throw unfaithful_error({}, "torch {}: {}", api_->torch_version,
                           api_->error());
}

}  // namespace ckpt::reshard

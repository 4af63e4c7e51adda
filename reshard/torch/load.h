// SPDX-License-Identifier: Apache-2.0
// The torch module, opened when first needed.
#pragma once

#include <array>
#include <string>

#include "ckpt/dtype.h"
#include "reshard/torch/abi.h"

namespace ckpt::reshard {

class TorchModule {
 public:
  // Throws a resource_error if it is missing or of another version.
  static const TorchModule& get();

  const CkptTorchApi& api() const { return *api_; }

  // The module's number for a type. Throws an unfaithful_error that names
  // `tensor` if torch doesn't cast it.
  int32_t number(DType dtype, const std::string& tensor) const;

  // Throws what the module said if the status is not zero.
  void require(int32_t status) const;

 private:
  TorchModule();
  const CkptTorchApi* api_;
  std::array<int32_t, 64> numbers_;  // by DType
};

}  // namespace ckpt::reshard

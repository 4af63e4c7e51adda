// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/cast.h"

#include <cstring>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/torch/load.h"

namespace ckpt::reshard {
namespace {

bool is_complex(DType dtype) {
  return dtype == DType::c128 || dtype == DType::c64 || dtype == DType::c32;
}

}  // namespace

void Caster::check(DType from, DType to, const std::string& tensor) const {
  if (from == to || (is_float(from) && is_float(to))) return;
  if (is_complex(from) && !is_complex(to))
    throw unfaithful_error({{}, tensor},
                           "a cast from {} to {} would drop imaginary parts",
                           name(from), name(to))
        .with_hint("leave this tensor out with --exclude, or keep its dtype");
  const TorchModule& torch = TorchModule::get();
  torch.number(from, tensor);
  torch.number(to, tensor);
}

void Caster::operator()(DType from, DType to, const std::byte* in,
                        std::byte* out, uint64_t count) const {
  if (count == 0) return;
  if (from == to) {
    std::memcpy(out, in, (count * info(from).bits + 7) / 8);
    return;
  }
  if (is_float(from) && is_float(to))
    return best_cast_kernel().cast(from, to, in, out, count);
  check(from, to, {});
  const TorchModule& torch = TorchModule::get();
  torch.require(torch.api().cast(torch.number(from, {}), torch.number(to, {}),
                                 in, out, count));
}

}  // namespace ckpt::reshard

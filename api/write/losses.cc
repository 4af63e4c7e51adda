// SPDX-License-Identifier: Apache-2.0
#include "api/write/losses.h"

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::library {

void check_overflow(const reshard::PlannedTensor& tensor, Overflow overflow) {
  if (overflow != Overflow::kInf || reshard::has_infinity(tensor.target_dtype))
    return;
  throw unfaithful_error({{}, tensor.name},
                         "--allow-overflow inf: {} has no infinity",
                         name(tensor.target_dtype))
      .with_hint("--allow-overflow saturate writes its largest number instead");
}

void check_losses(const std::string& path, const reshard::Plan& plan,
                  const reshard::RunResult& result, Overflow overflow) {
  if (overflow != Overflow::kRefuse) return;
  constexpr size_t kMostNamed = 8;
  std::string others;
  const reshard::PlannedTensor* first = nullptr;
  reshard::CastLoss worst;
  size_t count = 0;
  for (const auto& [index, loss] : result.losses) {
    if (loss.overflowed == 0) continue;
    const reshard::PlannedTensor& tensor = plan.tensors[index];
    if (++count == 1) {
      first = &tensor;
      worst = loss;
    } else if (count <= kMostNamed) {
      others += fmt::format("; {}: {}, the largest {:g}",
                            text::printable(tensor.name), loss.overflowed,
                            loss.largest);
    }
  }
  if (!first) return;
  if (count > kMostNamed)
    others += fmt::format("; and {} tensors more", count - kMostNamed);
  throw unfaithful_error({path, first->name},
                         "{} too large for {}, the largest {:g}{}",
                         text::counted(worst.overflowed, "value"),
                         name(first->target_dtype), worst.largest, others)
      .with_hint(std::string("nothing was written; ") +
                 (first->target_dtype == DType::bf16
                      ? ""
                      : "--dtype bf16 has the range of f32, ") +
                 "--allow-overflow saturate writes the largest number" +
                 (reshard::has_infinity(first->target_dtype)
                      ? ", --allow-overflow inf an infinity"
                      : ""));
}

}  // namespace ckpt::library

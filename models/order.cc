// SPDX-License-Identifier: Apache-2.0
#include "models/order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>

#include "lib/text/number.h"

namespace ckpt::families {
namespace {

// The first component of a name that is a number.
bool number_in(std::string_view name, uint64_t& number) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    const bool digits = part.size() < 10 && text::is_digits(part);
    if (digits) {
      number = 0;
      for (const char c : part) number = number * 10 + uint64_t(c - '0');
      return true;
    }
    name.remove_prefix(std::min(name.size(), part.size() + 1));
  }
  return false;
}

std::pair<int, uint64_t> place_of(std::string_view name) {
  uint64_t number = 0;
  if (number_in(name, number)) return {1, number};
  for (const std::string_view word : {"embed", "wte", "wpe"})
    if (name.find(word) != name.npos) return {0, 0};
  return {2, 0};
}

}  // namespace

void sort_tensors(std::vector<Tensor>& tensors) {
  std::vector<std::pair<int, uint64_t>> places;
  for (const Tensor& tensor : tensors) places.push_back(place_of(tensor.name));
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return places[i]; });
  std::vector<Tensor> sorted;
  sorted.reserve(tensors.size());
  for (const size_t i : order) sorted.push_back(std::move(tensors[i]));
  tensors = std::move(sorted);
}

DType model_dtype(const std::vector<Tensor>& tensors) {
  std::map<DType, uint64_t> bytes;
  for (const Tensor& tensor : tensors)
    if (tensor.kind == Kind::model) bytes[tensor.dtype] += byte_size(tensor);
  const auto most = std::ranges::max_element(
      bytes, {}, [](const auto& b) { return b.second; });
  return most == bytes.end() ? DType::f32 : most->first;
}

}  // namespace ckpt::families

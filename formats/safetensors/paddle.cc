// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors/paddle.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ckpt/note.h"
#include "lib/io/file.h"
#include "lib/text/other_json.h"

namespace ckpt::safetensors {
namespace {

constexpr uint64_t kMostPaddle = uint64_t{4} << 20;
constexpr std::string_view kModel = "model.";

nlohmann::json config_in(const std::string& directory) {
  const std::string path = io::join(directory, "config.json");
  if (!io::is_file(path) || io::file_size(path) > kMostPaddle) return {};
  return text::parse_or_discard<nlohmann::json>(
      io::read_file(path, kMostPaddle));
}

// A table of rows, and a vector, are stored as in torch.
bool is_linear(const Tensor& tensor) {
  const std::string_view name = tensor.name;
  return tensor.shape.size() == 2 && name.ends_with(".weight") &&
         name.find("embed") == name.npos && name.find("norm") == name.npos &&
         info(tensor.dtype).bits % 8 == 0;
}

void turn(Tensor& tensor) {
  std::swap(tensor.shape[0], tensor.shape[1]);
  const uint64_t bytes = info(tensor.dtype).bits / 8;
  for (Piece& piece : tensor.pieces) {
    piece.box = Box::whole(tensor.shape);
    piece.extent.strides = {bytes, bytes * tensor.shape[0]};
  }
}

// "llama." of {"model_type": "llama"}, which each class has for "model.".
std::string own_word(const nlohmann::json& config) {
  if (!config.is_object()) return {};
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return {};
  return type->get<std::string>() + ".";
}

}  // namespace

bool is_paddles(const std::string& format, const std::string& directory) {
  if (format == "pd") return true;
  if (format != "np") return false;
  const nlohmann::json config = config_in(directory);
  return config.is_object() && (config.contains("paddlenlp_version") ||
                                config.contains("paddleformers_version"));
}

void turn_paddles(Catalog& catalog, const std::string& directory) {
  const std::string word = own_word(config_in(directory));
  size_t turned = 0;
  for (Tensor& tensor : catalog.tensors) {
    if (!word.empty() && tensor.name.starts_with(word))
      tensor.name.replace(0, word.size(), kModel);
    if (!is_linear(tensor)) continue;
    turn(tensor);
    ++turned;
  }
  if (turned == 0) return;
  catalog.problems.push_back(
      remark("paddle", {catalog.path, {}},
             "PaddlePaddle's trainers store linears as [in, out]: {} matrices "
             "are shown as torch has them",
             turned));
}

}  // namespace ckpt::safetensors

// SPDX-License-Identifier: Apache-2.0
// ckpt/mcore.h for Python tests, which compare it with megatron-core: jobs come
// as lines of JSON, and each is answered with a line.
//
//   {"op": "describe", "tensor": TENSOR, "narrow": [axis, start, length]}
//   {"op": "keys", "state": STATE, "add" | "replace" | "map": …}
//   {"op": "save", "path": …, "format": …, "ranks": [STATE]}
//   {"op": "load", "path": …, "state": STATE, "strict": …, "out": folder}
//   {"op": "common"} …
//
//   STATE    a dict or list of STATE, a plain value, or one of
//            {"$tensor": TENSOR} {"$gated": TENSOR} {"$local": value}
//            {"$object": {"key", "at", "grid", "value", "replica"}}
//            {"$optimizer": {"model": STATE, "params": [file], "states": …}}
//   TENSOR   {"key", "dtype", "local", "prepended", "offsets", "replica",
//            "allow", "data": file of its bytes}; with "shape" and "range":
//            that run of the elements of a local tensor of that shape
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/mcore.h"

namespace {

using ckpt::TensorData;
using nlohmann::json;
using namespace ckpt::mcore;

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

ckpt::Dims dims_of(const json& list) {
  return ckpt::Dims(list.get<std::vector<uint64_t>>());
}

json list_of(const ckpt::Dims& dims) {
  return std::vector<uint64_t>(dims.begin(), dims.end());
}

ckpt::DType dtype_of(const std::string& word) {
  for (const ckpt::DType dtype :
       {ckpt::DType::f32, ckpt::DType::bf16, ckpt::DType::i64, ckpt::DType::u8})
    if (name(dtype) == word) return dtype;
  throw std::runtime_error("dtype " + word);
}

// One tensor per data file: a parameter is identified by it.
TensorPtr data_of(const json& job) {
  static std::map<std::string, TensorPtr> known;
  const std::string path = job.value("data", "");
  if (!path.empty() && known.contains(path)) return known.at(path);
  auto data = std::make_shared<TensorData>();
  data->dtype = dtype_of(job.value("dtype", "f32"));
  data->shape = dims_of(job.at("local"));
  if (path.empty())
    data->bytes.resize(*ckpt::byte_size(data->dtype, data->shape));
  else
    data->bytes = bytes_of(path);
  if (!path.empty()) known[path] = data;
  return data;
}

std::vector<RankOffset> offsets_of(const json& job) {
  std::vector<RankOffset> offsets;
  for (const json& one : job.value("offsets", json::array()))
    offsets.push_back({one[0], one[1], one[2]});
  return offsets;
}

ShardedOptions options_of(const json& job) {
  return {.replica = job.value("replica", ReplicaId{}),
          .prepended_axes = job.value("prepended", 0U),
          .allow_shape_mismatch = job.value("allow", false)};
}

ShardedTensor tensor_of(const json& job) {
  if (job.contains("range"))
    return from_rank_offsets_flat(
        job.at("key"), data_of(job), dims_of(job.at("shape")),
        {job["range"][0], job["range"][1]}, offsets_of(job), options_of(job));
  return from_rank_offsets(job.at("key"), data_of(job), offsets_of(job),
                           options_of(job));
}

// Megatron's fc1 of a gated MLP: gate and up are cut apart, and are halves of
// one global tensor. (axis, rank, ranks) is the last offset.
State build_gated(const json& job, const std::string& key,
                  const TensorPtr& data, const ReplicaId& replica) {
  std::vector<RankOffset> offsets = offsets_of(job);
  const RankOffset rank = offsets.back();
  offsets.pop_back();
  ShardedOptions options = options_of(job);
  options.replica = replica;
  List halves;
  const uint64_t rows = data->shape[0] / 2;
  for (const uint64_t half : {0, 1}) {
    auto part = std::make_shared<TensorData>(*data);
    part->shape[0] = rows;
    const auto size = static_cast<std::ptrdiff_t>(data->bytes.size() / 2);
    const auto begin =
        data->bytes.begin() + size * static_cast<std::ptrdiff_t>(half);
    part->bytes.assign(begin, begin + size);
    std::vector<RankOffset> cuts = offsets;
    cuts.push_back({rank.axis, rank.index + half * rank.count, 2 * rank.count});
    halves.push_back(from_rank_offsets(key, part, cuts, options));
  }
  return halves;
}

TensorPtr merge_gated(const State& loaded) {
  auto whole = std::make_shared<TensorData>();
  for (const State& half : *loaded.as<List>()) {
    const TensorData& part = **half.as<TensorPtr>();
    const uint64_t rows = whole->shape.empty() ? 0 : whole->shape[0];
    whole->dtype = part.dtype;
    whole->shape = part.shape;
    whole->shape[0] += rows;
    whole->bytes.insert(whole->bytes.end(), part.bytes.begin(),
                        part.bytes.end());
  }
  return whole;
}

ShardedTensorFactory gated_of(const json& job) {
  return {.key = job.at("key"),
          .data = data_of(job),
          .build =
              [job](const std::string& key, const TensorPtr& data,
                    const ReplicaId& replica, const auto&) {
                return build_gated(job, key, data, replica);
              },
          .merge = merge_gated,
          .replica = job.value("replica", ReplicaId{})};
}

State state_of(const json& job);

State optimizer_of(const json& job) {
  std::vector<TensorPtr> params;
  for (const json& one : job.at("params")) params.push_back(data_of(one));
  OptimizerState optimizer;
  for (const auto& [id, states] : job.at("states").items())
    for (const auto& [name, one] : states.items())
      optimizer.state[std::stoull(id)][name] = data_of(one);
  std::vector<uint64_t> numbers;
  for (size_t i = 0; i < params.size(); ++i) numbers.push_back(i);
  optimizer.groups.emplace_back(job.at("group").dump(), numbers);
  return optim_state_to_sharding_state(
      optimizer,
      get_param_id_to_sharded_param_map(state_of(job.at("model")), params));
}

State state_of(const json& job) {
  if (job.is_array()) {
    List list;
    for (const json& one : job) list.push_back(state_of(one));
    return list;
  }
  if (!job.is_object()) return Json{job.dump()};
  if (job.contains("$tensor")) return tensor_of(job["$tensor"]);
  if (job.contains("$gated")) return gated_of(job["$gated"]);
  if (job.contains("$local"))
    return LocalNonpersistentObject{job["$local"].dump()};
  if (job.contains("$optimizer")) return optimizer_of(job["$optimizer"]);
  if (job.contains("$object")) {
    const json& one = job["$object"];
    return ckpt::ShardedObject{one.at("key"), one.value("value", json()).dump(),
                               dims_of(one.at("at")), dims_of(one.at("grid")),
                               one.value("replica", ReplicaId{})};
  }
  Dict dict;
  for (const auto& [name, member] : job.items()) dict[name] = state_of(member);
  return dict;
}

json tensor_json(const ShardedTensor& tensor) {
  return {{"key", tensor.key},
          {"local_shape", list_of(tensor.local_shape)},
          {"global_shape", list_of(tensor.global_shape)},
          {"global_offset", list_of(tensor.global_offset)},
          {"axis_fragmentations", list_of(*tensor.axis_fragmentations)}};
}

// Tensors become files of `out`.
json json_of(const State& state, const std::string& out, size_t& files) {
  if (const auto* dict = state.as<Dict>()) {
    json all = json::object();
    for (const auto& [name, member] : *dict)
      all[name] = json_of(member, out, files);
    return all;
  }
  if (const auto* list = state.as<List>()) {
    json all = json::array();
    for (const State& member : *list)
      all.push_back(json_of(member, out, files));
    return all;
  }
  if (const auto* plain = state.as<Json>()) return json::parse(plain->text);
  if (const auto* tensor = state.as<ShardedTensor>())
    return {{"$tensor", tensor_json(*tensor)}};
  if (const auto* object = state.as<ckpt::ShardedObject>())
    return {{"$object", unique_key(*object)}};
  if (const auto* factory = state.as<ShardedTensorFactory>())
    return {{"$gated", factory->key}};
  if (const auto* data = state.as<TensorPtr>()) {
    const std::string path = out + "/" + std::to_string(files++);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>((*data)->bytes.data()),
               static_cast<std::streamsize>((*data)->bytes.size()));
    return {{"$data", path},
            {"dtype", name((*data)->dtype)},
            {"shape", list_of((*data)->shape)}};
  }
  return "of this process";
}

json describe(const json& job) {
  ShardedTensor tensor = tensor_of(job.at("tensor"));
  if (job.contains("narrow")) {
    const json& n = job["narrow"];
    const std::vector<ShardedTensor> parts = tensor.narrow(n[0], n[1], n[2]);
    if (parts.empty()) return "none";
    tensor = parts.at(0);
  }
  json answer = tensor_json(tensor);
  answer["chunk"] = list_of(tensor.chunk_offset());
  answer["chunks"] = list_of(tensor.max_allowed_chunks());
  answer["main"] = is_main_replica(tensor.replica);
  if (tensor.flattened_range)
    answer["range"] = {tensor.flattened_range->begin,
                       tensor.flattened_range->end};
  return answer;
}

json keys(const json& job) {
  State state = state_of(job.at("state"));
  if (job.contains("add")) add_prefix_for_sharding(state, job["add"]);
  if (job.contains("replace"))
    replace_prefix_for_sharding(state, job["replace"][0], job["replace"][1]);
  if (job.contains("map")) {
    std::vector<std::pair<std::string, std::string>> map;
    for (const json& one : job["map"]) map.emplace_back(one[0], one[1]);
    apply_prefix_mapping(state, map);
  }
  size_t files = 0;
  return json_of(state, "", files);
}

// A thread for each rank.
json save(const json& job) {
  const json& ranks = job.at("ranks");
  ckpt::Saver saver(static_cast<uint32_t>(ranks.size()),
                    {.format = job.value("format", "megatron_torch_dist")},
                    job.at("path"), {.sync = false});
  std::vector<ckpt::RankState> states;
  for (const json& rank : ranks) states.push_back(rank_state(state_of(rank)));
  std::shared_future<ckpt::Preview> done;
  for (uint32_t rank = 0; rank < states.size(); ++rank)
    done = saver.save_async(rank, std::move(states[rank]));
  done.get();
  return true;
}

json load_state(const json& job) {
  size_t lines = 0;
  ckpt::LoadOptions options;
  options.strict =
      ckpt::parse_strict(job.value("strict", "assume_ok_unexpected"));
  options.log = [&](const std::string&) { ++lines; };
  std::vector<State> others;
  for (const json& one : job.value("others", json::array()))
    others.push_back(state_of(one));
  const Loaded loaded =
      load(state_of(job.at("state")), job.at("path"), options, others);
  size_t files = 0;
  return {{"state", json_of(loaded.state, job.at("out"), files)},
          {"unexpected", loaded.unexpected},
          {"missing", loaded.missing},
          {"lines", lines}};
}

json answer_to(const json& job) {
  const std::string op = job.at("op");
  if (op == "describe") return describe(job);
  if (op == "keys") return keys(job);
  if (op == "save") return save(job);
  if (op == "load") return load_state(job);
  throw std::runtime_error("op " + op);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer["ok"] = answer_to(json::parse(line));
    } catch (const ckpt::Error& error) {
      answer["error"] = error.what();
      answer["code"] = static_cast<int>(error.code());
    }
    std::cout << answer.dump() << std::endl;
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "api/parallel/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/ranks/failure.h"
#include "reshard/ranks/pack.h"

namespace ckpt::library {
namespace {

using ranks::Packer;
using ranks::Unpacker;

constexpr char kReturned = 'r';
constexpr char kFailed = 'f';

void put(Packer& out, const Dims& dims) {
  out.list(std::vector<uint64_t>(dims.begin(), dims.end()));
}
Dims take_dims(Unpacker& in) { return Dims(in.list<uint64_t>()); }

void put(Packer& out, const Box& box) {
  put(out, box.offset);
  put(out, box.shape);
}
Box take_box(Unpacker& in) {
  Box box;
  box.offset = take_dims(in);
  box.shape = take_dims(in);
  return box;
}

void put(Packer& out, const ShardedTensor& shard) {
  out.text(shard.name);
  out.put(shard.dtype);
  put(out, shard.shape);
  put(out, shard.box);
  out.put(uint64_t{shard.bytes.size()});
  out.put(shard.tp);
  out.list(shard.replica);
}
ShardedTensor take_tensor(Unpacker& in) {
  ShardedTensor shard;
  shard.name = in.text();
  shard.dtype = in.take<DType>();
  shard.shape = take_dims(in);
  shard.box = take_box(in);
  const auto bytes = in.take<uint64_t>();
  shard.bytes = std::span(static_cast<const std::byte*>(nullptr), bytes);
  shard.tp = in.take<TpRule>();
  shard.replica = in.list<uint64_t>();
  return shard;
}

void put(Packer& out, const ShardedObject& object) {
  out.text(object.key);
  out.text(object.json);
  put(out, object.at);
  put(out, object.grid);
  out.list(object.replica);
}
ShardedObject take_object(Unpacker& in) {
  ShardedObject object;
  object.key = in.text();
  object.json = in.text();
  object.at = take_dims(in);
  object.grid = take_dims(in);
  object.replica = in.list<uint64_t>();
  return object;
}

}  // namespace

std::vector<std::string> exchange(Communicator& job,
                                  std::vector<std::string> to) {
  const uint32_t size = job.size();
  if (job.rank() >= size)
    throw usage_error({}, "the communicator says rank {} of {}", job.rank(),
                      size);
  // Each message ends with its size, where adding it costs least.
  const auto ending = [](uint64_t bytes) {
    std::string text(sizeof bytes, '\0');
    std::memcpy(text.data(), &bytes, sizeof bytes);
    return text;
  };
  to.resize(size);
  for (std::string& message : to) message += ending(message.size());
  std::vector<std::string> from = job.exchange(std::move(to));
  if (from.size() != size)
    throw usage_error({}, "the communicator's exchange gave {} messages of {}",
                      from.size(), size);
  for (uint32_t rank = 0; rank < size; ++rank) {
    std::string& message = from[rank];
    const uint64_t bytes =
        message.size() - std::min(message.size(), sizeof(uint64_t));
    if (!message.ends_with(ending(bytes)))
      throw usage_error({},
                        "the communicator changed the message of rank {}: it "
                        "came with {} bytes",
                        rank, message.size());
    message.resize(bytes);
  }
  return from;
}

std::vector<std::string> gather(Communicator& job, std::string bytes) {
  std::vector<std::string> to(std::max<uint32_t>(1, job.size()));
  to[0] = std::move(bytes);
  std::vector<std::string> from = exchange(job, std::move(to));
  if (job.rank() != 0) from.clear();
  return from;
}

std::vector<std::string> share_all(Communicator& job,
                                   const std::string& bytes) {
  return exchange(job, std::vector<std::string>(job.size(), bytes));
}

std::string scatter(Communicator& job, std::vector<std::string> parts) {
  parts.resize(job.size());
  return std::move(exchange(job, std::move(parts)).at(0));
}

std::string failed(std::exception_ptr failure) {
  return kFailed + ranks::pack_failure(failure);
}

std::string attempt(const std::function<std::string()>& step) {
  try {
    return kReturned + step();
  } catch (...) {
    return failed(std::current_exception());
  }
}

std::string_view returned(const std::string& outcome, uint32_t from,
                          uint32_t size) {
  const std::string_view rest = std::string_view(outcome).substr(1);
  if (outcome.starts_with(kReturned)) return rest;
  ranks::throw_failure(
      rest, size == 1 ? "" : fmt::format("rank {} of {}", from, size));
}

void agree(Communicator& job, const std::function<void()>& step) {
  const std::vector<std::string> outcomes =
      share_all(job, attempt([&] { return step(), std::string(); }));
  for (uint32_t rank = 0; rank < job.size(); ++rank)
    returned(outcomes[rank], rank, job.size());
}

std::string lead(Communicator& job,
                 const std::function<std::vector<std::string>()>& step) {
  std::vector<std::string> parts;
  if (job.rank() == 0) {
    const std::string outcome = attempt([&] {
      parts = step();
      for (std::string& part : parts) part.insert(0, 1, kReturned);
      return std::string();
    });
    if (!outcome.starts_with(kReturned)) parts.assign(job.size(), outcome);
  }
  const std::string mine = scatter(job, std::move(parts));
  return std::string(returned(mine, 0, job.size()));
}

std::string pack_state(const RankState& state, const std::string& host) {
  Packer out;
  out.text(host);
  out.text(state.common);
  out.put(uint64_t{state.files.size()});
  for (const auto& [name, text] : state.files) {
    out.text(name);
    out.text(text);
  }
  out.put(uint64_t{state.tensors.size()});
  for (const ShardedTensor& shard : state.tensors) put(out, shard);
  out.put(uint64_t{state.objects.size()});
  for (const ShardedObject& object : state.objects) put(out, object);
  return out.take();
}

Packed unpack_state(std::string_view bytes) {
  Unpacker in(bytes);
  Packed packed;
  packed.host = in.text();
  packed.state.common = in.text();
  for (size_t left = in.count(16); left > 0; --left) {
    std::string name = in.text();
    packed.state.files.emplace(std::move(name), in.text());
  }
  packed.state.tensors.resize(in.count(60));
  for (ShardedTensor& shard : packed.state.tensors) shard = take_tensor(in);
  packed.state.objects.resize(in.count(40));
  for (ShardedObject& object : packed.state.objects) object = take_object(in);
  return packed;
}

std::string pack_requests(std::span<const LoadRequest> requests) {
  Packer out;
  out.put(uint64_t{requests.size()});
  for (const LoadRequest& request : requests) {
    out.text(request.name);
    out.put(uint8_t{request.box.has_value()});
    if (request.box) put(out, *request.box);
    out.put(uint8_t{request.shape.has_value()});
    if (request.shape) put(out, *request.shape);
    out.put(request.allow_shape_mismatch);
  }
  return out.take();
}

std::vector<LoadRequest> unpack_requests(std::string_view bytes) {
  Unpacker in(bytes);
  std::vector<LoadRequest> requests(in.count(11));
  for (LoadRequest& request : requests) {
    request.name = in.text();
    if (in.take<uint8_t>()) request.box = take_box(in);
    if (in.take<uint8_t>()) request.shape = take_dims(in);
    request.allow_shape_mismatch = in.take<bool>();
  }
  return requests;
}

}  // namespace ckpt::library

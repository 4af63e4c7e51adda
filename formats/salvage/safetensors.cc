// SPDX-License-Identifier: Apache-2.0
// Repairs a safetensors file that was cut, or whose header has a hole.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "formats/salvage/repair.h"
#include "lib/io/file.h"
#include "lib/text/other_json.h"

namespace ckpt::salvage {
namespace {

using nlohmann::json;

// The number of data bytes that a header describes; nothing if it is not a
// header.
std::optional<uint64_t> data_bytes(std::string_view text) {
  const json root = text::parse_or_discard(text);
  if (!root.is_object()) return std::nullopt;
  uint64_t end = 0;
  for (const auto& [name, entry] : root.items()) {
    if (name == safetensors::kMetadata) continue;
    if (!entry.is_object() || !entry.contains("data_offsets"))
      return std::nullopt;
    const json& range = entry["data_offsets"];
    if (!range.is_array() || range.size() != 2 ||
        !range[1].is_number_unsigned())
      return std::nullopt;
    end = std::max(end, range[1].get<uint64_t>());
  }
  return end;
}

struct Framed {
  uint64_t header = 0;  // bytes of JSON
  uint64_t size = 0;    // of the whole file
};

// The frame that this file's header describes, if it is valid.
std::optional<Framed> frame_of(const io::Handle& file, uint64_t header) {
  if (header > safetensors::kMaxHeader || header > file.size() - 8)
    return std::nullopt;
  const std::string text = file.read_string(8, header);
  const auto data = data_bytes(text);
  const auto size = data ? checked_add(8 + header, *data) : std::nullopt;
  if (!size) return std::nullopt;
  try {
    safetensors::parse_header(text, *size, file.path());
  } catch (const Error&) {
    return std::nullopt;
  }
  return Framed{header, *size};
}

uint64_t header_length(const io::Handle& file) {
  uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  return length;
}

// For a wrong length field and a whole header: the object ends, spaces follow,
// and then data of exactly the size that it describes.
std::optional<Framed> frame_without_length(const io::Handle& file) {
  constexpr uint64_t kMost = uint64_t{16} << 20;
  const std::string text =
      file.read_string(8, std::min(kMost, file.size() - 8));
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth <= 0) {
      size_t end = i + 1;
      const auto data = data_bytes(std::string_view(text).substr(0, end));
      if (!data || *data > file.size() - 8 - end) return std::nullopt;
      const uint64_t header = file.size() - 8 - *data;
      while (end < text.size() && text[end] == ' ') ++end;
      // Data may begin with the byte of a space, so this is the least.
      if (header > end || header <= i) return std::nullopt;
      // Spaces to the end: the length may be right, and the file cut among
      // them.
      if (*data > 0 && 8 + end == file.size()) return std::nullopt;
      return frame_of(file, header);
    }
  }
  return std::nullopt;
}

// Another step's header: same file length, and at most a page of it differs
// from what is here.
std::optional<Framed> frame_of_like(const io::Handle& file,
                                    const std::string& like) {
  constexpr uint64_t kMostOther = 4096;
  if (like.empty()) return std::nullopt;
  const io::Handle other = io::Handle::open_read(like);
  if (other.size() != file.size() || other.size() < 8) return std::nullopt;
  const auto frame = frame_of(other, header_length(other));
  if (!frame || frame->size != other.size()) return std::nullopt;
  const std::string ours = file.read_string(0, 8 + frame->header);
  const std::string theirs = other.read_string(0, 8 + frame->header);
  uint64_t differ = 0;
  for (size_t i = 0; i < ours.size(); ++i) differ += ours[i] != theirs[i];
  if (differ > kMostOther || differ > ours.size() / 2) return std::nullopt;
  return frame;
}

std::string length_field(uint64_t header) {
  return std::string(reinterpret_cast<const char*>(&header), 8);
}

}  // namespace

std::optional<Repair> repair_safetensors(const std::string& path,
                                         const std::string& like) {
  const io::Handle file = io::Handle::open_read(path);
  if (file.size() < 10)
    throw input_error({path, {}}, "{} bytes: the header is lost", file.size());
  const uint64_t length = header_length(file);
  Repair repair;
  auto frame = frame_of(file, length);
  if (frame && frame->size == file.size()) return std::nullopt;
  if (frame) {
    repair.notes.push_back({.what = fmt::format("{} bytes of {} are there",
                                                file.size(), frame->size)});
  } else if ((frame = frame_without_length(file))) {
    repair.literals.push_back({0, length_field(frame->header)});
    repair.notes.push_back(
        {.what = fmt::format("the header's length is {}, not {}", frame->header,
                             length)});
  } else if ((frame = frame_of_like(file, like))) {
    repair.literals.push_back(
        {0, io::Handle::open_read(like).read_string(0, 8 + frame->header)});
    repair.notes.push_back(
        {.what = "the header is that of " + like, .inferred = true});
  } else {
    throw input_error({path, {}},
                      "the header can't be read: which tensors are where is "
                      "lost");
  }
  repair.size = frame->size;
  const uint64_t known =
      repair.literals.empty() ? 0 : repair.literals[0].bytes.size();
  const uint64_t there = std::min(file.size(), frame->size);
  repair.copies.push_back({path, known, known, there - known});
  if (there < frame->size) repair.gone.push_back({there, frame->size});
  return repair;
}

}  // namespace ckpt::salvage

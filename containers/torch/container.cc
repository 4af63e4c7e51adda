// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/container.h"

#include <algorithm>

#include "containers/torch/storages.h"
#include "lib/io/file.h"

namespace ckpt::torch {
namespace {

using namespace std::string_view_literals;

// 80 02 8A 0A …: the magic number 0x1950A86A20F9469CFC6C as a pickled LONG1.
// With other protocols the bytes before it differ.
constexpr std::string_view kLegacyMagic =
    "\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19."sv;
constexpr size_t kHead = 4096;
constexpr uint64_t kTarMagicAt = 257;

uint64_t read_le(std::string_view bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;)
    value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

bool is_safetensors(std::string_view head, uint64_t file_size) {
  return head.size() > 8 && head[8] == '{' && read_le(head, 8) <= file_size - 8;
}

bool is_tar(std::string_view head) {
  if (head.size() < kTarMagicAt + 5 || head.substr(kTarMagicAt, 5) != "ustar")
    return false;
  const std::string_view first = head.substr(0, head.find('\0'));
  return first == "sys_info" || first == "pickle" || first == "storages" ||
         first == "tensors";
}

// PROTO, perhaps FRAME, then an opcode that can begin a pickle.
bool is_pickle(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && head[1] <= 5;
}

Sniff sniff_pickle(std::string_view head) {
  if (head.substr(0, 32).find(kLegacyMagic) != head.npos)
    return {Sniffed::kTorchLegacy, "starts with torch's pickled magic number"};
  return {Sniffed::kPickle, "is a plain pickle, without torch's magic number"};
}

Sniff sniff_head(std::string_view head, uint64_t size) {
  if (head.empty()) return {Sniffed::kNothing, "is empty"};
  if (head.starts_with("PK\3\4"sv))
    return {Sniffed::kTorchZip, "starts with PK\\3\\4"};
  if (head.starts_with("version https://git-lfs"sv))
    return {Sniffed::kGitLfs, "is a git-lfs pointer"};
  if (is_pickle(head)) return sniff_pickle(head);
  if (is_tar(head))
    return {Sniffed::kTorchTar, "is a tar archive as torch 0.1 wrote it"};
  if (is_safetensors(head, size))
    return {Sniffed::kSafetensors,
            "is a safetensors file, whatever its name says"};
  return {Sniffed::kNothing, "doesn't start with torch's magic bytes"};
}

[[noreturn]] void throw_foreign(const std::string& path, const Sniff& sniffed) {
  const Error error =
      input_error({path, {}}, "{}, no file of torch.save", sniffed.why);
  switch (sniffed.what) {
    case Sniffed::kGitLfs:
      throw error.with_hint("fetch the content with: git lfs pull");
    case Sniffed::kSafetensors:
      throw error.with_hint("open it with --from safetensors");
    default:
      throw error;
  }
}

}  // namespace

Sniff sniff(const std::string& path) {
  const io::Handle file = io::Handle::open_read(path);
  const std::string head =
      file.read_string(0, std::min<uint64_t>(kHead, file.size()));
  const Sniff sniffed = sniff_head(head, file.size());
  return sniffed.what == Sniffed::kTorchZip ? sniff_zip(path) : sniffed;
}

Container open_container(const std::string& path, Catalog& catalog,
                         const Limits& limits) {
  const Sniff sniffed = sniff(path);
  Container container;
  switch (sniffed.what) {
    case Sniffed::kTorchZip:
      container = open_zip(path, catalog);
      break;
    case Sniffed::kTorchLegacy:
      container = open_legacy(path, catalog);
      break;
    case Sniffed::kTorchTar:
      container = open_tar(path, catalog);
      break;
    default:
      throw_foreign(path, sniffed);
  }
  check_limits(container, limits);
  add_globals(catalog, container.globals);
  return container;
}

}  // namespace ckpt::torch

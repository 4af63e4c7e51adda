// SPDX-License-Identifier: Apache-2.0
// A file of torch.save, opened: its pickle as a value tree, and where each
// storage's bytes are. No payload is read.
//
//   zip     | data.pkl | byteorder | data/0 | data/1 | … | version | directory
//   legacy  | magic | 1001 | sys_info | pickle | keys | n data | n data | …
//   tar     sys_info, pickle, tensors, storages (torch <= 0.1.9)
//
// All three come out in the same form: storages are kPersistent nodes of the
// document with the persistent id
//   ("storage", storage class, key, location, numel[, view])
// and tensors are calls of torch's rebuild functions (tensors.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/limits.h"
#include "lib/pickle/value.h"

namespace ckpt::torch {

struct Storage {
  std::string key;
  uint32_t file = 0;           // index into Catalog::files
  uint64_t offset = 0;         // of its first byte in that file
  uint64_t size = 0;           // bytes the container holds
  uint64_t declared = 0;       // bytes that the pickle declares; <= size
  std::optional<DType> dtype;  // as first declared; nothing: untyped
};

// What one persistent id refers to: a whole storage, or (in very old files) a
// range of one.
struct StorageUse {
  uint32_t storage = 0;        // index into Storages::all
  std::optional<DType> dtype;  // of the storage class; nothing: untyped
  uint64_t begin = 0;          // bytes from the storage's first byte
  uint64_t bytes = 0;
};

struct Storages {
  std::string path;  // of the container, for messages
  bool big_endian = false;
  std::vector<Storage> all;
  std::unordered_map<pickle::Id, StorageUse> uses;  // by kPersistent node

  // The use of a kPersistent node; null for any other node.
  const StorageUse* find(pickle::Id node) const {
    const auto it = uses.find(node);
    return it == uses.end() ? nullptr : &it->second;
  }
};

enum class ContainerKind : uint8_t { kZip, kLegacy, kTar };

struct Container {
  ContainerKind kind = ContainerKind::kZip;
  std::string path;
  std::string version;  // of the container: "3", "1001", "tar"
  // A zip's directory, which torch.save names like the file that it writes
  // ("archive" before torch 1.12 and for what is written to memory).
  std::string directory;
  std::shared_ptr<const pickle::Document> document;  // root() is the value
  std::vector<std::string> globals;  // "module name", sorted, unique
  Storages storages;
  // Of a TorchScript archive: the tensors that its code has as CONSTANTS. No
  // other container has it.
  std::shared_ptr<Container> constants = {};
};

// What the first bytes of a file suggest.
enum class Sniffed : uint8_t {
  kTorchZip,     // a zip (its directory shows whether it is torch.save's)
  kTorchLegacy,  // the pickled magic number
  kTorchTar,
  kSafetensors,  // u64 length, then '{'
  kGitLfs,       // a git-lfs pointer, not the file itself
  kPickle,       // a pickle without torch's framing
  kNothing,
};
struct Sniff {
  Sniffed what = Sniffed::kNothing;
  std::string why;  // one clause
};
// Cheap; does not throw for readable files. A zip that neither torch.save nor
// torch.jit.save wrote is kNothing; damaged ones are kTorchZip (and refused by
// open_container).
Sniff sniff(const std::string& path);

// Opens any of the three containers. Appends the file itself (and one more File
// per deflated storage) to catalog.files, the checksums of storage records to
// catalog.crcs, and what it finds to catalog.globals and catalog.problems.
//
// Throws input_error for anything that is not whole: a missing or short storage
// record, a malformed persistent id, git-lfs pointers. With
// limits.restrict_globals, throws an unsafe_error naming the globals that
// torch.load(weights_only=True) would not allow.
Container open_container(const std::string& path, Catalog& catalog,
                         const Limits& limits = {});

// True for globals that weights-only loading allows: "torch FloatStorage".
bool is_allowed_global(std::string_view global);

// Throws what `limits` ask for.
void check_limits(const Container& container, const Limits& limits);

// Throws the unsafe_error of --restrict if there is anything to refuse.
void check_globals(const std::vector<std::string>& globals,
                   const std::string& path);

// Merges into catalog.globals, keeping it sorted and unique.
void add_globals(Catalog& catalog, const std::vector<std::string>& globals);

}  // namespace ckpt::torch

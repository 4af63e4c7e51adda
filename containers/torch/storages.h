// SPDX-License-Identifier: Apache-2.0
// From persistent ids to storages: shared by the three containers. Private to
// this room.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "lib/io/file.h"
#include "lib/zip/archive.h"

namespace ckpt::torch {

// The checked content of a storage's persistent id.
struct StorageId {
  std::string key;
  std::optional<DType> dtype;  // nothing: untyped
  uint64_t bytes = 0;          // of the whole storage
  uint64_t begin = 0;          // the range that it refers to, in bytes
  uint64_t size = 0;
};

// Reads the persistent id of a kPersistent node: a tuple of `arity` elements
// (5 in a zip, 6 in a legacy stream). Throws input_error.
StorageId read_storage_id(const pickle::Document& document, pickle::Id node,
                          size_t arity, const std::string& path);

// Reads all persistent ids of a document into storages.all (by first
// appearance; no file and offset yet) and storages.uses. `skip` is true for
// nodes that mean something else.
void collect_storages(const pickle::Document& document, size_t arity,
                      const std::function<bool(pickle::Id)>& skip,
                      Storages& storages, std::vector<Problem>& problems);

// The dtype of a storage class ("FloatStorage", "UntypedStorage": nothing).
// Throws input_error for a node that is not a storage class.
std::optional<DType> storage_dtype(const pickle::Document& document,
                                   pickle::Id node, const std::string& path);

// Bytes of one element; 1 if untyped.
uint64_t item_size(const std::optional<DType>& dtype);

// sniff() of a file that starts with PK\3\4: checks the record names.
Sniff sniff_zip(const std::string& path);

Container open_zip(const std::string& path, Catalog& catalog);
// Opens the archive that `file` is: an open file, a slice of one, or memory.
Container open_zip(const io::Handle& file, Catalog& catalog,
                   zip::Headers headers = zip::Headers::kRead);
Container open_legacy(const std::string& path, Catalog& catalog);
Container open_tar(const std::string& path, Catalog& catalog);

// Appends the file itself to the catalog; returns its index.
uint32_t add_file(Catalog& catalog, const std::string& path, uint64_t size);

void warn(std::vector<Problem>& problems, std::string kind, std::string file,
          std::string message);

}  // namespace ckpt::torch

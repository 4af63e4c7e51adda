// SPDX-License-Identifier: Apache-2.0
// Pickle protocols 0-5 -> value tree. A stack machine that executes nothing:
// GLOBAL makes a name, and REDUCE makes a kCall from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/io/file.h"
#include "lib/pickle/value.h"

namespace ckpt::pickle {

// Bounds on what hostile input can make us use. Exceeding one throws an Error
// that names the path, the byte and the limit.
struct Limits {
  uint64_t bytes = uint64_t{4} << 30;   // of the pickle
  uint64_t values = 200'000'000;        // nodes
  uint64_t memo = uint64_t{1} << 28;    // largest memo index
  uint64_t string = uint64_t{1} << 28;  // one string or bytes value
  uint32_t decimal = 4096;              // digits of a text integer
};

struct Decoded {
  std::shared_ptr<Document> document;  // root() is the value
  uint64_t end = 0;                    // offset after STOP
  std::vector<std::string> globals;    // "module name", sorted, unique
};

// `path` is for messages. Python 2 module names become Python 3 ones
// (docs/formats/torch_pickle.md section 4).
Decoded decode(std::span<const std::byte> bytes, const std::string& path,
               const Limits& limits = {});

// Decodes the pickle that begins at `offset` and ends before `end`, reading
// the file in blocks (legacy torch files don't say how long a pickle is).
Decoded decode(const io::Handle& file, uint64_t offset, uint64_t end,
               const Limits& limits = {});

// The same for an index, which is millions of similar instances. Those that
// protocol 4 writes as a class and a few simple fields become records
// (value.h), and equal torch.Size become one value, which saves a third of the
// time and of the memory. Not for values that are written back: sharing is
// lost.
Decoded decode_records(const io::Handle& file, uint64_t offset, uint64_t end);

}  // namespace ckpt::pickle

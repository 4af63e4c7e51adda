// SPDX-License-Identifier: Apache-2.0
// Records (value.h), read from their opcodes in one go: an index of 10^8
// opcodes is little else, and protocol 4 has only one way to spell them.
//
//   record  GET class  ) NEWOBJ MEMO  } MEMO  (  {GET name, value}…  u b
//   value   integer | None | bool | text | GET | size
//   size    GET torch.Size  integers TUPLE MEMO  TUPLE1 MEMO  R MEMO
//
// Anything else, including a frame that begins in between, is left to the stack
// machine.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lib/pickle/memo.h"
#include "lib/pickle/value.h"

namespace ckpt::pickle {

class RecordReader {
 public:
  RecordReader(Document& document, const Memo& memo)
      : doc_(document), memo_(memo) {}

  // Reads what follows a GET of `callable`, a global. Returns kNoId if that is
  // neither a record nor a size, or if `ahead` ends before it does; then only
  // unreferenced values may have been added.
  Id take(Id callable, std::string_view ahead);
  // What was taken: its bytes, and what goes into the memo.
  size_t size() const { return size_; }
  std::span<const Id> memoized() const { return memoized_; }

 private:
  class Ahead;
  // A size made earlier, found by its opcodes.
  struct KnownSize {
    char opcodes[27];
    uint8_t length = 0;
    Id id = kNoId;
  };

  Id take_record(Id callable, Ahead& ahead);
  Id take_get(Ahead& ahead) const;
  Id take_value(Ahead& ahead);
  Id take_text(Ahead& ahead);
  Id take_size(Id callable, Ahead& ahead);
  Id size_of(Id callable, std::string_view opcodes, uint64_t hash);
  Id make_size(Id callable, std::string_view opcodes);
  KnownSize& known_size(uint64_t hash);

  Document& doc_;
  const Memo& memo_;
  std::vector<KnownSize> sizes_;  // direct-mapped
  size_t made_ = 0;               // sizes, since sizes_ grew
  std::vector<Id> names_, values_, memoized_;
  size_t size_ = 0;
};

}  // namespace ckpt::pickle

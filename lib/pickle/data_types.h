// SPDX-License-Identifier: Apache-2.0
// The numpy.dtypes that a pickle makes. numpy believes what BUILD says of one:
//
//   dtype("V8", …)  BUILD  (3, "|", subarray, names, fields, 8, 1, flags)
//                             │               │               └ bits
//                    (type, shape)      {name: (type, offset)}
//
// An element of objects is a pointer. numpy takes it from the file as a value
// only where flags say so, and reads a field wherever its offset points. So a
// type hides pointers, or memory behind its elements, unless its flags and its
// size fit what is in it. Dicts stay reachable after BUILD: what is recorded
// here only grows, and is judged at the end of the pickle.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/pickle/buffer.h"

namespace ckpt::pickle {

class DataTypes {
 public:
  // A type with a number: where a field begins, how many are in a subarray.
  struct Part {
    uint64_t type;
    uint64_t number;
  };
  struct State {
    bool odd = false;  // not of the known form
    std::optional<Part> subarray = {};
    std::optional<uint64_t> fields = {};  // a dict
    std::optional<uint64_t> size = {};
    uint64_t flags = 0;
  };

  // numpy.dtype(code): the new type. `code` is empty for numpy.record.
  uint64_t add(std::string_view code);
  void build(uint64_t type, const State& state);
  // A value of a dict that may be a type's fields; without a part one that is
  // not understood.
  void set(uint64_t dict, std::optional<Part> part);

  // Bytes of an element now, if that is known.
  std::optional<uint64_t> size(uint64_t type) const;
  bool has_objects(uint64_t type) const {
    return (types_[type].flags & 1) != 0;
  }
  bool empty() const { return types_.empty(); }
  // True if numpy would take bytes of the file for pointers, or look outside
  // of an element.
  bool hide() const;

 private:
  struct Type {
    uint64_t size = 0;   // now
    uint64_t least = 0;  // of all sizes it ever had
    uint64_t most = 0;
    uint64_t flags = 0;      // now
    uint64_t all_flags = 0;  // bits that were always set
    bool sized = false;      // `size` and `least` are known
    bool built = false;      // its flags are not numpy's own for it
    bool objects = false;    // it is made of pointers
    bool flexible = false;   // BUILD sets its size
    bool odd = false;        // not of a known form
  };
  struct Field {
    uint64_t dict;
    Part part;
  };
  struct Fields {
    uint64_t type;
    uint64_t dict;
  };
  struct Subarray {
    uint64_t type;
    Part part;
  };

  struct Link {
    uint64_t type;
    Part part;
    bool counts;  // a subarray, not a field
  };

  static Type plain(std::string_view code);
  static void resize(Type& type, uint64_t size);
  std::optional<std::vector<Link>> links() const;
  std::vector<bool> holders(const std::vector<Link>& links) const;
  bool fits(const Link& link, const std::vector<bool>& holds) const;

  Buffer<Type> types_;
  Buffer<Field> fields_;
  Buffer<Fields> with_fields_;
  Buffer<Subarray> subarrays_;
  Buffer<uint64_t> odd_;  // dicts
};

}  // namespace ckpt::pickle

// SPDX-License-Identifier: Apache-2.0
// The value tree that pickles decode to and are encoded from. Data, never a
// program: a call is kept as "this global, with these arguments" and is never
// made.
//
// A Document owns all its values in flat arrays; a value is identified by its
// index. So sharing and cycles are kept, destruction does not recurse, and 10^6
// values cost tens of megabytes.
//
//   nodes     16 bytes each: type, element count, and a payload: the number,
//             a pointer to the text, up to two elements, or ──┐
//   children  ids of the elements of larger containers  ◄─────┘
//   texts     blocks of bytes that never move
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/pickle/buffer.h"
#include "lib/pickle/known.h"
#include "lib/tree_memory.h"

namespace ckpt::pickle {

using Id = uint32_t;
inline constexpr Id kNoId = UINT32_MAX;

enum class Type : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // does not fit int64_t; text(): decimal
  kFloat,
  kString,  // text(): UTF-8, where lone surrogates may be 3 bytes each
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kSet,
  kFrozenSet,   // items(): the elements
  kDict,        // items(): key, value, key, value …; keys are unique
  kGlobal,      // module(), text(): its name
  kCall,        // call()
  kPersistent,  // items(): one element, the persistent id
};
std::string_view name(Type type);  // "list", "global" …, for messages

// How an object came to be, so that it can be written back the same way.
enum class How : uint8_t { kReduce, kNewObj, kNewObjEx, kInst };

// A call that was not made, and what the pickle then did to its result. A view:
// the spans are valid until something is added to the document.
struct Call {
  How how = How::kReduce;
  Id callable = kNoId;        // mostly a kGlobal
  Id args = kNoId;            // a kTuple (kInst, kNewObj too)
  Id kwargs = kNoId;          // kNewObjEx: a kDict
  Id state = kNoId;           // BUILD's operand
  std::span<const Id> items;  // APPEND(S)
  std::span<const Id> pairs;  // SETITEM(S): key, value …; keys are unique
};

// An instance of the kind that an index has millions of: made by NEWOBJ without
// arguments, its state a dict of a few simple values, kept without that dict.
// Only decode_records() makes these. A view, like Call.
struct Record {
  std::span<const Id> names;   // kString, unique
  std::span<const Id> values;  // one for each name
};

class Document {
 public:
  Document();
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;
  ~Document();

  Id root() const { return root_; }
  void set_root(Id id) { root_ = id; }
  size_t size() const { return nodes_.size(); }
  // The same, as if no value represented several of the pickle.
  uint64_t spelled() const { return nodes_.size() + spared_; }

  // Bytes taken by the values.
  uint64_t memory() const {
    return nodes_.size() * sizeof(Node) + children_.size() * sizeof(Id) +
           charge_.bytes();
  }

  // An id that is not of this document, or a value of the wrong type, is a bug:
  // these throw bug_error.
  Type type(Id id) const { return at(id).type; }
  bool boolean(Id id) const;     // kBool
  int64_t integer(Id id) const;  // kInt
  double real(Id id) const;      // kFloat
  // kString, kBytes, kByteArray, kBigInt; kGlobal: the name in its module.
  // The text lives as long as the document.
  std::string_view text(Id id) const;
  std::string_view module(Id id) const;  // kGlobal
  // Containers and kPersistent. Valid until something is added to the document.
  std::span<const Id> items(Id id) const;
  Call call(Id id) const;    // kCall; without the state of a record
  Id callable(Id id) const;  // kCall
  // True for a kCall that is kept as a record.
  bool is_record(Id id) const {
    return is(id, Type::kCall) && nodes_[id].room == kRecord;
  }
  Record record(Id id) const;
  // Which well-known global a kGlobal, or the callable of a kCall, is.
  Known known(Id id) const;  // of other values: kOther

  // --- convenience; none of these throw, all of them accept kNoId ---
  bool is(Id id, Type type) const {
    return id < nodes_.size() && nodes_[id].type == type;
  }
  // True for kGlobal module.name.
  bool is_global(Id id, std::string_view module, std::string_view name) const;
  // True for a kCall of the global module.name.
  bool is_call(Id id, std::string_view module, std::string_view name) const;
  // The value under a string key of a dict, or of anything that acts like one
  // (see as_pairs); kNoId if absent.
  Id find(Id id, std::string_view key) const;
  // Key, value, key, value … of a kDict, or of a call of
  // collections.OrderedDict | Counter | defaultdict with pairs and/or a list of
  // pairs as argument. nullopt if it is not a mapping.
  std::optional<std::vector<Id>> as_pairs(Id id) const;
  // A kInt, or a kBool, as in Python.
  std::optional<int64_t> as_int(Id id) const;
  // A kFloat, or what as_int reads.
  std::optional<double> as_real(Id id) const;
  // "module name" of a kCall's callable or of a kGlobal; else empty.
  std::string callable_name(Id id) const;

  // --- building. Equal scalars may get the same id. ---
  Id add_none();
  Id add_bool(bool value);
  Id add_int(int64_t value);
  Id add_big_int(std::string_view decimal);  // kInt if it fits
  Id add_float(double value);
  Id add_text(Type type, std::string_view text);  // kString … kByteArray
  Id add_string(std::string_view text);
  // kDict: keys and values in turn; a later duplicate of a key wins.
  Id add_container(Type type, const std::vector<Id>& items = {});
  Id add_global(std::string_view module, std::string_view name);
  Id add_call(const Call& call);
  Id add_call(Id callable, Id args);  // kReduce
  Id add_persistent(Id persistent_id);
  // Appends to a list or set, or to the items of a call.
  void append(Id container, Id item);
  // Sets a key of a dict, or of the pairs of a call: the last value wins, the
  // first position stays.
  void set(Id dict, Id key, Id value);
  void set(Id dict, std::string_view key, Id value);
  void set_state(Id call, Id state);

  // Makes a deep copy of `id` of another document, keeping sharing and cycles.
  // If there is a substitute (an id of this document) for a node of the other,
  // it is used instead of a copy. Scalars are shared between places, so
  // substitute only containers, calls and persistent ids.
  Id import(const Document& other, Id id,
            const std::unordered_map<Id, Id>& substitutes = {});

 private:
  friend class Decoder;
  friend class Importer;
  friend class RecordReader;

  struct CallIds {
    Id args;
    Id state;
  };
  struct RecordIds {
    uint32_t first;  // of the values in children_
    uint32_t shape;  // index into shapes_
  };
  union Payload {
    int64_t integer;
    double real;
    const char* text;
    uint64_t offset;  // of the first element in children_
    Id ids[2];        // up to two elements
    CallIds call;
    RecordIds record;
  };
  // `room` of a container: 0 if its elements are in the payload; kExact if it
  // has no spare room in children_; else it has room for 2^room elements.
  struct Node {
    Type type;
    uint8_t room;    // kCall: its How, or kRecord
    Known known;     // kGlobal: which one; kCall: which its callable is
    bool more;       // kCall: it has an Extra; kDict: it has an Index
    uint32_t count;  // elements, bytes of text; kCall: the callable
    Payload payload;
  };
  static_assert(sizeof(Node) == 16);
  static constexpr uint8_t kExact = 1;
  static constexpr uint8_t kRecord = 0x80;

  // What only few calls have: hidden containers hold the items and pairs.
  struct Extra {
    Id kwargs = kNoId;
    Id items = kNoId;  // kList
    Id pairs = kNoId;  // kDict
  };
  struct Index;  // of a large dict: where each key is
  // The class and the field names, which many records share.
  struct Shape {
    Id callable = kNoId;
    std::vector<Id> names;
  };
  static constexpr size_t kMostShapes = 16;

  const Node& at(Id id) const {
    if (id >= nodes_.size()) throw_bad_id(id);
    return nodes_[id];
  }
  [[noreturn]] void throw_bad_id(Id id) const;
  [[noreturn]] void throw_bad_type(Id id, const char* wanted) const;

  Id add_node(Type type, uint64_t count, Payload payload);
  Id add_constant(size_t which, Type type, Payload payload);
  Id add_scalar(Type type, Payload payload);  // kInt, kFloat
  char* allocate(size_t size);
  Id& recent(uint64_t hash);
  // Returns the value that same() recognises, else what add() makes.
  template <class Same, class Add>
  Id add_once(uint64_t hash, Same same, Add add);
  std::string_view stored(const Node& node) const;
  Id add_items(Type type, std::span<const Id> items);
  void append_items(Id container, std::span<const Id> items);
  void set_pairs(Id dict, std::span<const Id> pairs);
  Id items_of(Id container);  // the container itself; the items of a call
  Id pairs_of(Id container);
  Id* elements(Node& node);
  const Id* elements(const Node& node) const;
  void reserve(Node& node, uint64_t count);
  // Returns kNoId if it can't be kept as a record: its names are not unique
  // short texts, or there are too many shapes.
  Id add_record(Id callable, std::span<const Id> names,
                std::span<const Id> values);
  std::optional<uint32_t> shape_of(Id callable, std::span<const Id> names);
  bool are_names(std::span<const Id> names) const;

  bool same_key(Id a, Id b) const;
  uint32_t hash_key(Id key) const;
  uint64_t full_hash(Id key) const;
  Extra& extra_of(Id call);
  Index& index_of(Id dict);
  uint32_t find_key(Id dict, Id key);  // its position, or kNoId
  uint32_t find_text(Id dict, std::string_view key) const;
  void unique_pairs(std::vector<Id>& pairs) const;

  Id root_ = kNoId;
  Buffer<Node> nodes_;
  Buffer<Id> children_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* block_at_ = nullptr;
  size_t block_left_ = 0;
  std::vector<Shape> shapes_;
  uint64_t spared_ = 0;
  std::unordered_map<Id, Extra> extras_;
  std::unordered_map<Id, std::unique_ptr<Index>> indexes_;
  // Scalars added before: short texts and globals are always found, numbers
  // mostly.
  std::array<Id, 4> constants_{kNoId, kNoId, kNoId, kNoId};
  std::vector<Id> recent_;
  std::unique_ptr<Index> texts_;
  tree_memory::Charge charge_;  // all but nodes and children
};

}  // namespace ckpt::pickle

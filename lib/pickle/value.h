// The value tree that pickles decode to and are encoded from. Data, never a
// program: a call is kept as "this global, with these arguments", and nobody
// here ever calls it.
//
// A Document owns all its values in flat arrays; a value is named by its
// index. So sharing and cycles are kept, destruction does not recurse, and
// 10^6 values cost tens of megabytes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ckpt::pickle {

using Id = uint32_t;
inline constexpr Id kNoId = UINT32_MAX;

enum class Type : uint8_t {
  kNone, kBool, kInt,
  kBigInt,  // does not fit int64_t; text(): decimal
  kFloat,
  kString,  // text(): UTF-8, where lone surrogates may stand as 3 bytes each
  kBytes, kByteArray,
  kList, kTuple, kSet, kFrozenSet,  // items(): the elements
  kDict,        // items(): key, value, key, value …; keys are unique
  kGlobal,      // module(), text(): its name
  kCall,        // call()
  kPersistent,  // items(): one element, the persistent id
};

// How an object came to be, so that it can be written back the same way.
enum class How : uint8_t { kReduce, kNewObj, kNewObjEx, kInst };

// A call that was not made, and what the pickle then did to its result.
struct Call {
  How how = How::kReduce;
  Id callable = kNoId;     // mostly a kGlobal
  Id args = kNoId;         // a kTuple (kInst, kNewObj too)
  Id kwargs = kNoId;       // kNewObjEx
  Id state = kNoId;        // BUILD's operand
  std::vector<Id> items;   // APPEND(S), ADDITEMS
  std::vector<Id> pairs;   // SETITEM(S): key, value, key, value …
};

class Document {
 public:
  Id root() const { return root_; }
  void set_root(Id id) { root_ = id; }
  size_t size() const;

  Type type(Id id) const;
  bool boolean(Id id) const;        // kBool
  int64_t integer(Id id) const;     // kInt
  double real(Id id) const;         // kFloat
  // kString, kBytes, kByteArray, kBigInt; kGlobal: the name in its module
  std::string_view text(Id id) const;
  std::string_view module(Id id) const;      // kGlobal
  std::span<const Id> items(Id id) const;    // containers and kPersistent
  const Call& call(Id id) const;             // kCall

  // --- reading comfort; none of them throws ---
  // True for kGlobal module.name.
  bool is_global(Id id, std::string_view module, std::string_view name) const;
  // The value under a string key of a dict, or of anything that behaves like
  // one (see as_pairs); kNoId if absent.
  Id find(Id id, std::string_view key) const;
  // Key, value, key, value … of a kDict, or of a call of
  // collections.OrderedDict | Counter | defaultdict with pairs and/or a list
  // of pairs as argument. Nothing if it is no mapping.
  std::optional<std::vector<Id>> as_pairs(Id id) const;
  // A kInt, or kBool as Python has it.
  std::optional<int64_t> as_int(Id id) const;
  // "module name" of a kCall's callable or of a kGlobal; else empty.
  std::string callable_name(Id id) const;

  // --- building ---
  Id add_none();
  Id add_bool(bool value);
  Id add_int(int64_t value);
  Id add_big_int(std::string decimal);
  Id add_float(double value);
  Id add_text(Type type, std::string text);  // kString, kBytes, kByteArray
  Id add_string(std::string_view text);
  Id add_container(Type type, std::vector<Id> items = {});
  Id add_global(std::string_view module, std::string_view name);
  Id add_call(Call call);
  Id add_persistent(Id persistent_id);
  void append(Id list_or_set, Id item);
  // Sets a key of a dict: the last value wins, the first position stays.
  void set(Id dict, Id key, Id value);
  void set(Id dict, std::string_view key, Id value);
  Call& mutable_call(Id id);

  // A deep copy of `id` of another document (sharing and cycles kept). With
  // a substitute for a node, that is taken instead of a copy.
  Id import(const Document& other, Id id,
            const std::unordered_map<Id, Id>& substitutes = {});

 private:
  // The pickle room decides the representation.
  Id root_ = kNoId;
};

}  // namespace ckpt::pickle

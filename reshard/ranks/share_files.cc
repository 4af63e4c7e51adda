// SPDX-License-Identifier: Apache-2.0
// Members are listed once for both ways: a class with `put` and one with
// `take` go over the same list.
#include "reshard/ranks/share_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lib/decoding.h"
#include "lib/io/mount.h"
#include "reshard/sources/low_rank.h"
#include "reshard/sources/two_products.h"

namespace ckpt::ranks {
namespace {

using reshard::Borrowed;
using reshard::FactoredMatrix;
using reshard::LowRank;
using reshard::LowRankTerm;
using reshard::ProductSum;
using reshard::StoredMatrix;
using reshard::TwoProducts;

using FileList = std::vector<File>;
using Numbers = std::shared_ptr<const std::vector<float>>;

// What the memory of a File is.
enum class Holds : uint8_t {
  kNothing,
  kBytes,
  kDecoding,
  kLowRank,
  kProductSum,
  kBorrowed
};

// --- the members ---

// Of a part of a Decoding: what its elements are read by.
template <class Way>
void pass(Way& way, Tensor& tensor) {
  way(tensor.name, tensor.dtype, tensor.shape);
  way.each(tensor.pieces, [&](Piece& piece) {
    way(piece.box.offset, piece.box.shape, piece.flat, piece.extent.offset,
        piece.extent.strides, piece.extent.file, piece.transform);
  });
}

template <class Way>
void pass(Way& way, Combination& all) {
  auto& [how, terms, divisor, lambda, agreeing, normal, exact, finite] = all;
  way(how, divisor, lambda, agreeing, normal, exact, finite);
  way.each(terms, [&](Term& term) {
    auto& [tensor, weight, kept, is_delta] = term;
    pass(way, tensor);
    way(weight, kept, is_delta);
  });
}

// All but its files. A member that this list lacks does not compile.
template <class Way>
void pass(Way& way, Decoding& made) {
  auto& [coding, dtype, batch, rows, columns, transposed, block_rows,
         block_columns, bits, ggml, zero_offset, high_first, packed_zeros,
         adds_zeros, factor, rounds, table, name, codes, scales, zeros, order,
         outer, outer_block, outer_divides, outer_offset, scale_table, files,
         combined] = made;
  way(coding, dtype, batch, rows, columns, transposed, block_rows,
      block_columns, bits, ggml, zero_offset, high_first, packed_zeros,
      adds_zeros, factor, rounds, table, name, outer_block, outer_divides,
      outer_offset, scale_table);
  for (Tensor* part : {&codes, &scales, &zeros, &order, &outer})
    pass(way, *part);
  Combination all = combined ? *combined : Combination{};
  pass(way, all);
  combined = all.terms.empty()
                 ? nullptr
                 : std::make_shared<const Combination>(std::move(all));
}

template <class Way>
void pass(Way& way, StoredMatrix::Content& matrix) {
  auto& [name, dtype, rows, columns, parts] = matrix;
  way(name, dtype, rows, columns);
  way.each(parts, [&](StoredMatrix::Part& part) {
    way(part.row, part.rows, part.column, part.columns, part.begin, part.end,
        part.file, part.offset, part.stride, part.transform);
  });
}

// --- there ---

// Lists of files that decoded files refer to, each sent once, and of each only
// the files that something is read from.
class Sender {
 public:
  std::string files(const FileList& files) {
    Packer all;
    all.put(uint64_t{files.size()});
    for (const File& file : files) put(all, file);
    // What one is made of may be made of others.
    for (bool any = true; any;) {
      any = false;
      for (size_t i = 0; i < lists_.size(); ++i)
        for (; lists_[i].sent < lists_[i].order.size(); any = true) {
          const uint32_t whole = lists_[i].order[lists_[i].sent++];
          Packer one;
          put(one, lists_[i].files->at(whole));
          lists_[i].packed.push_back(one.take());
        }
    }
    Packer out;
    out.put(uint64_t{archives_.size()});
    for (const std::string& archive : archives_) out.text(archive);
    out.put(uint64_t{lists_.size()});
    for (const List& list : lists_) out.put(uint64_t{list.packed.size()});
    for (const List& list : lists_)
      for (const std::string& file : list.packed) out.text(file);
    out.text(all.take());
    return out.take();
  }

 private:
  struct List {
    std::shared_ptr<const FileList> files;
    std::map<uint32_t, uint32_t> part;  // number in `files`, and among the sent
    std::vector<uint32_t> order;
    std::vector<std::string> packed;
    size_t sent = 0;
  };

  // One value after the other.
  class Put {
   public:
    Put(Sender& sender, Packer& out) : sender_(sender), out_(out) {}
    template <class... Values>
    void operator()(const Values&... values) {
      (one(values), ...);
    }
    template <class Value, class Use>
    void each(std::vector<Value>& values, const Use& use) {
      out_.put(uint64_t{values.size()});
      for (Value& value : values) use(value);
    }

   private:
    template <class Value>
    requires std::is_trivially_copyable_v<Value>
    void one(const Value& value) { out_.put(value); }
    void one(const std::string& text) { out_.text(text); }
    void one(const Dims& dims) {
      out_.list(std::vector<uint64_t>(dims.begin(), dims.end()));
    }
    void one(const Numbers& numbers) {
      out_.list(numbers ? *numbers : std::vector<float>());
    }
    void one(const File& file) { sender_.put(out_, file); }

    Sender& sender_;
    Packer& out_;
  };

  void put(Packer& out, const File& file) {
    if (const auto in = io::find_mounted(file.path))
      archives_.insert(in->entry.archive);
    out.text(file.path);
    out.put(file.size);
    out.put(file.codec);
    out.put(file.packed_offset);
    out.put(file.packed_size);
    out.put(file.delta);
    out.text(file.fill);
    if (is_decoded(file)) return put_decoding(out, decoding_of(file));
    if (reshard::is_made(file)) return put_made(out, reshard::made_of(file));
    if (file.codec != Codec::kMemory) return out.put(Holds::kNothing);
    out.put(Holds::kBytes);
    const auto* bytes = reinterpret_cast<const char*>(file.memory);
    out.text({bytes, bytes ? file.size : 0});
  }

  void put_decoding(Packer& out, Decoding made) {
    List& list = list_of(made.files);
    out.put(Holds::kDecoding);
    out.put(static_cast<uint64_t>(&list - lists_.data()));
    const auto renumber = [&](Tensor& tensor) {
      for (Piece& piece : tensor.pieces) {
        const auto [found, is_new] = list.part.try_emplace(
            piece.extent.file, static_cast<uint32_t>(list.order.size()));
        if (is_new) list.order.push_back(piece.extent.file);
        piece.extent.file = found->second;
      }
    };
    for (Tensor* part :
         {&made.codes, &made.scales, &made.zeros, &made.order, &made.outer})
      renumber(*part);
    if (made.combined) {
      Combination all = *made.combined;
      for (Term& term : all.terms) renumber(term.tensor);
      made.combined = std::make_shared<const Combination>(std::move(all));
    }
    Put way(*this, out);
    pass(way, made);
  }

  void put_matrix(Packer& out, const StoredMatrix& matrix) {
    StoredMatrix::Content content = matrix.content();
    Put way(*this, out);
    pass(way, content);
  }
  void put_matrix(Packer& out, const std::optional<StoredMatrix>& matrix) {
    out.put(matrix.has_value());
    if (matrix) put_matrix(out, *matrix);
  }

  void put_made(Packer& out, const reshard::Made& made) {
    if (const auto* sum = dynamic_cast<const LowRank*>(&made)) {
      const LowRankTerm& term = sum->term();
      out.put(Holds::kLowRank);
      out.text(sum->name());
      put_matrix(out, sum->base());
      put_matrix(out, term.left);
      put_matrix(out, term.right);
      out.put(term.transposed);
      out.put(term.scale);
      out.put(term.rounded);
      out.put(term.allow_nonfinite);
      return put_matrix(out, term.magnitude);
    }
    if (const auto* sum = dynamic_cast<const ProductSum*>(&made)) {
      const TwoProducts& term = sum->term();
      out.put(Holds::kProductSum);
      out.text(sum->name());
      put_matrix(out, sum->base());
      for (const FactoredMatrix* one : {&term.a, &term.b}) {
        put_matrix(out, one->left);
        put_matrix(out, one->right);
      }
      out.put(term.kronecker);
      out.put(term.scale);
      return out.put(term.allow_nonfinite);
    }
    const auto* borrowed = dynamic_cast<const Borrowed*>(&made);
    if (!borrowed) throw bug_error({}, "a made file that no message can hold");
    out.put(Holds::kBorrowed);
    put(out, borrowed->file());
    out.put(borrowed->begin());
    out.put(borrowed->from());
    out.put(borrowed->to());
  }

  List& list_of(const std::shared_ptr<const FileList>& files) {
    const auto found = std::ranges::find(lists_, files, &List::files);
    if (found != lists_.end()) return *found;
    lists_.push_back({.files = files, .part = {}, .order = {}, .packed = {}});
    return lists_.back();
  }

  std::vector<List> lists_;
  std::set<std::string> archives_;  // whose members are files to this rank
};

// --- and back ---

class Receiver {
 public:
  explicit Receiver(Kept& kept) : kept_(kept) {}

  FileList files(std::string_view bytes) {
    Unpacker in(bytes);
    for (size_t n = in.count(8); n != 0; --n) io::mount_tar(in.text());
    lists_.resize(in.count(8));
    for (auto& list : lists_) {
      list = std::make_shared<FileList>();
      list->resize(in.count(8));
    }
    for (auto& list : lists_)
      for (File& file : *list) {
        const std::string one = in.text();
        Unpacker from(one);
        file = take(from);
      }
    const std::string all = in.text();
    Unpacker from(all);
    FileList files(from.count(41));
    for (File& file : files) file = take(from);
    return files;
  }

 private:
  class Take {
   public:
    Take(Receiver& receiver, Unpacker& in) : receiver_(receiver), in_(in) {}
    template <class... Values>
    void operator()(Values&... values) {
      (one(values), ...);
    }
    template <class Value, class Use>
    void each(std::vector<Value>& values, const Use& use) {
      values.resize(in_.count(8));
      for (Value& value : values) use(value);
    }

   private:
    template <class Value>
    requires std::is_trivially_copyable_v<Value>
    void one(Value& value) { value = in_.take<Value>(); }
    void one(std::string& text) { text = in_.text(); }
    void one(Dims& dims) { dims = Dims(in_.list<uint64_t>()); }
    void one(Numbers& numbers) {
      std::vector<float> list = in_.list<float>();
      if (!list.empty())
        numbers = std::make_shared<const std::vector<float>>(std::move(list));
    }
    void one(File& file) { file = receiver_.take(in_); }

    Receiver& receiver_;
    Unpacker& in_;
  };

  File take(Unpacker& in) {
    File file;
    file.path = in.text();
    file.size = in.take<uint64_t>();
    file.codec = in.take<Codec>();
    file.packed_offset = in.take<uint64_t>();
    file.packed_size = in.take<uint64_t>();
    file.delta = in.take<std::optional<Delta>>();
    file.fill = in.text();
    switch (in.take<Holds>()) {
      case Holds::kNothing:
        return file;
      case Holds::kBytes:
        kept_.bytes.push_back(in.text());
        file.memory =
            reinterpret_cast<const std::byte*>(kept_.bytes.back().data());
        return file;
      case Holds::kDecoding:
        return decoded_file(std::move(file.path), file.size, take_decoding(in));
      case Holds::kLowRank:
        return made(file, take_low_rank(in));
      case Holds::kProductSum:
        return made(file, take_product_sum(in));
      case Holds::kBorrowed:
        break;
    }
    File from = take(in);
    const auto begin = in.take<uint64_t>();
    const auto stored = in.take<DType>();
    return made(file, std::make_unique<Borrowed>(std::move(from), begin, stored,
                                                 in.take<DType>()));
  }

  File made(const File& file, std::unique_ptr<reshard::Made> made) {
    kept_.made.push_back(std::move(made));
    return reshard::made_file(*kept_.made.back(), file.path, file.size);
  }

  Decoding take_decoding(Unpacker& in) {
    Decoding made;
    made.files = lists_.at(in.take<uint64_t>());
    Take way(*this, in);
    pass(way, made);
    return made;
  }

  StoredMatrix take_matrix(Unpacker& in) {
    StoredMatrix::Content content;
    Take way(*this, in);
    pass(way, content);
    return StoredMatrix(std::move(content));
  }
  std::optional<StoredMatrix> take_some_matrix(Unpacker& in) {
    if (!in.take<bool>()) return std::nullopt;
    return take_matrix(in);
  }

  std::unique_ptr<reshard::Made> take_low_rank(Unpacker& in) {
    const std::string name = in.text();
    StoredMatrix base = take_matrix(in);
    LowRankTerm term{.left = take_matrix(in),
                     .right = take_some_matrix(in),
                     .transposed = in.take<bool>(),
                     .scale = in.take<float>(),
                     .rounded = in.take<bool>(),
                     .allow_nonfinite = in.take<bool>(),
                     .magnitude = take_some_matrix(in)};
    return std::make_unique<LowRank>(std::move(base), std::move(term), name);
  }

  FactoredMatrix take_product(Unpacker& in) {
    StoredMatrix left = take_matrix(in);
    return {std::move(left), take_some_matrix(in)};
  }
  std::unique_ptr<reshard::Made> take_product_sum(Unpacker& in) {
    std::string name = in.text();
    StoredMatrix base = take_matrix(in);
    FactoredMatrix a = take_product(in);
    TwoProducts term{.a = std::move(a),
                     .b = take_product(in),
                     .kronecker = in.take<bool>(),
                     .scale = in.take<float>(),
                     .allow_nonfinite = in.take<bool>()};
    return std::make_unique<ProductSum>(std::move(base), std::move(term),
                                        std::move(name));
  }

  Kept& kept_;
  std::vector<std::shared_ptr<FileList>> lists_;
};

}  // namespace

void put_files(Packer& out, const FileList& files) {
  out.text(Sender().files(files));
}

FileList take_files(Unpacker& in, Kept& kept) {
  return Receiver(kept).files(in.text());
}

}  // namespace ckpt::ranks

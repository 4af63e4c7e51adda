#include "api/salvage.h"

#include <algorithm>
#include <unordered_map>

#include "api/gone.h"
#include "api/salvage_files.h"
#include "api/write.h"
#include "ckpt/error.h"
#include "convert/values.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/zip/headers.h"
#include "reshard/crc_check.h"
#include "reshard/engine.h"
#include "reshard/read.h"

namespace ckpt::library {
namespace {

bool is_answer(const Error& error) {
  return error.code() == ExitCode::kDamaged ||
         error.code() == ExitCode::kUnfaithful;
}

using Elements = std::vector<FlatRange>;

class Salvager {
 public:
  Salvager(const std::string& source, const std::string& target,
           const SalvageOptions& options, const Progress& progress)
      : source_(source),
        target_(target),
        options_(options),
        progress_(progress),
        files_(source, target, options, report_) {
    run_.threads = options.save.threads;
    run_.max_mem = options.save.max_mem;
  }

  Salvaged run() {
    try {
      work();
    } catch (const Error& error) {
      throw of_source(error);
    }
    return std::move(report_);
  }

 private:
  void work() {
    files_.run();
    open();
    locate_all();
    check_objects();
    check_crcs();
    find_gone();
    from_replicas();
    check_digests();
    from_like();
    list_gone();
    check_names();
    if (writes()) seal();
    finish();
  }

  // The shadow is nobody's business: its paths stand for the source's.
  Error of_source(const Error& error) const {
    const std::string root = files_.is_single() ? files_.path() : files_.root();
    const auto shown = [&](std::string text) {
      for (size_t at = text.find(root); at != text.npos; at = text.find(root))
        text.replace(at, root.size(), source_);
      return text;
    };
    std::string hint = shown(error.hint());
    if (hint.empty() && is_answer(error))
      hint = options_.like.empty()
                 ? "--like OTHER, an older or newer step of the same run, "
                   "tells more; `ckpt inspect` and `ckpt verify` show what "
                   "can be read"
                 : "`ckpt inspect` and `ckpt verify` show what can be read";
    return Error(error.code(),
                 {shown(error.where().path), error.where().tensor},
                 shown(error.problem()), hint);
  }

  std::string first_lost() const {
    return report_.lost.empty() ? ""
                                : "; lost: " + report_.lost[0].file + ": " +
                                      report_.lost[0].what;
  }

  void open() {
    try {
      std::string from = options_.from;
      if (from.empty() && !options_.like.empty())
        from = formats::detect(options_.like).format->name;
      catalog_ = formats::open(files_.path(), from, options_.read);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kMissing)
        throw input_error({source_, {}}, "what is left is no checkpoint{}",
                          first_lost())
            .with_hint(
                "--from names the format; --like OTHER, an older or newer "
                "step of the same run, tells what was where");
      if (!is_answer(error)) throw;
      throw input_error({source_, error.where().tensor},
                        "what is left can't be read: {}{}", error.problem(),
                        first_lost())
          .with_hint(
              "--like OTHER, an older or newer step of the same run, tells "
              "what was where");
    }
    report_.format = catalog_.format;
  }

  // Items that can't be opened are gone, one by one.
  void locate_all() {
    Catalog all = catalog_;
    try {
      locate(all);
      catalog_ = std::move(all);
      return;
    } catch (const Error& error) {
      if (!is_answer(error)) throw;
    }
    Catalog one = catalog_;
    const auto locate_one = one.locate;
    one.tensors.resize(1);
    for (Tensor& tensor : catalog_.tensors) {
      for (Piece& piece : tensor.pieces) {
        if (!piece.extent.archive) continue;
        one.tensors[0] = tensor;
        one.tensors[0].pieces = {piece};
        one.locate = locate_one;
        try {
          locate(one);
          piece = one.tensors[0].pieces[0];
        } catch (const Error& error) {
          if (!is_answer(error)) throw;
          rebuild_item(tensor, piece, error);
        }
      }
    }
    catalog_.files = one.files;
    catalog_.crcs = one.crcs;
    catalog_.locate = nullptr;
  }

  // Values in items of their own: another step's is better than none, but it
  // is another step's.
  void check_objects() {
    try {
      Catalog all = catalog_;
      load_objects(all);
      return;
    } catch (const Error& error) {
      if (!is_answer(error)) throw;
    }
    Catalog one = catalog_without_tensors(catalog_);
    for (const Object& object : catalog_.objects) {
      if (object.document || object.bytes == 0) continue;
      one.objects = {object};
      one.load_objects = catalog_.load_objects;
      try {
        load_objects(one);
      } catch (const Error& error) {
        if (!is_answer(error)) throw;
        replace_object(object, error);
      }
    }
  }

  void replace_object(const Object& object, const Error& error) {
    const std::string file = file_of(object.file);
    const Catalog* like = files_.like();
    const Object* other = nullptr;
    if (like)
      for (const Object& theirs : like->objects)
        if (theirs.name == object.name && theirs.bytes == object.bytes)
          other = &theirs;
    if (file.empty() || !other || like->files[other->file].codec != Codec::kRaw)
      throw error;
    const std::string from = like->files[other->file].path;
    io::copy_range(io::Handle::open_read(from), other->offset,
                   files_.edit(file), object.offset, object.bytes);
    report_.lost.push_back(
        {file, fmt::format("{}: its value is that of {}", object.name, from),
         true});
  }

  // An item that can't be opened gets a frame as torch writes it.
  void rebuild_item(const Tensor& tensor, Piece& piece, const Error& error) {
    const std::string file = file_of(piece.extent.file);
    const uint64_t begin = piece.extent.offset;
    const auto item =
        file.empty() || element_size(tensor.dtype) == 0
            ? std::nullopt
            : salvage::repair_item(
                  files_.shadow().path(file), begin, piece.extent.archive,
                  tensor.dtype,
                  piece.flat ? Shape{piece.flat->end - piece.flat->begin}
                             : piece.box.shape);
    if (!item)
      throw input_error({source_, tensor.name},
                        "the item that holds it can't be rebuilt: {}",
                        error.problem())
          .with_hint("--like OTHER, another step, may have the file whole");
    const io::Handle to = files_.edit(file);
    for (const Literal& literal : item->literals)
      to.write(literal.offset, std::string_view(literal.bytes));
    files_.crcs[file].push_back(item->crc);
    report_.rebuilt.push_back(
        {file,
         fmt::format("{}: the frame of the item at byte {}", tensor.name,
                     begin),
         false});
    auto& gone = files_.gone[file];
    // What is gone of the item is now its payload, or nothing.
    std::vector<salvage::Range> rest;
    for (const salvage::Range& range : gone)
      std::ranges::copy(
          salvage::without(range, {{begin, begin + piece.extent.archive}}),
          std::back_inserter(rest));
    gone = std::move(rest);
    if (!item->payload_is_right) gone.push_back(item->payload);
    gone = salvage::normalized(std::move(gone));
    piece.extent.offset = item->payload.begin;
    piece.extent.archive = 0;
    piece.extent.strides = {};
  }

  // The file of a catalog's file, if bytes of it can be given up.
  std::string file_of(uint32_t index) const {
    const File& file = catalog_.files[index];
    return file.codec == Codec::kRaw ? files_.name_of(file.path) : "";
  }

  void check_crcs() {
    std::vector<uint32_t> all(catalog_.crcs.size());
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    progress_.begin("checking", reshard::crc_bytes(catalog_));
    reshard::RunOptions run = run_;
    run.progress = progress_;
    for (const auto& [index, problem] :
         reshard::check_crcs(catalog_, all, run)) {
      const StoredCrc& crc = catalog_.crcs[index];
      const std::string file = file_of(crc.file);
      if (file.empty())
        throw input_error({source_, {}}, "a compressed record is damaged: {}",
                          problem.message);
      auto& gone = files_.gone[file];
      gone.push_back({crc.begin, crc.end});
      gone = salvage::normalized(std::move(gone));
      report_.rebuilt.push_back({file, problem.message, false});
      remember_crc(file, crc);
    }
    progress_.end();
  }

  // Where the checksum of a record stands: in the descriptor behind it and in
  // its directory entry.
  void remember_crc(const std::string& file, const StoredCrc& crc) {
    constexpr uint64_t kFar = 1 << 16;
    const io::Handle handle = io::Handle::open_read(files_.shadow().path(file));
    const std::string tail =
        handle.read_string(crc.end, std::min(kFar, handle.size() - crc.end));
    LateCrc late{.begin = crc.begin, .end = crc.end, .at = {}};
    if (tail.size() >= 8 &&
        zip::load<uint32_t>(tail, 0) == zip::kDescriptorSignature)
      late.at.push_back(crc.end + 4);
    for (size_t at = tail.find("PK\1\2"); at != tail.npos;
         at = tail.find("PK\1\2", at + 4)) {
      if (at + zip::kDirectoryEntrySize > tail.size()) break;
      if (zip::load<uint32_t>(tail, at + zip::kCrcInEntry) != crc.crc32)
        continue;
      late.at.push_back(crc.end + at + zip::kCrcInEntry);
      break;
    }
    files_.crcs[file].push_back(late);
  }

  const std::vector<salvage::Range>& gone_of(const Piece& piece) const {
    static const std::vector<salvage::Range> kNone;
    const std::string file = file_of(piece.extent.file);
    const auto found = files_.gone.find(file);
    return file.empty() || found == files_.gone.end() ? kNone : found->second;
  }

  void find_gone() {
    gone_.resize(catalog_.tensors.size());
    for (size_t t = 0; t < gone_.size(); ++t) {
      const Tensor& tensor = catalog_.tensors[t];
      for (const Piece& piece : tensor.pieces)
        gone_[t].push_back(gone_elements(tensor, piece, gone_of(piece)));
    }
  }

  bool is_gone(size_t t) const {
    return std::ranges::any_of(
        gone_[t], [](const Elements& elements) { return !elements.empty(); });
  }

  static bool same_place(const Piece& a, const Piece& b) {
    return a.box == b.box && a.flat == b.flat && a.transform == b.transform;
  }

  // Writes elements of a piece; `bytes` begins with element `first`.
  void put(const Tensor& tensor, const Piece& piece, const Elements& elements,
           const std::function<std::string(uint64_t, uint64_t)>& bytes) {
    const io::Handle to = files_.edit(file_of(piece.extent.file));
    const uint64_t most =
        std::max<uint64_t>(1, (1 << 20) / element_size(tensor.dtype));
    for_each_run(tensor, piece, elements,
                 [&](uint64_t first, uint64_t offset, uint64_t many) {
                   for (uint64_t i = 0; i < many; i += most)
                     to.write(offset + i * element_size(tensor.dtype),
                              std::string_view(
                                  bytes(first + i, std::min(most, many - i))));
                 });
  }

  void from_replicas() {
    for (size_t t = 0; t < gone_.size(); ++t) {
      const Tensor& tensor = catalog_.tensors[t];
      for (size_t a = 0; a < tensor.pieces.size(); ++a)
        for (size_t b = 0; b < tensor.pieces.size() && !gone_[t][a].empty();
             ++b)
          if (a != b && same_place(tensor.pieces[a], tensor.pieces[b]))
            copy_replica(t, a, b);
    }
  }

  void copy_replica(size_t t, size_t a, size_t b) {
    const Tensor& tensor = catalog_.tensors[t];
    const Piece& from = tensor.pieces[b];
    const uint64_t size = element_size(tensor.dtype);
    const Elements good = minus(gone_[t][a], gone_[t][b]);
    if (good.empty() || size == 0) return;
    const io::Handle source =
        io::Handle::open_read(catalog_.files[from.extent.file].path);
    put(tensor, tensor.pieces[a], good, [&](uint64_t first, uint64_t many) {
      std::string bytes;
      for_each_run(tensor, from, {{first, first + many}},
                   [&](uint64_t, uint64_t offset, uint64_t count) {
                     bytes += source.read_string(offset, count * size);
                   });
      return bytes;
    });
    gone_[t][a] = minus(gone_[t][a], good);
    report_.rebuilt.push_back(
        {file_of(tensor.pieces[a].extent.file),
         fmt::format("{}: {} elements from the copy in {}", tensor.name,
                     count(good), file_of(from.extent.file)),
         false});
  }

  // What the source's manifest says; none if there is none or it is damaged.
  const Manifest* manifest() {
    if (!looked_) {
      looked_ = true;
      const std::string path = manifest_path(source_);
      try {
        if (io::is_file(path)) manifest_ = read_manifest(path);
      } catch (const Error& error) {
        if (!is_answer(error)) throw;
      }
    }
    return manifest_ ? &*manifest_ : nullptr;
  }

  const Manifest::Entry* entry_of(const Tensor& tensor) {
    if (!manifest()) return nullptr;
    const auto entry = manifest_->tensors.find(tensor.name);
    return entry == manifest_->tensors.end() ||
                   entry->second.dtype != tensor.dtype ||
                   entry->second.shape != tensor.shape
               ? nullptr
               : &entry->second;
  }

  Digest digest_of(const Catalog& catalog, Tensor tensor) {
    Catalog one = catalog_without_tensors(catalog);
    one.tensors = {std::move(tensor)};
    const reshard::Plan plan = reshard::make_read_plan(one, false);
    reshard::Output nowhere;
    return reshard::run(plan, one, nowhere, run_).source.at(0);
  }
  static Catalog catalog_without_tensors(const Catalog& catalog) {
    Catalog one;
    one.format = catalog.format;
    one.path = catalog.path;
    one.files = catalog.files;
    return one;
  }

  // A digest that is wrong says nothing of where; a copy may have it right.
  void check_digests() {
    for (size_t t = 0; t < gone_.size(); ++t) {
      Tensor& tensor = catalog_.tensors[t];
      const Manifest::Entry* entry = entry_of(tensor);
      if (!entry || is_gone(t) || element_size(tensor.dtype) == 0 ||
          digest_of(catalog_, tensor) == entry->digest)
        continue;
      report_.rebuilt.push_back({file_of(tensor.pieces[0].extent.file),
                                 tensor.name + " is not what the manifest says",
                                 false});
      for (size_t p = 0; p < tensor.pieces.size(); ++p)
        gone_[t][p] = {{0, element_count(tensor.pieces[p])}};
      Tensor turned = tensor;
      std::ranges::reverse(turned.pieces);
      if (digest_of(catalog_, turned) != entry->digest) continue;
      // The last copy of each box is right.
      for (size_t p = tensor.pieces.size(); p-- > 0;) {
        bool first = true;
        for (size_t q = p + 1; q < tensor.pieces.size(); ++q)
          first = first && !same_place(tensor.pieces[p], tensor.pieces[q]);
        if (first) gone_[t][p].clear();
      }
      from_replicas();
    }
  }

  // Another step's tensor, if its digest is the one that this one had.
  void from_like() {
    Catalog* like = files_.like();
    if (!like) return;
    for (size_t t = 0; t < gone_.size(); ++t) {
      if (!is_gone(t)) continue;
      const Tensor& tensor = catalog_.tensors[t];
      const Manifest::Entry* entry = entry_of(tensor);
      const Tensor* other = like->find(tensor.name);
      if (!entry || !other || other->dtype != tensor.dtype ||
          other->shape != tensor.shape ||
          digest_of(*like, *other) != entry->digest)
        continue;
      for (size_t p = 0; p < tensor.pieces.size(); ++p)
        take_like(*like, *other, t, p);
      report_.rebuilt.push_back({"",
                                 tensor.name + " from " + options_.like +
                                     ": the manifest has the same digest",
                                 false});
    }
  }

  void take_like(const Catalog& like, const Tensor& other, size_t t, size_t p) {
    const Tensor& tensor = catalog_.tensors[t];
    const Piece& piece = tensor.pieces[p];
    if (gone_[t][p].empty() || piece.transform != kNoTransform) return;
    const uint64_t size = element_size(tensor.dtype);
    const std::vector<std::byte> box =
        reshard::read_box(like, other, piece.box, run_);
    const uint64_t base = piece.flat ? piece.flat->begin : 0;
    put(tensor, piece, gone_[t][p], [&](uint64_t first, uint64_t many) {
      return std::string(
          reinterpret_cast<const char*>(box.data()) + (base + first) * size,
          many * size);
    });
    gone_[t][p].clear();
  }

  // Elements are gone if no copy of them is left; every copy is filled.
  void list_gone() {
    for (size_t t = 0; t < gone_.size(); ++t) {
      const Tensor& tensor = catalog_.tensors[t];
      const std::string fill =
          filler(tensor.dtype, options_.fill == Fill::kNan);
      for (size_t p = 0; p < tensor.pieces.size(); ++p) {
        const Piece& piece = tensor.pieces[p];
        if (gone_[t][p].empty()) continue;
        bool listed = false;
        for (size_t q = 0; q < p; ++q)
          listed = listed || same_place(piece, tensor.pieces[q]);
        if (!listed) list(tensor, piece, gone_[t][p]);
        if (options_.fill == Fill::kRefuse || element_size(tensor.dtype) == 0)
          continue;
        std::string one = fill;
        if (piece.transform & kSwapBytes) std::ranges::reverse(one);
        put(tensor, piece, gone_[t][p], [&](uint64_t, uint64_t many) {
          std::string bytes;
          for (uint64_t i = 0; i < many; ++i) bytes += one;
          return bytes;
        });
      }
    }
  }

  void list(const Tensor& tensor, const Piece& piece,
            const Elements& elements) {
    const uint64_t base = piece.flat ? piece.flat->begin : 0;
    for (const FlatRange& range : elements)
      report_.gone.push_back(
          {.tensor = tensor.name,
           .dtype = tensor.dtype,
           .box = piece.box,
           .elements = {base + range.begin, base + range.end},
           .bytes = (range.end - range.begin) * element_size(tensor.dtype),
           .file = file_of(piece.extent.file)});
  }

  // Tensors that the manifest names, and nothing else does.
  void check_names() {
    report_.tensors = catalog_.tensors.size();
    if (!manifest()) return;
    std::unordered_map<std::string_view, bool> there;
    for (const Tensor& tensor : catalog_.tensors) there[tensor.name] = true;
    for (const auto& [name, entry] : manifest_->tensors)
      if (!there.contains(name))
        report_.lost.push_back(
            {"",
             fmt::format("tensor {} {}{}: no file holds it", name,
                         ckpt::name(entry.dtype), to_string(entry.shape)),
             false});
  }

  // As any reader sees it, with every element in its place once.
  void prove() {
    Catalog whole =
        formats::open(files_.path(), catalog_.format, options_.read);
    locate(whole);
    load_objects(whole);
    const reshard::Plan plan = reshard::make_read_plan(whole, true);
    if (options_.fill != Fill::kRefuse && !report_.whole()) return;
    reshard::Output nowhere;
    reshard::check_replicas(plan, reshard::run(plan, whole, nowhere, run_),
                            whole);
  }

  bool writes() const {
    return report_.whole() || options_.fill != Fill::kRefuse;
  }

  // Checksums of records that were filled, or came from elsewhere.
  void seal() {
    for (const auto& [file, ranges] : files_.crcs) {
      files_.edit(file);
      files_.shadow().seal(file, ranges);
    }
  }

  void finish() {
    library::Prepared prepared;
    prepared.path = target_;
    prepared.single_file = files_.is_single();
    for (const std::string& file : files_.shadow().files()) {
      const std::string from = files_.origin(file);
      TargetFile copy;
      copy.path = files_.is_single() ? "" : file;
      copy.size = io::Handle::open_read(from).size();
      copy.copy_of = from;
      report_.bytes += copy.size;
      prepared.target.files.push_back(std::move(copy));
    }
    report_.files = prepared.target.files.size();
    if (!writes()) return;
    prove();
    SaveOptions save = options_.save;
    save.manifest = false;
    if (options_.dry_run) {
      check_target(prepared, save);
      return;
    }
    execute(prepared, save, progress_);
    report_.written = true;
  }

  const std::string& source_;
  const std::string& target_;
  const SalvageOptions& options_;
  const Progress& progress_;
  Salvaged report_;
  SalvageFiles files_;
  Catalog catalog_;
  reshard::RunOptions run_;
  std::vector<std::vector<Elements>> gone_;  // by tensor, by piece
  std::optional<Manifest> manifest_;
  bool looked_ = false;
};

}  // namespace

Salvaged salvage_checkpoint(const std::string& source,
                            const std::string& target,
                            const SalvageOptions& options,
                            const Progress& progress) {
  return Salvager(source, target, options, progress).run();
}

}  // namespace ckpt::library

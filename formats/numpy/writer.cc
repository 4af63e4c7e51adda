// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/numpy/npy.h"
#include "formats/numpy/numpy.h"
#include "formats/target.h"
#include "lib/text/format.h"
#include "lib/text/utf8.h"
#include "lib/zip/archive.h"

namespace ckpt::numpy {
namespace {

using text::printable;

bool is_lone(const Layout& layout) {
  return layout.single_file && layout.name.ends_with(kArray);
}

std::string stem_of(const Layout& layout) {
  return layout.name.substr(0, layout.name.size() - kArray.size());
}

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source), layout_(layout) {}

  Target build() {
    target_.catalog = formats::catalog_like(source_, kFormat);
    for (const Object& object : source_.objects) leave_out(object);
    for (const Tensor& tensor : source_.tensors) {
      if (!has_dtype(tensor.dtype))
        throw unfaithful_error({source_.path, printable(tensor.name)},
                               "numpy has no {}", name(tensor.dtype))
            .with_hint("--dtype f32 holds floats of any type");
      if (!is_lone(layout_)) check_name(tensor.name);
    }
    if (layout_.single_file && !is_lone(layout_)) {
      add_archive();
      return std::move(target_);
    }
    if (source_.tensors.empty())
      throw unfaithful_error({source_.path, {}},
                             "there is no tensor: no array would be written");
    for (uint32_t t = 0; t < source_.tensors.size(); ++t) add_array(t);
    formats::copy_sidecars(
        source_, source_.dialect == "hf" && !layout_.single_file, {}, target_);
    return std::move(target_);
  }

 private:
  void leave_out(const Object& object) {
    const bool about =
        std::ranges::any_of(formats::traits_of(source_.format).about_files,
                            [&](std::string_view prefix) {
                              return object.name.starts_with(prefix);
                            });
    target_.problems.push_back(
        about ? remark("object_left_out", {{}, object.name},
                       "tells about the files of the source; it is left out")
              : warning("object_left_out", {{}, object.name},
                        "NumPy's files of numbers have no place for this "
                        "value; skipped"));
  }

  [[noreturn]] void refuse(const std::string& name, std::string_view why) {
    throw unfaithful_error({source_.path, printable(name)},
                           "can't name an array's file: {}", why)
        .with_hint("--rename gives it another name");
  }

  // What is safe to unpack, and what the reader finds again.
  void check_name(const std::string& name) {
    constexpr size_t kMostName = 255;
    if (!text::is_utf8(name)) refuse(name, "it is no UTF-8");
    if (std::ranges::any_of(name, [](char c) {
          return static_cast<uint8_t>(c) < 0x20 || c == 0x7F;
        }))
      refuse(name, "it has control characters");
    const std::string path = name + std::string(kArray);
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string_view part(path.data() + begin, end - begin);
      if (part.empty()) refuse(name, "a part of it is empty");
      if (part == kArray) refuse(name, "the last part of it is empty");
      if (part[0] == '.') refuse(name, "a part of it begins with a dot");
      if (part.size() > kMostName)
        refuse(name, fmt::format("a part of it has {} bytes, at most {} do",
                                 part.size(), kMostName));
      begin = end + 1;
    }
    // numpy.load takes "w.npy" for the file that holds w.
    const auto [one, fresh] = files_.emplace(path, &name);
    if (name.ends_with(kArray)) endings_.push_back(&name);
    if (!fresh) refuse(name, "another tensor has it, too");
  }

  void check_names() {
    for (const std::string* name : endings_)
      if (const auto other = files_.find(*name); other != files_.end())
        refuse(*name,
               "it is the name of the file of " + printable(*other->second));
    for (const auto& [path, name] : files_)
      for (size_t at = path.find('/'); at != path.npos;
           at = path.find('/', at + 1))
        if (const auto other = files_.find(path.substr(0, at));
            other != files_.end())
          refuse(*name, "a folder would have the name of the file of " +
                            printable(*other->second));
  }

  void add_archive() {
    check_names();
    std::vector<zip::Member> members;
    for (const Tensor& tensor : source_.tensors)
      members.push_back({.name = tensor.name + std::string(kArray),
                         .head = write_header(tensor.dtype, tensor.shape),
                         .payload = byte_size(tensor)});
    zip::PlannedArchive plan = zip::plan_zipfile(members);
    for (size_t t = 0; t < members.size(); ++t)
      place(static_cast<uint32_t>(t), plan.data_offsets[t]);
    TargetFile file;
    file.size = plan.size;
    file.literals = std::move(plan.literals);
    file.crcs = std::move(plan.crcs);
    add(std::move(file));
  }

  void add_array(uint32_t number) {
    const Tensor& tensor = source_.tensors[number];
    if (number == 0) check_names();
    std::string header = write_header(tensor.dtype, tensor.shape);
    TargetFile file;
    if (!layout_.single_file) file.path = tensor.name + std::string(kArray);
    file.size = header.size() + byte_size(tensor);
    place(number, header.size());
    file.literals.push_back({0, std::move(header)});
    add(std::move(file));
  }

  // In the file that is added next.
  void place(uint32_t number, uint64_t offset) {
    Tensor& tensor = target_.catalog.tensors[number];
    tensor.pieces.push_back(
        {.box = Box::whole(tensor.shape),
         .flat = {},
         .extent = {.offset = offset,
                    .strides = {},
                    .file = static_cast<uint32_t>(target_.files.size())}});
  }

  void add(TargetFile file) {
    target_.catalog.files.push_back({.path = file.path, .size = file.size});
    target_.files.push_back(std::move(file));
  }

  const Catalog& source_;
  const Layout& layout_;
  Target target_;
  std::unordered_map<std::string, const std::string*> files_;
  std::vector<const std::string*> endings_;
};

Catalog review(Catalog source, const Layout& layout) {
  if (layout.max_shard_size)
    throw usage_error({}, "--max-shard-size: an array is in one file")
        .with_hint(
            "--to numpy and the name of a directory write a file for "
            "each");
  if (!is_lone(layout)) return source;
  if (source.tensors.size() != 1)
    throw unfaithful_error({source.path, {}},
                           "{}: a .npy holds one array, and these are {}",
                           printable(layout.name), source.tensors.size())
        .with_hint(
            "--keys NAME takes one of them; a name that ends in .npz holds "
            "all, and --to numpy a directory of them");
  // Its file is all that names it.
  Tensor& tensor = source.tensors.front();
  const std::string name = stem_of(layout);
  if (tensor.name == name) return source;
  source.assumptions.push_back(fmt::format(
      "{} is {} in the target: a .npy has the name of its file alone",
      printable(tensor.name), printable(name)));
  tensor.name = name;
  return source;
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::numpy

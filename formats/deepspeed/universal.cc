// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/universal.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/many.h"
#include "containers/torch/tensors.h"
#include "containers/torch/tree.h"
#include "formats/deepspeed/locate.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

class UniversalReader {
 public:
  UniversalReader(const std::string& directory,
                  const std::map<std::string, Shape>& shapes,
                  const formats::ReadOptions& options, Assembler& assembler,
                  Catalog& catalog)
      : zero_(io::join(directory, "zero")),
        shapes_(shapes),
        options_(options),
        assembler_(assembler),
        catalog_(catalog) {}

  void read(const std::vector<std::string>& names) {
    std::vector<State> states;
    std::vector<std::string> paths;
    for (const std::string& name : names) {
      const std::string folder = io::join(zero_, name);
      states.push_back({name, ""});
      paths.push_back(io::join(folder, "fp32.pt"));
      for (const std::string& file : io::list_directory(folder)) {
        if (file == "fp32.pt") continue;
        if (!file.ends_with(".pt")) {
          note_stray(io::join(folder, file));
          continue;
        }
        states.push_back({name, file.substr(0, file.size() - 3)});
        paths.push_back(io::join(folder, file));
      }
    }
    torch::open_each(paths, catalog_, options_,
                     [&](size_t i, const auto& file) {
                       add_state(states[i].name, file, states[i].state);
                     });
    add_common(names);
  }

 private:
  struct State {
    const std::string& name;  // of the parameter
    std::string state;        // "": the parameter itself
  };

  void note_stray(const std::string& path) {
    catalog_.problems.push_back(
        remark("stray_file", {path, {}}, "is not read"));
  }

  void add_state(const std::string& name, const torch::Container& file,
                 const std::string& state) {
    const std::string& path = file.path;
    const Document& document = *file.document;
    const Id param = document.find(document.root(), "param");
    const bool dict = param != pickle::kNoId;
    const auto ref = torch::as_tensor(document, dict ? param : document.root(),
                                      file.storages, name);
    const std::string full = state.empty() ? name : name + "." + state;
    if (!ref) {
      if (state.empty())
        throw input_error({path, printable(name)}, "expected a tensor");
      // step, as a number
      catalog_.objects.push_back({full, file.document, document.root()});
      return;
    }
    if (ref->distributed)
      throw input_error({path, printable(name)}, "is a part of a tensor");
    Tensor tensor = torch::make_tensor(full, *ref);
    if (dict)
      tensor.tp = rule_of(document, tensor.shape.size());
    else
      reshape(name, path, tensor);
    if (state.empty()) {
      tensor.requires_grad = true;
      whole_[name] = tensor.shape;
      assembler_.add_model(std::move(tensor));
      return;
    }
    if (tensor.shape != whole_[name] && !tensor.shape.empty() &&
        element_count(tensor.shape) != 1u)
      throw input_error({path, printable(full)}, "is {}, the parameter {}",
                        to_string(tensor.shape), to_string(whole_[name]));
    tensor.kind = Kind::optim;
    tensor.param = name;
    tensor.state = state;
    assembler_.add_optim(std::move(tensor));
  }

  static TpRule rule_of(const Document& document, size_t rank) {
    const auto dim = document.as_int(document.find(document.root(), "cat_dim"));
    if (document.find(document.root(), "sub_param_shape") != pickle::kNoId)
      return {};
    if (!dim) return TpRule::replicated();
    const auto parts =
        document.as_int(document.find(document.root(), "param_n_sub_params"));
    if (*dim < 0 || static_cast<uint64_t>(*dim) >= rank ||
        (parts && (*parts < 1 || *parts > 4096)))
      return {};
    return TpRule::split(static_cast<uint32_t>(*dim),
                         static_cast<uint32_t>(parts.value_or(1)));
  }

  // ZeRO 3 stores the elements alone.
  void reshape(const std::string& name, const std::string& path,
               Tensor& tensor) {
    if (tensor.shape.size() != 1 || tensor.pieces.size() > 1) return;
    const auto it = shapes_.find(name);
    if (it == shapes_.end()) {
      catalog_.problems.push_back(
          warning("no_shape", {path, tensor.name},
                  "is stored flat, and no param_shapes says its shape"));
      return;
    }
    const uint64_t want = element_count(it->second).value_or(0);
    if (want != tensor.shape[0])
      throw input_error({path, printable(tensor.name)},
                        "has {} elements, param_shapes says {}",
                        tensor.shape[0], to_string(it->second));
    if (!tensor.pieces.empty() && !tensor.pieces[0].extent.strides.empty())
      throw input_error({path, printable(tensor.name)},
                        "is flat, but not contiguous");
    tensor.shape = it->second;
    if (!tensor.pieces.empty()) tensor.pieces[0].box = Box::whole(tensor.shape);
  }

  // For ZeRO 3 this is rank 0's state with its partitions, which repeat parts
  // of the parameters' own files; but only this has the step.
  void add_common(const std::vector<std::string>& names) {
    const std::string path = io::join(zero_, "optimizer_state.pt");
    if (!io::is_file(path)) return;
    const torch::Container file =
        torch::open_container(path, catalog_, options_);
    const torch::Tree tree = torch::walk(file, file.document->root());
    for (const torch::NamedObject& object : tree.objects)
      catalog_.objects.push_back(
          {"optimizer_state_dict." + object.name, file.document, object.node});
    size_t left_out = 0;
    for (const torch::NamedTensor& found : tree.tensors) {
      if (found.name == "optimizer_state_dict.state.0.step" &&
          found.ref.shape.empty())
        add_steps(names, found.ref);
      else
        ++left_out;
    }
    if (left_out > 0)
      catalog_.assumptions.push_back(
          fmt::format("zero/optimizer_state.pt: {} tensors of rank 0's "
                      "partitions are left out, the parameters' own files "
                      "hold them",
                      left_out));
  }

  void add_steps(const std::vector<std::string>& names,
                 const torch::TensorRef& step) {
    for (const std::string& name : names) {
      if (io::is_file(io::join(io::join(zero_, name), "step.pt"))) continue;
      Tensor tensor = torch::make_tensor(name + ".step", step);
      tensor.kind = Kind::optim;
      tensor.param = name;
      tensor.state = "step";
      tensor.tp = TpRule::replicated();
      assembler_.add_optim(std::move(tensor));
    }
  }

  const std::string zero_;
  const std::map<std::string, Shape>& shapes_;
  const formats::ReadOptions& options_;
  Assembler& assembler_;
  Catalog& catalog_;
  std::map<std::string, Shape> whole_;
};

}  // namespace

void add_universal(const std::string& directory,
                   const std::map<std::string, Shape>& shapes,
                   const formats::ReadOptions& options, Assembler& assembler,
                   Catalog& catalog) {
  UniversalReader(directory, shapes, options, assembler, catalog)
      .read(list_parameters(directory));
}

}  // namespace ckpt::deepspeed

// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/unknown.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/scan/harmless.h"
#include "formats/scan/scanner.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::scan {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr std::string_view kHint =
    "--keep-unknown-globals writes it all the same; --exclude NAME leaves it "
    "out";

// What a value of a document names and calls; does not enter `skip`.
class Uses {
 public:
  Uses(const Document& document, const std::unordered_set<Id>& skip)
      : document_(document), seen_(skip) {}

  // The first global that is not harmless; "" if all are.
  std::string find(Id root) {
    walk(root, true);
    return found_;
  }
  void find_all(Id root) { walk(root, false); }
  bool reached(Id id) const { return seen_.contains(id); }

 private:
  void walk(Id root, bool first) {
    std::vector<Id> pending{root};
    while (!pending.empty() && !(first && !found_.empty())) {
      const Id id = pending.back();
      pending.pop_back();
      if (id == kNoId || !seen_.insert(id).second) continue;
      look(id, pending);
    }
  }

  void look(Id id, std::vector<Id>& pending) {
    const Type type = document_.type(id);
    if (type == Type::kGlobal) return used(id, pickle::kImport | pickle::kKept);
    if (type != Type::kCall) {
      if (type < Type::kList) return;
      const auto items = document_.items(id);
      pending.insert(pending.end(), items.begin(), items.end());
      return;
    }
    const pickle::Call call = document_.call(id);
    uint16_t how = pickle::kReduce;
    if (call.how == pickle::How::kInst) how = pickle::kInst;
    if (call.how == pickle::How::kNewObj || call.how == pickle::How::kNewObjEx)
      how = pickle::kNewObj;
    if (call.state != kNoId || document_.is_record(id)) how |= pickle::kBuild;
    used(call.callable, how);
    if (!look_into(call, pending)) pending.push_back(call.args);
    for (const Id part : {call.kwargs, call.state}) pending.push_back(part);
    pending.insert(pending.end(), call.items.begin(), call.items.end());
    pending.insert(pending.end(), call.pairs.begin(), call.pairs.end());
    if (document_.is_record(id)) {
      const auto values = document_.record(id).values;
      pending.insert(pending.end(), values.begin(), values.end());
    }
  }

  // Handles the arguments of functions that call them, as
  // lib/pickle/trace_calls.cc does; false if they are ordinary values.
  bool look_into(const pickle::Call& call, std::vector<Id>& pending) {
    if (!document_.is(call.callable, Type::kGlobal) ||
        !document_.is(call.args, Type::kTuple))
      return false;
    const auto args = document_.items(call.args);
    const std::string_view module = document_.module(call.callable);
    const std::string_view name = document_.text(call.callable);
    std::vector<uint16_t> uses;
    if (module == "copyreg")
      uses = {pickle::kNewObj,
              name == "_reconstructor" ? pickle::kArgument : pickle::kKept};
    else if (name.starts_with("_rebuild_from_type"))
      uses = {pickle::kArgument};
    else if (module == "numpy.random._pickle")
      uses = {pickle::kArgument, pickle::kArgument};
    for (size_t i = 0; i < args.size(); ++i) {
      if (i < uses.size() && document_.is(args[i], Type::kGlobal))
        used(args[i], uses[i]);
      else
        pending.push_back(args[i]);
    }
    return true;
  }

  void used(Id callable, uint16_t how) {
    pickle::Mention mention;
    mention.uses = how;
    if (document_.is(callable, Type::kGlobal)) {
      mention.module = document_.module(callable);
      mention.name = document_.text(callable);
      if (is_harmless(mention)) return;
      found_ = mention.module + "." + mention.name;
      return;
    }
    // getattr(Outer, "inner"): a nested class.
    const std::string nested = nested_name(callable, mention);
    if (!nested.empty() && is_harmless(mention)) return;
    found_ = nested.empty() ? "what a call returns" : nested;
  }

  std::string nested_name(Id callable, pickle::Mention& mention) const {
    if (!document_.is_call(callable, "builtins", "getattr")) return {};
    const auto args = document_.items(document_.call(callable).args);
    if (args.size() != 2 || !document_.is(args[0], Type::kGlobal) ||
        !document_.is(args[1], Type::kString))
      return {};
    mention.module = document_.module(args[0]);
    mention.name = std::string(document_.text(args[0])) + "." +
                   std::string(document_.text(args[1]));
    return mention.module + "." + mention.name;
  }

  const Document& document_;
  std::unordered_set<Id> seen_;
  std::string found_;
};

void warn(std::vector<Problem>& problems, std::string file, std::string name,
          const std::string& global) {
  problems.push_back(warning("unknown_global",
                             {std::move(file), std::move(name)},
                             "is left out: loading it elsewhere would run {} "
                             "(--keep-unknown-globals keeps it)",
                             text::printable(global)));
}

// The first global that is not harmless. What a loader has to be told to run
// comes with the model and is carried.
const Global* worst(const FileScan& scan) {
  const auto found = std::ranges::find_if(
      scan.globals,
      [](const Global& global) { return !global.harmless && !global.asked; });
  return found == scan.globals.end() ? nullptr : &*found;
}

void refuse(const FileScan& scan, const std::string& path) {
  const Global* global = worst(scan);
  if (!global) return;
  throw unsafe_error({path, {}}, "loading it elsewhere would run {}",
                     text::printable(describe(*global)))
      .with_hint(std::string(kHint));
}

void check_literals(const TargetFile& file) {
  Scanner scanner(file.path);
  for (const Literal& literal : file.literals) {
    const io::Handle bytes = io::Handle::of_memory(literal.bytes, file.path);
    scanner.fragment(bytes, literal.offset == 0);
  }
  refuse(scanner.take(), file.path);
}

void check_carried(const Catalog& source, const TargetFile& file) {
  Scanner scanner(file.path);
  std::string path;
  std::optional<io::Handle> from;
  for (const CarriedRange& range : file.carried) {
    const File& holder = source.files.at(range.source_file);
    if (!from || path != holder.path)
      from.emplace(io::Handle::open_read(path = holder.path));
    scanner.part(from->slice(range.source_offset, range.size),
                 {.pickle = true});
  }
  refuse(scanner.take(), file.path);
}

}  // namespace

void leave_out_unknown(Catalog& source) {
  std::unordered_set<Id> gone;  // in the skeleton's document
  const Document* skeleton =
      source.skeleton ? source.skeleton->document.get() : nullptr;
  std::erase_if(source.objects, [&](const Object& object) {
    if (!object.document) return false;
    Uses uses(*object.document, {});
    const std::string global = uses.find(object.node);
    if (global.empty()) return false;
    warn(source.problems, source.path, object.name, global);
    if (object.document.get() == skeleton) gone.insert(object.node);
    return true;
  });
  if (!skeleton) return;
  // An object that goes but holds tensors takes the nesting along.
  for (auto at = gone.begin(); at != gone.end();) {
    Uses uses(*skeleton, {});
    uses.find_all(*at);
    const bool holds = std::ranges::any_of(
        source.skeleton->tensors,
        [&](const auto& tensor) { return uses.reached(tensor.first); });
    at = holds ? gone.erase(at) : std::next(at);
  }
  Uses uses(*skeleton, gone);
  const std::string global = uses.find(source.skeleton->root);
  if (global.empty()) return;
  warn(source.problems, source.path, "the nesting of tensors", global);
  source.skeleton.reset();
}

void check_unknown(const Catalog& source, Target& target) {
  std::vector<std::string> paths;
  for (const TargetFile& file : target.files)
    if (!file.copy_of.empty()) paths.push_back(file.copy_of);
  const std::vector<FileScan> scans = scan_files(paths);
  size_t next = 0;
  std::erase_if(target.files, [&](const TargetFile& file) {
    if (file.copy_of.empty()) return false;
    const FileScan& scan = scans[next++];
    if (const Global* global = worst(scan)) {
      warn(target.problems, file.copy_of, {}, describe(*global));
      return true;
    }
    // verify would call the target damaged because of it.
    if (scan.verdict != Verdict::kUnreadable) return false;
    target.problems.push_back(
        warning("unreadable_pickle", {file.copy_of, {}},
                "is left out: {}; what loading it would run is not known "
                "(--keep-unknown-globals keeps it)",
                text::printable(scan.problem)));
    return true;
  });
  for (const TargetFile& file : target.files) {
    check_literals(file);
    check_carried(source, file);
  }
}

}  // namespace ckpt::scan

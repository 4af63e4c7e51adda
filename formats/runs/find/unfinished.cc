// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/unfinished.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "containers/foreign.h"
#include "formats/runs/find/file_names.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

constexpr std::string_view kLinkFile = ".symlink";

// The file that says what a link would: NAME.txt on systems without links, or
// NAME.symlink in object stores. Who wrote that one follows it if NAME itself
// is not there.
std::string link_file(const std::string& path) {
  if (!path.ends_with(kLinkFile)) return path + ".txt";
  struct stat facts;
  const std::string link = path.substr(0, path.size() - kLinkFile.size());
  return io::is_link(link) || io::stat_any(link, facts) ? "" : path;
}

// What a link says, or the file in its place.
std::string pointer_text(const std::string& path) {
  constexpr uint64_t kMostText = 4096;
  if (io::is_link(path)) {
    std::error_code failed;
    std::string text = std::filesystem::read_symlink(path, failed).string();
    // Without it, another step would be the newest.
    if (failed) throw io_error(path, "cannot read the link", failed.value());
    return text;
  }
  const std::string file = link_file(path);
  if (file.empty() || io::is_link(file) || !io::is_file(file)) return {};
  std::string text = io::read_file(file, kMostText);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r'))
    text.pop_back();
  return text;
}

// The step that the root's link of the newest one leads to, if it is one and
// finished: the trainer takes the numbers otherwise.
std::optional<uint64_t> pointed_step(const Trainer& trainer,
                                     const std::string& root) {
  if (trainer.pointer.empty()) return std::nullopt;
  std::string text = pointer_text(io::join(root, trainer.pointer));
  while (text.ends_with('/')) text.pop_back();
  const std::string name = io::base_name(text);
  const std::string step = io::join(root, name);
  // Links to elsewhere are of no use here: the root's steps are listed.
  if (name.empty() || !unfinished_mark(trainer, step).empty())
    return std::nullopt;
  for (const std::string& pattern : trainer.steps)
    if (const auto numbers = match(pattern, name);
        numbers && step_at(trainer, step))
      return age_of(*numbers);
  return std::nullopt;
}

}  // namespace

std::vector<Candidate> drafts(const Trainer& trainer, const std::string& root) {
  std::vector<Candidate> found;
  for (const std::string& pattern : trainer.drafts)
    for (const Name& name : names_like(root, pattern + "/"))
      found.push_back({io::join(root, name.path), age_of(name.numbers), false});
  std::ranges::sort(found, std::ranges::greater(), &Candidate::number);
  return found;
}

std::vector<Candidate> packed_steps(const Trainer& trainer,
                                    const std::string& root) {
  std::vector<Candidate> found;
  if (trainer.pickled.sign.empty()) return found;
  for (const std::string& pattern : trainer.steps) {
    // "…rank0.pt.gz", "…rank0.tar.gz"
    const std::string stem = pattern.substr(0, pattern.rfind('.'));
    for (const Name& name : names_like(root, stem + ".{*}")) {
      if (match(pattern, name.path)) continue;
      const std::string path = io::join(root, name.path);
      struct stat facts;
      if (!io::stat_any(path, facts) || !S_ISREG(facts.st_mode)) continue;
      const auto foreign = formats::recognise_file(path);
      if (foreign && foreign->packed)
        found.push_back({path, age_of(name.numbers), false});
    }
  }
  std::ranges::sort(found, std::ranges::greater(), &Candidate::number);
  return found;
}

std::optional<uint64_t> newest_by_name(const Trainer& trainer,
                                       const std::string& root) {
  return trainer.tracker.empty() ? pointed_step(trainer, root)
                                 : tracked_step(trainer, root);
}

std::string why_unfinished(const Trainer& trainer, const std::string& step) {
  if (const std::string mark = unfinished_mark(trainer, step); !mark.empty())
    return fmt::format("{} is there, which {} removes at the end",
                       text::printable(io::base_name(mark)), trainer.what);
  const std::string name = io::base_name(step);
  for (const std::string& pattern : trainer.drafts)
    if (match(pattern, name))
      return fmt::format("{} renames it at the end", trainer.what);
  if (step_at(trainer, step)) return {};
  const std::string missing = lacks(trainer, step);
  return missing.empty() ? "" : "no " + as_glob(missing);
}

}  // namespace ckpt::runs

// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/unfinished.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "formats/runs/file_names.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

// What a link says, or the file NAME.txt of systems without links.
std::string pointer_text(const std::string& path) {
  constexpr uint64_t kMostText = 4096;
  if (io::is_link(path)) {
    std::error_code failed;
    std::string text = std::filesystem::read_symlink(path, failed).string();
    // Without it, another step would be the newest.
    if (failed) throw io_error(path, "cannot read the link", failed.value());
    return text;
  }
  const std::string file = path + ".txt";
  if (io::is_link(file) || !io::is_file(file)) return {};
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
  if (name.empty() || !io::is_directory(step) ||
      !unfinished_mark(trainer, step).empty())
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

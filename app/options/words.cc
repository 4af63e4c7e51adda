// SPDX-License-Identifier: Apache-2.0
#include "app/options/words.h"

#include <algorithm>
#include <array>
#include <span>

#include "api/places.h"
#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 20;  // in a file of words

struct Guess {
  std::string_view words;    // with a space on both sides of each
  std::string_view command;  // or option
};

constexpr auto kGuesses = std::to_array<Guess>({
    {" info describe stat summary summarize open tensors metadata meta look "
     "read size du ",
     "ckpt inspect PATH"},
    {" list dir keys names ll ls-l ", "ckpt ls PATH"},
    {" tree ", "ckpt inspect PATH --tree"},
    {" stats statistics histogram ", "ckpt inspect PATH --stats"},
    {" cat print dump head get value values ", "ckpt show PATH NAME"},
    {" download pull clone wget curl ", "ckpt fetch URL DST"},
    {" serve browse web gui ui html explore ", "ckpt view PATH"},
    {" hash sha256 sha256sum md5sum digest checksum fingerprint ",
     "ckpt inspect PATH --digest"},
    {" average mean ema soup ties slerp mergekit ", "ckpt merge SRC... DST"},
    {" check validate fsck test integrity valid ", "ckpt verify PATH"},
    {" compare cmp same equal ", "ckpt diff A B"},
    {" consolidate join gather export combine flatten zero_to_fp32 ",
     "ckpt unshard SRC DST"},
    {" split shard repartition rescale ", "ckpt reshard SRC DST --tp N"},
    {" cp copy save cast transform translate export-hf to quantize ",
     "ckpt convert SRC DST --to FORMAT"},
    {" repair recover rescue restore fix ", "ckpt salvage SRC DST"},
    {" env system status ", "ckpt doctor"},
    {" picklescan security audit ", "ckpt scan PATH"},
});

constexpr auto kOptionGuesses = std::to_array<Guess>({
    {" --tensor-model-parallel-size --tensor-parallel-size --tensor-parallel "
     "--target-tensor-parallel-size --target-tp --tp-size --tp_size ",
     "--tp"},
    {" --pipeline-model-parallel-size --pipeline-parallel-size --target-pp "
     "--target-pipeline-parallel-size --pp-size --pp_size ",
     "--pp"},
    {" --data-parallel-size --world-size --fsdp --dp-size --dp_size ", "--dp"},
    {" --expert-model-parallel-size --expert-parallel-size --ep-size "
     "--ep_size ",
     "--ep"},
    {" --format --output-format --out-format --target-format --dst-format "
     "--saver --type ",
     "--to"},
    {" --input-format --source-format --src-format --loader ", "--from"},
    {" --force --yes -f -y --replace --clobber ", "--overwrite"},
    {" --precision --torch-dtype --torch_dtype --bf16 --fp16 --fp32 --half "
     "--cast --out-dtype ",
     "--dtype"},
    {" --jobs --workers --num-threads --num-workers --nproc --cores "
     "--parallel ",
     "--threads"},
    {" --memory --max-memory --mem --ram --memory-limit ", "--max-mem"},
    {" --filter --include --pattern --select --only --tensors --name --grep ",
     "--keys"},
    {" --ignore --skip --without ", "--exclude"},
    {" --simulate --plan --what-if --no-write --dryrun ", "--dry-run"},
    {" --silent ", "--quiet"},
    {" --continue --restart ", "--resume"},
    {" --shard-size --max_shard_size --split-size ", "--max-shard-size"},
    {" --check --validate ", "--verify"},
    {" --hash --checksum --sha256 --digests ", "--digest"},
    {" --no-optimizer --weights-only --no-optim --model ", "--model-only"},
    {" --statistics --summary ", "--stats"},
    {" --gpu --cuda ", "--device"},
    {" --bwlimit --rate-limit --limit-rate ", "--max-rate"},
});

std::string_view meant(std::string_view word, std::span<const Guess> guesses) {
  const std::string spaced = " " + std::string(word) + " ";
  for (const Guess& guess : guesses)
    if (guess.words.find(spaced) != guess.words.npos) return guess.command;
  return {};
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& words) {
  std::vector<std::string> all;
  for (const std::string& word : words) {
    if (word.size() < 2 || word[0] != '@') {
      all.push_back(word);
      continue;
    }
    const std::string path = word.substr(1);
    if (!io::is_file(path))
      throw missing_error({path, {}}, "no such file of arguments")
          .with_hint(
              "@FILE has one argument a line; a path that begins with "
              "@: ./" +
              text::printable(word));
    const io::Handle file = io::Handle::open_read(path);
    if (file.size() > kMostBytes)
      throw usage_error({path, {}}, "{} bytes of arguments, at most {}",
                        file.size(), kMostBytes);
    std::string lines = file.read_string(0, file.size());
    std::erase(lines, '\r');
    for (size_t at = 0; at < lines.size();) {
      const size_t end = std::min(lines.find('\n', at), lines.size());
      if (end > at && lines[at] != '#')
        all.push_back(lines.substr(at, end - at));
      at = end + 1;
    }
  }
  return all;
}

void resolve_urls(std::vector<std::string>& words) {
  bool first = true;  // the first argument: what to open
  for (std::string& word : words) {
    const bool opened = first;
    first = first && word.starts_with('-');
    try {
      word = library::resolve_place(word);
    } catch (const Error& error) {
      if (opened) throw;
      // A target need not exist: the word itself is wrong.
      throw Error(ExitCode::kUsage, error.where(), error.problem(),
                  error.hint());
    }
  }
}

void check_dashes(const std::vector<std::string>& words,
                  const std::vector<std::string>& names) {
  for (const std::string& word : words) {
    if (word.size() < 3 || word[0] != '-' || word[1] == '-') continue;
    const std::string name = word.substr(1, word.find('=') - 1);
    if (name.size() > 1 && std::ranges::find(names, name) != names.end())
      throw usage_error({}, "unknown option {}", text::printable(word))
          .with_hint("did you mean --" + name + "?");
  }
}

std::string_view meant_command(std::string_view word) {
  return meant(word, kGuesses);
}

std::string_view meant_option(std::string_view word) {
  return meant(word, kOptionGuesses);
}

bool is_path_option(std::string_view word) {
  constexpr Guess kPaths[] = {
      {" --src --source --input --in --input-dir --path --load --load-dir "
       "--model-path --dst --dest --target --destination --output --out "
       "--output-dir --out-dir --save --save-dir --outfile -i ",
       "path"}};
  return !meant(word, kPaths).empty();
}

}  // namespace ckpt::app

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

// The first of a word's whose command there is.
constexpr auto kGuesses = std::to_array<Guess>({
    {" info describe stat summary summarize open tensors metadata meta look "
     "read size du count params parameters headers ",
     "ckpt inspect PATH"},
    {" list dir keys names ll ls-l steps ", "ckpt ls PATH"},
    {" grep search find ", "ckpt ls PATH -e REGEX"},
    {" tree ", "ckpt inspect PATH --tree"},
    {" stats statistics histogram norm norms nan nans quantiles ",
     "ckpt inspect PATH --stats"},
    {" svd spectrum spectral singular ", "ckpt inspect PATH --spectral"},
    {" plot chart ", "ckpt inspect PATH --plot FILE.svg"},
    {" cat print dump head tail get value values ", "ckpt show PATH NAME"},
    {" download pull clone wget curl ", "ckpt fetch URL DST"},
    {" serve browse web gui ui html explore ", "ckpt view PATH"},
    {" hash sha256 sha256sum md5sum digest checksum fingerprint ",
     "ckpt inspect PATH --digest"},
    {" check validate fsck test integrity valid ", "ckpt verify PATH"},
    {" compare cmp same equal ", "ckpt diff A B"},
    {" average avg mean ema soup slerp ties blend merge-models mergekit ",
     "ckpt merge SRC... DST"},
    {" merge consolidate join gather combine flatten zero_to_fp32 ",
     "ckpt unshard SRC DST"},
    {" split shard repartition rescale ", "ckpt reshard SRC DST --tp N"},
    {" rename prefix strip-prefix ",
     "ckpt convert SRC DST --rename 'old.=new.'"},
    {" merge-lora merge_lora lora adapter apply-lora fuse ",
     "ckpt convert BASE DST --adapter DIR"},
    {" extract-lora extract_lora ",
     "ckpt diff BASE TUNED --write LORA --as-lora RANK"},
    {" delta subtract ", "ckpt diff A B --write DELTA"},
    {" tie untie ", "ckpt convert SRC DST --to hf --tie, or --untie"},
    {" extract select filter slice subset take ",
     "ckpt convert SRC DST --keys GLOB"},
    {" strip drop-optimizer model-only ", "ckpt convert SRC DST --model-only"},
    {" gguf to-gguf convert_hf_to_gguf ", "ckpt convert SRC DST.gguf"},
    {" quantize quantise quant fp8 ",
     "ckpt convert SRC DST --to FORMAT --quantize KIND"},
    {" dequantize dequant ", "ckpt convert SRC DST --to FORMAT --dtype bf16"},
    {" export to-hf tohf hf huggingface ", "ckpt convert SRC DST --to hf"},
    {" upgrade migrate ", "ckpt convert SRC DST --to FORMAT"},
    {" cp copy save cast transform translate export-hf to pad resize ",
     "ckpt convert SRC DST --to FORMAT"},
    {" plan dry-run preview estimate simulate ",
     "ckpt convert SRC DST --to FORMAT --dry-run"},
    {" push upload publish ",
     "ckpt convert SRC s3://BUCKET/PATH --to FORMAT, or to the hub: "
     "hf upload ORG/NAME DIR"},
    {" rsync mirror backup ", "ckpt sync SRC DST"},
    {" clean cleanup gc rotate retain retention rm remove delete ",
     "ckpt prune ROOT --keep-last N"},
    {" set sed modify change patch ", "ckpt edit PATH"},
    {" monitor follow poll on-save ", "ckpt watch ROOT --do CMD"},
    {" watch monitor follow poll ", "ckpt wait PATH"},
    {" seal sign manifest ", "ckpt verify PATH --seal"},
    {" example sample tiny toy tutorial quickstart init new ", "ckpt demo DIR"},
    {" formats format types ls-formats list-formats ", "ckpt --help"},
    {" families architectures models ", "ckpt family list"},
    {" load import ", "ckpt inspect PATH"},
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
    {" --statistics --summary --quantiles --histogram ", "--stats"},
    {" --svd --spectrum --effective-rank ", "--spectral"},
    {" --gpu --cuda ", "--device"},
    {" --bwlimit --rate-limit --limit-rate ", "--max-rate"},
});

bool means(const Guess& guess, std::string_view word) {
  return guess.words.find(" " + std::string(word) + " ") != guess.words.npos;
}

std::string_view meant(std::string_view word, std::span<const Guess> guesses) {
  for (const Guess& guess : guesses)
    if (means(guess, word)) return guess.command;
  return {};
}

// "ckpt ls PATH" -> "ls"
std::string_view command_of(std::string_view line) {
  line.remove_prefix(line.find(' ') + 1);
  return line.substr(0, line.find(' '));
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

std::string_view meant_command(std::string_view word,
                               const std::vector<std::string>& commands) {
  for (const Guess& guess : kGuesses) {
    const std::string_view command = command_of(guess.command);
    if (means(guess, word) &&
        (command.starts_with('-') ||
         std::ranges::find(commands, command) != commands.end()))
      return guess.command;
  }
  return {};
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

bool is_step_option(std::string_view word) {
  constexpr Guess kSteps[] = {
      {" --step --steps --iteration --iter --ckpt-step --global-step --epoch ",
       "path"}};
  return !meant(word, kSteps).empty();
}

}  // namespace ckpt::app

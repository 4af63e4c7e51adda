// SPDX-License-Identifier: Apache-2.0
#include "app/options/words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

#include "app/options/target_name.h"
#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/upload.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 20;  // in a file of words

// "https" of "https://…"; "" if the word is not a URL.
std::string_view scheme_of(std::string_view word) {
  const size_t at = word.find("://");
  if (at == word.npos || at == 0) return {};
  const std::string_view scheme = word.substr(0, at);
  const bool name = std::ranges::all_of(scheme, [](unsigned char c) {
    return std::isalnum(c) || c == '+' || c == '-' || c == '.';
  });
  return name && std::isalpha(static_cast<unsigned char>(scheme[0]))
             ? scheme
             : std::string_view{};
}

struct Fetch {
  std::string_view scheme;
  std::string_view hint;
};

constexpr auto kFetches = std::to_array<Fetch>({
    {"abfss", "az://CONTAINER/PATH, with AZURE_STORAGE_ACCOUNT set"},
    {"abfs", "az://CONTAINER/PATH, with AZURE_STORAGE_ACCOUNT set"},
    {"ftp", "download it first: curl -LO URL"},
});

// Decodes "%20" and the like in a file URL; nothing for a malformed one.
std::string unescaped(const std::string& url, std::string_view text) {
  const auto digit = [&](char c) {
    const auto lower = static_cast<char>(std::tolower(c));
    if (lower >= '0' && lower <= '9') return lower - '0';
    if (lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
    throw usage_error({}, "'{}': not a valid file URL", text::printable(url));
  };
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      path += text[i];
      continue;
    }
    if (i + 2 >= text.size())
      throw usage_error({}, "'{}': not a valid file URL", text::printable(url));
    path += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  if (path.find('\0') != path.npos)
    throw usage_error({}, "'{}': not a valid file URL", text::printable(url));
  return path;
}

std::string path_of_url(const std::string& url) {
  std::string_view rest = std::string_view(url).substr(7);  // "file://"
  constexpr std::string_view kHere = "localhost";
  if (rest.starts_with(kHere)) rest.remove_prefix(kHere.size());
  if (!rest.starts_with('/'))
    throw usage_error({}, "'{}': a file URL of another host",
                      text::printable(url))
        .with_hint("file:///PATH, or just the path");
  return unescaped(url, rest);
}

// The parts after "scheme://", without a query.
std::vector<std::string> url_parts(const std::string& url) {
  std::vector<std::string> parts;
  std::string rest = url.substr(url.find("://") + 3);
  rest.resize(std::min(rest.find_first_of("?#"), rest.size()));
  for (size_t at = 0; at < rest.size();) {
    const size_t end = std::min(rest.find('/', at), rest.size());
    if (end > at) parts.push_back(rest.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Refuses URLs that nobody could open: half of one, or a web page.
void check_url(const std::string& url) {
  const std::vector<std::string> parts = url_parts(url);
  const std::string shown = text::printable(url);
  if (url.starts_with("hf://") && parts.size() < 2)
    throw missing_error({shown, {}}, "not a whole URL")
        .with_hint("hf://ORG/NAME, hf://ORG/NAME@REVISION");
  if (parts.empty() && !url.starts_with("file://"))
    throw missing_error({shown, {}}, "not a whole URL")
        .with_hint(
            "as in https://HOST/PATH, s3://BUCKET/PATH, gs://BUCKET/PATH");
  const bool hub = parts.size() > 2 && (parts[0] == "huggingface.co" ||
                                        parts[0] == "www.huggingface.co");
  if (!hub || parts[1] == "datasets" || parts[1] == "spaces") return;
  const bool page = parts.size() == 3 || parts[3] == "tree" ||
                    parts[3] == "blob" || parts[3] == "commit";
  if (page && url.starts_with("http"))
    throw missing_error({shown, {}}, "a page to look at, not a checkpoint")
        .with_hint("hf://" + text::printable(parts[1] + "/" + parts[2]));
}

struct Ending {
  std::string_view suffix;
  std::string_view what;
  std::string_view hint;
};

constexpr std::string_view kOthers =
    "ckpt writes .safetensors, .pt, .pth, .bin, and directories; "
    "`ckpt --help` lists the formats";
constexpr std::string_view kGguf =
    "write safetensors; llama.cpp's convert_hf_to_gguf.py makes GGUF of it";
constexpr std::string_view kPack = "write a directory and pack it afterwards";

constexpr auto kEndings = std::to_array<Ending>({
    {".gguf", "GGUF", kGguf},
    {".ggml", "GGML", kGguf},
    {".npz", "NumPy archives", kOthers},
    {".npy", "NumPy arrays", kOthers},
    {".onnx", "ONNX", "write safetensors; optimum-cli export onnx makes ONNX"},
    {".h5", "HDF5", kOthers},
    {".hdf5", "HDF5", kOthers},
    {".keras", "Keras files", kOthers},
    {".msgpack", "Flax files", kOthers},
    {".tflite", "TFLite", kOthers},
    {".pb", "TensorFlow graphs", kOthers},
    {".mlmodel", "Core ML", kOthers},
    {".engine", "TensorRT engines", kOthers},
    {".nemo", "NeMo archives", kPack},
    {".tar", "archives", kPack},
    {".tar.gz", "archives", kPack},
    {".tgz", "archives", kPack},
    {".zip", "archives", kPack},
    {".gz", "compressed files", kPack},
    {".zst", "compressed files", kPack},
    {".pkl", "plain pickles", "a torch file: name it .pt"},
    {".pickle", "plain pickles", "a torch file: name it .pt"},
    {".safetensors.index.json", "an index alone",
     "a directory has its own: --to safetensors"},
    {".json", "JSON", kOthers},
    {".safetensor", "files of this ending", "did you mean .safetensors?"},
    {".distcp", "single .distcp files", "a directory: --to dcp"},
    {".zarr", "single zarr arrays", "a directory: --to megatron_zarr"},
});

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
    {" check validate fsck test integrity valid ", "ckpt verify PATH"},
    {" compare cmp same equal ", "ckpt diff A B"},
    {" merge consolidate join gather export combine flatten zero_to_fp32 ",
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
    const std::string_view scheme = scheme_of(word);
    if (scheme.empty()) continue;
    try {
      check_url(word);
    } catch (const Error& error) {
      if (opened) throw;
      // A target need not exist: the word itself is wrong.
      throw Error(ExitCode::kUsage, error.where(), error.problem(),
                  error.hint());
    }
    if (io::is_url(word)) continue;
    if (scheme == "file") {
      word = path_of_url(word);
      continue;
    }
    const std::string meant = text::nearest(
        scheme, {"https", "http", "hf", "s3", "gs", "az", "file"});
    const auto fetch = std::ranges::find(kFetches, scheme, &Fetch::scheme);
    if (fetch == kFetches.end() && !meant.empty())
      throw usage_error({text::printable(word), {}},
                        "{}:// is not a scheme that ckpt knows", scheme)
          .with_hint("did you mean " + meant + "://" +
                     text::printable(word.substr(scheme.size() + 3)) + "?");
    throw usage_error({text::printable(word), {}},
                      "{}:// URLs are not supported yet", scheme)
        .with_hint(fetch == kFetches.end()
                       ? "copy the files to a file system first"
                       : std::string(fetch->hint));
  }
}

void check_dashes(const std::vector<std::string>& words,
                  const std::vector<std::string>& names) {
  for (const std::string& word : words) {
    if (word.size() < 3 || word[0] != '-' || word[1] == '-') continue;
    const std::string name = word.substr(1, word.find('=') - 1);
    if (name.size() > 1 && std::ranges::find(names, name) != names.end())
      throw usage_error({}, "{}: an option of one dash", text::printable(word))
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

void check_target_name(const std::string& target) {
  if (target == "-" || target == "/dev/stdout" || target == "/dev/stderr" ||
      target.starts_with("/dev/fd/") || target.starts_with("/proc/self/fd/"))
    throw usage_error({target, {}}, "a checkpoint can't be written to a pipe")
        .with_hint(
            "its parts are written in any order: give a file or directory" +
            std::string(target == "-" ? " (one named -: ./-)" : ""));
  if (target.starts_with("/dev/") && !target.starts_with("/dev/shm/"))
    throw usage_error({target, {}}, "a device, not a place for a checkpoint")
        .with_hint("-n (--dry-run) writes nothing and checks all the same");
  if (io::is_url(target) && !io::is_target_url(target))
    throw usage_error({target, {}}, "can be read, not written")
        .with_hint(
            "targets are paths, s3:// and gs://; for others write to a "
            "directory first, then copy that: hf upload, azcopy, rclone copy");
  if (target.empty() || target.ends_with('/')) return;
  std::string lower;
  for (const char c : target)
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (file_format(lower) != file_format(target))
    throw usage_error({target, {}}, "endings are lower case")
        .with_hint(target.substr(0, target.rfind('.')) +
                   lower.substr(lower.rfind('.')));
  for (const Ending& ending : kEndings)
    if (lower.ends_with(ending.suffix))
      throw usage_error({target, {}}, "ckpt does not write {}", ending.what)
          .with_hint(std::string(ending.hint) +
                     "; a trailing slash makes any name a directory");
}

}  // namespace ckpt::app

// SPDX-License-Identifier: Apache-2.0
#include "app/options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <map>

#include "api/edit/blocks.h"
#include "api/edit/experts.h"
#include "api/edit/layers.h"
#include "app/options/ranks.h"
#include "app/options/rate.h"
#include "app/options/read_paths.h"
#include "ckpt/error.h"
#include "ckpt/format.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/suggest.h"
#include "lib/text/words.h"
#include "lib/tree_memory.h"

namespace ckpt::app {

void check_note(const std::string& path, const std::string& option) {
  if (io::is_url(path))
    throw usage_error({path, {}}, "{} writes a file of this machine", option)
        .with_hint("write it here, then copy it there");
}
namespace {

constexpr uint32_t kMostThreads = 4096;
constexpr uint64_t kLeastMemory = uint64_t{16} << 20;

// One of a few words, with "did you mean".
template <class T>
T choice(const std::string& option, const std::string& text,
         const std::map<std::string, T>& values) {
  const auto found = values.find(text);
  if (found != values.end()) return found->second;
  std::vector<std::string> words;
  words.reserve(values.size());
  for (const auto& [word, value] : values) words.push_back(word);
  const std::string near = text::nearest(text, words);
  throw usage_error({}, "{} '{}': expected {}", option, text,
                    fmt::join(words, ", "))
      .with_hint(near.empty() ? "" : "did you mean " + near + "?");
}

When when_of(const std::string& option, const std::string& text) {
  return choice<When>(option, text,
                      {{"auto", When::kAuto},
                       {"always", When::kAlways},
                       {"never", When::kNever}});
}

// "FP16", "torch.bfloat16", "half" …: spellings of frameworks and their
// options. Plain fp8 is e4m3 everywhere.
std::string dtype_alias(std::string text) {
  text = text::lower(text);
  if (text.starts_with("torch.")) text.erase(0, 6);
  static const std::map<std::string, std::string> names = {
      {"double", "f64"},   {"fp64", "f64"},         {"float64", "f64"},
      {"float", "f32"},    {"fp32", "f32"},         {"float32", "f32"},
      {"single", "f32"},   {"half", "f16"},         {"fp16", "f16"},
      {"float16", "f16"},  {"bfloat16", "bf16"},    {"bfloat", "bf16"},
      {"fp8", "f8_e4m3"},  {"f8", "f8_e4m3"},       {"float8", "f8_e4m3"},
      {"e4m3", "f8_e4m3"}, {"fp8_e4m3", "f8_e4m3"}, {"e4m3fn", "f8_e4m3"},
      {"e5m2", "f8_e5m2"}, {"fp8_e5m2", "f8_e5m2"}, {"fp8_e4m3fn", "f8_e4m3"}};
  const auto found = names.find(text);
  return found == names.end() ? text : found->second;
}

// Eight bits hold a weight beside a scale, and --dtype makes none.
bool has_eight_bits(std::string_view word) {
  return word.starts_with("f8_") || word.find("fp8") != word.npos ||
         word.find("float8") != word.npos;
}

}  // namespace

DType cast_type(const std::string& text) {
  const std::map<std::string, DType> values = {{"f64", DType::f64},
                                               {"f32", DType::f32},
                                               {"f16", DType::f16},
                                               {"bf16", DType::bf16}};
  const std::string word = dtype_alias(text);
  const auto found = values.find(word);
  if (found != values.end()) return found->second;
  if (has_eight_bits(word))
    throw usage_error({},
                      "--dtype '{}': a cast without scales, which makes zeros "
                      "of the small weights",
                      text)
        .with_hint(
            "--quantize fp8-block, without --dtype, makes f8_e4m3 codes and "
            "their scales");
  // What is meant by these is a quantizer's work, not a misspelt type.
  const bool quantized = text.find("int") != text.npos ||
                         text.find('4') != text.npos || text.starts_with('i') ||
                         text.starts_with('q');
  if (quantized && word.find("64") == word.npos)
    throw usage_error({}, "--dtype '{}': expected bf16, f16, f32, f64", text)
        .with_hint(
            "ckpt casts and dequantizes; scales of a quantized model come from "
            "a quantizer (llm-compressor, TorchAO, ModelOpt)");
  return choice<DType>("--dtype", text, values);
}

namespace {

// An option whose value is passed to `take` as soon as it is parsed.
CLI::Option* valued(CLI::App& app, const std::string& names,
                    const std::string& type, const std::string& help,
                    const std::function<void(const std::string&)>& take) {
  return app.add_option_function<std::string>(names, take, help)
      ->type_name(type);
}

void add_list(CLI::App& app, const std::string& name,
              std::vector<std::string>& list, const std::string& help) {
  app.add_option(name, list, help)
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->group("Selection");
}

}  // namespace

uint64_t size_value(const std::string& option, const std::string& text) {
  try {
    return text::parse_size(text);
  } catch (const Error& error) {
    throw Error(error.code(), {}, option + ": " + error.problem(),
                error.hint());
  }
}

void add_output_options(CLI::App& app, OutputOptions& options) {
  const std::string group = "Output";
  app.add_flag("--json", options.json, "One JSON document on stdout")
      ->group(group);
  app.add_flag_callback(
         "--ndjson", [&] { options.json = options.ndjson = true; },
         "The same by lines: one for each element of its lists")
      ->group(group);
  app.add_flag_function(
         "-v,--verbose",
         [&](int64_t count) {
           options.verbosity = static_cast<int>(std::min<int64_t>(count, 2));
         },
         "Say what was chosen and why; -vv: each problem")
      ->group(group);
  app.add_flag_function(
         "-q,--quiet", [&](int64_t) { options.verbosity = -1; }, "Errors only")
      ->group(group)
      ->excludes("--verbose");
  valued(app, "--color", "WHEN", "auto, always or never",
         [&](const std::string& s) { options.color = when_of("--color", s); })
      ->group(group);
  valued(app, "--progress", "WHEN",
         "auto (a bar, or in a log a line each minute), always, never, json",
         [&](const std::string& s) {
           options.progress_json = s == "json";
           options.progress = choice<When>("--progress", s,
                                           {{"auto", When::kAuto},
                                            {"always", When::kAlways},
                                            {"never", When::kNever},
                                            {"json", When::kAlways}});
         })
      ->group(group);
}

void add_source_options(CLI::App& app, SourceOptions& options) {
  const std::string group = "Source";
  app.add_option("--from", options.from,
                 "Format of the source, instead of detecting it")
      ->type_name("FORMAT")
      ->group(group);
  app.add_option("--family", options.read.family,
                 "Model family, where the files don't say: llama, qwen ...")
      ->type_name("NAME")
      ->group(group);
  names_file(
      app.add_option("--shard-dims", options.read.shard_dims_file,
                     "JSON of GLOB: dim, for names that no family explains"))
      ->type_name("RULES.json")
      ->group(group);
  names_file(app.add_option("--flat-params", options.read.flat_params_file,
                            "JSON of the parameters in each flat one of FSDP1"))
      ->type_name("FILE.json")
      ->group(group);
  app.add_option("--trainer", options.read.trainer,
                 "Trainer that wrote the run; none: containers alone")
      ->type_name("NAME")
      ->group(group);
  names_file(app.add_option_function<std::string>(
                 "--trainer-file", ckpt::register_trainers,
                 "Trainers of your own, for reading and for --to run"))
      ->type_name("FILE.json")
      ->group(group);
  names_order(
      app.add_option(
          "--assume-order", options.read.assume_order,
          "How parameters are numbered in an optimizer keyed by index: module, "
          "decay, or a file of names"))
      ->type_name("RULE|FILE")
      ->group(group);
  app.add_flag("--restrict", options.read.restrict_globals,
               "Refuse pickled classes that weights-only loading refuses")
      ->group(group);
}

void add_select_options(CLI::App& app, Selection& options) {
  add_list(app, "--keys", options.keys, "Only tensors of these names");
  add_list(app, "--exclude", options.exclude,
           "No tensors or objects of these names");
  valued(app, "--layers", "LIST",
         "Only these layers (0-15,20) and what is in no layer; repeats make a "
         "deeper model; last:4 keeps the last 4, renumbered from 0",
         [&](const std::string& s) {
           library::check_layers(s);  // refused here, before anything is opened
           options.layers = s;
         })
      ->group("Selection");
  valued(app, "--experts", "LIST",
         "Only these experts (0-31,40), renumbered from 0",
         [&](const std::string& s) {
           library::parse_experts(s);  // refused here, too
           options.experts = s;
         })
      ->group("Selection");
  app.add_option_function<std::vector<std::string>>(
         "--blocks",
         [&](const std::vector<std::string>& lists) {
           options.blocks = fmt::format("{}", fmt::join(lists, "/"));
           library::check_blocks(options.blocks);  // refused here, too
         },
         "Only tensors owned by these blocks (0-3,8); for modelopt once for "
         "each rank")
      ->type_name("LIST")
      ->allow_extra_args(false)
      ->group("Selection");
  app.add_option("--part", options.part,
                 "Only this model of several in a file, pipeline or "
                 "step: ema, unet, critic")
      ->type_name("NAME")
      ->group("Selection");
  CLI::Option* model = app.add_flag("--model-only", options.model_only,
                                    "The model alone: no state of training")
                           ->group("Selection");
  app.add_flag("--optim-only", options.optim_only, "Only optimizer state")
      ->group("Selection")
      ->excludes(model);
}

void add_memory_option(CLI::App& app, uint64_t& max_mem) {
  tree_memory::set_limit(0);
  valued(app, "--max-mem", "SIZE", "Memory limit (default 1GiB)",
         [&](const std::string& s) {
           max_mem = size_value("--max-mem", s);
           if (max_mem < kLeastMemory)
             throw resource_error({}, "--max-mem {}: at least 16MiB is needed",
                                  s)
                 .with_hint("1GiB is the default; 256MiB is plenty");
           tree_memory::set_limit(max_mem);
         })
      ->group("Resources");
}

void add_rate_option(CLI::App& app) {
  valued(app, "--max-rate", "SIZE", "Bytes a second at most: 500MB",
         [](const std::string& s) {
           set_max_rate(size_value("--max-rate", s));
           if (max_rate() == 0)
             throw usage_error({}, "--max-rate {}: nothing would move", s);
         })
      ->group("Resources");
}

void add_engine_options(CLI::App& app, EngineOptions& options) {
  const std::string group = "Resources";
  valued(app, "-j,--threads", "N", "Worker threads (default: processors)",
         [&](const std::string& s) {
           const auto count = text::number<uint32_t>(s);
           if (!count || *count > kMostThreads || (*count == 0 && s != "0"))
             throw usage_error({}, "--threads '{}': expected 0 to {}", s,
                               kMostThreads)
                 .with_hint("0, the default, is as many as processors");
           options.threads = count.value_or(0);
         })
      ->group(group);
  add_memory_option(app, options.max_mem);
  add_rate_option(app);
  app.add_option("--trace",
                 "Write when each thread read, wrote, cast (Perfetto)")
      ->type_name("FILE")
      ->group(group);
  valued(app, "--device", "DEVICE", "cpu (default) or cuda",
         [&](const std::string& s) {
           options.cuda =
               choice<bool>("--device", s, {{"cpu", false}, {"cuda", true}});
         })
      ->group(group);
  valued(app, "--io", "MODE",
         "Read payload by auto (default), buffered, direct, uring",
         [&](const std::string& s) {
           options.io = choice<ReadMode>("--io", s,
                                         {{"auto", ReadMode::kAuto},
                                          {"buffered", ReadMode::kBuffered},
                                          {"direct", ReadMode::kDirect},
                                          {"uring", ReadMode::kUring}});
         })
      ->group(group);
  add_ranks_options(app);
}

namespace {

constexpr const char* kWriting = "Writing";

// What a write would do, without doing it.
void add_plan_options(CLI::App& app, WriteOptions& options) {
  app.add_flag("-n,--dry-run", options.dry_run,
               "Say what would be written; write nothing")
      ->group(kWriting);
  app.add_option("-o,--plan-file", options.plan_file,
                 "With --dry-run: write the plan, for ckpt run FILE")
      ->type_name("FILE")
      ->group(kWriting);
  app.add_option("--html", options.html_file,
                 "With --dry-run: write a page of which bytes go where")
      ->type_name("FILE")
      ->group(kWriting);
}

// What is at DST, and what an interrupted run left there.
void add_target_options(CLI::App& app, WriteOptions& options) {
  app.add_flag("--overwrite", options.overwrite,
               "Replace DST, once the new one is whole, and files in the way")
      ->group(kWriting);
  valued(app, "--if-exists", "WHAT",
         "If DST exists: fail (default), skip, replace (as --overwrite)",
         [&](const std::string& s) {
           options.if_exists =
               choice<IfExists>("--if-exists", s,
                                {{"fail", IfExists::kFail},
                                 {"skip", IfExists::kSkip},
                                 {"replace", IfExists::kReplace}});
         })
      ->group(kWriting);
  app.add_flag("--resume", options.resume, "Resume an interrupted run")
      ->group(kWriting);
  app.add_flag("--trust-staging", options.trust_staging,
               "--resume does not read back what was written")
      ->group(kWriting);
  app.add_flag("--verify", options.verify,
               "Check source checksums, read the target back")
      ->group(kWriting);
}

// What the target holds: dtypes, names, sizes of files.
void add_content_options(CLI::App& app, WriteOptions& options) {
  valued(app, "--dtype", "DTYPE",
         "Cast floating-point tensors: f32, f16, bf16 ...; "
         "dequantize quantized ones",
         [&](const std::string& s) { options.dtype = cast_type(s); })
      ->group(kWriting);
  valued(app, "--quantize", "KIND",
         "Quantize weights: fp8-block (fp8 with 128x128 block scales); to GGUF "
         "q8_0, q4_0, q4_1, q5_0, q5_1, tq1_0, tq2_0",
         [&](const std::string& s) {
           options.quantize = choice<std::string>("--quantize", s,
                                                  {{"fp8-block", s},
                                                   {"q8_0", s},
                                                   {"q4_0", s},
                                                   {"q4_1", s},
                                                   {"q5_0", s},
                                                   {"q5_1", s},
                                                   {"tq1_0", s},
                                                   {"tq2_0", s}});
         })
      ->group(kWriting);
  names_rules(app.add_option("--rename", options.rename_file,
                             "New names: a file of JSON, JSON, or 'a.=b.' for "
                             "prefixes"))
      ->type_name("RULES.json")
      ->group(kWriting);
  valued(app, "--max-shard-size", "SIZE", "Split files above this (5GB)",
         [&](const std::string& s) {
           options.max_shard_size = size_value("--max-shard-size", s);
           if (options.max_shard_size == 0)
             throw usage_error({}, "--max-shard-size 0: no tensor fits");
         })
      ->group(kWriting);
}

// How careful a write is.
void add_check_options(CLI::App& app, WriteOptions& options) {
  app.add_flag_callback(
         "--no-fsync", [&] { options.sync = false; }, "Don't wait for the disk")
      ->group(kWriting);
  valued(app, "--allow-overflow", "saturate|inf",
         "Values too large for --dtype become the largest number, or infinite",
         [&](const std::string& s) {
           options.overflow = choice<Overflow>(
               "--allow-overflow", s,
               {{"saturate", Overflow::kSaturate}, {"inf", Overflow::kInf}});
         })
      ->group(kWriting);
  app.add_flag("--keep-unknown-globals", options.keep_unknown_globals,
               "Also write pickled objects that would run code when loaded")
      ->group(kWriting);
  app.add_flag("--ignore-checksums", options.ignore_checksums,
               "Copy bytes of SRC whose stored checksum is wrong")
      ->group(kWriting);
  app.add_flag("--allow-replica-mismatch", options.allow_replica_mismatch,
               "Use the first of replicas that differ")
      ->group(kWriting);
  app.add_flag_callback(
         "--no-manifest", [&] { options.manifest = false; },
         "Write no .ckpt-manifest.json; then digests are made only where "
         "something else asks for them")
      ->group(kWriting);
}

}  // namespace

void add_optimizer_option(CLI::App& app, WriteOptions& options) {
  app.add_flag("--with-optimizer", options.with_optimizer,
               "Optimizer state too, in one .safetensors file of a training "
               "step")
      ->group(kWriting);
}

void add_write_options(CLI::App& app, WriteOptions& options) {
  add_plan_options(app, options);
  add_target_options(app, options);
  add_content_options(app, options);
  add_check_options(app, options);
}

}  // namespace ckpt::app

#include "app/write.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <unordered_map>

#include "app/engine.h"
#include "app/rename.h"
#include "app/select.h"
#include "app/write_report.h"
#include "formats/families/rules.h"
#include "formats/format.h"
#include "lib/interrupt.h"
#include "lib/io/staging.h"
#include "lib/manifest.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

bool is_cast_to(const Tensor& tensor) {
  const bool wide = tensor.dtype == DType::f64 || tensor.dtype == DType::f32 ||
                    tensor.dtype == DType::f16 || tensor.dtype == DType::bf16;
  return wide && tensor.kind != Kind::optim;
}

// The catalog that the writer lays out: the source with the target's dtypes.
Catalog with_dtype(const Catalog& source, std::optional<DType> dtype) {
  Catalog wanted = source;
  if (!dtype) return wanted;
  uint64_t kept = 0;
  for (Tensor& tensor : wanted.tensors) {
    if (is_cast_to(tensor)) tensor.dtype = *dtype;
    if (tensor.kind == Kind::optim) ++kept;
  }
  if (kept)
    wanted.assumptions.push_back(fmt::format(
        "--dtype {}: the {} tensors of optimizer state keep their dtype",
        name(*dtype), kept));
  return wanted;
}

void check_topology(const Topology& asked, const Target& target) {
  if (target.catalog.topology == asked) return;
  throw unfaithful_error({}, "format {} can't hold {}: it would be {}",
                         target.catalog.format, to_string(asked),
                         to_string(target.catalog.topology))
      .with_hint(
          "`ckpt convert SRC DST --to FORMAT --tp N` writes a format that has "
          "files for each rank (fairseq2)");
}

// Where the target may not be: the source would be damaged.
void check_apart(const std::string& source, const std::string& target) {
  std::error_code ignored;
  const auto from = std::filesystem::weakly_canonical(source, ignored).string();
  const auto to = std::filesystem::weakly_canonical(target, ignored).string();
  if (from == to || (from + "/").starts_with(to + "/"))
    throw usage_error({target, {}}, "the target would replace the source {}",
                      source)
        .with_hint("write beside it, check the result, then rename it");
}

uint64_t total_size(const Target& target) {
  uint64_t bytes = 0;
  for (const TargetFile& file : target.files) bytes += file.size;
  return bytes;
}

Manifest manifest_of(const Catalog& source, const Target& target,
                     const reshard::Plan& plan,
                     const reshard::RunResult& result) {
  Manifest manifest;
  manifest.format = target.catalog.format;
  manifest.source_path = source.path;
  manifest.source_format = source.format;
  for (const TargetFile& file : target.files)
    manifest.files[file.path] = file.size;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const Tensor& tensor = target.catalog.tensors[i];
    Manifest::Entry& entry = manifest.tensors[tensor.name];
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entry.digest = result.target[i];
    if (plan.tensors[i].casts())
      entry.source = {plan.tensors[i].source_dtype, result.source[i]};
  }
  return manifest;
}

// One run of a plan into a staging directory.
class Run {
 public:
  Run(const WriteRequest& request, const Catalog& source, Target& target,
      const reshard::Plan& plan)
      : request_(request), source_(source), target_(target), plan_(plan) {}

  void execute() {
    const InterruptScope scope;
    io::Staging staging(request_.target_path,
                        {.single_file = single_file(),
                         .overwrite = request_.write.overwrite,
                         .sync = request_.write.sync});
    try {
      fill(staging);
      if (request_.write.manifest) add_manifest(staging);
      staging.publish();
    } catch (const Interrupted&) {
      throw Interrupted("stopped; " + request_.target_path +
                        " was not touched");
    }
  }

  const reshard::RunResult& result() const { return result_; }

 private:
  bool single_file() const { return target_.files.front().path.empty(); }

  void fill(io::Staging& staging) {
    staging.check_space(total_size(target_));
    if (single_file())
      single_file_name_ = target_.files.front().path =
          io::base_name(staging.target());
    for (const TargetFile& file : target_.files)
      staging.create(file.path, file.size);
    const reshard::RunOptions options =
        run_options(request_.engine, request_.output, plan_);
    reshard::Output output(target_, staging.root());
    options.progress.begin("copying", plan_.bytes_read);
    result_ = reshard::run(plan_, source_, output, options);
    if (!request_.write.allow_replica_mismatch)
      reshard::check_replicas(plan_, result_, source_);
    for (uint32_t f = 0; f < target_.files.size(); ++f)
      if (target_.files[f].copy_of.empty())
        output.write_literals(f);
      else
        copy_sidecar(target_.files[f], staging);
    options.progress.end();
  }

  static void copy_sidecar(const TargetFile& file, const io::Staging& staging) {
    const io::Handle from = io::Handle::open_read(file.copy_of);
    if (from.size() != file.size)
      throw input_error({file.copy_of, {}},
                        "changed its size while it was "
                        "copied: {} bytes, then {}",
                        file.size, from.size());
    const io::Handle to =
        io::Handle::open_write(io::join(staging.root(), file.path));
    io::copy_range(from, 0, to, 0, file.size);
  }

  void add_manifest(io::Staging& staging) const {
    const std::string text =
        to_json(manifest_of(source_, target_, plan_, result_));
    const std::string path =
        single_file_name_.empty()
            ? std::string(kManifestName)
            : single_file_name_ + std::string(kManifestName);
    staging.create(path, text.size());
    io::Handle::open_write(io::join(staging.root(), path))
        .write(0, std::string_view(text));
  }

  const WriteRequest& request_;
  const Catalog& source_;
  Target& target_;
  const reshard::Plan& plan_;
  std::string single_file_name_;
  reshard::RunResult result_;
};

// --verify: the target is opened and read as any checkpoint is.
void verify_written(const WriteRequest& request, const Target& target,
                    const reshard::RunResult& result) {
  const Catalog written = formats::open(
      request.target_path, target.catalog.format, request.source.read);
  const std::vector<Digest> found =
      read_all(written, request.engine, request.output).digests;
  std::unordered_map<std::string_view, Digest> by_name;
  for (size_t i = 0; i < found.size(); ++i)
    by_name[written.tensors[i].name] = found[i];
  for (size_t i = 0; i < target.catalog.tensors.size(); ++i) {
    const std::string& tensor = target.catalog.tensors[i].name;
    const auto same = by_name.find(tensor);
    if (same == by_name.end() || same->second != result.target[i])
      throw Error(ExitCode::kIo, {request.target_path, tensor},
                  "what was read back is not what was written",
                  "the disk or its memory may be faulty; write it again");
  }
}

}  // namespace

bool has_grid(std::string_view format) {
  return format != "safetensors" && format != "torch";
}

Catalog open_for_write(const WriteRequest& request) {
  check_apart(request.source_path, request.target_path);
  Catalog source = open_source(request.source_path, request.source);
  const formats::ReadOptions& read = request.source.read;
  if (source.format != "fairseq2" &&
      (!read.family.empty() || !read.shard_dims_file.empty())) {
    families::Rules rules;
    if (!read.family.empty())
      rules = families::Rules::for_family(read.family, {}, "--family");
    if (!read.shard_dims_file.empty())
      rules = families::Rules::from_file(read.shard_dims_file)
                  .over(std::move(rules));
    families::apply(source, rules);
  }
  for (const std::string& note : select(source, request.select).notes)
    spdlog::info("{}", note);
  if (!request.write.rename_file.empty())
    rename(source, request.write.rename_file);
  return source;
}

ExitCode write_checkpoint(const WriteRequest& request, Catalog source,
                          Layout layout) {
  if (request.write.resume)
    throw unfaithful_error({request.target_path, {}},
                           "--resume: nothing was kept to go on from")
        .with_hint("run the command again without --resume");
  const auto begin = std::chrono::steady_clock::now();
  const formats::Format& format = formats::find_format(layout.format);
  if (!format.writer)
    throw unfaithful_error({}, "format {} can be read, not written",
                           layout.format);
  layout.name = io::base_name(request.target_path);
  layout.max_shard_size = request.write.max_shard_size;
  Target target =
      format.writer->lay_out(with_dtype(source, request.write.dtype), layout);
  check_topology(layout.topology, target);
  if (target.files.empty())
    throw unfaithful_error({source.path, {}}, "nothing to write");
  log_problems(target.problems);
  for (const std::string& line : target.assumptions) spdlog::info("{}", line);
  const reshard::Plan plan =
      reshard::make_plan(source, target, !request.write.allow_replica_mismatch);
  WriteReport report{.command = request.command,
                     .source = &source,
                     .target = &target,
                     .target_path = request.target_path,
                     .dry_run = request.write.dry_run,
                     .bytes_read = plan.bytes_read,
                     .bytes_written = total_size(target)};
  if (request.write.dry_run) {
    io::Staging::check(request.target_path,
                       {.single_file = target.files.front().path.empty(),
                        .overwrite = request.write.overwrite});
    report.peak_memory = peak_memory(request.engine, plan);
  } else {
    Run run(request, source, target, plan);
    run.execute();
    if (request.write.verify) verify_written(request, target, run.result());
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }
  show(report, request.output);
  return ExitCode::kDone;
}

}  // namespace ckpt::app

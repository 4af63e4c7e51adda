// SPDX-License-Identifier: Apache-2.0
// What every format in the registry must do, one row per format. A format
// without a row fails, so a new one joins by naming a checkpoint that its own
// framework wrote and what is in it.
//
//   read     tensors, dtypes, shapes and bytes as the peer has them
//   digest   those of the same tensors in a plain file
//   write    reads back the same, and settles: rewriting the output gives
//            the same bytes from the second time on
//   damage   truncated files: an error or a reported problem, never other
//            contents and never a bug of ours
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "ckpt/check.h"
#include "ckpt/ckpt.h"
#include "formats/format.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
using Digests = std::map<std::string, std::string>;

struct Row {
  std::string format;
  std::string path;      // below tests/data, as a peer wrote it; "": see make
  std::string expected;  // below tests/data: the peer's tensors
  // Makes the checkpoint if the repository has none.
  void (*make)(const test::TempDir& dir, const std::string& path) = nullptr;
  // Why values that are not tensors are written under other names.
  const char* other_objects = nullptr;
  // Prefix of the names whose dtype the peer's own consolidation changes.
  const char* cast_by_peer = nullptr;
};

// The repository has no files of these: their peers write them while their own
// tests run (tests/app/formats/fsdp_dtensor_test.py).
constexpr std::string_view kWrittenInTests[] = {"megatron_fsdp_dtensor",
                                                "megatron_local"};

// A tar of one process, as Python's tarfile has it.
std::string tar_member(const std::string& name, const std::string& content) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  const auto octal = [](uint64_t value, size_t digits) {
    std::string text(digits, '0');
    for (size_t i = digits; i-- > 0; value /= 8)
      text[i] = static_cast<char>('0' + value % 8);
    return text;
  };
  put(0, name);
  put(100, octal(0644, 7));
  put(124, octal(content.size(), 11));
  put(136, octal(0, 11));
  put(148, std::string(8, ' '));
  put(156, "0");
  put(257, std::string("ustar\0"
                       "00",
                       8));
  uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return header + content +
         std::string((512 - content.size() % 512) % 512, '\0');
}

// Megatron's names in a torch.save file, a configuration, a tar around them.
void make_nemo(const test::TempDir& dir, const std::string& path) {
  const std::string weights = dir.file("model_weights.ckpt");
  run(open(test::data("hf/llama/expected_mcore.safetensors")).catalog(),
      {.format = "torch", .single_file = true}, weights,
      {.sync = false, .manifest = false, .naming = {.dialect = "keep"}});
  const std::string config =
      "target: nemo.collections.nlp.models.language_modeling."
      "megatron_gpt_model.MegatronGPTModel\n"
      "nemo_version: 1.23.0\n"
      "num_layers: 4\nhidden_size: 64\nmegatron_amp_O2: false\n"
      "tensor_model_parallel_size: 1\npipeline_model_parallel_size: 1\n";
  dir.write(fs::path(path).filename().string(),
            tar_member("model_config.yaml", config) +
                tar_member("model_weights.ckpt", test::read_all(weights)) +
                std::string(1024, '\0'));
}

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"nemo", "", "hf/llama/expected_mcore.safetensors", make_nemo},
      {"orbax", "orbax/pytree_zarr2/ckpt",
       "orbax/pytree_zarr2/expected.safetensors"},
      {"gguf", "gguf/llama.gguf", "gguf/llama_expected.safetensors"},
      {"fairseq2", "fairseq2_native/llama_tp2dp1_blocking/ckpt",
       "fairseq2_native/llama_tp2dp1_blocking/expected.safetensors"},
      {"megatron_legacy", "megatron_legacy/lm_llama_pp2_bf16/ckpt",
       "megatron_legacy/lm_llama_pp2_bf16/expected.safetensors"},
      {"megatron_torch_dist", "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt",
       "megatron_torch_dist/gpt_tp2_pp2_v0161/expected.safetensors"},
      {"megatron_zarr", "megatron_zarr/gpt_zarr_tp2_pp2_v0090/ckpt",
       "megatron_zarr/gpt_zarr_tp2_pp2_v0090/expected.safetensors"},
      {"olmo_core", "olmo_core_dcp/trainer_fsdp_w2/ckpt",
       "olmo_core_dcp/trainer_fsdp_w2/expected.safetensors"},
      {"olmo_core_v1", "olmo_core_v1/fsdp_torch_w4/ckpt",
       "olmo_core_v1/fsdp_torch_w4/expected.safetensors"},
      {"dcp", "dcp/fsdp2_w8/ckpt", "dcp/fsdp2_w8/expected.safetensors"},
      {"modelopt", "modelopt/sharded_llama_hetero_w2/ckpt",
       "modelopt/sharded_llama_hetero_w2/expected.safetensors"},
      {"meta", "meta/llama_mha_f16/ckpt",
       "meta/llama_mha_f16/expected.safetensors"},
      {"vllm", "vllm/tp2/ckpt", "vllm/tp2/expected.safetensors"},
      {"safetensors", "safetensors/hf_sharded/ckpt",
       "safetensors/hf_sharded/expected.safetensors"},
      {"deepspeed", "deepspeed/zero1_dp2/ckpt",
       "deepspeed/zero1_dp2/expected.safetensors", nullptr,
       "ZeRO's become those of a universal checkpoint",
       "frozen."},  // zero_to_fp32.py makes float32 of them
      {"torch", "torch_pt/sharded_bin/ckpt",
       "torch_pt/sharded_bin/expected.safetensors"},
      {"numpy", "numpy/arrays.npz", "numpy/arrays_expected.safetensors"},
      {"run", "runs/accelerate_fsdp2_w2/ckpt",
       "runs/accelerate_fsdp2_w2/expected.safetensors"},
  };
  return table;
}

// Returns the path of a row's checkpoint. Those with `make` are made in `dir`.
std::string path_of(const Row& row, const test::TempDir& dir) {
  if (!row.make) return test::data(row.path);
  const std::string path = dir.file("made." + row.format);
  row.make(dir, path);
  return path;
}

// Archives and steps are read as the format inside them.
bool is_found(const std::string& path, const Row& row) {
  if (row.format == "run") return open(path).catalog().run.has_value();
  return formats::detect(path).format->name == row.format;
}

std::vector<std::string> files_below(const std::string& root) {
  if (!fs::is_directory(root)) return {""};
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file())
      files.push_back(fs::relative(entry.path(), root).string());
  std::ranges::sort(files);
  return files;
}

const formats::Format& format_of(const Row& row) {
  return formats::find_format(row.format);
}

Layout layout_like(const Catalog& source, const Row& row) {
  Layout layout{.format = row.format};
  if (format_of(row).traits.target_ranks != formats::Traits::Ranks::kNone &&
      !format_of(row).traits.is_container)
    layout.topology = source.topology;
  return layout;
}

void write(const Catalog& source, const Row& row, const std::string& path) {
  run(source, layout_like(source, row), path,
      {.sync = false, .manifest = false, .naming = {.dialect = "keep"}});
}

// Reads all of a damaged copy. True for the same digests, an error that isn't a
// bug, or a reported problem.
bool is_honest(const std::string& path, const Digests& whole) {
  try {
    const Catalog catalog = open(path).catalog();
    if (digest(catalog) == whole) return true;
    return std::ranges::any_of(catalog.problems, [](const Problem& problem) {
      return problem.severity != Problem::Severity::kNote;
    });
  } catch (const Error& error) {
    CAPTURE(error.what());
    CHECK(error.code() != ExitCode::kBug);
    CHECK(std::string_view(error.what()).size() > 10);
    return true;
  }
}

}  // namespace

TEST_CASE("conformance: every format has a row") {
  std::set<std::string_view> seen;
  for (const Row& row : rows()) CHECK(seen.insert(row.format).second);
  for (const formats::Format& format : formats::all_formats()) {
    CAPTURE(format.name);
    // Formats that another test registers have no reader.
    CHECK((seen.contains(format.name) || !format.reader ||
           std::ranges::count(kWrittenInTests, format.name) == 1));
  }
}

TEST_CASE("conformance: what a peer wrote is read as it is") {
  for (const Row& row : rows()) {
    CAPTURE(row.format);
    const test::TempDir dir;
    const std::string path = path_of(row, dir);
    CHECK(is_found(path, row));
    const Checkpoint source = open(path);
    const Checkpoint expected = open(test::data(row.expected));
    const Digests wanted = digest(expected.catalog());
    const Digests got = digest(source.catalog());
    REQUIRE(!wanted.empty());
    for (const Tensor& tensor : expected.catalog().tensors) {
      CAPTURE(tensor.name);
      if (row.cast_by_peer && tensor.name.starts_with(row.cast_by_peer))
        continue;
      const Tensor* found = source.catalog().find(tensor.name);
      REQUIRE(found);
      CHECK(found->dtype == tensor.dtype);
      CHECK(found->shape == tensor.shape);
      CHECK(source.read(tensor.name).bytes == expected.read(tensor.name).bytes);
      CHECK(got.at(tensor.name) == wanted.at(tensor.name));
    }
  }
}

TEST_CASE("conformance: written and read it is the same, twice") {
  for (const Row& row : rows()) {
    if (!format_of(row).writer) continue;
    CAPTURE(row.format);
    const test::TempDir dir;
    const Catalog source = open(path_of(row, dir)).catalog();
    write(source, row, dir.file("once"));
    const Catalog once = open(dir.file("once")).catalog();
    CHECK(is_found(dir.file("once"), row));
    CHECK(digest(once) == digest(source));
    for (const Difference& difference : diff(source, once).differences) {
      if (row.other_objects && difference.kind == "object") continue;
      CAPTURE(difference.tensor);
      CHECK_MESSAGE(is_note(difference), difference.message);
    }
    const Report report = verify(dir.file("once"), {.deep = true});
    CHECK(report.ok);
    write(once, row, dir.file("twice"));
    write(open(dir.file("twice")).catalog(), row, dir.file("thrice"));
    const std::vector<std::string> files = files_below(dir.file("twice"));
    CHECK(files_below(dir.file("thrice")) == files);
    for (const std::string& file : files) {
      CAPTURE(file);
      CHECK(test::read_all(dir.file("thrice/" + file)) ==
            test::read_all(dir.file("twice/" + file)));
    }
  }
}

TEST_CASE("conformance: a file that was cut is never taken for a whole one") {
  constexpr size_t kMostFiles = 10;
  for (const Row& row : rows()) {
    CAPTURE(row.format);
    const test::TempDir dir;
    const std::string path = path_of(row, dir);
    const Digests whole = digest(open(path).catalog());
    const std::vector<std::string> files = files_below(path);
    const size_t step = (files.size() + kMostFiles - 1) / kMostFiles;
    for (size_t i = 0; i < files.size(); i += step) {
      CAPTURE(files[i]);
      // The name has to tell as much as the peer's.
      const std::string copy =
          dir.file("copy/" + fs::path(path).filename().string());
      fs::create_directories(dir.file("copy"));
      fs::copy(path, copy, fs::copy_options::recursive);
      const std::string cut = files[i].empty() ? copy : copy + "/" + files[i];
      fs::permissions(cut, fs::perms::owner_write, fs::perm_options::add);
      fs::resize_file(cut, fs::file_size(cut) / 2);
      CHECK(is_honest(copy, whole));
      fs::remove_all(dir.file("copy"));
    }
  }
}

}  // namespace ckpt

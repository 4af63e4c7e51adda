// SPDX-License-Identifier: Apache-2.0
#include "api/merge/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "api/check/facts.h"
#include "api/check/meet.h"
#include "api/edit/tied.h"
#include "api/write/manifests.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "convert/config/dialects.h"
#include "convert/quantized/quantized.h"
#include "formats/options.h"
#include "formats/peft/settings.h"
#include "lib/decoding.h"
#include "lib/hash/sha256.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "reshard/prove/prove.h"

namespace ckpt::library {
namespace {

std::set<std::string_view> model_names(const Catalog& catalog) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : catalog.tensors) names.insert(tensor.name);
  return names;
}

bool have_same_names(const std::vector<Catalog>& sources) {
  const auto first = model_names(sources.front());
  return std::ranges::all_of(sources, [&](const Catalog& other) {
    return model_names(other) == first;
  });
}

constexpr std::string_view kTokenizer = "tokenizer.json";

// Its SHA-256; "" if there is none.
std::string tokenizer_of(const Catalog& source) {
  for (const Sidecar& file : source.sidecars) {
    if (file.name != kTokenizer) continue;
    Sha256 sum;
    const std::string text =
        file.text ? *file.text
                  : io::Handle::open_read(file.path).read_string(0, file.size);
    sum.update(std::as_bytes(std::span(text)));
    return sum.hex();
  }
  return {};
}

}  // namespace

Meeting::Meeting(std::vector<Catalog>& sources, size_t frame,
                 const MergeOptions& options)
    : sources_(sources), frame_(frame), options_(options) {
  engine_.threads = options.threads;
  engine_.max_mem = options.max_mem;
  engine_.note = options.note;
}

void Meeting::meet(bool all_names) {
  // A write checks the frame's manifest as it does any source's.
  if (!options_.only_planned && !options_.ignore_checksums)
    for (size_t i = 0; i < sources_.size(); ++i)
      if (i != frame_) check_against_manifest(sources_[i], run_options());
  for (Catalog& source : sources_) prepare(source);
  check_facts();
  warn_of_factors();
  warn_of_tokenizers();
  if (!have_same_names(sources_)) bring_names();
  if (!all_names) return;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (i != frame_) check_names(i);
}

reshard::RunOptions Meeting::run_options() const {
  reshard::RunOptions run;
  run.threads = options_.threads;
  run.max_mem = options_.max_mem / 2;
  return run;
}

void Meeting::prepare(Catalog& source) {
  if (const auto codes = families::quantized_weights(source); !codes.empty())
    throw unfaithful_error({source.path, {}},
                           "{}: codes of quantized weights, which are no "
                           "numbers",
                           families::describe(codes))
        .with_hint("--dtype bf16 makes numbers of them first");
  if (has_blocks(source) && options_.note && options_.method && !options_.dtype)
    options_.note(fmt::format(
        "{}: numbers are made of its blocks, and no blocks of the result; "
        "--quantize makes them again",
        text::printable(source.path)));
  locate(source);
  if (options_.with_optimizer) reshard::prove_claims(source, run_options());
  source.claims.clear();
}

void Meeting::check_facts() const {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (i == frame_) continue;
    const auto apart = differing_facts(sources_[frame_], sources_[i], engine_);
    if (apart.empty()) continue;
    throw unfaithful_error(
        {sources_[i].path, {}}, "is another model than {}: {} is {}{}",
        sources_[frame_].path, apart.front().name, fact_text(apart.front()),
        apart.size() == 1 ? "" : fmt::format("; {} facts differ", apart.size()))
        .with_hint("`ckpt diff A B` lists what differs");
  }
}

// The product of mean factors is not the mean of their products.
void Meeting::warn_of_factors() const {
  const auto adapter = peft::config_of(sources_[frame_]);
  if (!adapter || !options_.note || !options_.method) return;
  options_.note(
      "an adapter's factors are combined one by one, and their product is "
      "not the combination of the products: merge each into its base with "
      "--adapter for that");
}

// A row of the embedding is a token's: two that number them differently have no
// mean.
void Meeting::warn_of_tokenizers() const {
  if (!options_.note || !options_.method) return;
  const std::string mine = tokenizer_of(sources_[frame_]);
  if (mine.empty()) return;
  for (const Catalog& source : sources_) {
    const std::string other = tokenizer_of(source);
    if (other.empty() || other == mine) continue;
    options_.note(fmt::format(
        "{}: its {} is not the one of {}, which is written: rows of the "
        "embedding are merged as if they were of the same tokens",
        text::printable(source.path), kTokenizer,
        text::printable(sources_[frame_].path)));
  }
}

// Formats of other dialects get transformers' names, as on their way to a
// folder of transformers.
void Meeting::bring_names() {
  std::set<std::string_view> dialects;
  for (const Catalog& source : sources_)
    dialects.insert(families::dialect_of(source));
  if (dialects.size() > 1)
    for (Catalog& source : sources_) {
      const std::string_view own = families::dialect_of(source);
      if (own.empty() || own == "hf") continue;
      Naming naming;
      naming.dialect = "hf";
      naming.family = options_.family;
      naming.partial = true;
      source = into_dialect(std::move(source),
                            std::string(formats::usual_container()), naming);
    }
  // Others may have become different from the first after they had met.
  for (int pass = 0; pass < 2 && !have_same_names(sources_); ++pass)
    for (size_t i = 0; i < sources_.size(); ++i)
      if (i != frame_)
        library::meet(sources_[frame_], sources_[i], options_.family, engine_);
}

void Meeting::check_names(size_t i) const {
  const auto first = model_names(sources_[frame_]);
  const auto other = model_names(sources_[i]);
  std::vector<std::string_view> lacks, more;
  std::ranges::set_difference(first, other, std::back_inserter(lacks));
  std::ranges::set_difference(other, first, std::back_inserter(more));
  if (lacks.empty() && more.empty()) return;
  const bool lost = !lacks.empty();
  throw unfaithful_error(
      {sources_[i].path,
       text::printable(std::string(lost ? lacks.front() : more.front()))},
      "{}; of {} and {} tensors, {} are in one of the two alone",
      lost ? "is not here, and is in " + sources_[frame_].path
           : "is here, and is not in " + sources_[frame_].path,
      first.size(), other.size(), lacks.size() + more.size())
      .with_hint(hint_of_names(sources_[i]));
}

std::string Meeting::hint_of_names(const Catalog& other) const {
  const bool ours = heads_of(sources_[frame_]).empty();
  if (ours != heads_of(other).empty())
    return fmt::format(
        "the output layer of one is its embedding: `ckpt convert {} DST "
        "--untie` gives it one of its own",
        text::shell_path(ours ? sources_[frame_].path : other.path));
  return "--exclude GLOB leaves tensors out of all; `ckpt diff A B` lists them";
}

}  // namespace ckpt::library

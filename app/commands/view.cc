// SPDX-License-Identifier: Apache-2.0
// The page of `inspect --html`, served to this machine's browser. It asks for a
// tensor's statistics when that is opened.
//
//   GET /TOKEN/                     the page
//   GET /TOKEN/tensors?like=NAME    names of the tensors in the row of NAME
//   GET /TOKEN/stats?tensor=NAME    what `inspect --stats --json` says of it
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "api/check/read_all.h"
#include "api/edit/select.h"
#include "app/command.h"
#include "app/commands/engine.h"
#include "app/commands/source.h"
#include "app/commands/within.h"
#include "app/keep.h"
#include "app/print/console.h"
#include "app/print/html.h"
#include "app/print/json_writer.h"
#include "app/print/pattern.h"
#include "app/print/ranks.h"
#include "app/print/report.h"
#include "lib/failures.h"
#include "lib/net/server.h"
#include "lib/text/format.h"
#include "reshard/plan/plan_size.h"

namespace ckpt::app {
namespace {

serve::Response json_response(JsonWriter json, int status = 200) {
  return {.status = status,
          .body = std::make_shared<const std::string>(std::move(json).text())};
}

serve::Response refusal(int status, std::string_view message,
                        std::string_view hint = {}) {
  JsonWriter json;
  json.begin_object().member("message", message);
  json.text_or_null("hint", hint).end_object();
  return json_response(std::move(json), status);
}

// One tensor as a checkpoint of its own; its files keep their numbers.
Catalog catalog_of(const Catalog& catalog, const Tensor& tensor) {
  Catalog one;
  one.format = catalog.format;
  one.version = catalog.version;
  one.path = catalog.path;
  one.topology = catalog.topology;
  one.files = catalog.files;
  one.archive_opener = catalog.archive_opener;
  one.tensors.push_back(tensor);
  return one;
}

class View : public Command {
 public:
  std::string_view name() const override { return "view"; }
  std::string_view help() const override {
    return "look at a checkpoint in a browser on this machine";
  }
  std::string_view examples() const override {
    return "ckpt view step_5000\n"
           "ckpt view step_5000 --port 8080    # for ssh -L "
           "8080:localhost:8080";
  }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  serve::Answer answer(const serve::Request& request) const;
  serve::Response tensors(const std::string& name) const;
  serve::Answer stats(const std::string& name) const;
  serve::Response read_stats(const Tensor& tensor) const;

  std::string path_;
  uint16_t port_ = 0;
  SourceOptions source_;
  Selection select_;
  EngineOptions engine_;

  const Catalog* catalog_ = nullptr;
  std::string token_;
  serve::Response page_;
};

void View::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "A file, a directory or a training root")
      ->required()
      ->group("Arguments");
  app.add_option("--port", port_, "Of 127.0.0.1 (default: a free one)")
      ->check(CLI::Range(0, 65535))
      ->type_name("N")
      ->group("Serving");
  add_select_options(app, select_);
  add_source_options(app, source_);
  add_engine_options(app, engine_);
}

// The names are the catalog's own, so any that is found is in it.
serve::Response View::tensors(const std::string& name) const {
  const Tensor* const first = catalog_->find(name);
  if (first == nullptr) return refusal(404, "no such tensor");
  JsonWriter json;
  json.begin_object().key("tensors").begin_array();
  for (const Tensor* tensor : tensors_like(*catalog_, *first))
    json.value(tensor->name);
  json.end_array().end_object();
  return json_response(std::move(json));
}

serve::Response View::read_stats(const Tensor& tensor) const {
  try {
    Catalog one = catalog_of(*catalog_, tensor);
    OutputOptions quiet = output;
    quiet.progress = When::kNever;
    quiet.progress_json = false;
    const library::Reading reading =
        library::read_all(one, engine_of(engine_, quiet), {.stats = true});
    JsonWriter json;
    json.begin_object().member("tensor", tensor.name);
    write_stats(json, reading.stats.at(0));
    json.member("bytes_read", reading.bytes).end_object();
    return json_response(std::move(json));
  } catch (const Error& error) {
    return refusal(422, error.what(), error.hint());
  }
}

serve::Answer View::stats(const std::string& name) const {
  const Tensor* const tensor = catalog_->find(name);
  if (tensor == nullptr) return refusal(404, "no such tensor");
  return [this, tensor] { return read_stats(*tensor); };
}

// Reveals nothing without the token, not even what exists.
serve::Answer View::answer(const serve::Request& request) const {
  std::string_view path = request.path;
  path.remove_prefix(1);
  const std::string_view token = path.substr(0, path.find('/'));
  if (!serve::same_secret(token, token_))
    return refusal(403, "open the URL that ckpt view printed");
  path.remove_prefix(token.size());
  if (path == "/") return page_;
  if (path == "/tensors")
    return tensors(serve::query_value(request.query, "like"));
  if (path == "/stats")
    return stats(serve::query_value(request.query, "tensor"));
  return refusal(404, "no such page");
}

ExitCode View::run() {
  if (rank_count() > 1)
    throw usage_error({}, "view is one process, and a launcher started {}",
                      rank_count())
        .with_hint("run it without mpirun or srun");
  serve::Server server(port_);
  Catalog* opened = nullptr;
  within_memory(engine_, source_, {path_}, false, [&] {
    opened = &keep(open_source(path_, source_));
    return ExitCode::kDone;
  });
  Catalog& catalog = *opened;
  const library::Chosen selection = library::choose(catalog, select_);
  for (const std::string& note : selection.notes) spdlog::info("{}", note);
  if (!selection.warning.empty()) spdlog::warn("{}", selection.warning);
  load_objects(catalog);
  catalog_ = &catalog;
  // What is held as long as it is served is not there for a tensor's buffers.
  reshard::make_room(reshard::held_bytes(catalog), 0, catalog.path,
                     engine_.max_mem);
  // A page shows what is there for as long as it is open: nothing that rests on
  // a file that could not be read.
  if (const auto failure = failures::any()) throw *failure;
  token_ = serve::random_token();
  const std::string nonce = serve::random_token();
  page_ = {
      .type = "text/html",
      .body = std::make_shared<const std::string>(live_html(catalog, nonce)),
      .policy = live_policy(nonce)};
  // The token opens the page. It is printed here and nowhere else.
  const std::string url =
      fmt::format("http://127.0.0.1:{}/{}/", server.port(), token_);
  if (output.json) {
    JsonWriter json;
    json.begin_document("view").member("url", url).end_object();
    print(std::move(json).text());
  } else {
    print(url + "\n");
  }
  flush();
  say_held_warnings();
  server.serve(
      [this](const serve::Request& request) { return answer(request); });
}

}  // namespace

std::unique_ptr<Command> make_view() { return std::make_unique<View>(); }

}  // namespace ckpt::app

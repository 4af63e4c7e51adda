// SPDX-License-Identifier: Apache-2.0
// What this build, this machine and a file system can do for ckpt.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <fstream>

#include "app/command.h"
#include "app/options/settings.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/table.h"
#include "lib/io/file.h"
#include "lib/io/probe.h"
#include "lib/io/read_queue.h"
#include "lib/io/remote.h"
#include "lib/module.h"
#include "lib/processors.h"
#include "lib/text/format.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/ranks/link.h"

namespace ckpt::app {
namespace {

struct Row {
  std::string name;
  std::string value;
  bool ok = true;
  std::string hint = {};
};
using Rows = std::vector<Row>;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "MemAvailable:   123 kB" in /proc/meminfo, in bytes.
uint64_t memory(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key))
      return std::strtoull(line.c_str() + key.size(), nullptr, 10) << 10;
  return 0;
}

struct FileSystem {
  long magic;
  std::string_view name;
  std::string_view hint;
};
constexpr std::string_view kNetwork =
    "a network file system: --io auto and enough --threads hide its latency";
constexpr auto kFileSystems = std::to_array<FileSystem>({
    {0xEF53, "ext4", ""},
    {0x58465342, "xfs", ""},
    {0x9123683E, "btrfs", ""},
    {0x2FC12FC1, "zfs", ""},
    {0x01021994, "tmpfs", "in memory: what is written counts as used memory"},
    {0x794C7630, "overlayfs", "a container's layer: bind-mount a real disk"},
    {0x6969, "nfs", kNetwork},
    {0x0BD00BD0, "lustre", kNetwork},
    {0x47504653, "gpfs", kNetwork},
    {0x65735546, "fuse", "through user space: expect less than the disk has"},
    {0x19830326, "beegfs", kNetwork},
    {0x00C36400, "ceph", kNetwork},
    {0xFF534D42, "cifs", kNetwork},
});

void build_rows(Rows& rows) {
  rows.push_back({"version", CKPT_VERSION});
  rows.push_back({"casts", std::string(reshard::best_cast_kernel().name)});
  struct Use {
    std::string_view module, what;
  };
  constexpr Use kUses[] = {{"torch", "casts from integers"},
                           {"mpi", "many ranks under mpirun or srun"},
                           {"cuda", "--device cuda"}};
  for (const Use& use : kUses) {
    const std::string path = find_module(use.module);
    const std::string problem =
        path.empty() ? "not available" : module_problem(path);
    rows.push_back({"module " + std::string(use.module),
                    problem.empty() ? path : problem, problem.empty(),
                    problem.empty()
                        ? std::string()
                        : "only needed for " + std::string(use.what)});
  }
}

void machine_rows(Rows& rows) {
  utsname system = {};
  ::uname(&system);
  rows.push_back({"kernel", fmt::format("{} {} {}", system.sysname,
                                        system.release, system.machine)});
  rows.push_back({"processors", std::to_string(processors())});
  rows.push_back(
      {"memory",
       fmt::format("{}, {} available", text::iec_size(memory("MemTotal:")),
                   text::iec_size(memory("MemAvailable:")))});
  const std::string limit = first_line("/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max")
    rows.push_back({"memory limit of the job",
                    text::iec_size(std::strtoull(limit.c_str(), nullptr, 10))});
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  rows.push_back({"open files", std::to_string(files.rlim_cur),
                  files.rlim_cur >= 4096,
                  files.rlim_cur >= 4096
                      ? ""
                      : "a checkpoint of many ranks is slower: ulimit -n"});
  const bool ring = io::ReadQueue::has_ring();
  rows.push_back({"io_uring", ring ? "yes" : "no", ring,
                  ring ? ""
                       : "reads are buffered: the kernel or the container "
                         "forbids it"});
  const ranks::Launch launch = ranks::find_launch();
  rows.push_back({"ranks", std::to_string(std::max<uint32_t>(1, launch.size))});
  std::vector<std::string> settings;
  for (const std::string_view name : setting_names())
    if (const char* value = std::getenv(setting_variable(name).c_str()))
      settings.push_back(fmt::format("{}={}", name, text::printable(value)));
  const auto file = settings_file();
  if (file || !settings.empty())
    rows.push_back({"settings", fmt::format("{}", fmt::join(settings, ", ")),
                    true, file ? "read from " + *file : ""});
}

// What URLs need: the transport, and an authority that vouches for servers.
// Contacts no host.
void network_rows(Rows& rows) {
  const std::string problem = io::remote_problem();
  rows.push_back({"network (libcurl)", problem.empty() ? "yes" : "no",
                  problem.empty(), problem});
  std::string proxy;
  for (const char* name : {"https_proxy", "HTTPS_PROXY", "all_proxy"})
    if (const char* const set = std::getenv(name); set && *set && proxy.empty())
      proxy = name;
  // Its value may hold a password.
  if (!proxy.empty()) rows.push_back({"proxy", "as " + proxy + " says"});
}

// Tries things with a file of its own in the directory and removes it.
void directory_rows(const std::string& path, Rows& rows) {
  if (io::is_url(path))
    throw usage_error({path, {}}, "doctor looks at a directory of this machine")
        .with_hint(
            "ckpt inspect says what a URL holds; URLs need what the "
            "rows of `ckpt doctor` say");
  struct statfs facts = {};
  if (::statfs(path.c_str(), &facts) != 0)
    throw errno == ENOENT
        ? missing_error({path, {}}, "no such file or directory")
        : io_error(path, "statfs", errno);
  if (!io::is_directory(path))
    throw usage_error({path, {}}, "not a directory")
        .with_hint("doctor looks at the directory where a target would be");
  std::string kind = fmt::format("{:#x}", static_cast<uint64_t>(facts.f_type));
  std::string hint;
  for (const FileSystem& system : kFileSystems)
    if (static_cast<uint32_t>(facts.f_type) ==
        static_cast<uint32_t>(system.magic)) {
      kind = system.name;
      hint = system.hint;
    }
  rows.push_back({"directory", path});
  rows.push_back({"file system", kind, true, hint});
  const std::optional<uint64_t> free = io::free_bytes(path);
  rows.push_back(
      free ? Row{"free space", text::iec_size(*free)}
           : Row{"free space", "unknown", true, "the file system doesn't say"});
  const std::string probe =
      io::join(path, fmt::format(".ckpt-doctor-{}", ::getpid()));
  const std::string copy = probe + "-copy";
  try {
    const io::Handle from = io::Handle::create(probe);
    from.write(0, std::string(4096, 'x'));
    const io::Handle to = io::Handle::create(copy);
    const bool shares = io::reflink(from, 0, to, 0, 4096);
    rows.push_back({"writable", "yes"});
    rows.push_back({"shares blocks (reflink)", shares ? "yes" : "no", true,
                    shares ? "" : "whole files are copied, not shared"});
    const int direct = ::open(probe.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    rows.push_back({"direct reads (O_DIRECT)", direct >= 0 ? "yes" : "no"});
    if (direct >= 0) ::close(direct);
  } catch (const Error& error) {
    rows.push_back({"writable", "no", false, error.problem()});
  }
  ::unlink(probe.c_str());
  ::unlink(copy.c_str());
}

class Doctor : public Command {
 public:
  std::string_view name() const override { return "doctor"; }
  std::string_view help() const override {
    return "say what this build, machine and file system can do";
  }
  std::string_view examples() const override {
    return "ckpt doctor\n"
           "ckpt doctor /scratch/me        # where a target would be written";
  }
  void add_options(CLI::App& app) override {
    app.add_option("DIR", path_, "The directory to look at (default: here)")
        ->group("Arguments");
  }
  ExitCode run() override {
    Rows rows;
    build_rows(rows);
    machine_rows(rows);
    network_rows(rows);
    directory_rows(path_, rows);
    output.json ? print_json(rows) : print_text(rows);
    return ExitCode::kDone;
  }

 private:
  static void print_json(const Rows& rows) {
    JsonWriter json;
    json.begin_document("doctor").member("version", CKPT_VERSION);
    json.key("checks").begin_array();
    for (const Row& row : rows) {
      json.begin_object().member("name", row.name).member("value", row.value);
      json.member("ok", row.ok).text_or_null("hint", row.hint).end_object();
    }
    json.end_array().end_object();
    print(std::move(json).text());
  }
  static void print_text(const Rows& rows) {
    Table table({Align::kLeft, Align::kLeft});
    for (const Row& row : rows) {
      const std::string value = text::printable(row.value);
      const std::string hint =
          row.hint.empty() ? "" : " (" + text::printable(row.hint) + ")";
      table.row(
          {row.name, (row.ok ? value : styled(value, Style::kYellow)) +
                         (hint.empty() ? "" : styled(hint, Style::kDim))});
    }
    print_folded(table.text(0));
  }

  std::string path_ = ".";
};

}  // namespace

std::unique_ptr<Command> make_doctor() { return std::make_unique<Doctor>(); }

}  // namespace ckpt::app

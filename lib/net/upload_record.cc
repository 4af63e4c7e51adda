// SPDX-License-Identifier: Apache-2.0
#include "lib/net/upload_record.h"

#include <fmt/format.h>

#include <fstream>
#include <random>
#include <sstream>

#include "ckpt/error.h"
#include "lib/io/upload.h"
#include "lib/net/store.h"
#include "lib/net/transfer.h"
#include "lib/net/url.h"

namespace ckpt::net {

Record read_record(const std::string& path) {
  Record record;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key, value;
    words >> key >> value;
    if (key == "target") record.target = line.substr(7);
    if (key == "mark") record.mark = value;
    if (key == "single") record.single_file = true;
    if (key == "publishing") record.publishing = true;
    if (key == "upload" && line.size() > 8 + value.size())
      record.uploads[line.substr(8 + value.size())] = value;
  }
  return record;
}

void add_line(const std::string& path, const std::string& line) {
  std::ofstream out(path, std::ios::app);
  out << line << '\n';
  out.flush();
  if (!out)
    throw Error(ExitCode::kIo, {path, {}},
                "cannot note which uploads were begun");
}

std::string new_mark() {
  std::random_device random;
  std::string mark;
  for (int i = 0; i < 4; ++i) mark += fmt::format("{:08x}", random());
  return mark;
}

}  // namespace ckpt::net

namespace ckpt::io {

void abandon_upload(const std::string& record) noexcept {
  try {
    const net::Record all = net::read_record(record);
    for (const auto& [file, id] : all.uploads) {
      const std::string url = all.single_file
                                  ? net::folder_of(all.target) + "/" + file
                                  : all.target + "/" + file;
      net::Request asked = net::store_of(url).write_request(
          url, "DELETE", "uploadId=" + net::encode(id), "");
      asked.heedless = true;
      net::fetch(asked);
    }
  } catch (const std::exception&) {
    // They cost storage until the bucket's lifecycle rule ends them.
  }
}

bool is_publishing(const std::string& record, const std::string& target) {
  const net::Record all = net::read_record(record);
  return all.publishing && all.target == net::normal(target);
}

}  // namespace ckpt::io

// SPDX-License-Identifier: Apache-2.0
#include "lib/net/upload_record.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "ckpt/error.h"
#include "lib/io/upload.h"
#include "lib/net/store.h"
#include "lib/net/transfer.h"
#include "lib/net/url.h"

namespace ckpt::net {
namespace {

// A torn line says nothing: the part is sent again.
void read_sent(const std::string& line, Record& record) {
  std::istringstream words(line);
  std::string key, file;
  uint64_t number = 0;
  SentPart part;
  words >> key >> number >> part.id >> part.sums.md5 >> part.sums.sha256 >>
      part.etag;
  if (words.get() != ' ' || !std::getline(words, file)) return;
  part.etag = decode(part.etag);
  record.sent[file][number] = std::move(part);
}

}  // namespace

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
    if (key == "part-mib")
      record.part_mib = std::strtoull(value.c_str(), {}, 10);
    if (key == "sent") read_sent(line, record);
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

// sent NUMBER ID MD5 SHA256 ETAG FILE
void add_sent(const std::string& path, const std::string& file, uint64_t number,
              const SentPart& part) {
  add_line(path,
           fmt::format("sent {} {} {} {} {} {}", number, part.id, part.sums.md5,
                       part.sums.sha256, encode(part.etag), file));
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
      net::fetch_renewed(net::store_of(url), std::move(asked));
    }
  } catch (const std::exception&) {
    // They cost storage until the bucket's lifecycle rule removes them.
  }
}

bool is_publishing(const std::string& record, const std::string& target) {
  const net::Record all = net::read_record(record);
  return all.publishing && all.target == net::normal(target);
}

}  // namespace ckpt::io

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/zip/outline.h"

namespace ckpt::zip {
namespace {

const std::string kContents[] = {"default/data.pkl", "default/byteorder",
                                 "default/version"};

constexpr const char* kFile = "default.pt";

io::Handle memory(const std::string& bytes) {
  return io::Handle::of_memory(bytes, "file");
}

std::string golden(const char* name) {
  const io::Handle file = io::Handle::open_read(
      CKPT_TEST_DATA "/torch_pt/container_variants/ckpt/" + std::string(name));
  return file.read_string(0, file.size());
}

std::optional<Outline> outline_of(const std::string& bytes) {
  const io::Handle file = memory(bytes);
  return Outline::of(file, Archive::read(file, Headers::kComputed), kContents);
}

std::string contents_of(const io::Handle& file, const Archive& archive) {
  std::string all;
  for (const std::string& name : kContents)
    all += read_entry(file, *archive.find(name), 1 << 20);
  return all;
}

// Entries without checksums.
bool same_places(const Archive& a, const Archive& b) {
  return std::ranges::equal(
      a.entries(), b.entries(), [](const Entry& x, const Entry& y) {
        return x.name == y.name && x.header_offset == y.header_offset &&
               x.data_offset == y.data_offset && x.size == y.size &&
               x.packed_size == y.packed_size && x.method == y.method &&
               x.flags == y.flags;
      });
}

}  // namespace

TEST_CASE("zip outline: an archive that differs in payload") {
  const std::string first = golden(kFile);
  const auto outline = outline_of(first);
  REQUIRE(outline);
  const Archive archive = Archive::read(memory(first), Headers::kComputed);
  const Entry& payload = *archive.find("default/data/0");

  std::string second = first;
  second[payload.data_offset] ^= 1;
  const uint32_t crc = crc32(0, std::as_bytes(std::span(second).subspan(
                                    payload.data_offset, payload.size)));
  // In the directory; the descriptor does not matter.
  const size_t at = second.rfind("default/data/0") - 46 + 16;
  for (size_t i = 0; i < 4; ++i)
    second[at + i] = static_cast<char>(crc >> 8 * i);

  const auto own = outline->match(memory(second));
  REQUIRE(own);
  CHECK(own->contents == outline->match(memory(first))->contents);
  const Archive expected = Archive::read(memory(second));
  REQUIRE(own->crcs.size() == expected.entries().size());
  for (size_t i = 0; i < own->crcs.size(); ++i)
    CHECK(own->crcs[i] == expected.entries()[i].crc32);
  CHECK(expected.find("default/data/0")->crc32 == crc);
}

// Whatever matches must equal what reading it anew gives.
TEST_CASE("zip outline: whatever byte is changed, it is noticed or payload") {
  const std::string good = golden(kFile);
  const auto outline = outline_of(good);
  REQUIRE(outline);
  const io::Handle file = memory(good);
  const Archive archive = Archive::read(file);
  const auto own = outline->match(file);
  size_t alike = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    CAPTURE(at);
    std::string bad = good;
    bad[at] ^= 0x41;
    const io::Handle changed = memory(bad);
    const auto found = outline->match(changed);
    if (!found || found->contents != own->contents) continue;
    ++alike;
    const Archive anew = Archive::read(changed, Headers::kComputed);
    CHECK(same_places(anew, archive));
    CHECK(contents_of(changed, anew) == contents_of(file, archive));
    for (size_t i = 0; i < found->crcs.size(); ++i)
      CHECK(found->crcs[i] == anew.entries()[i].crc32);
  }
  CHECK(alike > 0);
  for (const size_t size : {size_t{0}, good.size() - 1})
    CHECK(!outline->match(memory(good.substr(0, size))));
  CHECK(!outline->match(memory(good + '\0')));
}

TEST_CASE("zip outline: a checksum that is left out") {
  std::string bytes = golden(kFile);
  const auto outline = outline_of(bytes);
  REQUIRE(outline);
  const size_t at = bytes.rfind("default/data/0") - 46 + 16;
  bytes.replace(at, 4, 4, '\0');
  CHECK(!outline->match(memory(bytes)));
}

TEST_CASE("zip outline: none where headers have to be read") {
  CHECK(!outline_of(golden("rezipped_deflated.pt")));
}

}  // namespace ckpt::zip

// SPDX-License-Identifier: Apache-2.0
#include "lib/net/url.h"

#include <doctest/doctest.h>

using namespace ckpt::net;

TEST_CASE("a URL's parts, and what may be shown of them") {
  const Url url = parse_url("https://user:pw@host:8443/a/b.bin?sig=abc#end");
  CHECK(url.scheme == "https");
  CHECK(url.userinfo == "user:pw");
  CHECK(url.shown() == "https://host:8443/a/b.bin");
  CHECK(url.query == "sig=abc");
}

TEST_CASE("a URL's dots and slashes: what libcurl sends") {
  CHECK(normal("s3://b//x/") == "s3://b/x");
  CHECK(normal("az://c/runs/step/../other/m.pt") == "az://c/runs/other/m.pt");
  CHECK(normal("s3://b/a/b/../../c") == "s3://b/c");
  CHECK(normal("s3://b/a/..") == "s3://b");
  CHECK(normal("s3://b/../../c") == "s3://b/c");
  CHECK(normal("s3://b/a..b/c") == "s3://b/a..b/c");
  CHECK(normal("s3://b/x/./../m") == "s3://b/m");
  CHECK(normal("s3://b/./a/././b/.") == "s3://b/a/b");
  CHECK(normal("s3://b/.a/b./.") == "s3://b/.a/b.");
  CHECK(normal("hf://org/model/../x") == "hf://org/model/../x");
}

TEST_CASE("a URL in a query is not a scheme: a finding of net_fuzz") {
  CHECK(resolve_reference("https://a/b/c", "/login?next=https://d/e") ==
        "https://a/login?next=https://d/e");
  CHECK(resolve_reference("https://a/b/c", "d?next=https://d/e") ==
        "https://a/b/d?next=https://d/e");
  CHECK(resolve_reference("https://a/b/c", "https://d/e") == "https://d/e");
  CHECK(resolve_reference("https://a/b/c", "//d/e") == "https://d/e");
  CHECK(parse_url("/login?next=https://d/e").scheme.empty());
}

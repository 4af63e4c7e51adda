// SPDX-License-Identifier: Apache-2.0
// az://CONTAINER/NAME: blobs of one storage account, through the Blob service's
// REST API. The account, its key or a token are named as for Azure's command
// line:
//
//   AZURE_STORAGE_CONNECTION_STRING   AccountName=…;AccountKey=…;…
//   AZURE_STORAGE_ACCOUNT             and
//   AZURE_STORAGE_KEY                 "Shared Key": each request is signed, or
//   AZURE_STORAGE_SAS_TOKEN           a signed query, or
//   AZURE_STORAGE_AUTH_TOKEN          a bearer token; else unsigned
//
//   GET /CONTAINER?restype=container&comp=list&prefix=runs/&delimiter=/
//     <Blob><Name>runs/m.safetensors</Name><Properties><Content-Length>…<Etag>…
//     <BlobPrefix><Name>runs/optim/</Name></BlobPrefix>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "lib/net/hmac.h"
#include "lib/net/listed.h"
#include "lib/net/md5.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"

namespace ckpt::net {
namespace {

// The service's version: what ranges, listings and errors look like.
constexpr std::string_view kVersion = "2021-08-06";

struct AzureAccess {
  std::string account;
  std::string endpoint;  // https://ACCOUNT.blob.core.windows.net
  std::string key;       // its bytes
  std::string sas;       // a query, without "?"
  std::string bearer;
};

std::string first_set(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::string value = environment(name); !value.empty()) return value;
  return {};
}

// "Name=Value;Name=Value"; values may have "=" in them.
std::map<std::string, std::string> parse_connection(std::string_view text) {
  std::map<std::string, std::string> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = pair.find('=');
    if (equals != pair.npos)
      all[std::string(pair.substr(0, equals))] = pair.substr(equals + 1);
  }
  return all;
}

AzureAccess find_access() {
  auto said = parse_connection(environment("AZURE_STORAGE_CONNECTION_STRING"));
  const auto either = [&](const char* name,
                          std::initializer_list<const char*> variables) {
    std::string value = first_set(variables);
    return value.empty() ? said[name] : value;
  };
  AzureAccess access;
  access.account = either(
      "AccountName", {"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"});
  access.sas = either("SharedAccessSignature", {"AZURE_STORAGE_SAS_TOKEN"});
  while (access.sas.starts_with('?')) access.sas.erase(0, 1);
  access.bearer = environment("AZURE_STORAGE_AUTH_TOKEN");
  access.endpoint = either("BlobEndpoint", {"AZURE_STORAGE_BLOB_ENDPOINT"});
  if (access.endpoint.empty()) {
    if (access.account.empty())
      throw usage_error({}, "az:// needs the name of a storage account")
          .with_hint(
              "set AZURE_STORAGE_ACCOUNT, or "
              "AZURE_STORAGE_CONNECTION_STRING");
    const std::string& suffix = said["EndpointSuffix"];
    access.endpoint = fmt::format("https://{}.blob.{}", access.account,
                                  suffix.empty() ? "core.windows.net" : suffix);
  }
  check_endpoint("AZURE_STORAGE_BLOB_ENDPOINT", access.endpoint);
  while (access.endpoint.ends_with('/')) access.endpoint.pop_back();
  const std::string key =
      either("AccountKey", {"AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"});
  if (key.empty()) return access;
  const auto bytes = from_base64(key);
  if (!bytes)
    throw usage_error({}, "AZURE_STORAGE_KEY is not in base 64")
        .with_hint("az storage account keys list --account-name NAME");
  access.key = *bytes;
  return access;
}

// RFC 1123, in GMT: "Wed, 25 Nov 2026 18:51:43 GMT", whatever the locale.
std::string date_now() {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed",
                                   "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm t = {};
  ::gmtime_r(&now, &t);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday],
                     t.tm_mday, kMonths[t.tm_mon], t.tm_year + 1900, t.tm_hour,
                     t.tm_min, t.tm_sec);
}

// "Shared Key": a sum over the request. `query` is the URL's, decoded and
// sorted: "comp:list".
std::vector<std::string> sign(const AzureAccess& access,
                              const std::string& path,
                              const std::vector<std::string>& query,
                              const Attempt& attempt) {
  // Sorted by name, as they are signed.
  std::vector<std::string> headers{"x-ms-date:" + date_now()};
  if (!attempt.range.empty()) headers.push_back("x-ms-range:" + attempt.range);
  headers.push_back("x-ms-version:" + std::string(kVersion));
  // The account precedes the path, even where the path begins with it.
  std::string resource = "/" + access.account + path;
  for (const std::string& pair : query) resource += "\n" + pair;
  // Encoding, language, length, MD5, type and date of the body, which is
  // absent; If-Modified-Since; If-Match; two more conditions; Range.
  const std::string text =
      fmt::format("{}\n\n\n\n\n\n\n\n{}\n\n\n\n{}\n{}", attempt.method,
                  attempt.if_match, fmt::join(headers, "\n"), resource);
  headers.push_back(fmt::format("Authorization: SharedKey {}:{}",
                                access.account,
                                base64_of_hex(hmac_sha256(access.key, text))));
  return headers;
}

class AzureStore final : public ListedStore {
 public:
  Request request(const std::string& path) override {
    const Place place = parse_place(path);
    return ask(path, "/" + place.bucket + "/" + encode_path(place.key), {});
  }

 private:
  using Query = std::vector<std::pair<std::string, std::string>>;

  const AzureAccess& access() {
    const std::lock_guard lock(access_mutex_);
    if (!access_) access_ = find_access();
    return *access_;
  }

  // `query` sorted by name.
  Request ask(const std::string& path, const std::string& resource,
              const Query& query) {
    const AzureAccess& how = access();
    Request made;
    made.path = path;
    made.url = how.endpoint + resource;
    made.as_stored = true;
    check_scheme(made.url, path);
    std::vector<std::string> signed_query;
    const auto add = [&](const std::string& part) {
      made.url += (made.url.find('?') == std::string::npos ? "?" : "&") + part;
    };
    for (const auto& [name, value] : query) {
      add(name + "=" + encode(value));
      signed_query.push_back(name + ":" + value);
    }
    const std::string version = "x-ms-version: " + std::string(kVersion);
    if (!how.key.empty()) {
      made.signs_range = true;
      const std::string shown = parse_url(how.endpoint + resource).path;
      made.sign = [&how, shown, signed_query](const Attempt& attempt) {
        return sign(how, shown, signed_query, attempt);
      };
      return made;
    }
    made.headers.push_back(version);
    if (!how.sas.empty()) add(how.sas);
    if (!how.bearer.empty())
      made.secret_headers.push_back("Authorization: Bearer " + how.bearer);
    return made;
  }

  std::optional<Listing> list_all(const std::string& path) override {
    const Place place = parse_place(path);
    const std::string prefix = place.prefix();
    Listing all;
    bool any = place.key.empty();
    std::string marker;
    size_t pages = 0;
    while (true) {
      Query query{{"comp", "list"}, {"delimiter", "/"}};
      if (!marker.empty()) query.emplace_back("marker", marker);
      query.emplace_back("prefix", prefix);
      query.emplace_back("restype", "container");
      const Request asked = ask(path, "/" + place.bucket, query);
      const Response page = fetch(asked);
      // Who may read a blob may not always list.
      if (marker.empty() && page.status == 403 && !place.key.empty())
        return std::nullopt;
      if (marker.empty() && page.status == 404) return std::nullopt;
      check_status(asked, page);
      check_answer(asked, page, "EnumerationResults");
      any |= add_page(path, page.body, prefix, all);
      check_names(path, all.entries.size());
      const std::string before =
          std::exchange(marker, element(page.body, "NextMarker"));
      if (marker.empty()) break;
      check_marker(path, before, marker, ++pages);
    }
    if (!any) return std::nullopt;
    return all;
  }

  static bool add_page(const std::string& path, std::string_view xml,
                       const std::string& prefix, Listing& all) {
    // What XML can't hold is encoded, and says so.
    const auto name_of = [&](std::string_view part) {
      std::string name = element(part, "Name");
      if (part.find("<Name Encoded=\"true\"") != part.npos) name = decode(name);
      return name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    };
    bool any = false;
    for (const std::string_view part : elements(xml, "BlobPrefix")) {
      any = true;
      add_folder(path, name_of(part), all);
    }
    for (const std::string_view part : elements(xml, "Blob")) {
      any = true;
      std::string name = name_of(part);
      std::string etag = element(part, "Etag");
      const uint64_t size =
          size_number(path + "/" + name, element(part, "Content-Length"));
      add_object(path, std::move(name), size, std::move(etag), all);
    }
    return any;
  }

  std::optional<Facts> head(const std::string& path, bool beside) override {
    Request asked = request(path);
    asked.head = true;
    const Response response = fetch(asked);
    return facts_of_head(asked, response, beside);
  }

  std::mutex access_mutex_;
  std::optional<AzureAccess> access_;
};

}  // namespace

std::unique_ptr<Store> make_azure_store() {
  return std::make_unique<AzureStore>();
}

}  // namespace ckpt::net

// SPDX-License-Identifier: Apache-2.0
// What a reply means in words.
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <optional>

#include "lib/net/http.h"
#include "lib/net/store.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/text/format.h"

namespace ckpt::net {
namespace {

// The other side's name for the reply, for its operators.
std::string request_id(const Response& response) {
  for (const char* name :
       {"x-amz-request-id", "x-request-id", "x-ms-request-id",
        "x-guploader-uploadid", "x-amz-cf-id"})
    if (const std::string id = response.header(name); !id.empty())
      return text::printable(id.substr(0, 80));
  return {};
}

// S3's <Code> and the hub's X-Error-Message. Nothing else of a body, which may
// repeat what was sent, including keys and signatures.
std::string reason(const Response& response) {
  std::string code = element(response.body, "Code");
  for (const char* name : {"x-error-code", "x-ms-error-code"})
    if (code.empty()) code = response.header(name);
  if (code.empty()) return {};
  return text::printable(code.substr(0, 80));
}

// How many minutes this machine's clock is ahead, if that is more than
// signatures bear.
std::optional<int64_t> clock_skew(const Response& response) {
  constexpr int64_t kMost = 5;
  const std::string date = response.header("date");
  std::tm there = {};
  const char* const end =
      ::strptime(date.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &there);
  if (!end || *end != '\0') return std::nullopt;
  const int64_t minutes = (std::time(nullptr) - ::timegm(&there)) / 60;
  if (std::abs(minutes) < kMost) return std::nullopt;
  return minutes;
}

bool request_is_dated(const Request& request) {
  return request.signing || request.sign;
}

std::string access_hint(const Request& request) {
  if (request.path.starts_with("hf://"))
    return "set HF_TOKEN to a token that may read it (gated models want their "
           "terms accepted on the hub first); a misspelt name looks the same";
  if (request.path.starts_with("s3://"))
    return request.signing ? "the credentials were refused: look at "
                             "AWS_PROFILE, AWS_SESSION_TOKEN (it may have "
                             "expired) and AWS_REGION"
                           : "no credentials were found: set AWS_PROFILE, or "
                             "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
  if (request.path.starts_with("gs://"))
    return "set GOOGLE_OAUTH_ACCESS_TOKEN (gcloud auth print-access-token), or "
           "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY";
  if (request.path.starts_with("az://"))
    return "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN of the account "
           "AZURE_STORAGE_ACCOUNT, or AZURE_STORAGE_CONNECTION_STRING; a token "
           "may have expired";
  return "if the URL was signed, its time may be over: ask for a new one";
}

}  // namespace

std::string describe(const Response& response) {
  std::string text = fmt::format("HTTP {}", response.status);
  if (const std::string why = reason(response); !why.empty()) text += " " + why;
  if (const std::string id = request_id(response); !id.empty())
    text += ", request id " + id;
  return text;
}

Error proxy_error(const std::string& path) {
  return Error(ExitCode::kIo, {path, {}},
               "the proxy on the way wants a user and a password (HTTP 407)",
               "https_proxy=http://USER:PASSWORD@HOST:PORT (http_proxy for "
               "http://); no_proxy=HOST goes around it");
}

Error changed_error(const std::string& path, const std::string& what) {
  return Error(ExitCode::kIo, {path, {}},
               "the source changed during the run: " + what,
               "what was read of it may be a mixture, so nothing is written; "
               "wait until nobody writes to the source, then run it again");
}

bool has_expired(const Response& response) {
  const std::string code = reason(response);
  return code == "ExpiredToken" || code == "TokenRefreshRequired";
}

bool has_expired(const Request& asked, const Response& response) {
  return has_expired(response) ||
         (asked.head && response.status == 400 && reason(response).empty());
}

bool may_have_expired(const Response& response) {
  const long status = response.status;
  return has_expired(response) || status == 401 || status == 403 ||
         (status == 400 && reason(response).empty());
}

bool is_forbidden(const Response& response) {
  return response.status == 401 || response.status == 403;
}

Error forbidden_beside(const Request& asked, const Response& response) {
  return Error(ExitCode::kIo, {asked.path, {}},
               fmt::format("access is refused ({}), and nothing lists what is "
                           "there",
                           describe(response)),
               "if it is not there (where listings are forbidden, S3 says so "
               "of what is absent): CKPT_NET_FORBIDDEN=absent");
}

void check_answer(const Request& request, const Response& response,
                  const std::string& root) {
  // ListPartsResult of Amazon's is ListPartsOutput of others'.
  const std::string stem = root.substr(0, root.rfind("Result"));
  if (response.body.find("</" + stem) != std::string::npos ||
      response.body.find("<" + root + "/>") != std::string::npos)
    return;
  throw Error(ExitCode::kIo, {request.path, {}},
              fmt::format("the server's answer is not a {} ({})", root,
                          describe(response)),
              "is there a proxy that answers in its place?");
}

void check_status(const Request& request, const Response& response) {
  if (response.status >= 200 && response.status < 300) return;
  const Where where{request.path, {}};
  if (has_expired(response))
    throw Error(
        ExitCode::kIo, where,
        fmt::format("the credentials have expired ({})", describe(response)),
        "get new ones, then run it again");
  if (request.signing && has_expired(request, response))
    throw Error(ExitCode::kIo, where,
                fmt::format("the server refuses it and does not say why ({}): "
                            "the credentials may have expired",
                            describe(response)),
                "get new ones, then run it again");
  const auto skew = clock_skew(response);
  switch (response.status) {
    case 407:
      throw proxy_error(request.path);
    case 401:
    case 403:
      if (skew && request_is_dated(request))
        throw Error(
            ExitCode::kIo, where,
            fmt::format("access is refused ({}): the clock of this machine is "
                        "{} minutes {} the server's",
                        describe(response), std::abs(*skew),
                        *skew < 0 ? "behind" : "ahead of"),
            "set the clock: signatures count for some minutes only");
      throw Error(ExitCode::kIo, where,
                  fmt::format("access is refused ({})", describe(response)),
                  access_hint(request));
    case 404:
    case 410:
      throw missing_error(where, "does not exist ({})", describe(response));
    case 416:
      throw changed_error(request.path,
                          fmt::format("it has no byte {} ({})", request.begin,
                                      describe(response)));
    default:
      throw Error(
          ExitCode::kIo, where,
          fmt::format("the server answers {}", describe(response)),
          request.wanted() == 0
              ? ""
              : "files are read by ranges, which have to be answered "
                "with 206: curl -r 0-99 -D - -o /dev/null URL shows it");
  }
}

}  // namespace ckpt::net

// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/names.h"

namespace ckpt::pickle {
namespace {

struct NameRow {
  ModuleAndName python2;
  ModuleAndName python3;
};

constexpr NameRow kNames[] = {
    {{"__builtin__", "xrange"}, {"builtins", "range"}},
    {{"__builtin__", "unicode"}, {"builtins", "str"}},
    {{"__builtin__", "long"}, {"builtins", "int"}},
    {{"__builtin__", "unichr"}, {"builtins", "chr"}},
    {{"__builtin__", "reduce"}, {"functools", "reduce"}},
    {{"__builtin__", "intern"}, {"sys", "intern"}},
    {{"itertools", "izip"}, {"builtins", "zip"}},
    {{"itertools", "imap"}, {"builtins", "map"}},
    {{"itertools", "ifilter"}, {"builtins", "filter"}},
};

// A module that was merged from several is not split again.
struct ModuleRow {
  std::string_view python2;
  std::string_view python3;
  bool both_ways;
};

constexpr ModuleRow kModules[] = {
    {"__builtin__", "builtins", true},
    {"copy_reg", "copyreg", true},
    {"Queue", "queue", true},
    {"SocketServer", "socketserver", true},
    {"ConfigParser", "configparser", true},
    {"repr", "reprlib", true},
    {"commands", "subprocess", false},
    {"thread", "_thread", true},
    {"_abcoll", "collections.abc", true},
    {"httplib", "http.client", true},
    {"urllib2", "urllib.request", true},
    {"urlparse", "urllib.parse", true},
    {"xmlrpclib", "xmlrpc.client", true},
    {"cPickle", "pickle", false},
    {"cStringIO", "io", false},
    {"StringIO", "io", false},
    {"UserDict", "collections", false},
    {"UserList", "collections", false},
    {"exceptions", "builtins", false},
};

}  // namespace

ModuleAndName python3_name(std::string_view module, std::string_view name) {
  for (const NameRow& row : kNames) {
    if (row.python2 == ModuleAndName{module, name}) return row.python3;
  }
  if (module == "exceptions" && name == "StandardError")
    return {"builtins", "Exception"};
  for (const ModuleRow& row : kModules) {
    if (row.python2 == module) return {row.python3, name};
  }
  return {module, name};
}

ModuleAndName python2_name(std::string_view module, std::string_view name) {
  for (const NameRow& row : kNames) {
    if (row.python3 == ModuleAndName{module, name}) return row.python2;
  }
  for (const ModuleRow& row : kModules) {
    if (row.both_ways && row.python3 == module) return {row.python2, name};
  }
  return {module, name};
}

}  // namespace ckpt::pickle

/* SPDX-License-Identifier: Apache-2.0 */
/* What looks after a run, on FOLDER/run with its steps 10, 20 and 30. */
#include <ckpt/c.h>
#include <stdio.h>
#include <string.h>

static int faults = 0;

static void check(const char* call, const char* said, const char* wanted) {
  if (said && strstr(said, wanted)) return;
  fprintf(stderr, "%s: '%s' is not in %s\n", call, wanted, said ? said : "null");
  ++faults;
}

/* What the call returned, or its error; the caller releases it. */
static char* either(char* said, char* error) { return said ? said : error; }

static void prunes(const char* root, const char* options, const char* wanted) {
  char* error = NULL;
  char* said = ckpt_prune(root, options, &error);
  char* text = either(said, error);
  check(options ? options : "null", text, wanted);
  ckpt_free(text);
}

static void edits(const char* root, const char* options, const char* wanted) {
  char* error = NULL;
  char* said = ckpt_edit(root, options, &error);
  char* text = either(said, error);
  check(options ? options : "null", text, wanted);
  ckpt_free(text);
}

static void syncs(const char* root, const char* to, const char* options,
                  const char* wanted) {
  char* error = NULL;
  char* said = ckpt_sync(root, to, options, &error);
  char* text = either(said, error);
  check(options ? options : "null", text, wanted);
  ckpt_free(text);
}

static void watches(const char* root, const char* options,
                    const char* wanted) {
  char* error = NULL;
  char* said = ckpt_watch_once(root, options, &error);
  char* text = either(said, error);
  check(options ? options : "null", text, wanted);
  ckpt_free(text);
}

int main(int argc, char** argv) {
  char root[4096], copy[4096], watch[8192];
  if (argc != 2 || strlen(argv[1]) > 4000) return 2;
  sprintf(root, "%s/run", argv[1]);
  sprintf(copy, "%s/copy", argv[1]);

  syncs(root, copy, NULL, "\"complete\":true");
  syncs(root, copy, "{\"exclude\": \"*.json\"}", "\"fate\":\"same\"");
  syncs(root, copy, "{\"delete\": true}", "unknown option 'delete'");
  syncs(root, copy, "{\"exclude\": 3}", "a list of texts");
  syncs(root, "host:/x", "{}", "path on another machine");

  edits(root, "{\"set\": [\"a=b\"]}", "\"step\":\"checkpoint-30\"");
  edits(root, "{\"set\": \"a=c\", \"dry-run\": true}", "\"before\":\"b\"");
  edits(root, "{\"set\": \"a=c\", \"dry-run\": true}", "holds 3 steps");
  edits(root, "{\"sett\": \"a=c\"}", "did you mean set?");
  edits(root, "{}", "nothing says what to change");

  sprintf(watch,
          "{\"do\": [\"cmp\", \"{step}/config.json\", \"%s/{name}/config.json\"],"
          " \"state\": \"%s/state\", \"settle\": 0}",
          copy, argv[1]);
  watches(root, watch, "\"result\":\"done\"");
  watches(root, watch, "\"steps\":[]");
  watches(root, "{\"do\": \"true {stp}\"}", "{step}, {name} and {root}");
  watches(root, "{\"do\": \"true\", \"once\": true}", "unknown option 'once'");
  watches(root, "{\"tries\": 0}", "a whole number above 0");
  watches(root, NULL, "a command to run is missing");

  prunes(root, "{\"keep-last\": 2}", "\"fate\":\"goes\"");
  prunes(root, "{\"keep-last\": 2, \"delete\": true, \"dry-run\": true}",
         "\"deleted\":false");
  prunes(root, "{\"keep_last\": 2}", "did you mean keep-last?");
  prunes(root, "{\"keep-last\": \"2\"}", "a whole number above 0");
  prunes(root, "[]", "not a JSON object");
  prunes(root, "{", "\"schema\":\"ckpt/error/1\"");
  prunes(root, "{\"keep-last\": 2, \"delete\": true}",
         "\"fate\":\"deleted\"");
  prunes(root, "{\"keep-last\": 2}", "\"bytes\":0");
  return faults ? 1 : 0;
}

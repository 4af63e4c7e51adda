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

/* Elements of the final norm, in f32. */
static void norm_of(const ckpt_checkpoint* from, float* value, size_t count) {
  char* error = NULL;
  size_t size = 0;
  ckpt_data* data = ckpt_read(from, "model.norm.weight", NULL, NULL, &error);
  const void* bytes = data ? ckpt_data_bytes(data, &size) : NULL;
  if (size < count * sizeof *value) {
    fprintf(stderr, "ckpt_read: %s, %zu bytes\n", error ? error : "", size);
    ++faults;
  } else {
    memcpy(value, bytes, count * sizeof *value);
  }
  ckpt_free(error);
  ckpt_data_close(data);
}

/* 1.5 times one step, and what is between that and the step. */
static void merges(const char* root) {
  char step[4200], out[4200];
  char* error = NULL;
  float once[4], more[4];
  ckpt_checkpoint* pair[2];
  ckpt_checkpoint* sum;
  ckpt_selection model = {0};
  char* said;
  int i;
  sprintf(step, "%s/checkpoint-20", root);
  sprintf(out, "%s-delta", root);
  model.model_only = 1;
  pair[0] = ckpt_open(step, NULL, NULL, &error);
  pair[1] = ckpt_open(step, NULL, NULL, &error);
  sum = ckpt_merge(
      (const ckpt_checkpoint* const*)pair, 2,
      "{\"weights\": [1, 0.5], \"no-normalize\": true, \"dtype\": \"f32\"}",
      &error);
  if (!sum) {
    check("ckpt_merge", error, "a checkpoint");
    return;
  }
  norm_of(pair[0], once, 4);
  norm_of(sum, more, 4);
  for (i = 0; i < 4; ++i)
    if (more[i] != 1.5f * once[i]) {
      fprintf(stderr, "ckpt_merge: %g of %g\n", more[i], once[i]);
      ++faults;
    }
  ckpt_close(pair[1]);
  pair[1] = ckpt_select(pair[0], &model, &error);
  said = ckpt_write_delta(pair[1], sum, out, "{\"dry-run\": true}", &error);
  check("dry run", either(said, error), "\"bytes\":");
  ckpt_free(either(said, error));
  said = ckpt_write_delta(pair[0], sum, out, "{\"as-lora\": -1}", &error);
  check("rank", either(said, error), "a whole number above 0");
  ckpt_free(either(said, error));
  ckpt_close(sum);
  sum = ckpt_merge((const ckpt_checkpoint* const*)pair, 2,
                   "{\"method\": \"ties\"}", &error);
  check("no base", sum ? "" : error, "base");
  ckpt_free(error);
  ckpt_close(pair[0]);
  ckpt_close(pair[1]);
}

int main(int argc, char** argv) {
  char root[4096], copy[4096], watch[8192];
  if (argc != 2 || strlen(argv[1]) > 4000) return 2;
  sprintf(root, "%s/run", argv[1]);
  sprintf(copy, "%s/copy", argv[1]);

  merges(root);
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

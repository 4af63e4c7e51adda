/* SPDX-License-Identifier: Apache-2.0 */
/* Says what an adapter is, and adds it to a base: 5 if it doesn't fit. */
#include <ckpt/c.h>
#include <stdio.h>

static int failed(char* error) {
  fprintf(stderr, "%s\n", error ? error : "?");
  ckpt_free(error);
  return 1;
}

int main(int argc, char** argv) {
  char* error = NULL;
  if (argc != 3) return 2;
  ckpt_checkpoint* base = ckpt_open(argv[1], NULL, NULL, &error);
  if (!base) return failed(error);
  ckpt_checkpoint* adapter = ckpt_open(argv[2], NULL, NULL, &error);
  if (!adapter) return failed(error);
  char* said = ckpt_adapter(adapter, &error);
  if (!said) return failed(error);
  printf("%s\n", said);
  ckpt_free(said);
  if (ckpt_adapter(base, &error) || ckpt_has_adapter_inside(base)) return 3;

  const ckpt_adapter_use use = {argv[2], 0.5};
  const double alpha = 4;
  const ckpt_adapter_options options = {&alpha, 0, NULL, NULL};
  ckpt_checkpoint* sum = ckpt_add_adapters(base, &use, 1, &options, &error);
  ckpt_close(adapter);
  ckpt_close(base);
  if (!sum) {
    printf("%s\n", error);
    ckpt_free(error);
    return 5;
  }
  ckpt_close(sum);
  return 0;
}

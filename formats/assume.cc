#include "formats/assume.h"

#include <fmt/format.h>

namespace ckpt::formats {

uint64_t assume_places(Catalog& catalog) {
  const bool is_read = !catalog.claims.empty() || !catalog.redundant.empty();
  const Locate* found = catalog.locate.target<Locate>();
  if (is_read || found == nullptr) {
    locate(catalog);
    return 0;
  }
  const Locate places = *found;
  catalog.locate = nullptr;
  const uint64_t assumed = places.sample(catalog);
  if (assumed > 0)
    catalog.assumptions.push_back(
        fmt::format("{} items are like the last one of their file, which was "
                    "opened; a run opens each",
                    assumed));
  return assumed;
}

}  // namespace ckpt::formats

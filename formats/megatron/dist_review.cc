#include "formats/megatron/dist_review.h"

#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/common.h"
#include "formats/megatron/keys.h"
#include "formats/megatron/optimizer.h"
#include "formats/megatron/rules.h"
#include "formats/megatron/vocab.h"
#include "formats/megatron/zarr_scan.h"

namespace ckpt::megatron {
namespace {

constexpr char kDist[] = "megatron_torch_dist";

// Kinds and cuts for tensors of a source whose reader knows nothing of
// Megatron, but whose names are Megatron's.
void recognise(Catalog& catalog, const Facts& facts) {
  for (Tensor& tensor : catalog.tensors) {
    const Key key = parse_key(tensor.name);
    if (!key.state.empty()) {
      tensor.kind = Kind::optim;
      tensor.param = key.model;
      tensor.state = key.state;
    }
    if (key.rooted && tensor.tp.state == TpRule::State::kUnknown)
      tensor.tp = tp_rule(tensor.name, facts);
  }
}

void warn_of_names(Catalog& catalog) {
  const bool any =
      catalog.tensors.empty() ||
      std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
        return parse_key(tensor.name).rooted;
      });
  if (any) return;
  catalog.problems.push_back(
      {Problem::Severity::kWarning, "foreign_names", catalog.path, "",
       "no tensor has a name of Megatron's: its models will not find them"});
}

}  // namespace

Catalog review_for_dist(Catalog source, const Layout& layout) {
  if (source.format != kDist) load_objects(source);
  complete_object_names(source.objects);
  Facts facts = facts_of(source);
  infer_facts(source.tensors, facts);
  recognise(source, facts);
  warn_of_names(source);
  convert_optimizer(source, layout);
  if (layout.topology.tp != 0)
    pad_vocabulary(source, facts, layout.topology.tp);
  return source;
}

}  // namespace ckpt::megatron

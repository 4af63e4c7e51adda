// SPDX-License-Identifier: Apache-2.0
// Checks for what a step lacks; unread.h has what it holds besides. Private to
// this room.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/found.h"

namespace ckpt::runs {

// Warns of an optimizer that the same folder of the step beside has, and this
// one lacks: what goes on from here begins a new one.
void note_lost_optimizer(const Trainer& trainer, const std::string& folder,
                         const std::string& beside, Catalog& catalog);

// Warns if there are fewer of the numbered optimizers than models.
void note_few_optimizers(const Source& source, const std::string& folder,
                         size_t optimizers, size_t models, Catalog& catalog);

// DCP writes its index last: true for a folder of its files, or an empty one,
// that has none.
bool lacks_index(const std::string& folder);
// Such a folder is an unfinished save. Throws input_error.
void check_finished(const Source& source, const std::string& step);

// safetensors beside .bin: the files can't tell which of the two the trainer
// would load. Throws input_error.
void check_mixed(const std::string& folder);

// The checks below add problems to the catalog.

// Checks what is written and loaded together: an optimizer (null if there is
// none) and its scheduler, an adapter and its configuration.
void check_together(const Trainer& trainer, const std::string& folder,
                    const Source* optimizer, Catalog& catalog);

// An absent part that the loader can do without becomes a note. A part is
// missing if the neighbouring step has it (`beside`: that step's folder; "" if
// there is none), or if the writer of the rest always writes it.
void note_absent(const Trainer& trainer, const Part& part,
                 const std::string& folder, const std::string& beside,
                 const std::vector<Name>& names, Catalog& catalog);

// Notes small files that only the neighbouring step has: tokenizers,
// configurations.
void note_beside(const std::string& folder, const std::string& beside,
                 Catalog& catalog);

// Registered objects count from 0.
void check_numbers(const Part& part, const std::string& folder,
                   const std::vector<Name>& names, Catalog& catalog);

// "tp-{t}-of-{T}_dp-{d}-of-{D}": as many files as the sizes give.
void check_grid(const Part& part, const std::string& folder,
                const std::vector<Name>& names, Catalog& catalog);

// Notes files under each other's names. `saved_as`: the name that torch.save
// gave to each, by their stems. A copy of another's is none of these: `reshard`
// gives new ranks the random numbers of old ones.
void check_swapped(const std::string& folder, const std::vector<Name>& names,
                   const std::map<std::string, std::string>& saved_as,
                   Catalog& catalog);

// Files of ranks count from 0, and there is one for each rank that wrote the
// rest.
void check_ranks(const Part& part, const std::string& folder,
                 const std::vector<Name>& names, Catalog& catalog);

// A tensor in shards of safetensors ends where its last part does: without the
// last rank's file it looks smaller. Its states in DCP have the whole shape.
// Compares those from `begin` on; throws input_error.
void check_extents(const std::string& folder, size_t begin,
                   const Catalog& catalog);

}  // namespace ckpt::runs

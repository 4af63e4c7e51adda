// SPDX-License-Identifier: Apache-2.0
// What a step lacks, or has of another save. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/find.h"

namespace ckpt::runs {

// DCP writes its index last: a folder without one is an unfinished save.
// Throws input_error.
void check_finished(const Source& source, const std::string& step);

// safetensors beside .bin: which of two the trainer would load, nobody can
// tell from the files. Throws input_error.
void check_mixed(const std::string& folder);

// The rest are problems of the catalog.

// What is written and loaded together: an optimizer (null if it has none)
// and its scheduler, an adapter and its configuration.
void check_together(const Trainer& trainer, const std::string& folder,
                    const Source* optimizer, Catalog& catalog);

// A part that the loader does without becomes a note. What the step beside has
// (`beside`: that folder of it; "" if there is none), or those always write who
// wrote the rest, is missing.
void note_absent(const Trainer& trainer, const Part& part,
                 const std::string& folder, const std::string& beside,
                 const std::vector<Name>& names, Catalog& catalog);

// Small files that the step beside has: tokenizers, configurations.
void note_beside(const std::string& folder, const std::string& beside,
                 Catalog& catalog);

// Registered objects count from 0.
void check_numbers(const Part& part, const std::string& folder,
                   const std::vector<Name>& names, Catalog& catalog);

// "tp-{t}-of-{T}_dp-{d}-of-{D}": as many files as the sizes give.
void check_grid(const Part& part, const std::string& folder,
                const std::vector<Name>& names, Catalog& catalog);

// Files of ranks count from 0; those of as many ranks as wrote the rest.
void check_ranks(const Part& part, const std::string& folder,
                 const std::vector<Name>& names, Catalog& catalog);

}  // namespace ckpt::runs

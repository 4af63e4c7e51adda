// SPDX-License-Identifier: Apache-2.0
// Which of a trainer's forms is written, and how its optimizer numbers
// parameters. Private to this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/optimizer/adam.h"
#include "formats/runs/optimizer/order.h"

namespace ckpt::runs {

// The trainer that the step belongs to; "": none.
std::string trainer_in(const Catalog& source);

// True if the layout asks for a trainer's single file: --dp 1 and a DST with
// its ending, last.ckpt.
bool wants_one_file(const Layout& layout);
// True if steps of the trainer may be single files.
bool has_one_file(std::string_view trainer);

// Throws unfaithful_error for trainers that can't be written this way.
const Form& find_form(const Layout& layout, const std::string& source_trainer);

// The groups of a target, with all parameters of the source's groups. Throws
// unfaithful_error if parameters with different options would share a group, or
// if an order is needed that nothing proves.
std::vector<AdamGroup> groups_for(const Form& form, const Adam& adam,
                                  const Catalog& source);

// Names in the order in which the model registers its parameters. Throws
// unfaithful_error if nothing proves it.
std::vector<std::string> module_order(const Form& form, const Adam& adam,
                                      const Catalog& source);
// The same, if the model is of a known family; else nothing.
std::vector<std::string> known_order(const Catalog& source);

// True if each group has its parameters in this order.
bool follow(const std::vector<AdamGroup>& groups,
            const std::vector<std::string>& order);

}  // namespace ckpt::runs

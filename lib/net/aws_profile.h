// SPDX-License-Identifier: Apache-2.0
// The keys of a profile, whatever way it names.
#pragma once

#include <optional>
#include <string>

#include "lib/net/aws.h"

namespace ckpt::net {

using Profile = Profiles::mapped_type;

// Of the files' profiles (both files, joined). nullopt if it is absent or names
// no keys. Throws an Error with the next step for a way that fails, or that
// asks a person.
std::optional<Credentials> keys_of_profile(const Profiles& profiles,
                                           const std::string& name,
                                           const std::string& region);

// With another profile's keys, or those of a machine.
bool assumes_role(const Profile& profile);

// aws.cc: the two keys in the environment, or in the profile itself.
std::optional<Credentials> environment_keys();
std::optional<Credentials> keys_in(const Profile& profile,
                                   const std::string& name);
// The address of STS, which turns identities into keys.
std::string sts_endpoint(const std::string& region);

}  // namespace ckpt::net

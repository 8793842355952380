// What this machine can give to a run on the host device.
#pragma once

#include <optional>
#include <string>

#include "models/base/quantity.h"
#include "planner/plan.h"

namespace plimsoll::tools {

// MemAvailable of the text of /proc/meminfo, or what the control group allows where that is less
// (`limit`, the text of memory.max: a number, or "max"). Nothing where neither says.
std::optional<Bytes> available_memory(const std::string& meminfo, const std::string& limit);

std::optional<Bytes> host_memory();  // of this machine

// Of the addresses that a process may map (`ulimit -v`) what is left for the tensors of `ranks`
// threads, perhaps less than nothing. Nothing where there is no limit.
std::optional<Bytes> host_addresses(std::int64_t ranks);

// A question about the host device is judged by what this machine can give to each of the ranks
// that share it, unless --gpu-memory says what each may have.
void use_host_memory(planner::Question& question);

}  // namespace plimsoll::tools

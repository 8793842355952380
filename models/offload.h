// What leaves the GPU for the host between its uses.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll::models {

struct Offload {
  bool optimizer = false;  // states and masters; the optimizer steps on the CPU
  bool gradients = false;  // go as they arrive, for that optimizer, where the stack has the choice
  bool params = false;
  bool activations = false;
  bool nvme = false;  // what of these the stack can is in files beyond that: --offload-to nvme
  bool pinned = true;  // page-locked, where the stack asks
  bool any() const { return optimizer || gradients || params || activations; }
  bool operator==(const Offload&) const = default;
};

// "optimizer, params", in the order of the option's help; "" for none.
std::string text_of(const Offload& offload);

// Sets the part of that name. False: there is none.
bool set_offload(Offload& offload, std::string_view part);

}  // namespace plimsoll::models

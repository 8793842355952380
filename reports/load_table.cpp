#include "reports/load_table.h"

#include <fmt/format.h>

#include "models/stack_versions.h"

namespace plimsoll::reports {

Bytes needed_device(const Plan& plan) {
  return plan.load && plan.load->decides ? plan.load->device : plan.device;
}

void add_load(Lines& lines, const Plan& plan) {
  const Load& load = *plan.load;
  lines.heading(fmt::format("While {} (Transformers {}, in {})",
                            load.merges ? "the adapter is merged" : "it is loaded",
                            models::text_of(plan.strategy.transformers), name_of(load.dtype)));
  lines.row("peak", kNameColumns, load.peak, "in " + load.stage);
  lines.add("    at " + load.where);
  lines.row("then", kNameColumns, load.resident, "stays allocated");
  const bool warms_up = load.needed < load.reserved;
  lines.row("reserved", kNameColumns, load.reserved,
            warms_up ? "with the warm-up, which takes what is there" : "by the allocator");
  if (warms_up) lines.row("needed", kNameColumns, load.needed, "reserved without it");
  lines.row("device", kNameColumns, load.device, "with what is outside the allocator");
  lines.add(!load.decides ? "  The step needs more: it is what must fit."
            : load.merges ? "  Merging needs more than the step: it is what must fit."
                          : "  Loading needs more than the step: it is what must fit.");
}

}  // namespace plimsoll::reports

// Every stack that is modelled, in one line.
#include <array>

#include "models/run_names.h"
#include "planner/stacks/deepspeed/stack.h"
#include "planner/stacks/plimsoll/stack.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner {

namespace {

constexpr std::array kStacks{
    &pytorch::kStack,
    &deepspeed::kStack,
    &plimsoll_stack::kStack,
};

}  // namespace

const StackInfo& stack_info(models::Stack stack) {
  for (const StackInfo* info : kStacks)
    if (info->kind == stack) return *info;
  std::string names;
  for (const StackInfo* info : kStacks)
    names.append(names.empty()            ? ""
                 : info == kStacks.back() ? " and "
                                          : ", ")
        .append(name_of(info->kind));
  fail(ErrorKind::unsupported, "this --stack is not modelled yet (" + names + " are)");
}

std::span<const StackInfo* const> stacks() {
  return kStacks;
}

}  // namespace plimsoll::planner

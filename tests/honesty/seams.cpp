#include "tests/honesty/seams.h"

#include <list>
#include <set>

#include "runtime/comm/threads.h"
#include "runtime/memory.h"

// Member functions under their linker names: `this` is the first argument (Itanium C++ ABI, 2.1).
// __real_: plimsoll's. __wrap_: what its callers get instead.
#define PLIMSOLL_ALLOCATE                                              \
  "_ZN8plimsoll7runtime6Memory8allocateENSt7__cxx1112basic_stringIcSt" \
  "11char_traitsIcESaIcEEENS_6models8CategoryENS_5DTypeENS_7kernels7ExtentsE"
#define PLIMSOLL_RESET "_ZN8plimsoll7runtime6Tensor5resetEv"
#define PLIMSOLL_BEGIN_OP                                                             \
  "_ZN8plimsoll7runtime6Ledger8begin_opENSt7__cxx1112basic_stringIcSt11char_traitsIc" \
  "ESaIcEEENS_6models5PhaseE"

namespace plimsoll::honesty {

using models::Category;
using models::Phase;
using runtime::Extents;
using runtime::Ledger;
using runtime::Memory;
using runtime::Tensor;

Tensor real_allocate(Memory* memory, std::string name, Category category, DType dtype,
                     Extents shape) __asm__("__real_" PLIMSOLL_ALLOCATE);
Tensor wrap_allocate(Memory* memory, std::string name, Category category, DType dtype,
                     Extents shape) __asm__("__wrap_" PLIMSOLL_ALLOCATE);
void real_reset(Tensor* tensor) noexcept __asm__("__real_" PLIMSOLL_RESET);
void wrap_reset(Tensor* tensor) noexcept __asm__("__wrap_" PLIMSOLL_RESET);
void real_begin_op(Ledger* ledger, std::string name,
                   Phase phase) __asm__("__real_" PLIMSOLL_BEGIN_OP);
void wrap_begin_op(Ledger* ledger, std::string name,
                   Phase phase) __asm__("__wrap_" PLIMSOLL_BEGIN_OP);

namespace {

struct Held {
  Tensor tensor;
  int ops = 0;
};

// Of one rank, which is one thread.
struct Seeded {
  const RuntimeFault* fault = nullptr;
  Memory* memory = nullptr;  // of the last allocation: a rank has one
  std::set<const void*> watched;  // where tensors of the kept name lie
  std::list<Held> held;
  bool letting_go = false;
};
thread_local Seeded seeded;

void let_go(bool all) {
  seeded.letting_go = true;
  seeded.held.remove_if([&](Held& held) { return all || held.ops-- == 0; });
  seeded.letting_go = false;
}

}  // namespace

Tensor wrap_allocate(Memory* memory, std::string name, Category category, DType dtype,
                     Extents shape) {
  seeded.memory = memory;
  const bool watched = seeded.fault && seeded.fault->kept && seeded.fault->kept->tensor == name;
  Tensor tensor = real_allocate(memory, std::move(name), category, dtype, shape);
  if (watched) seeded.watched.insert(tensor.view().data);
  return tensor;
}

void wrap_reset(Tensor* tensor) noexcept {
  if (!seeded.fault || seeded.letting_go || !*tensor ||
      seeded.watched.erase(tensor->view().data) == 0)
    return real_reset(tensor);
  seeded.held.push_back({std::move(*tensor), seeded.fault->kept->ops});
}

void wrap_begin_op(Ledger* ledger, std::string name, Phase phase) {
  if (seeded.fault) let_go(false);
  const bool strays = seeded.fault && seeded.fault->stray && seeded.fault->stray->op == name &&
                      seeded.fault->stray->phase == phase;
  real_begin_op(ledger, std::move(name), phase);
  if (!strays) return;
  const Stray& stray = *seeded.fault->stray;
  Tensor tensor = real_allocate(seeded.memory, stray.tensor, Category::temporaries, DType::uint8,
                                {stray.bytes.value()});
  if (stray.ops > 0) seeded.held.push_back({std::move(tensor), stray.ops - 1});
}

witness::Measured run_with(const RuntimeFault& fault, const witness::Case& c) {
  const auto ranks = static_cast<std::size_t>(c.strategy.gpus);
  witness::Measured out;
  out.ranks.resize(ranks);
  out.reserved.resize(ranks);
  runtime::comm::run_ranks(static_cast<int>(ranks), [&](runtime::comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    seeded = {};
    if (!fault.rank || *fault.rank == world.rank()) seeded.fault = &fault;
    witness::RankMeasured one = witness::measured(c, world, [] {
      let_go(true);
      seeded.fault = nullptr;
    });
    out.ranks[rank] = std::move(one.steps);
    out.reserved[rank] = one.reserved;
  });
  return out;
}

}  // namespace plimsoll::honesty

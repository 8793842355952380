// A fleet's answer whole: as a document, as a table and as a page.
#include <doctest/doctest.h>

#include "reports/fleet.h"
#include "reports/page/page.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

Fleet fleet() {
  Fleet fleet;
  fleet.currency = "EUR";
  fleet.solver = "CBC 2.10";
  fleet.seconds = 20;
  fleet.pools = {{.name = "a",
                  .gpu = "a100-80gb",
                  .gpus = 20,
                  .gpus_per_node = 8,
                  .price = 15000,
                  .most_gpus = 64},
                 {.name = "b", .gpu = "h100-sxm-80gb", .gpus = 8, .gpus_per_node = 4}};
  FleetOption fits{.pool = 0,
                   .gpus = 8,
                   .possible = true,
                   .fits = true,
                   .device = 60_GiB,
                   .usable = 79_GiB,
                   .tokens_per_second = 4321.25};
  FleetOption slow = fits;
  slow.pool = 1;
  slow.gpus = 4;
  slow.possible = false;
  slow.why = "fits, but 100 tokens/s are fewer than 5000";
  FleetOption large{
      .pool = 1, .gpus = 2, .device = 90_GiB, .usable = 79_GiB, .why = "lacks 11.0 GiB"};
  fleet.jobs = {{.name = "sft",
                 .count = 3,
                 .priority = 2,
                 .min_tokens_per_second = 4000,
                 .options = {fits, slow}},
                {.name = "dpo", .count = 2, .priority = 1, .options = {large}}};
  fleet.owned = {.placements = {{.job = 0, .option = 0, .count = 2}},
                 .bought_nodes = {0, 0},
                 .priority = 4,
                 .priority_bound = 5,
                 .optimal = false};
  fleet.purchase = FleetSolution{.placements = {{.job = 0, .option = 0, .count = 3}},
                                 .bought_nodes = {1, 0},
                                 .priority = 6,
                                 .priority_bound = 6,
                                 .cost = 120000,
                                 .cost_bound = 119000,
                                 .optimal = true};
  return fleet;
}

constexpr const char* kDocument = R"--({
  "schema": "plimsoll.fleet/1",
  "tool": {"version": "1", "commit": "abc"},
  "fits": false,
  "verdict": "BUY for 120,000 EUR: then 3 of 5 jobs run at once, now 2",
  "currency": "EUR",
  "jobs_in_all": 5,
  "pools": [
    {"name": "a", "gpu": "a100-80gb", "count": 20, "gpus_per_node": 8, "price": 15000.0, "most_count": 64},
    {"name": "b", "gpu": "h100-sxm-80gb", "count": 8, "gpus_per_node": 4, "price": null, "most_count": null}
  ],
  "jobs": [
    {
      "name": "sft",
      "count": 3,
      "priority": 2.0,
      "min_tokens_per_second": 4000.0,
      "options": [
        {"pool": "a", "gpus": 8, "possible": true, "fits": true, "device_bytes": 64424509440, "usable_bytes": 84825604096, "tokens_per_second": 4321.25, "why": null},
        {"pool": "b", "gpus": 4, "possible": false, "fits": true, "device_bytes": 64424509440, "usable_bytes": 84825604096, "tokens_per_second": 4321.25, "why": "fits, but 100 tokens/s are fewer than 5000"}
      ]
    },
    {
      "name": "dpo",
      "count": 2,
      "priority": 1.0,
      "min_tokens_per_second": null,
      "options": [
        {"pool": "b", "gpus": 2, "possible": false, "fits": false, "device_bytes": 96636764160, "usable_bytes": 84825604096, "tokens_per_second": null, "why": "lacks 11.0 GiB"}
      ]
    }
  ],
  "solver": {"name": "CBC 2.10", "seconds_for_each": 20.0},
  "owned": {
    "placed": 2,
    "priority": 4.0,
    "priority_bound": 5.0,
    "cost": 0.0,
    "cost_bound": 0.0,
    "optimal": false,
    "certainty": "time ran out: at most 25.0 % better exists",
    "pools": [
      {"pool": "a", "owned_gpus": 20, "bought_gpus": 0, "bought_nodes": 0, "used_gpus": 16, "cost": 0.0},
      {"pool": "b", "owned_gpus": 8, "bought_gpus": 0, "bought_nodes": 0, "used_gpus": 0, "cost": 0.0}
    ],
    "placements": [
      {"job": "sft", "pool": "a", "gpus": 8, "count": 2}
    ],
    "left": [
      {"job": "sft", "count": 1},
      {"job": "dpo", "count": 2}
    ]
  },
  "purchase": {
    "placed": 3,
    "priority": 6.0,
    "priority_bound": 6.0,
    "cost": 120000.0,
    "cost_bound": 119000.0,
    "optimal": true,
    "certainty": "proven best",
    "pools": [
      {"pool": "a", "owned_gpus": 20, "bought_gpus": 8, "bought_nodes": 1, "used_gpus": 24, "cost": 120000.0},
      {"pool": "b", "owned_gpus": 8, "bought_gpus": 0, "bought_nodes": 0, "used_gpus": 0, "cost": 0.0}
    ],
    "placements": [
      {"job": "sft", "pool": "a", "gpus": 8, "count": 3}
    ],
    "left": [
      {"job": "dpo", "count": 2}
    ]
  }
})--";

}  // namespace

// One node of 8 more at 15,000 each; without it at most (5 - 4) / 4 more priority has a place.
TEST_CASE("a fleet's answer, from the first line to the last") {
  CHECK(pretty([](JsonWriter& json) { write_fleet(json, fleet(), {"1", "abc"}); }) == kDocument);
  CHECK(fleet_table(fleet(), {}) == R"(BUY for 120,000 EUR: then 3 of 5 jobs run at once, now 2

Where each job fits, on the fewest GPUs
  3 x sft
    a                        8    60.0 GiB          4,321 tokens/s
    b                       no  fits, but 100 tokens/s are fewer than 5000
  2 x dpo
    a                       no  not asked
    b                       no  lacks 11.0 GiB

On what is there (time ran out: at most 25.0 % better exists)
  pool                    GPUs  in use  jobs
  a                         20      16  2 x sft on 8
  b                          8       0  -
  without a place: 1 x sft, 2 x dpo

With what is to be bought (proven best)
  buy 8 x a100-80gb for a (1 node of 8 for 15,000 EUR a GPU): 120,000 EUR
  pool                    GPUs  in use  jobs
  a                         28      24  3 x sft on 8
  b                          8       0  -
  without a place: 2 x dpo

Assigned by CBC 2.10, whole nodes considered.
)");
}

TEST_CASE("how sure an answer is: of the priorities that run first, then of the price") {
  FleetSolution s{.priority = 8, .priority_bound = 10, .cost = 120, .cost_bound = 100};
  CHECK(bound_text(s) == "time ran out: at most 25.0 % better exists");
  s.priority = 10;  // no more of that: the price is what may be better
  CHECK(bound_text(s) == "time ran out: at most 20.0 % above the cheapest");
  s.priority = 10 * (1 - 1e-10);  // as a solver's tolerance leaves it
  CHECK(bound_text(s) == "time ran out: at most 20.0 % above the cheapest");
  s.cost = 0;
  CHECK(bound_text(s) == "time ran out before it was proven best");
  s.optimal = true;
  CHECK(bound_text(s) == "proven best");
}

TEST_CASE("a price has cents where it has some, and a currency where one is said") {
  Fleet euros = fleet(), unsaid = fleet();
  unsaid.currency.clear();
  CHECK(price_text(euros, 1234567) == "1,234,567 EUR");
  CHECK(price_text(euros, 1.25) == "1.25 EUR");
  CHECK(price_text(euros, 1.996) == "2 EUR");
  CHECK(price_text(euros, 1.99) == "1.99 EUR");
  CHECK(price_text(unsaid, 7) == "7");
}

TEST_CASE("what stands in a job's way is told of what lacks least") {
  FleetOption far{.pool = 0, .device = 100_GiB, .usable = 79_GiB, .why = "lacks 21"};
  FleetOption near = far, slow = far, other = far, unknown = far;
  near.device = 80_GiB;
  near.why = "lacks 1";
  slow.fits = true;
  slow.device = 1_GiB;
  slow.why = "is slow";
  other.pool = 1;
  other.device = 79_GiB;
  unknown.device.reset();
  unknown.why = "is refused";
  const auto text = [](std::vector<FleetOption> options) {
    return obstacle_text({.options = std::move(options)}, 0);
  };
  CHECK(text({far, near, other}) == "lacks 1");
  CHECK(text({near, far}) == "lacks 1");
  CHECK(text({slow, far}) == "lacks 21");
  CHECK(text({far, slow}) == "lacks 21");
  CHECK(text({unknown, far}) == "lacks 21");
  CHECK(text({far, unknown}) == "lacks 21");
  CHECK(text({slow, unknown}) == "is slow");
  CHECK(text({other}) == "not asked");
}

// Three jobs of sft and two of dpo; two and three of sft have a place, on eight GPUs each.
TEST_CASE("what is used, what has no place, and the answer in one line") {
  Fleet f = fleet();
  CHECK(f.jobs_in_all() == 5);
  CHECK(used_gpus(f, f.owned, 0) == 16);
  CHECK(used_gpus(f, f.owned, 1) == 0);
  CHECK(left_over(f, f.owned) == std::vector<std::int64_t>{1, 2});
  CHECK(fleet_verdict(f) == "BUY for 120,000 EUR: then 3 of 5 jobs run at once, now 2");
  f.purchase.reset();
  CHECK(fleet_verdict(f) == "NOT ENOUGH: 2 of 5 jobs run at once on what is there");
  f.jobs.pop_back();
  f.jobs[0].count = 2;
  CHECK(f.fits());
  CHECK(fleet_verdict(f) == "ALL FIT: 2 jobs run at once on 16 of 28 GPUs");
  f.jobs[0].count = f.owned.placements[0].count = 1;
  CHECK(fleet_verdict(f) == "ALL FIT: 1 job run at once on 8 of 28 GPUs");
}

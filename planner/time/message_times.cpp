#include "planner/time/message_times.h"

#include <numeric>

namespace plimsoll::planner {

namespace {

double seconds_of(const Fabric& fabric, const Group& group, const Message& m) {
  const double bytes = m.array.real();
  switch (m.kind) {
    case Message::Kind::all_gather:
      return all_gather_seconds(fabric, group, bytes);
    case Message::Kind::reduce_scatter:
      return reduce_scatter_seconds(fabric, group, bytes);
    case Message::Kind::all_reduce:
      return all_reduce_seconds(fabric, group, bytes);
    case Message::Kind::broadcast:
    case Message::Kind::reduce:  // the way back along the same ring
      break;
  }
  return broadcast_seconds(fabric, group, bytes);
}

void add_to_layer(const Message& m, double times, double seconds, const Cost& copies,
                  LayerMessages& layer) {
  PassMessages& pass = m.when == Message::When::forward    ? layer.forward
                       : m.when == Message::When::backward ? layer.backward
                                                           : layer.reduction;
  (m.beside == Message::Beside::nothing ? pass.alone : pass.beside) += seconds;
  pass.copies += copies;
  pass.count += times;
}

void add_to_ends(const Message& m, double seconds, const Cost& copies, MicroBatchMessages& of) {
  (m.beside == Message::Beside::nothing     ? of.alone
   : m.beside == Message::Beside::neighbour ? of.tail
                                            : of.late) += seconds;
  of.copies += copies;
}

}  // namespace

MessageTimes times_of(const Messages& messages, const std::vector<double>& copies,
                      const Fabric& fabric, std::int64_t node, double memory, double host) {
  MessageTimes out;
  out.each.layers.resize(copies.size());
  out.once.layers.resize(copies.size());
  const double layers = std::accumulate(copies.begin(), copies.end(), 0.0);
  for (const Message& m : messages) {
    const Group group = group_of(m.group, node);
    out.crosses_nodes = out.crosses_nodes || group.crosses_nodes();
    const double one = seconds_of(fabric, group, m);
    if (m.when == Message::When::step) {
      out.step += static_cast<double>(m.count) * one;
      continue;
    }
    const bool layer = m.part == Message::Part::layer, any = m.layer == Message::kAnyLayer;
    const double among = !layer ? 1 : any ? layers : copies.at(m.layer);
    const double times = static_cast<double>(m.count) / among, seconds = times * one;
    const Cost copied{0, times * m.copied / memory, times * host};
    for (MicroBatchMessages* of : {&out.once, &out.each}) {
      if (of == &out.each && m.micros != Message::Micros::each) break;
      if (!layer)
        add_to_ends(m, seconds, copied, *of);
      else if (!any)
        add_to_layer(m, times, seconds, copied, of->layers[m.layer]);
      else
        for (LayerMessages& each : of->layers) add_to_layer(m, times, seconds, copied, each);
    }
  }
  return out;
}

}  // namespace plimsoll::planner

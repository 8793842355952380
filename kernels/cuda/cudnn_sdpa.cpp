#include "kernels/cuda/cudnn_sdpa.h"

#include "models/base/quantity.h"

namespace plimsoll::kernels::cuda {

namespace {

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;

// The tensors of both graphs.
struct Tensors {
  const SdpaShape& s;
  Graph& graph;
  std::int64_t next = kFirstVirtual;

  // A head's rows; `stride` from token to token.
  int heads(std::int64_t uid, std::int64_t count, std::int64_t stride) {
    return graph.tensor(uid, s.dtype, {s.sequences, count, s.length, s.head_dim},
                        {s.length * stride, s.head_dim, stride, 1}, Graph::Kind::operand);
  }
  // The same, as columns.
  int turned_heads(std::int64_t uid, std::int64_t stride) {
    return graph.tensor(uid, s.dtype, {s.sequences, s.kv_heads, s.head_dim, s.length},
                        {s.length * stride, s.head_dim, 1, stride}, Graph::Kind::operand);
  }
  int rows(std::int64_t uid, Graph::Kind kind) {
    return graph.tensor(uid, kFloat, {s.sequences, s.heads, s.length, 1},
                        {s.heads * s.length, s.length, 1, 1}, kind);
  }
  int virtual_rows() { return rows(next++, Graph::Kind::virtual_); }
  int matrix(cudnnDataType_t dtype = kFloat) {
    return graph.tensor(next++, dtype, {s.sequences, s.heads, s.length, s.length},
                        {s.heads * s.length * s.length, s.length * s.length, s.length, 1},
                        Graph::Kind::virtual_);
  }
  int turned_matrix() {
    return graph.tensor(next++, s.dtype, {s.sequences, s.heads, s.length, s.length},
                        {s.heads * s.length * s.length, s.length * s.length, 1, s.length},
                        Graph::Kind::virtual_);
  }
  // Virtual gradients of the keys of every query head.
  int full_heads() {
    return graph.tensor(next++, s.dtype, {s.sequences, s.heads, s.length, s.head_dim},
                        {s.heads * s.length * s.head_dim, s.length * s.head_dim, s.head_dim, 1},
                        Graph::Kind::virtual_);
  }

  // `scores` where the key is no later than the query, else the scalar kHidden.
  int masked(int scores) {
    const int query = matrix(CUDNN_DATA_INT32), key = matrix(CUDNN_DATA_INT32);
    const int sees = matrix(CUDNN_DATA_BOOLEAN), hidden = graph.scalar(kHidden);
    const int result = matrix();
    graph.index_along(2, scores, query);
    graph.index_along(3, scores, key);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, query, key, sees, -1, CUDNN_DATA_BOOLEAN);
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, hidden, result, sees);
    return result;
  }
  int then(cudnnPointwiseMode_t mode, int x, int b = -1) {
    const int result = matrix();
    graph.pointwise(mode, x, b, result);
    return result;
  }
};

}  // namespace

Graph sdpa_forward(const SdpaShape& s) {
  Graph graph;
  Tensors t{s, graph};
  const int q = t.heads(kQ, s.heads, s.q), k = t.turned_heads(kK, s.k);
  const int v = t.heads(kV, s.kv_heads, s.v), out = t.heads(kOut, s.heads, s.out);
  const int products = t.matrix();
  graph.multiply(q, k, products);
  const int scores = t.masked(t.then(CUDNN_POINTWISE_MUL, products, graph.scalar(kScale)));
  const int most = t.virtual_rows(), total = t.virtual_rows(), logarithm = t.virtual_rows();
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, most);
  const int exponentials = t.then(CUDNN_POINTWISE_EXP, t.then(CUDNN_POINTWISE_SUB, scores, most));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, total);
  const int logsumexp = t.rows(kLogsumexp, Graph::Kind::operand);
  graph.pointwise(CUDNN_POINTWISE_LOG, total, -1, logarithm);
  graph.pointwise(CUDNN_POINTWISE_ADD, most, logarithm, logsumexp);
  const int p = t.matrix(s.dtype);
  graph.pointwise(CUDNN_POINTWISE_DIV, exponentials, total, p);
  graph.multiply(p, v, out);
  return graph;
}

Graph sdpa_backward(const SdpaShape& s) {
  Graph graph;
  Tensors t{s, graph};
  const int q = t.heads(kQ, s.heads, s.q), k = t.turned_heads(kK, s.k);
  const int v = t.turned_heads(kV, s.v), out = t.heads(kOut, s.heads, s.out);
  const int d_out = t.heads(kDOut, s.heads, s.d_out), d_q = t.heads(kDQ, s.heads, s.d_q);
  const int d_k = t.heads(kDK, s.kv_heads, s.d_k), d_v = t.heads(kDV, s.kv_heads, s.d_v);
  const int logsumexp = t.rows(kLogsumexp, Graph::Kind::operand);
  const int scale = graph.scalar(kScale);
  // Row sums of d_out · out.
  const int of_out =
      graph.tensor(t.next++, kFloat, {s.sequences, s.heads, s.length, s.head_dim},
                   {s.heads * s.length * s.head_dim, s.length * s.head_dim, s.head_dim, 1},
                   Graph::Kind::virtual_);
  const int sums = t.virtual_rows(), row_sums = t.rows(kRowSums, Graph::Kind::operand);
  graph.pointwise(CUDNN_POINTWISE_MUL, d_out, out, of_out);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, of_out, sums);
  graph.pointwise(CUDNN_POINTWISE_MUL, sums, graph.scalar(kKept), row_sums);
  // Probabilities again.
  const int products = t.matrix();
  graph.multiply(q, k, products);
  const int scores =
      t.then(CUDNN_POINTWISE_SUB, t.then(CUDNN_POINTWISE_MUL, products, scale), logsumexp);
  const int p = t.then(CUDNN_POINTWISE_EXP, t.masked(scores));
  const bool grouped = s.heads != s.kv_heads;
  // d_v = pᵀ d_out, summed over the query heads of a key head.
  const int p_turned = t.turned_matrix(), d_v_full = grouped ? t.full_heads() : d_v;
  graph.reshape(p, p_turned);
  graph.multiply(p_turned, d_out, d_v_full);
  if (grouped) graph.reduce(CUDNN_REDUCE_TENSOR_ADD, d_v_full, d_v);
  // d_scores = p · (d_out vᵀ - row sums) · scale.
  const int d_p = t.matrix();
  graph.multiply(d_out, v, d_p);
  const int slopes = t.then(CUDNN_POINTWISE_MUL, t.then(CUDNN_POINTWISE_SUB, d_p, row_sums), p);
  const int d_scores = t.then(CUDNN_POINTWISE_MUL, slopes, scale);
  // d_k = d_scoresᵀ q.
  const int d_scores_turned = t.turned_matrix(), d_k_full = grouped ? t.full_heads() : d_k;
  graph.reshape(d_scores, d_scores_turned);
  graph.multiply(d_scores_turned, q, d_k_full);
  if (grouped) graph.reduce(CUDNN_REDUCE_TENSOR_ADD, d_k_full, d_k);
  // d_q = d_scores k, added up in fp32.
  const int keys = graph.tensor(t.next++, kFloat, {s.sequences, s.kv_heads, s.length, s.head_dim},
                                {s.length * s.k, s.head_dim, s.k, 1}, Graph::Kind::virtual_);
  const int d_q_sum =
      graph.tensor(kDQSum, kFloat, {s.sequences, s.heads, s.length, s.head_dim},
                   {s.heads * s.length * s.head_dim, s.length * s.head_dim, s.head_dim, 1},
                   Graph::Kind::operand);
  graph.reshape(k, keys);
  graph.multiply(d_scores, keys, d_q_sum);
  graph.pointwise(CUDNN_POINTWISE_IDENTITY, d_q_sum, -1, d_q);
  return graph;
}

SdpaScratch scratch_of(const SdpaShape& s, std::int64_t workspace_bytes) {
  const auto rounded = [](std::int64_t bytes) { return ceil_divide(bytes, 256) * 256; };
  const std::int64_t rows = rounded(4 * s.sequences * s.heads * s.length);
  const std::int64_t sums = rounded(4 * s.sequences * s.heads * s.length * s.head_dim);
  return {0, rows, rows + sums, rows + sums + workspace_bytes};
}

std::optional<SdpaShape> fitting_part(const SdpaShape& whole, std::int64_t bytes,
                                      const WorkspaceOf& workspace) {
  const std::int64_t group = whole.heads / whole.kv_heads;
  const auto fits = [&](const SdpaShape& part) {
    // Without the workspace first: a plan takes a second to make.
    if (scratch_of(part, 0).bytes > bytes) return false;
    const std::optional<std::int64_t> needed = workspace(part);
    return needed && scratch_of(part, *needed).bytes <= bytes;
  };
  SdpaShape part = whole;
  const auto largest = [&](std::int64_t& lengths, const std::int64_t all) {
    for (std::int64_t parts = 1; parts <= all; ++parts) {
      const std::int64_t length = ceil_divide(all, parts);
      if (parts > 1 && length == lengths) continue;
      lengths = length;
      part.heads = part.kv_heads * group;
      if (fits(part)) return true;
    }
    return false;
  };
  if (largest(part.sequences, whole.sequences)) return part;
  if (largest(part.kv_heads, whole.kv_heads)) return part;
  return std::nullopt;
}

}  // namespace plimsoll::kernels::cuda

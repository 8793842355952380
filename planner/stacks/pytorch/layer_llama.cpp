// Llama-like layers: RMSNorm, grouped-query attention with rotary embedding, SwiGLU.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

using models::module_names;

namespace {
constexpr const ModuleNames& kInputNorm = module_names<"input_layernorm">;
constexpr const ModuleNames& kPostNorm = module_names<"post_attention_layernorm">;
constexpr const LinearNames& kQ = linear_names<"self_attn.q_proj">;
constexpr const LinearNames& kK = linear_names<"self_attn.k_proj">;
constexpr const LinearNames& kV = linear_names<"self_attn.v_proj">;
constexpr const LinearNames& kO = linear_names<"self_attn.o_proj">;
constexpr const ModuleNames& kQNorm = module_names<"self_attn.q_norm">;
constexpr const ModuleNames& kKNorm = module_names<"self_attn.k_norm">;
constexpr const LinearNames& kGate = linear_names<"mlp.gate_proj">;
constexpr const LinearNames& kUp = linear_names<"mlp.up_proj">;
constexpr const LinearNames& kDown = linear_names<"mlp.down_proj">;
constexpr const AttentionNames& kAttention = attention_names<"self_attn">;
constexpr Category kKept = Category::activations;
}  // namespace

// The tables have the stream's dtype: under autocast 16-bit queries and keys are promoted.
DType LayerWriter::rotated_dtype() const {
  const DType normed = d_.qk_norm ? norm_out(linear_out()) : linear_out();
  return promoted(normed, regime_.residual);
}

// apply_rotary_pos_emb: x·cos + rotate_half(x)·sin. With r bytes of the result and c of x, the
// moments are r + c/2 + c (first product, negated half, their concatenation), r + c + r, and 3 r at
// the sum, the highest.
TensorId LayerWriter::rotate(const OperandNames& names, TensorId from, std::int64_t width,
                             DType dtype, TensorId also_read) {
  const std::int64_t n = checked_multiply(tokens_.total(), width);
  const TensorId rotated = make(names.rotated, n, rotated_dtype());
  op(names.rotated)
      .read(from)
      .read(also_read)
      .read(cos_)
      .read(sin_)
      .write(rotated)
      .scratch(std::max(bytes(n, rotated_dtype()) * 2, bytes(n, dtype) + bytes(n / 2, dtype)));
  if (b_.keeps_blocks()) {
    BlockEvents events;
    const auto product = events.take(bytes(n, rotated_dtype()));
    const auto half = events.take(bytes(n / 2, dtype)), joined = events.take(bytes(n, dtype));
    events.drop(half);
    events.take(bytes(n, rotated_dtype()));
    events.drop(joined);
    events.birth(rotated);
    events.drop(product);
    b_.blocks(std::move(events));
  }
  return rotated;
}

// Its gradient: d·sin, of which two slice_backward of full size are made and added; d·cos; the sum.
// In x's dtype (c bytes; d has r) but for the products, which are made promoted and cast. Beside d
// stand at most the first product and both slices, 3 c, or the slices' sum, the second product and
// its cast, c + r + c.
TensorId LayerWriter::rotate_backward(const OperandNames& names, TensorId d_rotated,
                                      std::int64_t width, DType dtype) {
  const std::int64_t n = checked_multiply(tokens_.total(), width);
  const bool promotes = dtype != rotated_dtype();
  const Bytes c = bytes(n, dtype), r = promotes ? bytes(n, rotated_dtype()) : Bytes(0);
  const TensorId product = temporary(names.grad_wide, n, dtype);
  op(names.rotated).read(d_rotated).read(sin_).write(product).scratch(r);
  const TensorId d = temporary(names.grad, n, dtype);
  op(names.rotated).read(d_rotated).read(product).read(cos_).write(d).scratch(std::max(c, r));
  if (b_.keeps_blocks())
    b_.blocks(rotate_backward_blocks(d_rotated, product, d, c, bytes(n / 2, dtype), r));
  return d;
}

// The second op of the above: both slices of the first product, their sum, the second product.
BlockEvents LayerWriter::rotate_backward_blocks(TensorId d_rotated, TensorId product, TensorId d,
                                                Bytes own, Bytes half, Bytes promoted) {
  BlockEvents events;
  const auto negated = events.take(half), first = events.take(own);
  events.drop(negated);
  const auto second = events.take(own);
  events.death(product);
  const auto sum = events.take(own);
  events.drop(first);
  events.drop(second);
  const auto wide = promoted > Bytes(0) ? events.take(promoted) : -1;
  const auto other = events.take(own);
  if (wide >= 0) events.drop(wide);
  events.death(d_rotated);
  events.birth(d);
  events.drop(sum);
  events.drop(other);
  return events;
}

void LayerWriter::qkv_forward(const LayerPart& layer, const Flow& f, LayerSaved& s) {
  const std::int64_t t = tokens_.total();
  const Ref x{s.input_norm.out};
  const DType in = norm_out(regime_.residual);
  DType dtype = linear_out();
  linear_forward(kQ, layer.q, x, in, f.x, kKept, s.q);
  TensorId q = s.q.out;
  if (layer.q_norm.width > 0) {
    norm_forward(kQNorm, layer.q_norm, {q}, dtype, t * d_.heads, d_.head_dim,
                 f.x || layer.q.trains(), s.q_norm);
    q = s.q_norm.out;
  }
  linear_forward(kK, layer.k, x, in, f.x, kKept, s.k);
  TensorId k = s.k.out;
  if (layer.k_norm.width > 0) {
    norm_forward(kKNorm, layer.k_norm, {k}, dtype, t * d_.kv_heads, d_.head_dim,
                 f.x || layer.k.trains(), s.k_norm);
    k = s.k_norm.out;
    dtype = norm_out(dtype);
  }
  linear_forward(kV, layer.v, x, in, f.x, kKept, s.v);
  s.q_rotated = rotate(kAttention.q, q, d_.q_width(), dtype, kNoTensor);
  s.k_rotated = rotate(kAttention.k, k, d_.kv_width(), dtype, q);  // Python drops both then
}

void LayerWriter::llama_mlp_forward(const LayerPart& layer, const Flow& f, LayerSaved& s) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const Ref x{s.post_norm.out};
  const DType in = norm_out(regime_.residual), dtype = linear_out();
  linear_forward(kGate, layer.gate, x, in, f.y, kKept, s.gate);
  s.activated = copy("mlp.act", s.gate.out, n, dtype, kKept);
  linear_forward(kUp, layer.up, x, in, f.y, kKept, s.up);
  s.product = make("mlp.product", n, dtype);
  op("mlp.product").read(s.activated).read(s.up.out).write(s.product);
  linear_forward(kDown, layer.down, {s.product}, dtype, f.product, kKept, s.down, stops());
  if (!stops()) op("mlp").release(s.post_norm.out).release(s.product);
}

void LayerWriter::llama_forward(const LayerPart& layer, Ref input, Ref output, const Flow& f,
                                LayerSaved& s) {
  const std::int64_t t = tokens_.total();
  norm_forward(kInputNorm, layer.input_norm, input, regime_.residual, t, d_.hidden, f.input,
               s.input_norm);
  qkv_forward(layer, f, s);
  attention_forward(kAttention, attention_input(f, s), s.attention);
  linear_forward(kO, layer.o, {s.attention.out}, linear_out(), f.attention, kKept, s.o);
  s.middle = make("self_attn.residual", stream_values(), regime_.residual);
  // Python holds q, k, v and the norm's result until self_attn returns.
  op(kAttention.module)
      .release(s.q_rotated)
      .release(s.k_rotated)
      .release(s.v.out)
      .release(s.input_norm.out);
  auto add = op("self_attn.residual");
  read(add, input).read(s.o.out).write(s.middle);
  norm_forward(kPostNorm, layer.post_norm, {s.middle}, regime_.residual, t, d_.hidden, f.middle,
               s.post_norm);
  llama_mlp_forward(layer, f, s);
  auto last = op(stops() ? "checkpoint.stop" : "mlp.residual");
  last.read(s.middle).read(s.down.out).release(s.attention.weights);
  last.touch(input.tensor, input.delta, input.beyond, models::Access::release);
  if (stops())
    last.release(s.post_norm.out).release(s.product);
  else
    write(last, output);
}

Sum LayerWriter::llama_mlp_backward(const LayerPart& layer, const Flow& f, const LayerSaved& s,
                                    TensorId d_out) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const DType in = norm_out(regime_.residual), dtype = linear_out();
  const TensorId d_product =
      linear_backward(kDown, layer.down, dtype, f.product, s.down, d_out).tensor;
  if (!f.product) return {};
  const TensorId d_act = f.gate ? temporary("mlp.act.grad", n, dtype) : kNoTensor;
  const TensorId d_up = f.up ? temporary("mlp.up_proj.out.grad", n, dtype) : kNoTensor;
  auto product = op("mlp.product");
  product.read(d_product).write(d_act).write(d_up);
  if (f.gate) product.read(s.up.out);
  if (f.up) product.read(s.activated);
  Sum dx;
  if (f.up) dx = linear_backward(kUp, layer.up, in, f.y, s.up, d_up);
  if (!f.gate) return dx;
  const TensorId d_gate = temporary("mlp.gate_proj.out.grad", n, dtype);
  op("mlp.act").read(d_act).read(s.gate.out).write(d_gate);
  return linear_backward(kGate, layer.gate, in, f.y, s.gate, d_gate, dx);
}

Sum LayerWriter::qkv_backward(const LayerPart& layer, const Flow& f, const LayerSaved& s,
                              std::array<TensorId, 3> d_qkv) {
  const std::int64_t t = tokens_.total();
  const DType in = norm_out(regime_.residual), linear = linear_out();
  const DType dtype = layer.k_norm.width > 0 ? norm_out(linear) : linear;
  TensorId dk = kNoTensor, dq = kNoTensor;
  Sum dx;
  if (f.k) dk = rotate_backward(kAttention.k, d_qkv[1], d_.kv_width(), dtype);
  if (f.q) dq = rotate_backward(kAttention.q, d_qkv[0], d_.q_width(), dtype);
  // The gradient of a transposed view is laid out anew before the product reads it; flash and the
  // memory-efficient kernel write v's in the right layout already.
  const bool stored = path() == AttentionPath::eager || path() == AttentionPath::math;
  if (f.v) {
    TensorId dv = d_qkv[2];
    if (stored || (windowed() && grouped()))
      dv = copy(kAttention.v.grad_laid_out, dv, kv_values(), linear);
    dx = linear_backward(kV, layer.v, in, f.x, s.v, dv);
  }
  const auto back = [&](const OperandNames& names, const LinearNames& linears,
                        const ModuleNames& norms, const LinearPart& part, const NormPart& norm,
                        TensorId d, std::int64_t heads, const LinearSaved& saved,
                        const NormSaved& normed) {
    const bool grad = f.x || part.trains();
    if (norm.width > 0)
      d = norm_backward(norms, norm, {saved.out}, linear, t * heads, d_.head_dim, grad, normed, d);
    if (!grad) return;
    d = copy(names.grad_laid_out, d, t * heads * d_.head_dim, linear);
    dx = linear_backward(linears, part, in, f.x, saved, d, dx);
  };
  if (f.k) back(kAttention.k, kK, kKNorm, layer.k, layer.k_norm, dk, d_.kv_heads, s.k, s.k_norm);
  if (f.q) back(kAttention.q, kQ, kQNorm, layer.q, layer.q_norm, dq, d_.heads, s.q, s.q_norm);
  return dx;
}

void LayerWriter::llama_backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input,
                                 const Flow& f, const LayerSaved& s) {
  const std::int64_t t = tokens_.total();
  const DType stream = regime_.residual;
  TensorId d_middle = d_output.tensor;
  if (f.product || layer.down.trains()) {
    const TensorId d =
        llama_mlp_backward(layer, f, s, branch("mlp.out.grad", d_output.tensor)).tensor;
    if (f.y)
      d_middle = norm_backward(kPostNorm, layer.post_norm, {s.middle}, stream, t, d_.hidden,
                               f.middle, s.post_norm, d, d_output.tensor);
  }
  if (!f.middle) return;
  TensorId d = kNoTensor;
  if (f.attention || layer.o.trains())
    d = linear_backward(kO, layer.o, linear_out(), f.attention, s.o,
                        branch("self_attn.out.grad", d_middle))
            .tensor;
  if (!f.attention) return;
  const AttentionInput in = attention_input(f, s);
  d = qkv_backward(layer, f, s, core_attention_backward(kAttention, in, s, d)).tensor;
  if (!f.x) return;
  norm_backward(kInputNorm, layer.input_norm, input, stream, t, d_.hidden, f.input, s.input_norm, d,
                d_middle, d_input, frame());
}

}  // namespace plimsoll::planner::pytorch

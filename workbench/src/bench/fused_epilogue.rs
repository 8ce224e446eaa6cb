//! The fused epilogue of a product, as far as cuBLASLt has the same in one call.

use crate::cuda::Activation;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Buffer, Kernel, OpKind, visit};
use counterflow_codegen::program::{AtEnd, TensorId, Usage};
use counterflow_codegen::value::{AccId, Binary, Unary, Value};
use counterflow_runtime::Error;
use std::collections::{BTreeMap, BTreeSet};

/// A bias, then an activation; or a bias, then a matrix: a separate one, or the result's old contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FusedEpilogue {
    pub bias: Option<TensorId>,
    pub activation: Activation,
    pub added: Option<TensorId>,
    pub in_place: bool,
    /// The second weights of a gated activation: SiLU of the product, times the product of the same rows with these.
    pub up: Option<TensorId>,
}

/// Statement that fills each accumulator.
#[derive(Default)]
struct Accs {
    dots: BTreeMap<AccId, [TensorId; 2]>,
    loads: BTreeMap<AccId, TensorId>,
}

impl Accs {
    /// Products by their operands' scales are the products that those stand for.
    fn unscaled<'v>(&self, kernel: &Kernel, value: &'v Value) -> &'v Value {
        if let Value::Binary(Binary::Mul, rest, scale) = value
            && let Value::Acc(scale) = &**scale
            && let Some(scale) = self.loads.get(scale)
            && kernel.buffers[scale.index()].usage.is_scale()
        {
            return self.unscaled(kernel, rest);
        }
        value
    }
}

impl FusedEpilogue {
    /// The epilogue of every store into `y`. None if it is anything else, or if stores differ.
    pub(super) fn of(kernel: &Kernel, y: TensorId) -> Option<FusedEpilogue> {
        let mut accs = Accs::default();
        let mut stored = BTreeSet::new();
        for role in &kernel.roles {
            visit(&role.body, &mut |op| match &op.kind {
                OpKind::Dot { acc, a, b } => drop(accs.dots.insert(*acc, [a.buffer, b.buffer])),
                OpKind::Load { acc, from } => drop(accs.loads.insert(*acc, from.buffer)),
                OpKind::Store { dst, value, .. } if dst.buffer == y => {
                    stored.insert(value.0);
                }
                OpKind::Store { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Reduce { .. } => {}
            });
        }
        let mut found = stored.into_iter().map(|value| {
            FusedEpilogue::value(kernel, &accs, y, &kernel.values[usize::from(value)])
        });
        let first = found.next()??;
        found.all(|other| other == Some(first)).then_some(first)
    }

    /// True if only sums of products are stored, each once. The sum over ranks is then cuBLASLt's product.
    pub(super) fn adds_only(kernel: &Kernel) -> bool {
        let mut accs = Accs::default();
        let mut stored = BTreeSet::new();
        for role in &kernel.roles {
            visit(&role.body, &mut |op| match &op.kind {
                OpKind::Load { acc, from } => drop(accs.loads.insert(*acc, from.buffer)),
                OpKind::Store { value, .. } => drop(stored.insert(value.0)),
                OpKind::Dot { .. }
                | OpKind::ForRanks { .. }
                | OpKind::If { .. }
                | OpKind::Wait { .. }
                | OpKind::Signal { .. }
                | OpKind::Copy { .. }
                | OpKind::Reduce { .. } => {}
            });
        }
        let input = |acc: &AccId| {
            let from = accs.loads.get(acc);
            from.is_some_and(|from| kernel.buffers[from.index()].usage.is_input())
        };
        stored.into_iter().all(|value| {
            let mut summands = Vec::new();
            kernel.values[usize::from(value)].summands(&mut summands);
            let summands: Vec<&Value> = (summands.into_iter())
                .map(|summand| accs.unscaled(kernel, summand))
                .collect();
            let product = |summand: &&Value| matches!(summand, Value::Acc(acc) if !input(acc));
            let alike = |(at, summand)| summands[..at].contains(summand);
            summands.iter().all(product) && !summands.iter().enumerate().any(alike)
        })
    }

    fn value(kernel: &Kernel, accs: &Accs, y: TensorId, value: &Value) -> Option<FusedEpilogue> {
        let mut epilogue = FusedEpilogue {
            in_place: kernel.buffers[y.index()].usage.is_added_to(),
            ..FusedEpilogue::default()
        };
        if let Value::Binary(Binary::Mul, gate, up) = value
            && let (Value::Unary(Unary::Silu, gate), Value::Acc(up)) = (&**gate, &**up)
            && let Value::Acc(gate) = &**gate
        {
            let [x, w] = *accs.dots.get(gate)?;
            let [also, up] = *accs.dots.get(up)?;
            epilogue.up = (also == x && up != w).then_some(up);
            return epilogue.up.map(|_| epilogue);
        }
        let sum = match value {
            Value::Unary(Unary::Gelu, inner) => {
                epilogue.activation = Activation::Gelu;
                inner
            }
            Value::Unary(Unary::GeluTanh, inner) => {
                epilogue.activation = Activation::GeluTanh;
                inner
            }
            other => other,
        };
        epilogue.sum(kernel, accs, sum)?;
        // cuBLASLt adds one matrix, before the activation. No schedule here does.
        let adds = u32::from(epilogue.added.is_some()) + u32::from(epilogue.in_place);
        let most = u32::from(epilogue.activation == Activation::Nothing);
        (adds <= most).then_some(epilogue)
    }

    /// The product, plus one bias at most, plus one matrix at most.
    fn sum(&mut self, kernel: &Kernel, accs: &Accs, value: &Value) -> Option<()> {
        let value = accs.unscaled(kernel, value);
        if let Value::Acc(acc) = value {
            return accs.dots.contains_key(acc).then_some(());
        }
        let Value::Binary(Binary::Add, rest, more) = value else {
            return None;
        };
        let Value::Acc(more) = &**more else {
            return None;
        };
        let tensor = *accs.loads.get(more)?;
        let place = match kernel.buffers[tensor.index()].usage {
            Usage::VECTOR => &mut self.bias,
            Usage::LOCAL => &mut self.added,
            _ => return None,
        };
        if place.replace(tensor).is_some() {
            return None;
        }
        self.sum(kernel, accs, rest)
    }

    /// True if there is more than the product.
    pub(super) fn some(self) -> bool {
        self != FusedEpilogue::default()
    }

    /// The tensors that it reads.
    pub(super) fn operands(self) -> impl Iterator<Item = TensorId> {
        [self.bias, self.added, self.up].into_iter().flatten()
    }

    /// Rejects what one call of cuBLASLt cannot do.
    pub(super) fn comparable(self, kernel: &Kernel, y: TensorId) -> Result<(), Error> {
        let dtype = kernel.buffers[y.index()].dtype;
        let other = self
            .operands()
            .find(|tensor| kernel.buffers[tensor.index()].dtype != dtype);
        let refuse = |what: String, help: &str| {
            Err(Error::NotYet {
                what,
                help: help.into(),
            })
        };
        if dtype.is_fp8() && self.some() {
            return refuse(
                format!(
                    "measuring {} with results in {dtype}, which does more than multiply",
                    kernel.name
                ),
                "results in bf16, f16 or f32: `run --device cuda` checks and times those in FP8",
            );
        }
        if kernel.buffers[y.index()].usage.at_end == AtEnd::Computed {
            return refuse(
                format!("measuring {}, which gathers its result", kernel.name),
                "measure products whose rows are gathered before, or summed: no peer is run before a gather of the result",
            );
        }
        let columns = kernel.buffers[y.index()].columns;
        let gathers_columns =
            |buffer: &Buffer| buffer.usage == Usage::GATHERED && buffer.rows == columns;
        if kernel
            .buffers
            .iter()
            .any(|buffer| gathers_columns(buffer) && buffer.mn_major)
        {
            return refuse(
                format!(
                    "measuring {} in this layout, which gathers its weight",
                    kernel.name
                ),
                "use --layout nt: each part of a weight is a matrix of its own in the others",
            );
        }
        if let Some(other) = other {
            let buffer = &kernel.buffers[other.index()];
            return refuse(
                format!(
                    "measuring {} with {} in {}",
                    kernel.name, buffer.name, buffer.dtype
                ),
                "cuBLASLt adds only tensors of the result's type",
            );
        }
        if self.in_place && dtype != Dtype::F32 {
            return refuse(
                format!("measuring {}, which adds to {dtype}", kernel.name),
                "we round a product before we add it to 16 bits, and cuBLASLt does not: measure results in f32",
            );
        }
        let moves = kernel
            .buffers
            .iter()
            .any(|buffer| buffer.usage.placement.symmetric);
        let fp8 = kernel.buffers.iter().any(|buffer| buffer.dtype.is_fp8());
        let more = self.operands().next().is_some() || self.activation != Activation::Nothing;
        if fp8 && (more || moves && self.in_place) {
            return refuse(
                format!(
                    "measuring {} with FP8, which does more than multiply",
                    kernel.name
                ),
                "measure FP8 products alone, on one rank or several, or added to f32 on one: `run --device cuda` checks and times the others",
            );
        }
        let first = kernel.buffers.first();
        let wider = first.is_some_and(|first| first.dtype != dtype) && !fp8;
        if (self.some() || wider) && moves {
            return refuse(
                format!(
                    "measuring {}, which moves data and does more than multiply",
                    kernel.name
                ),
                "measure bias, GELU, residual and results of another type in schedules of one rank",
            );
        }
        Ok(())
    }

    /// The parts, in words.
    fn words(self) -> String {
        let gelu = self.activation != Activation::Nothing;
        let parts = [
            (self.bias.is_some(), "bias"),
            (gelu, "GELU by tanh"),
            (self.added.is_some(), "beta = 1"),
            (self.in_place, "beta = 1 in place"),
        ];
        let parts = parts.into_iter().filter(|(there, _)| *there);
        parts.map(|(_, part)| part).collect::<Vec<_>>().join(", ")
    }

    /// The baseline's name: whether cuBLASLt does everything in one call, and whether that is the same function.
    pub(super) fn baseline(self, fused: bool) -> String {
        match (self.some(), fused, self.activation) {
            _ if self.up.is_some() => {
                "cuBLASLt twice, then a kernel for SiLU and the product".into()
            }
            (false, ..) => "cuBLASLt".into(),
            (true, false, _) => {
                format!("cuBLASLt, the product alone: it has no {}", self.words())
            }
            (true, true, Activation::Gelu) => {
                format!("cuBLASLt with {} (ours by erf)", self.words())
            }
            (true, true, Activation::GeluTanh | Activation::Nothing) => {
                format!("cuBLASLt with {}", self.words())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me};
    use counterflow_codegen::lower;
    use counterflow_codegen::variant::{Scales, Variant};

    /// A product with the epilogue `f` of the product, a bias and a tile.
    fn kernel(
        [of_bias, of_z]: [Dtype; 2],
        f: impl FnOnce(Value, Value, Value) -> Value,
    ) -> (Kernel, TensorId) {
        let mut s = ScheduleBuilder::new("fused");
        let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
        let bias = s.vector("bias", of_bias);
        let z = s.local("z", of_z);
        let y = s.out("y", Dtype::Bf16);
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let [bias, z] = [s.load(bias.at(t)), s.load(z.at(t))];
                let acc = s.dot(x.at(t), w.at(t));
                let value = f(acc, bias, z);
                s.store(y.at(t), value);
            });
        });
        let kernel = lower::lower(&s.finish(), &Variant::new(1)).expect("lowers");
        (kernel, TensorId(4))
    }

    const SAME: [Dtype; 2] = [Dtype::Bf16; 2];

    fn epilogue(f: impl FnOnce(Value, Value, Value) -> Value) -> Option<FusedEpilogue> {
        let (kernel, y) = kernel(SAME, f);
        FusedEpilogue::of(&kernel, y)
    }

    #[test]
    fn what_cublaslt_does_in_one_call_is_recognised() {
        let (bias, added) = (Some(TensorId(2)), Some(TensorId(3)));
        let plain = FusedEpilogue::default();
        assert_eq!(epilogue(|acc, _, _| acc), Some(plain));
        let gelu = epilogue(|acc, bias, _| acc.bias(bias).gelu()).expect("known");
        let activation = Activation::Gelu;
        assert_eq!(
            gelu,
            FusedEpilogue {
                bias,
                activation,
                ..plain
            }
        );
        assert_eq!(
            gelu.baseline(true),
            "cuBLASLt with bias, GELU by tanh (ours by erf)"
        );
        let tanh = epilogue(|acc, _, _| acc.gelu_tanh()).expect("known");
        assert_eq!(tanh.baseline(true), "cuBLASLt with GELU by tanh");
        let residual = epilogue(|acc, bias, z| acc.bias(bias).residual(z)).expect("known");
        assert_eq!(
            residual,
            FusedEpilogue {
                bias,
                added,
                ..plain
            }
        );
        assert_eq!(
            residual.baseline(false),
            "cuBLASLt, the product alone: it has no bias, beta = 1"
        );
        assert_eq!(plain.baseline(true), "cuBLASLt");
    }

    #[test]
    fn what_it_does_not_do_is_not() {
        assert_eq!(epilogue(|acc, _, _| acc.silu()), None);
        assert_eq!(epilogue(|acc, bias, _| acc.gelu().bias(bias)), None);
        assert_eq!(epilogue(|acc, _, z| acc.gelu().residual(z)), None);
        assert_eq!(
            epilogue(|acc, _, z| acc.residual(z.clone()).residual(z)),
            None
        );
        assert_eq!(epilogue(|acc, _, z| acc * z), None);
    }

    /// Two products of the same rows, and what becomes of them.
    fn of_two(f: impl Fn(Value, Value) -> Value) -> Option<FusedEpilogue> {
        let mut s = ScheduleBuilder::new("two");
        let [x, gate, up] = ["x", "gate", "up"].map(|name| s.local(name, Dtype::Bf16));
        let y = s.out("y", Dtype::Bf16);
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let [gate, up] = [gate, up].map(|w| s.dot(x.at(t), w.at(t)));
                s.store(y.at(t), f(gate, up));
            });
        });
        let kernel = lower::lower(&s.finish(), &Variant::new(1)).expect("lowers");
        FusedEpilogue::of(&kernel, TensorId(3))
    }

    #[test]
    fn a_gated_activation_is_two_products_and_a_kernel() {
        let swiglu = of_two(|gate, up| gate.silu() * up).expect("known");
        let up = Some(TensorId(2));
        let plain = FusedEpilogue::default();
        assert_eq!(swiglu, FusedEpilogue { up, ..plain });
        let name = swiglu.baseline(true);
        assert_eq!(
            name,
            "cuBLASLt twice, then a kernel for SiLU and the product"
        );
        assert_eq!(of_two(|gate, up| gate.gelu() * up), None);
        assert_eq!(of_two(|gate, up| gate.silu() + up), None);
        assert_eq!(of_two(|gate, _| gate.clone().silu() * gate), None);
    }

    /// Products by scales of their operands are plain products, and so are results that are multiplied by their scale.
    #[test]
    fn products_of_scaled_operands_are_products() {
        let mut s = ScheduleBuilder::new("plain");
        let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
        let y = s.out("y", Dtype::Bf16);
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
        let (program, y) = (s.finish(), TensorId(2));
        let fp8 = Variant::new(1).dtype(Dtype::E4M3);
        for scales in [None, Some(Scales::PerTensor), Some(Scales::PerRow)] {
            let variant = scales.into_iter().fold(fp8.clone(), Variant::scales);
            let kernel = lower::lower(&program, &variant).expect("lowers");
            let epilogue = FusedEpilogue::of(&kernel, y).expect("known");
            assert_eq!(epilogue, FusedEpilogue::default());
            assert!(epilogue.comparable(&kernel, y).is_ok());
        }
        for variant in [fp8.output(Dtype::E4M3), Variant::new(1).output(Dtype::E5M2)] {
            let kernel = lower::lower(&program, &variant).expect("lowers");
            let epilogue = FusedEpilogue::of(&kernel, y).expect("known");
            assert_eq!(epilogue, FusedEpilogue::default());
            assert!(epilogue.comparable(&kernel, y).is_ok());
        }
    }

    /// Otherwise its result would be compared with the plain product, and found wrong.
    #[test]
    fn what_moves_data_and_does_more_than_add_is_not_compared_with_the_product() {
        let gathered = |f: fn(Value) -> Value| {
            let mut s = ScheduleBuilder::new("gathered");
            let (x, w) = (s.gathered("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
            let y = s.out("y", Dtype::Bf16);
            let tiles = s.tiles("tiles", y, (128, 128));
            s.gemm(GemmOptions::default(), |s| {
                s.for_items("t", tiles.of(me()), |s, t| {
                    let acc = s.dot(x.at(t), w.at(t));
                    s.store(y.at(t), f(acc));
                });
            });
            let kernel = lower::lower(&s.finish(), &Variant::new(2)).expect("lowers");
            FusedEpilogue::adds_only(&kernel)
        };
        assert!(gathered(|acc| acc));
        assert!(!gathered(|acc| acc.clone() + acc));
        assert!(!gathered(Value::silu));
        assert!(!gathered(|acc| acc.scale(2.0)));
        let (with_bias, _) = kernel(SAME, |acc, bias, _| acc.bias(bias));
        assert!(!FusedEpilogue::adds_only(&with_bias));
    }

    /// A product that is added to the old contents of `grad`.
    fn accumulated(dtype: Dtype, f: impl FnOnce(Value) -> Value) -> (Kernel, TensorId) {
        let mut s = ScheduleBuilder::new("accumulated");
        let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
        let grad = s.accumulated("grad", dtype);
        let tiles = s.tiles("tiles", grad, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let acc = s.dot(x.at(t), w.at(t));
                s.store_add(grad.at(t), f(acc));
            });
        });
        let kernel = lower::lower(&s.finish(), &Variant::new(1)).expect("lowers");
        (kernel, TensorId(2))
    }

    #[test]
    fn what_is_added_in_place_is_cublaslts_beta() {
        let (kernel, grad) = accumulated(Dtype::F32, |acc| acc);
        let epilogue = FusedEpilogue::of(&kernel, grad).expect("known");
        assert!(epilogue.some() && epilogue.in_place);
        assert_eq!(epilogue.baseline(true), "cuBLASLt with beta = 1 in place");
        epilogue.comparable(&kernel, grad).expect("measured");
        let (kernel, grad) = accumulated(Dtype::F32, Value::gelu);
        assert_eq!(
            FusedEpilogue::of(&kernel, grad),
            None,
            "cuBLASLt adds before the function"
        );
        let (kernel, grad) = accumulated(Dtype::Bf16, |acc| acc);
        let epilogue = FusedEpilogue::of(&kernel, grad).expect("known");
        let error = epilogue
            .comparable(&kernel, grad)
            .expect_err("rounded twice");
        assert!(error.to_string().contains("adds to bf16"), "{error}");
    }

    #[test]
    fn results_of_fp8_are_products_alone() {
        let variant = Variant::new(1).output(Dtype::E4M3);
        let mut s = ScheduleBuilder::new("biased");
        let [x, w] = ["x", "w"].map(|name| s.local(name, Dtype::Bf16));
        let (bias, y) = (s.vector("bias", Dtype::E4M3), s.out("y", Dtype::Bf16));
        let tiles = s.tiles("tiles", y, (128, 128));
        s.gemm(GemmOptions::default(), |s| {
            s.for_items("t", tiles.grouped(8), |s, t| {
                let bias = s.load(bias.at(t));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc.bias(bias));
            });
        });
        let kernel = lower::lower(&s.finish(), &variant).expect("lowers");
        let y = TensorId(3);
        let epilogue = FusedEpilogue::of(&kernel, y).expect("known");
        let error = epilogue.comparable(&kernel, y).expect_err("refused");
        assert!(
            error.to_string().contains("e4m3, which does more"),
            "{error}"
        );
    }

    #[test]
    fn what_is_added_has_the_results_type() {
        let (kernel, y) = kernel([Dtype::F32, Dtype::Bf16], |acc, bias, _| acc.bias(bias));
        let epilogue = FusedEpilogue::of(&kernel, y).expect("known");
        let error = epilogue.comparable(&kernel, y).expect_err("another type");
        assert!(error.to_string().contains("bias in f32"), "{error}");
    }
}

//! Results of cuBLASLt and NCCL that differ from ours: cuBLASLt writes FP8 only where operands are FP8 with one scale each,
//! and makes
//! no scales; NCCL adds no FP8.

use crate::cuda::{Pieces, Scaled};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::{Tensors, Variant};

/// The type of its results where ours are of that type, and it has none in FP8.
pub(super) fn wide(result: Dtype, operands: Dtype) -> Dtype {
    match (result.is_fp8(), operands.is_fp8()) {
        (false, _) => result,
        (true, false) => operands,
        (true, true) => Dtype::Bf16,
    }
}

/// The types that its results of FP8 operands may have, the nearest to ours first.
pub(super) fn types(result: Dtype, operands: Dtype, kind: Scaled) -> Vec<Dtype> {
    let one = |pieces: &Pieces| matches!(pieces, Pieces::Nothing | Pieces::Whole);
    let narrow = result.is_fp8() && kind.pieces.iter().all(one);
    let narrow = narrow.then_some(result);
    narrow.into_iter().chain([wide(result, operands)]).collect()
}

/// Words behind a name: what its result in a type lacks of a kernel's, or has instead.
pub(super) fn lacks(dtype: Dtype, result: Dtype, variant: &Variant) -> String {
    if !result.is_fp8() {
        return String::new();
    }
    let narrow = dtype.is_fp8();
    let amax = match (variant.asked(&Tensors::Outputs).amax, narrow) {
        (true, true) => " with its amax",
        (true, false) => " without an amax",
        (false, _) => "",
    };
    let scales = match (variant.output_rule(), narrow) {
        (Some(_), true) => " by one given scale",
        (Some(_), false) => " without scales",
        (None, _) => "",
    };
    match narrow {
        true => format!(", in {dtype}{amax}{scales}"),
        false => format!(", in {dtype} instead of {result}{amax}{scales}"),
    }
}

/// Words behind a name: what NCCL adds instead of a kernel's partial sums, where it adds results of that type.
pub(super) fn adds(dtype: Dtype, variant: &Variant) -> String {
    let sums = variant.partial_rule().map(|rule| rule.to.dtype());
    let instead = |sums| format!(", adding {dtype} instead of {sums}");
    sums.map(instead).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterflow_codegen::rule::{Fp8, ScaleRule};

    #[test]
    fn cublaslt_writes_fp8_where_operands_have_one_scale_each() {
        use Dtype::{Bf16, E4M3, F16, F32};
        let kinds = |result| {
            let narrow = |kind: &&Scaled| types(result, E4M3, **kind)[0].is_fp8();
            Scaled::ALL.iter().filter(narrow).count()
        };
        assert_eq!((kinds(E4M3), kinds(Bf16)), (2, 0), "fast and promoted");
        assert_eq!(types(E4M3, E4M3, Scaled::ALL[0]), [E4M3, Bf16]);
        assert_eq!(types(F32, E4M3, Scaled::ALL[0]), [F32]);
        assert_eq!((wide(E4M3, F16), wide(F32, F16)), (F16, F32));
    }

    #[test]
    fn rows_of_cublaslt_say_what_they_lack() {
        use Dtype::{Bf16, E4M3};
        let plain = Variant::new(1).output(E4M3);
        let made = Variant::new(1).output_scales(ScaleRule::transformer_engine(Fp8::E4M3));
        let amax = plain.clone().amax(true);
        for (variant, dtype, told) in [
            (&plain, E4M3, ", in e4m3"),
            (&plain, Bf16, ", in bf16 instead of e4m3"),
            (&amax, E4M3, ", in e4m3 with its amax"),
            (&amax, Bf16, ", in bf16 instead of e4m3 without an amax"),
            (&made, E4M3, ", in e4m3 by one given scale"),
            (&made, Bf16, ", in bf16 instead of e4m3 without scales"),
        ] {
            assert_eq!(lacks(dtype, E4M3, variant), told);
        }
        let sums = Variant::new(2).quantised_reduction(ScaleRule::transformer_engine(Fp8::E4M3));
        assert_eq!(lacks(Bf16, Bf16, &sums), "");
    }
}

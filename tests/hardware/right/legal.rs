//! Where there is no GPU, what would run on some is planned all the same: a size that is refused is found here. Without `WIDE` a third of
//! each test's worlds and kinds.

use super::{FP8_MATRIX, Matrix, Schedule, fp8_blocks, of_bits, partial, shapes, shapes_of_bits};
use crate::case::plans;
use crate::wide::sampled;
use counterflow::codegen::lower::lower;
use counterflow::codegen::verify;
use counterflow::{Program, Shape, Variant, schedules};

/// Why these launches are none of that schedule, on GPUs of their own or on one that all ranks share.
fn refused<'a>(
    program: &Program,
    variant: &Variant,
    sizes: impl IntoIterator<Item = &'a [Shape]>,
) -> Option<String> {
    let found = lower(program, variant).and_then(verify::kernel);
    let planned = found.and_then(|kernel| {
        let mut sizes = sizes.into_iter();
        sizes.try_for_each(|shapes| {
            let mut sharing = [1, variant.world].into_iter();
            sharing.try_for_each(|sharing| plans(&kernel, shapes, sharing).map(drop))
        })
    });
    let error = planned.err()?;
    Some(format!("{} {variant}: {error}", program.name))
}

impl Matrix {
    fn refused(&self, worlds: &[u32], schedule: Schedule) -> Option<String> {
        let program = schedule();
        let sizes: Vec<_> = (self.sizes.iter())
            .map(|size| shapes(self.rows, *size))
            .collect();
        let variants = worlds
            .iter()
            .flat_map(|ranks| self.variants(&program, *ranks));
        let mut refused = sampled(variants, 3)
            .map(|variant| refused(&program, &variant, sizes.iter().map(|shapes| &shapes[..])));
        refused.find_map(|refused| refused)
    }

    /// Every case has plans in these worlds.
    pub(super) fn must_be_legal(&self, worlds: &[u32], schedule: Schedule) {
        assert_eq!(self.refused(worlds, schedule), None);
    }
}

#[test]
fn a_size_that_is_refused_is_found() {
    let of_partial = Matrix {
        sizes: FP8_MATRIX.sizes,
        ..partial::sending(partial::sendings()[0]).0
    };
    let refused = of_partial.refused(&[2], schedules::gemm_rs);
    let refused = refused.expect("264 codes are no whole 16 bytes");
    assert!(
        refused.contains("a row of partial is 264 e4m3 = 264 bytes"),
        "{refused}"
    );
}

/// What has sizes of its own.
#[test]
fn cases_that_are_compared_bit_for_bit_have_plans() {
    let sums = of_bits().map(|variant| (schedules::gemm(), variant, shapes_of_bits()));
    let mut planned = 0;
    for (program, variant, shapes) in sums.chain(fp8_blocks::of_bits()) {
        assert_eq!(refused(&program, &variant, [&shapes[..]]), None);
        planned += 1;
    }
    // Of scales of blocks: 3 kinds of 5 gathers in 4 worlds and of a plain product, and chunks.
    assert_eq!(planned, 12 + 3 * (5 * 4 + 1) + 2 * 19);
}

//! Several gathers, several products, and sums that are waited for in turn, in one kernel: no spill, no slow code.

use crate::handed_over::{self, Move, PAIRS};
use crate::sass::all_pass;
use counterflow::Variant;

#[test]
fn several_gathers_and_sums_in_turn_pass_the_sass_checks() {
    let of = |program| (program, Variant::new(4));
    let mut cases = vec![
        of(handed_over::two_gathers(Move::Push)),
        of(handed_over::two_gathers(Move::Pull)),
        of(handed_over::sums_in_order()),
        of(handed_over::rows_as_columns()),
        of(handed_over::gathered_rows_as_columns()),
    ];
    cases.extend(PAIRS.map(|elements| of(handed_over::gathers_of(elements))));
    all_pass(&cases);
}

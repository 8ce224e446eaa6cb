//! Products of which two sides have one size: no spill, no slow code.

use crate::sass::all_pass;
use crate::square_of::{by_itself, through_scratch};
use counterflow::{Dtype, Layout, Variant};

#[test]
fn products_of_one_size_pass_the_sass_checks() {
    let of = |variant| (by_itself(false), variant);
    let mut cases = vec![(through_scratch(), Variant::new(2))];
    for tile in [(128, 128), (128, 256), (256, 128)] {
        let variant = || Variant::new(1).set("tiles", tile);
        cases.extend([
            of(variant()),
            of(variant().dtype(Dtype::F16).layout(Layout::Tn)),
            of(variant().dtype(Dtype::E4M3)),
        ]);
    }
    all_pass(&cases);
}

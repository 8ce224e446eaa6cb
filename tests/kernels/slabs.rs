//! Gathers in slabs of rows and K: no spill, no slow code.

use crate::sass::all_pass;
use crate::slabs_of::{Counted, Mistake, WAYS, Way, by_slab, by_slab_of, gathered, gathered_as};
use counterflow::{Dtype, Variant};

#[test]
fn slabs_pass_the_sass_checks() {
    let of = |program| (program, Variant::new(4));
    let mut cases: Vec<_> = WAYS
        .iter()
        .map(|way| of(gathered(*way, Counted::Each, (128, 256))))
        .collect();
    cases.extend([
        of(gathered(Way::Push, Counted::ByRows, (64, 192))),
        of(gathered(Way::Pull, Counted::ByRows, (256, 2048))),
        of(gathered_as(Dtype::E4M3, (128, 256))),
    ]);
    cases.extend(WAYS.map(|way| of(by_slab(way, (128, 256)))));
    let e4m3 = by_slab_of(Way::Push, (128, 512), Dtype::E4M3, Mistake::None);
    cases.push(of(e4m3));
    all_pass(&cases);
}

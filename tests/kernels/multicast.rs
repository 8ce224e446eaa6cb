//! Every rank's memory at once: no spill, no slow code, and the multicast instructions are there. Compiled, never run.

use crate::multicast_of::{REAL, Sizes, added, all, all_reduce};
use crate::sass::all_pass;
use counterflow::{Dtype, Program, Variant, schedules};

fn cases(of: impl IntoIterator<Item = Sizes>) -> Vec<(Program, Variant)> {
    let programs = of.into_iter().flat_map(all);
    programs.map(|program| (program, Variant::new(4))).collect()
}

#[test]
fn kernels_that_reach_every_rank_pass_the_sass_checks() {
    all_pass(&cases([REAL]));
}

/// Other tiles and types, and the library's: with those above, more than twenty.
#[test]
#[ignore = "a minute of compiling: `.ci/run` runs it"]
fn all_kernels_that_reach_every_rank_pass_the_sass_checks() {
    let mut of = cases([
        Sizes {
            tile: (128, 128),
            ..REAL
        },
        Sizes {
            tile: (256, 128),
            piece: 256,
            ..REAL
        },
        Sizes {
            dtype: Dtype::F16,
            sums: Dtype::F16,
            ..REAL
        },
    ]);
    let single = Sizes {
        tile: (128, 128),
        sums: Dtype::F32,
        ..REAL
    };
    let single = [all_reduce(single), added(single)];
    of.extend(single.map(|program| (program, Variant::new(4))));
    let bytes = Sizes { k: 128, ..REAL };
    let gather = all(bytes).swap_remove(0);
    of.push((gather, Variant::new(4).dtype(Dtype::E4M3)));
    for schedule in schedules::MULTICAST {
        let program = schedule();
        of.extend([(128, 256), (128, 128)].map(|tile| {
            let variant = Variant::new(8).dtype(Dtype::F16).set("tiles", tile);
            (program.clone(), variant)
        }));
    }
    all_pass(&of);
}

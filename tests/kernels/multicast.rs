//! Every rank's memory at once: no spill, no slow code, and the multicast instructions are there. Compiled, never run.

use crate::multicast_of::{REAL, Sizes, added, all, all_reduce};
use crate::sass::all_pass;
use counterflow::codegen::cuda;
use counterflow::{Dtype, Program, Variant, schedules};

fn cases(of: impl IntoIterator<Item = Sizes>) -> Vec<(Program, Variant)> {
    let programs = of.into_iter().flat_map(all);
    programs.map(|program| (program, Variant::new(4))).collect()
}

/// A multicast address is 64 bits wide, and only `multimem` may touch it. What else is in that file has addresses of shared memory,
/// which are 32 bits wide, or none.
#[test]
fn every_instruction_with_a_wide_address_is_multimem() {
    let mut wide = 0;
    let asm = cuda::MULTICAST.split("asm volatile(").skip(1);
    for statement in asm.map(|rest| rest.split(");").next().unwrap_or("")) {
        let (text, operands) = statement.split_once(':').expect("operands or clobbers");
        let name = text.trim_start_matches('"');
        match operands.contains("\"l\"(") {
            true => {
                wide += 1;
                assert!(name.starts_with("multimem."), "{statement}");
                // What follows in the same statement names no address.
                let more = name.split("\\n\\t").skip(1);
                more.for_each(|more| assert!(more.starts_with("fence.proxy.alias;"), "{more}"));
            }
            false => assert!(
                ["ld.shared.", "st.shared.", "fence.proxy.alias;"]
                    .iter()
                    .any(|known| name.starts_with(known)),
                "{statement}"
            ),
        }
    }
    // A store; adds and sums of three types; a signal.
    assert_eq!(wide, 1 + 3 + 3 + 1);
}

#[test]
fn kernels_that_reach_every_rank_pass_the_sass_checks() {
    all_pass(&cases([REAL]));
}

/// Other tiles and types, and the library's: 24, and five above.
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
            chunk: 256,
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
    assert!(of.len() >= 20, "only {} kernels", of.len());
    all_pass(&of);
}

//! The flags' logic, as a table.

use counterflow_layers::overlap::{Flags, ModuleFlags, Overlap, Parallel};

const ALL: Flags = Flags {
    ub_overlap_ag: true,
    ub_overlap_rs: true,
    ub_overlap_rs_dgrad: true,
    ub_bulk_dgrad: true,
    ub_bulk_wgrad: true,
};

/// All 32 of them.
fn every() -> impl Iterator<Item = Flags> {
    (0..32).map(|bits: u32| Flags {
        ub_overlap_ag: bits & 1 != 0,
        ub_overlap_rs: bits & 2 != 0,
        ub_overlap_rs_dgrad: bits & 4 != 0,
        ub_bulk_dgrad: bits & 8 != 0,
        ub_bulk_wgrad: bits & 16 != 0,
    })
}

#[test]
#[rustfmt::skip]
fn each_flag_by_itself() {
    use Parallel::{Column, Row};
    let (off, none) = (Flags::default(), Overlap::default());
    // flags, then what follows for a column-parallel and for a row-parallel layer
    let table = [
        (off, none, none),
        (Flags { ub_overlap_ag: true, ..off }, Overlap { fprop_ag: true, ..none }, Overlap { dgrad_ag: true, ..none }),
        (Flags { ub_overlap_rs: true, ..off }, none, Overlap { fprop_rs: true, ..none }),
        (Flags { ub_overlap_rs_dgrad: true, ..off }, Overlap { dgrad_rs: true, ..none }, none),
        (Flags { ub_bulk_dgrad: true, ..off }, Overlap { bulk_dgrad: true, ..none }, none),
        (Flags { ub_bulk_wgrad: true, ..off }, Overlap { bulk_wgrad: true, ..none }, none),
        (ALL, Overlap { fprop_ag: true, dgrad_rs: true, ..none }, Overlap { fprop_rs: true, dgrad_ag: true, ..none }),
        (
            Flags { ub_overlap_rs_dgrad: false, ..ALL },
            Overlap { fprop_ag: true, bulk_dgrad: true, bulk_wgrad: true, ..none },
            Overlap { fprop_rs: true, dgrad_ag: true, ..none },
        ),
    ];
    for (flags, column, row) in table {
        assert_eq!(flags.overlap(Column, true, 4, false), column, "{flags:?}");
        assert_eq!(flags.overlap(Row, true, 4, false), row, "{flags:?}");
    }
}

#[test]
fn exclusions_hold_for_all_flags() {
    for flags in every() {
        for parallel in [Parallel::Column, Parallel::Row] {
            let some = flags.overlap(parallel, true, 2, false);
            let bulk = some.bulk_dgrad || some.bulk_wgrad;
            assert!(!(some.dgrad_rs && bulk), "{flags:?}");
            // Without sequence parallelism, and on one rank.
            assert!(!flags.overlap(parallel, false, 2, false).any());
            assert!(!flags.overlap(parallel, true, 1, false).any());
            // A frozen weight has no gradient to hide anything under.
            let frozen = flags.overlap(parallel, true, 2, true);
            let wanted = Overlap {
                bulk_dgrad: false,
                bulk_wgrad: false,
                ..some
            };
            assert_eq!(frozen, wanted);
        }
    }
}

#[test]
#[rustfmt::skip]
fn the_master_switch_is_anded_with_each() {
    let off = ModuleFlags::default();
    assert_eq!(off.flags(), Flags::default());
    let on = ModuleFlags { ub_tp_comm_overlap: true, ..off };
    assert_eq!(on.flags(), Flags { ub_overlap_rs_dgrad: false, ..ALL });
    let one = ModuleFlags { ub_overlap_ag: false, ub_overlap_rs_dgrad: true, ..on };
    assert_eq!(one.flags(), Flags { ub_overlap_ag: false, ..ALL });
}

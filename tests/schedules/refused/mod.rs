//! What is right and has no kernel: each row of `docs/refused.md` has a schedule here that is told just that.

mod exhibits;

use counterflow::codegen::lower::lower;
use counterflow::codegen::verify;
use counterflow::{
    Diagnostic, Diagnostics, Dtype, Layout, Machine, Program, Scales, Shape, Variant,
};
use exhibits::*;

/// A schedule, and the variant that has no kernel.
type Exhibit = (fn() -> Program, fn() -> Variant);

fn plain() -> Variant {
    Variant::new(4)
}

/// In the order of the table.
const EXHIBITS: [Exhibit; 29] = [
    (panels, plain),
    (slabs, || plain().dtype(Dtype::E4M3).scales(Scales::PerRow)),
    (some_chunks, plain),
    (two_sizes_in_an_item, plain),
    (rows, || plain().layout(Layout::Tn)),
    (all_shards, plain),
    (across_matrices, || plain().layout(Layout::Tn)),
    (adds_of_parts, plain),
    (copies_in_gemm, plain),
    (by_itself, plain),
    (one_of_two, plain),
    (sum_of_a_peer, plain),
    (scales_everywhere, || {
        plain().dtype(Dtype::E4M3).scales(Scales::PerRow)
    }),
    (signals_at_two_addresses, plain),
    (operand_in_a_slot, plain),
    (operand_of_a_peer, plain),
    (multiplies_in_a_loop, plain),
    (two_depths, plain),
    (one_accumulator, plain),
    (parts_of_steps, plain),
    (slabs_in_ping_pong, plain),
    (sums_in_ping_pong, plain),
    (two_widths, plain),
    (waits_and_signals, plain),
    (waits_behind_a_copy, plain),
    (multiplies_behind_a_signal, plain),
    (in_a_cluster, plain),
    (split, plain),
    (branches_of_far_ranks, || Variant::new(32)),
];

/// The first thing that is said of a schedule on its way to a kernel.
fn said((program, variant): Exhibit) -> Result<Diagnostic, String> {
    let program = program();
    let name = program.name.clone();
    let first = |found: Diagnostics| Ok(found.first().clone());
    let kernel = match lower(&program, &variant()).and_then(verify::kernel) {
        Ok(kernel) => kernel,
        Err(found) => return first(found),
    };
    let shape = Shape::new(1088, 264, 208);
    if let Err(found) = verify::plan(&kernel, &shape, &Machine::h200()) {
        return first(found);
    }
    match verify::warps(&kernel) {
        Ok(_) => Err(format!("`{name}` has a kernel")),
        Err(found) => first(found),
    }
}

/// What the rows of the table say that a schedule is told.
fn table() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/refused.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let told = rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        assert_eq!(cells.len(), 4, "{row}");
        cells[1].to_string()
    });
    told.collect()
}

/// Whether a message is what a row says, where `…` stands for anything.
fn is(message: &str, row: &str) -> bool {
    let parts: Vec<&str> = row.split('…').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return false;
    };
    let mut rest = message;
    message.starts_with(first)
        && message.ends_with(last)
        && parts.iter().all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
}

#[test]
fn the_table_says_what_each_schedule_is_told() {
    let table = table();
    assert_eq!(table.len(), EXHIBITS.len());
    for (exhibit, row) in EXHIBITS.into_iter().zip(&table) {
        let found = said(exhibit).unwrap_or_else(|has| panic!("{has}"));
        let name = exhibit.0().name;
        assert!(is(&found.message, row), "{name}: {}\n{row}", found.message);
        let at = found.at.expect("a statement");
        assert!(at.file().ends_with("exhibits.rs"), "{name}: {at}");
        let hint = found.hint.as_deref().expect("what to write instead");
        for ours in ["register", "barrier", "descriptor", "wgmma", "swizzle"] {
            let named = found.message.contains(ours) || hint.contains(ours);
            assert!(!named, "{name}: {found}");
        }
    }
}

#[test]
fn a_row_is_all_of_a_message() {
    assert!(is("a sum of 3 slots", "a sum of … slots"));
    assert!(!is("a sum of slots in x", "a sum of slots"));
    assert!(!is("not a sum", "a sum"));
}

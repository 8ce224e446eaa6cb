//! Results of a kernel's items, and their operands beside products. Registers and subtiles depend on them.

use super::asked::{computes, loops};
use super::subtiles::{Results, Sums};
use crate::dtype::Dtype;
use crate::kernel::{Kernel, Op, OpKind, Purpose, RoleKind, visit, visit_ops};
use crate::program::{Home, Side, StoreMode};
use crate::value::Value;

/// Stores of the items of all roles that compute, and reads beside the operands of their products. All loops use the
/// same subtiles.
pub(super) fn results(kernel: &Kernel) -> Results {
    let mut results = Results {
        widest: 1,
        stores: 0,
        inputs: 0,
        sums: Sums::None,
        vectors: [0, 0],
        numbers: 0,
        announced: false,
        computed: false,
        added: false,
        bytes: false,
        amax: false,
        computed_scales: None,
    };
    let mut each = |op: &Op| {
        let through = match &op.kind {
            OpKind::Store {
                dst,
                value,
                mode,
                amax,
                ..
            } => {
                results.stores += 1;
                results.amax |= amax.is_some();
                let output = !kernel.buffers[dst.buffer.index()].is_scratch();
                let block = kernel.computed_scale_block(dst.buffer).filter(|_| output);
                results.computed_scales = results.computed_scales.or(block);
                let dtype = kernel.buffers[dst.buffer.index()].dtype;
                results.bytes |= dtype.is_fp8();
                results.added |=
                    *mode == StoreMode::Add && dtype == Dtype::F32 && dst.home == Home::Me;
                let value = &kernel.values[usize::from(value.0)];
                results.computed |= !matches!(value, Value::Acc(_));
                dst
            }
            OpKind::Load { from, .. } => {
                results.computed = true;
                if kernel.buffers[from.buffer.index()].usage.is_repeated() {
                    return;
                }
                results.inputs += 1;
                from
            }
            OpKind::Reduce { from, .. } => {
                results.inputs += 1;
                results.computed = true;
                from
            }
            OpKind::Dot { .. }
            | OpKind::Copy { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => return,
        };
        let bytes = kernel.buffers[through.buffer.index()].dtype.bytes();
        results.widest = results.widest.max(bytes);
    };
    for role in &kernel.roles {
        if matches!(role.kind, RoleKind::Gemm(_)) || computes(role) {
            visit(&role.body, &mut each);
            for each in loops(&role.body) {
                let sums = sums(kernel, each.body);
                results.sums = results.sums.max(sums);
                if sums == Sums::Apart {
                    let read = vectors(kernel, each.body);
                    results.vectors =
                        [0, 1].map(|side| results.vectors[side].max(read.vectors[side]));
                    results.numbers = results.numbers.max(read.numbers);
                    results.announced |= announces(kernel, each.body);
                }
            }
        }
    }
    // Lines of a subtile are of 16-bit elements, unless they are to be whole blocks of bytes.
    results.widest = results.widest.max(if results.computed_scales.is_some() {
        1
    } else {
        2
    });
    results
}

/// Vectors and scales that an item reads.
#[derive(Default)]
struct Read {
    /// So many with a number for each row, and for each column.
    vectors: [u32; 2],
    /// So many that are one number.
    numbers: u32,
}

fn vectors(kernel: &Kernel, body: &[Op]) -> Read {
    let mut read = Read::default();
    visit_ops(body, &mut |op| {
        if let OpKind::Load { from, .. } = &op.kind {
            let usage = kernel.buffers[from.buffer.index()].usage;
            let [in_rows, in_columns] = Side::ALL.map(|side| usage.is_same_in(side));
            read.vectors[0] += u32::from(in_columns && !in_rows);
            read.vectors[1] += u32::from(in_rows && !in_columns);
            read.numbers += u32::from(in_rows && in_columns);
        }
    });
    read
}

/// Place of a sum over ranks, if an item has one beside a product. It is apart where it has an own term in its order,
/// the item has several products, stores something else than functions of all of the sum, or announces the product
/// before it waits for what it adds.
fn sums(kernel: &Kernel, body: &[Op]) -> Sums {
    let (mut products, mut terms, mut stored) = (0, Vec::new(), Vec::new());
    let (mut added, mut owns) = (false, false);
    visit_ops(body, &mut |op| match &op.kind {
        OpKind::Dot { acc, .. } => {
            products += 1;
            terms.push(*acc);
        }
        OpKind::Reduce { acc, own, .. } => {
            terms.push(*acc);
            owns |= own.is_some();
        }
        OpKind::Store { value, mode, .. } => {
            stored.push(&kernel.values[usize::from(value.0)]);
            added |= *mode == StoreMode::Add;
        }
        OpKind::Load { from, .. } => {
            added |= kernel.buffers[from.buffer.index()].is_scratch();
        }
        OpKind::Signal { .. }
        | OpKind::Wait { .. }
        | OpKind::Copy { .. }
        | OpKind::ForRanks { .. }
        | OpKind::If { .. } => {}
    });
    if products == 0 {
        return Sums::None;
    }
    if terms.len() == products {
        return match added && !kernel.counters.is_empty() {
            true => Sums::Added,
            false => Sums::None,
        };
    }
    terms.sort();
    terms.dedup();
    let folds = |value: &&Value| value.folded(&terms).is_some();
    if products > 1 || announces(kernel, body) || owns || !stored.iter().all(folds) {
        Sums::Apart
    } else {
        Sums::Added
    }
}

/// True if an item announces its product before it waits for what it adds.
fn announces(kernel: &Kernel, body: &[Op]) -> bool {
    let (mut signalled, mut waited) = (false, false);
    visit_ops(body, &mut |op| {
        signalled |= matches!(op.kind, OpKind::Signal { .. });
        if let OpKind::Wait { cells, .. } = &op.kind {
            let data = kernel.counters[cells.counter.index()].purpose == Purpose::Data;
            waited |= signalled && data;
        }
    });
    waited
}

//! The numbers of a pipeline as text: parentheses by precedence. CUDA and people differ in a few words only.

use super::{CellNumber, Expr, Field, Op, OrderId, Pipeline, Test};
use crate::kernel::{DimId, Kernel};
use crate::program::CounterId;
use std::sync::LazyLock;

/// Names of the parts of a number.
pub trait Spelling {
    /// Name of a number that the host passes.
    fn field(&self, field: Field) -> String;
    /// Rows of a shard.
    fn rows_of(&self, dim: DimId, shard: &str) -> String;
    /// The rank at a step of an order.
    fn ordered(&self, order: OrderId, step: &str) -> String;
    /// The CTA's number.
    fn block(&self) -> &'static str;
    /// Number of CTAs.
    fn blocks(&self) -> &'static str;
    /// The item of the current loop.
    fn within(&self) -> &'static str;
    /// A cell's number, if the text has a function for it.
    fn cell(&self, cell: &CellNumber) -> Option<String>;
}

/// A number.
pub fn number(expr: &Expr, names: &impl Spelling) -> String {
    inside(expr, 0, names)
}

/// A number as a factor.
pub fn factor(expr: &Expr, names: &impl Spelling) -> String {
    inside(expr, 4, names)
}

fn inside(expr: &Expr, outer: u8, names: &impl Spelling) -> String {
    match expr {
        Expr::Const(value) => value.to_string(),
        Expr::Symbol(symbol, _) => symbol.name().into_owned(),
        Expr::Var(name) => name.clone(),
        Expr::Field(field) => names.field(*field),
        Expr::Block => names.block().into(),
        Expr::Blocks => names.blocks().into(),
        Expr::Binary(op, a, b) => {
            let (sign, level) = match op {
                Op::Xor => ("^", 1),
                Op::Add => ("+", 2),
                Op::Sub => ("-", 2),
                Op::Mul => ("*", 3),
                Op::Div => ("/", 3),
                Op::Rem => ("%", 3),
            };
            // Sums of unsigned numbers may be regrouped.
            let right = if matches!(op, Op::Add) {
                level
            } else {
                level + 1
            };
            let (a, b) = (inside(a, level, names), inside(b, right, names));
            let text = format!("{a} {sign} {b}");
            if level < outer {
                format!("({text})")
            } else {
                text
            }
        }
        Expr::Min(a, b) => format!("min({}, {})", number(a, names), number(b, names)),
        Expr::CeilDiv(a, b) => format!("ceil_div({}, {})", number(a, names), number(b, names)),
        Expr::RowsOf(dim, shard) => names.rows_of(*dim, &number(shard, names)),
        Expr::Ordered(order, step) => names.ordered(*order, &number(step, names)),
        Expr::Within => names.within().into(),
        Expr::Named(name, _) => (*name).into(),
        Expr::Cell(cell) => names
            .cell(cell)
            .unwrap_or_else(|| inside(&cell.number, outer, names)),
    }
}

/// Condition of a branch.
pub fn test(test: &Test, names: &impl Spelling) -> String {
    let (a, sign, b) = match test {
        Test::Less(a, b) => (a, "<", b),
        Test::AtLeast(a, b) => (a, ">=", b),
        Test::Equal(a, b) => (a, "==", b),
        Test::Differ(a, b) => (a, "!=", b),
        Test::And(a, b) => return joined(a, "&&", b, names),
        Test::Or(a, b) => return joined(a, "||", b, names),
    };
    // A comparison binds tighter than `^` in C++.
    format!("{} {sign} {}", inside(a, 2, names), inside(b, 2, names))
}

/// Two questions, each in parentheses where it is two of the other kind.
fn joined(a: &Test, sign: &str, b: &Test, names: &impl Spelling) -> String {
    let part = |part: &Test| {
        let text = test(part, names);
        match (part, sign) {
            (Test::And(..), "||") | (Test::Or(..), "&&") => format!("({text})"),
            _ => text,
        }
    };
    format!("{} {sign} {}", part(a), part(b))
}

/// A field's name, after the schedule's.
pub fn field_name(pipeline: &Pipeline, field: Field) -> String {
    let kernel = &pipeline.kernel;
    let dim = |dim: DimId| kernel.dims[usize::from(dim.0)].name.replace('.', "_");
    match field {
        Field::Size(id) => dim(id),
        Field::ShardRows(id) if dim(id) == "m" => "rows".into(),
        Field::ShardRows(id) => format!("{}_shard", dim(id)),
        Field::PartialShard(id) if dim(id) == "m" => "partial_shard".into(),
        Field::PartialShard(id) => format!("{}_partial_shard", dim(id)),
        Field::Me => "me".into(),
        Field::World => "world".into(),
        Field::First(counter) => counter_name(kernel, counter),
        Field::CellRows(partition) => format!("{}_m", kernel.partitions[partition.index()].name),
        Field::LateJoin => "late_join".into(),
        Field::Line(tensor) => format!("{}_line", field_name(pipeline, Field::Vector(tensor))),
        Field::Order(order) => pipeline.order_table(order).name.clone(),
        Field::Heap => "heap".into(),
        Field::HeapEverywhere => "heap_everywhere".into(),
        Field::Stride => "stride".into(),
        Field::Counters => "offset".into(),
        Field::Arrivals => "arrivals".into(),
        Field::Finished => "finished".into(),
        Field::Vector(tensor) => {
            // Behind the counters and before the sizes, by names that neither has.
            let buffer = &kernel.buffers[tensor.index()];
            let (name, kind) = (
                buffer.name.replace('.', "_"),
                match buffer.usage.is_number() || buffer.usage.is_scale() {
                    true => "number",
                    false => "vector",
                },
            );
            let taken = |name: &str| {
                ["cells", "rows", "partial_shard", "me", "world", "late_join"].contains(&name)
                    || kernel
                        .dims
                        .iter()
                        .any(|dim| dim.name.replace('.', "_") == name)
                    || kernel.counters.iter().any(|counter| counter.name == name)
                    || kernel
                        .buffers
                        .iter()
                        .any(|other| other.name == name && other != buffer)
                    || identifier(name) != name
            };
            if taken(&name) {
                format!("{name}_{kind}")
            } else {
                name
            }
        }
    }
}

/// Names that the generated CUDA has for its own: words of C++, of the prelude and of every kernel.
const OWN: &str = "T acc advance again all_steps arrive arrive_on at auto barriers base batch batches behind bf16 block block_bytes \
    block_rows blockidx blocks bool buffer ceil_div cell cells cluster cluster_rank cluster_sync column columns \
    const constexpr consumer consumers continue counter counter_add counter_add_everywhere counter_advance counter_on \
    counter_wait counter_wait_before counters_advance cta e4m3 e5m2 elect_one else end_loop enum everycopy expect extern \
    fence_alias fence_async_global fence_async_shared finished first first_column first_row first_step float for from full \
    gemm_rs griddim grouped_8 has height held i if include index init int items k lane last last_of late_comm \
    late_join launch_dependents load m mbarrier_init_fence me min mn_major multicast_add multicast_rank multicast_store multicast_sum multiply my_tiles my_tiles_m n next \
    next_ping_pong nullptr of_other oldest order order_at orderbarrier part partial_add partial_box_rows \
    partial_shard partial_send phase chunk chunks pipelinestate place plan pragma previous reg_alloc \
    reg_dealloc relaxed return role row row_major rows rows_of rule rulenumbers scale_line_stride scale_stride scales scales_make scales_read scales_write scheduler scope sending sent shared shared_address \
    shared_bytes slab slice slice_bytes slice_n smem_spare_staging smem_split_partial smem_staging smem_stored smem_subtile \
    spare_staging spare_staging_at spare_staging_bytes spare_staging_full spare_staging_full_at spare_staging_slots split split_partial \
    split_partial_at split_partial_bytes split_partial_empty split_partial_full split_partial_full_at \
    split_partial_subtile_bytes split_partial_subtiles split_partial_threads split_partials split_rank stage \
    stage_empty stage_empty_at stage_full stage_full_at stage_subtiles stages staging staging_at staging_bytes \
    staging_empty staging_empty_at staging_full staging_full_at staging_n staging_slots static_assert step steps \
    store stored stored_at stored_bytes struct subtile subtile_add subtile_at subtile_bytes subtile_empty subtile_empty_at subtile_full \
    subtile_add_scaled subtile_full_at subtile_m subtile_n subtile_read subtile_store subtile_store_scaled \
    subtile_store_transposed subtiles sweep \
    tensormap threadidx tile tile_empty tile_empty_at tile_full tile_full_at tile_k tile_m tile_n tiles tiles_m \
    tiles_n tilescheduler tma_commit tma_load tma_load_multicast_partial tma_load_partial tma_prefetch_map \
    tma_store tma_wait tma_wait_read typedef u u32 u64 u8 unroll unsignalled vector_index vector_read vector_read_ahead void wait \
    wait_prerequisites warp warp_index watch wgmma_64_rows wgmma_at wgmma_commit wgmma_descriptor wgmma_descriptor_mn_major \
    wgmma_fence wgmma_k_step wgmma_m64k16 wgmma_m64k32 wgmma_mn_major_k_step wgmma_row wgmma_wait what within world";

/// Variables of loops that every schedule with credits has, and most schedules.
const LOOPS: [&str; 2] = ["shard", "peer"];

/// A loop's variable as the generated CUDA has it.
pub fn variable(name: &str) -> String {
    if LOOPS.contains(&name) {
        name.into()
    } else {
        identifier(name)
    }
}

/// A name of the user's as the generated CUDA has it: one that is also the text's own, or the compiler's, or what a
/// loop over ranks counts by, or a function that numbers a counter's cells, has `_` behind it; so does one that ends as the number of
/// a role's CTAs. Constants and enumerators have names in capitals, so capitals make no
/// difference.
pub fn identifier(name: &str) -> String {
    static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| OWN.split_whitespace().collect());
    let own = WORDS.iter().any(|own| match own.len() {
        1 => *own == name,
        _ => own.eq_ignore_ascii_case(name),
    });
    let counts_a_loop = name.ends_with("_step");
    let numbers_cells = name.starts_with("cell_of_");
    let end = name.len().checked_sub("_CTAS".len());
    let end = end.and_then(|end| name.get(end..));
    let counts_ctas = end.is_some_and(|end| end.eq_ignore_ascii_case("_CTAS"));
    if own
        || counts_a_loop
        || numbers_cells
        || counts_ctas
        || LOOPS.contains(&name)
        || name.starts_with("__")
    {
        format!("{name}_")
    } else {
        name.into()
    }
}

/// A counter's name in the generated CUDA: its first cell is in a struct with the sizes, which have theirs.
pub fn counter_name(kernel: &Kernel, counter: CounterId) -> String {
    let name = identifier(&kernel.counters[counter.index()].name);
    let mut dims = kernel.dims.iter();
    if dims.any(|dim| dim.name.replace('.', "_") == name) {
        format!("{name}_")
    } else {
        name
    }
}

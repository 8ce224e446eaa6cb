//! The text above the role bodies: constants, the plan's struct, orders, the signature, barriers.

use super::tiles::of_operands;
use super::words::{describe, in_flight, meaning, order_name, view};
use super::{MULTICAST_PRELUDE, PRELUDE, Param, TRACE_PRELUDE, Text, params};
use counterflow_codegen::order::TileOrder;
use counterflow_codegen::program::{CounterId, Side};
use counterflow_codegen::sm90::cta::dependent_launch;
use counterflow_codegen::tiling::Major;
use counterflow_codegen::warp::{
    CONSUMERS, Expr, Field, Lanes, MapId, Node, RunBy, Symbol, cluster, counter_name,
};
use std::collections::BTreeSet;

impl Text<'_> {
    pub(super) fn head(&mut self, params: &[Param]) {
        let kernel = &self.pipeline.kernel;
        let (name, arch) = (&kernel.name, kernel.variant.arch.name());
        let how = match self.pipeline.cta.computes() {
            true => self.how_tiles_are_computed(),
            false => "moves data".into(),
        };
        self.line(format!("// {name}  {arch}  {how}"));
        self.line("// What each role does, in order; every wait, fence, release and acquire is a prelude function that says why.");
        self.line("// `#pragma unroll 1`: the loop's body stands once in the machine code, where tests count instructions.");
        self.line(format!("#include \"{PRELUDE}\""));
        if kernel.needs_multicast() {
            self.line(format!("#include \"{MULTICAST_PRELUDE}\""));
        }
        if self.traced {
            self.line(format!("#include \"{TRACE_PRELUDE}\""));
        }
        self.line("");
        self.constants();
        self.plan(params);
        self.rows_functions();
        self.cell_functions();
        self.orders();
        self.epilogue_functions();
    }

    fn constants(&mut self) {
        let pipeline = self.pipeline;
        let computes = pipeline.cta.computes();
        if computes {
            self.constants_of_tiles();
        }
        for ring in pipeline.rings.iter().filter(|ring| ring.buffer.is_some()) {
            let (count, slots) = (ring.of.count(), ring.slots);
            let words = in_flight(ring, computes);
            self.line(format!("constexpr u32 {count} = {slots};  // {words}"));
        }
        // The rest of the names that numbers use, each once, in the order of use.
        let mut symbols: Vec<(Symbol, u32, &str)> = Vec::new();
        pipeline.visit_exprs(|expr| {
            if let Expr::Symbol(symbol, value) = expr
                && let Some(meaning) = meaning(symbol)
                && !symbols.iter().any(|(known, ..)| known == symbol)
            {
                symbols.push((symbol.clone(), *value, meaning));
            }
        });
        let is_there = |is: fn(&Symbol) -> bool| symbols.iter().any(|(symbol, ..)| is(symbol));
        let in_blocks = is_there(|symbol| *symbol == Symbol::BlockRows);
        let sliced = is_there(|symbol| matches!(symbol, Symbol::SliceColumns(_)));
        for (symbol, value, meaning) in symbols {
            self.line(format!(
                "constexpr u32 {} = {value};  // {meaning}",
                symbol.name()
            ));
        }
        self.constants_of_rule();
        if in_blocks {
            self.line(format!(
                "constexpr u32 BLOCK_BYTES = BLOCK_ROWS * TILE_K * {};",
                pipeline.dtype().bytes()
            ));
        }
        if sliced {
            self.line("constexpr u32 SLICE_BYTES = SUBTILE_M * 128;");
        }
        if pipeline.cta.split() > 1 {
            self.constants_of_partials();
        }
        self.line("");
        self.line("// Shared memory, from a 1024-byte aligned base (the swizzle's period).");
        for buffer in pipeline
            .rings
            .iter()
            .filter_map(|ring| ring.buffer.as_ref())
        {
            for (index, part) in buffer.parts.iter().enumerate() {
                let (upper, at) = (part.name.to_uppercase(), buffer.part_at(index, 0));
                let bytes = part.bytes;
                let behind = if part.behind {
                    let before = &buffer.parts[index - 1].name;
                    format!(
                        "  // behind {before} in each stage: one instruction multiplies by both"
                    )
                } else {
                    String::new()
                };
                self.line(format!(
                    "constexpr u32 {upper}_AT = {at}, {upper}_BYTES = {bytes};{behind}"
                ));
            }
        }
        let mut at = pipeline.barriers_at();
        for ring in &pipeline.rings {
            let all = ring.barriers().map(|(_, barrier)| {
                let here = at;
                at += ring.all() * 8;
                format!("{} = {here}", super::rings::at(barrier))
            });
            let all = all.collect::<Vec<_>>().join(", ");
            self.line(format!("constexpr u32 {all};"));
        }
        if pipeline.order_barriers() > 0 {
            self.line(format!("constexpr u32 ORDER_AT = {at};"));
        }
        self.line(format!(
            "constexpr u32 SHARED_BYTES = {};",
            pipeline.shared_bytes()
        ));
        let has = pipeline.kernel.variant.arch.shared_memory();
        self.line(format!(
            "static_assert(SHARED_BYTES <= {has});  // what a CTA may have"
        ));
        self.line("");
        self.line("// Names for stall records.");
        let roles = self.roles().join(", ").to_uppercase();
        let counters = pipeline.kernel.counters.len() as u16;
        let counters = (0..counters).map(|index| counter_name(&pipeline.kernel, CounterId(index)));
        let waits: Vec<String> = self.barrier_names().into_iter().chain(counters).collect();
        let waits = waits.join(", ").to_uppercase();
        self.line(format!("enum Role : u32 {{ {roles} }};"));
        self.line(format!("enum What : u32 {{ {waits} }};"));
        self.line("");
    }

    fn plan(&mut self, params: &[Param]) {
        let pipeline = self.pipeline;
        self.line("// What the host passes for one launch.");
        self.line("struct Plan {");
        self.depth += 1;
        for param in params {
            let Param::Plan { fields, .. } = param else {
                continue;
            };
            if fields.iter().any(|at| at.field == Field::Heap) {
                self.line("Cells cells;");
            }
            for at in fields {
                if at.field == Field::HeapEverywhere {
                    let what = describe(pipeline, at.field);
                    self.line(format!("char* {};  // {what}", at.name));
                }
                if let Field::Vector(tensor) = at.field {
                    let buffer = &pipeline.kernel.buffers[tensor.index()];
                    let element = self.element(buffer.dtype);
                    if buffer.usage.amax_of().is_some() {
                        self.line(format!(
                            "{element}* {};  // one number, which grows",
                            at.name
                        ));
                        continue;
                    }
                    if buffer.usage.computed_scale_of().is_some() {
                        let what = "numbers of rows, a line for each 128 columns";
                        self.line(format!("{element}* {};  // {what}", at.name));
                        continue;
                    }
                    let same = Side::ALL.map(|side| buffer.usage.is_same_in(side));
                    let what = match same {
                        [true, true] => "one number",
                        [false, true] => "a number a row",
                        [_, false] => "a number a column",
                    };
                    self.line(format!("const {element}* {};  // {what}", at.name));
                }
            }
            for at in fields.iter().filter(|at| !at.field.wide()) {
                let declared = match at.field.bytes() {
                    4 => format!("u32 {}", at.name),
                    bytes => format!("u8 {}[{bytes}]", at.name),
                };
                self.line(format!("{declared};  // {}", describe(pipeline, at.field)));
            }
        }
        self.depth -= 1;
        self.line("};");
        self.line("");
    }

    fn rows_functions(&mut self) {
        let mut dims = BTreeSet::new();
        self.pipeline.visit_exprs(|expr| {
            if let Expr::RowsOf(dim, _) = expr {
                dims.insert(*dim);
            }
        });
        for dim in dims {
            let [size, rows] = [Field::Size(dim), Field::ShardRows(dim)]
                .map(|field| params::name(self.pipeline, field));
            self.line(
                "// Rows of a shard: the split rounds up, so the last ones may be short, or empty.",
            );
            let name = self.rows_function(dim);
            self.block(
                format!("__device__ __forceinline__ u32 {name}(const Plan& plan, u32 shard)"),
                |text| {
                    text.line(format!("const u32 first = shard * plan.{rows};"));
                    text.line(format!(
                        "return first >= plan.{size} ? 0 : min(plan.{rows}, plan.{size} - first);"
                    ));
                },
            );
            self.line("");
        }
    }

    /// One function an order, from the order's own definition.
    fn orders(&mut self) {
        let mut orders: Vec<TileOrder> = Vec::new();
        let pipeline = self.pipeline;
        pipeline.visit(|node| {
            if let Node::Items {
                of, grid: Some(_), ..
            } = node
            {
                let order = pipeline.order(*of);
                if !orders.contains(&order) {
                    orders.push(order);
                }
            }
        });
        for order in orders {
            let (row, column) =
                order.at(Expr::var("index"), Expr::var("rows"), Expr::var("columns"));
            self.line(format!("// Tile `index` of a grid, {order}."));
            let head = format!(
                "__device__ __forceinline__ Tile {}(u32 index, u32 rows, u32 columns)",
                order_name(order)
            );
            self.block(head, |text| {
                let mut named: Vec<&'static str> = Vec::new();
                for part in [&row, &column] {
                    text.names(part, &mut named);
                }
                text.line(format!(
                    "return {{{}, {}}};",
                    text.expr(&row),
                    text.expr(&column)
                ));
            });
            self.line("");
        }
    }

    /// Declares the named parts of a number, inner ones first.
    fn names(&mut self, expr: &Expr, named: &mut Vec<&'static str>) {
        match expr {
            Expr::Named(name, value) => {
                self.names(value, named);
                if !named.contains(name) {
                    named.push(name);
                    self.line(format!("const u32 {name} = {};", self.expr(value)));
                }
            }
            Expr::Binary(_, a, b) | Expr::Min(a, b) | Expr::CeilDiv(a, b) => {
                self.names(a, named);
                self.names(b, named);
            }
            Expr::RowsOf(_, a) | Expr::Ordered(_, a) => self.names(a, named),
            Expr::Cell(cell) => self.names(&cell.number, named),
            Expr::Const(_)
            | Expr::Symbol(..)
            | Expr::Var(_)
            | Expr::Field(_)
            | Expr::Block
            | Expr::Blocks
            | Expr::Within => {}
        }
    }

    /// The signature, what all warps do first, and the roles.
    pub(super) fn kernel(&mut self, params: &[Param]) {
        let pipeline = self.pipeline;
        let cluster = if pipeline.cta.ctas() > 1 {
            let ctas = cluster(&pipeline.cta);
            format!("__cluster_dims__({}, 1, 1) ", self.expr(&ctas))
        } else {
            String::new()
        };
        self.line(format!(
            "extern \"C\" __global__ void {cluster}__launch_bounds__({}, 1)",
            pipeline.threads()
        ));
        self.line(format!("{}(", pipeline.kernel.name));
        self.depth += 2;
        for param in params {
            match param {
                Param::Map { map, partial_shard } => {
                    let map = pipeline.map(*map);
                    let (name, of) = if *partial_shard {
                        (
                            format!("{}_partial_shard", map.name),
                            "the partial shard".to_string(),
                        )
                    } else {
                        (map.name.clone(), view(map.view).to_string())
                    };
                    self.line(format!(
                        "const __grid_constant__ TensorMap {name},  // {of}; boxes of {}x{}",
                        map.box_rows, map.box_columns
                    ));
                }
                Param::EveryCopy { map, partial_shard } => {
                    let name = &pipeline.map(*map).name;
                    let (partial, of) = match partial_shard {
                        true => ("_partial_shard", "the partial shard"),
                        false => ("", "on every rank at once: multimem alone"),
                    };
                    self.line(format!(
                        "const __grid_constant__ EveryCopy {name}_everywhere{partial},  // {of}"
                    ));
                }
                Param::EachRank { map } => {
                    let name = &pipeline.map(*map).name;
                    self.line(format!(
                        "const __grid_constant__ EachRank {name}_on_ranks,  // a shard on each rank: a part of a tile is some of its rows"
                    ));
                }
                Param::Plan { .. } => self.line("const __grid_constant__ Plan plan,"),
                Param::Watch => self.line("const __grid_constant__ Watch watch) {"),
            }
        }
        self.depth -= 1;
        if dependent_launch::lets_the_next_come(&pipeline.kernel) {
            self.line("launch_dependents();");
        }
        self.line("extern __shared__ __align__(1024) u8 shared[];");
        self.line("const u32 base = shared_address(shared);");
        self.line("const u32 warp = warp_index();");
        self.line("const u32 lane = threadIdx.x % 32;");
        if pipeline.cta.multicast_group() > 1 {
            self.line(
                "const u32 multicast_rank = cluster_rank();  // which CTA of its cluster this is",
            );
        }
        if pipeline.cta.split() > 1 {
            self.line("const u32 split_rank = cluster_rank();  // which of its cluster's CTAs this is, and which part of the steps it has");
        }
        self.ring_objects();
        self.line("");
        self.barriers();
        self.list(&pipeline.start);
        let fields: Vec<Field> = params
            .iter()
            .flat_map(|param| match param {
                Param::Plan { fields, .. } => fields.iter().map(|at| at.field).collect(),
                Param::Map { .. }
                | Param::EveryCopy { .. }
                | Param::EachRank { .. }
                | Param::Watch => Vec::new(),
            })
            .collect();
        match (fields.contains(&Field::Me), fields.contains(&Field::World)) {
            (true, true) => self.line("const u32 me = plan.me, world = plan.world;"),
            (true, false) => self.line("const u32 me = plan.me;"),
            (false, true) => self.line("const u32 world = plan.world;"),
            (false, false) => {}
        }
        for (name, value) in &pipeline.lets {
            self.line(format!("const u32 {name} = {};", self.expr(value)));
        }
        self.line("");
        self.roles_text();
        if !pipeline.end.is_empty() {
            self.line("");
            self.list(&pipeline.end);
        }
        self.depth -= 1;
        self.line("}");
    }

    fn barriers(&mut self) {
        let pipeline = self.pipeline;
        self.block("if (warp == 0 && elect_one())", |text| {
            for (map, id) in pipeline.maps.iter().zip(0..) {
                if pipeline.reaches(MapId(id)).by_tma {
                    text.line(format!("tma_prefetch_map({});", map.name));
                }
            }
            for ring in &pipeline.rings {
                text.ring_barriers(ring);
            }
            if pipeline.order_barriers() > 0 {
                text.line("OrderBarrier::init(base + ORDER_AT, 4);");
            }
            text.line("mbarrier_init_fence();");
        });
        self.line(if pipeline.cta.ctas() > 1 {
            "cluster_sync();"
        } else {
            "__syncthreads();"
        });
        self.line("");
    }

    fn roles_text(&mut self) {
        let Some((give, take)) = self.pipeline.registers() else {
            return self.roles_of_threads();
        };
        self.line("if (warp < 4) {");
        self.depth += 1;
        self.line(format!("reg_dealloc<{give}>();"));
        self.roles_of_threads();
        self.depth -= 1;
        self.roles_of_groups(take);
    }

    /// Work of single threads of the first warpgroup.
    fn roles_of_threads(&mut self) {
        let pipeline = self.pipeline;
        let mut open = String::new();
        for warp in &pipeline.warps {
            let (test, consumer) = match warp.run_by {
                RunBy::Thread { warp } => (format!("warp == {warp}"), None),
                RunBy::Threads { first } => {
                    let last = first + CONSUMERS - 1;
                    (
                        format!("warp >= {first} && warp <= {last}"),
                        Some(format!(
                            "const u32 consumer = warp - {first};  // whose subtiles"
                        )),
                    )
                }
                RunBy::Groups => continue,
            };
            let elected = match warp.lanes() {
                Lanes::One => " && elect_one()",
                Lanes::All => "",
            };
            self.line(format!("{open}if ({test}{elected}) {{  // {}", warp.name));
            self.depth += 1;
            if let Some(consumer) = consumer {
                self.line(consumer);
            }
            self.warp(warp);
            self.depth -= 1;
            open = "} else ".into();
        }
        self.line("}");
    }

    /// Work of the other warpgroups, who take so many registers.
    fn roles_of_groups(&mut self, take: u32) {
        let pipeline = self.pipeline;
        for warp in &pipeline.warps {
            let RunBy::Groups = warp.run_by else { continue };
            self.line(format!("}} else {{  // {}", warp.name));
            self.depth += 1;
            self.line(format!("reg_alloc<{take}>();"));
            self.line("const u32 consumer = warp / 4 - 1;");
            let descriptor = |name: &str, rows: bool| {
                let at = format!("{}[0]", super::rings::smem(name));
                if rows {
                    format!("const u64 {name}_tile = wgmma_descriptor_mn_major({at}, BLOCK_BYTES)")
                } else {
                    format!("const u64 {name}_tile = wgmma_descriptor({at})")
                }
            };
            for (tiling, operand, part) in of_operands(pipeline) {
                // What lies behind another is within that one's tile.
                if part.behind {
                    continue;
                }
                let rows = operand.major == Major::Mn;
                let first = match operand.columns == pipeline.tiling_of(tiling).swap_ab() {
                    true => self.first_block(tiling, rows),
                    false => String::new(),
                };
                self.line(format!("{}{first};", descriptor(&part.name, rows)));
            }
            if self.first_is_alike() {
                self.declare_first();
            }
            self.warp(warp);
            self.depth -= 1;
        }
        self.line("}");
    }
}

//! The builder behind `#[schedule]`. It also makes schedules at run time.
//!
//! Each call records one statement and the caller's source location. The builder checks nothing: [`crate::lower`]
//! reports all mistakes together, each at the call that made it.
//!
//! ```
//! use counterflow_codegen::builder::*;
//! use counterflow_codegen::dtype::Dtype;
//!
//! let mut s = ScheduleBuilder::new("gemm");
//! let x = s.local("x", Dtype::Bf16);
//! let w = s.local("w", Dtype::Bf16);
//! let y = s.out("y", Dtype::Bf16);
//! let tiles = s.tiles("tiles", y, tune([(128, 256), (256, 128)]));
//! s.gemm(GemmOptions::default(), |s| {
//!     s.for_items("t", tiles.grouped(8), |s, t| {
//!         let acc = s.dot(x.at(t), w.at(t));
//!         s.store(y.at(t), acc);
//!     });
//! });
//! assert_eq!(s.finish().roles.len(), 1);
//! ```
mod refs;
mod tensors;
mod words;

pub use crate::order::OrderFn;
use crate::order::Selection;
use crate::program::*;
pub use crate::rank::{Comparison, Cond, RankExpr};
use crate::value::AccId;
pub use crate::value::Value;
use refs::Order;
pub use refs::{
    Axis, CellsRef, CountersRef, Item, ItemSide, ItemsRef, PartitionRef, PlaceRef, TensorIndex,
    TensorRef,
};
use std::panic::Location;
pub use words::{GemmOptions, Ranks, Tune, everyone, me, others, ranks, ring, tune, world};

/// Records a schedule, statement by statement.
///
/// ```
/// use counterflow_codegen::builder::*;
/// use counterflow_codegen::dtype::Dtype::{Bf16, F32};
///
/// let mut s = ScheduleBuilder::new("every_call");
/// let (x, r, b) = (s.gathered("x", Bf16), s.local("r", Bf16), s.vector("b", Bf16));
/// let (y, z) = (s.out("y", Bf16), s.reduce_scattered("z", Bf16));
/// let (sum, grad) = (s.all_reduced("sum", Bf16), s.accumulated("grad", F32));
/// let sent = s.all_to_all("sent", Bf16); // a slot for each sender
/// let whole = s.gathered_output("whole", Bf16); // each rank computes its rows, and all get them
/// let partial = s.symmetric("partial", Bf16, z, world()); // a slot for each rank
/// let (chunks, panels) = (s.chunks("chunks", x, 128), s.panels("panels", z, 512));
/// let tiles = s.tiles("tiles", y, tune([(128, 256), (128, 128)]));
/// let alike = s.tiles_like("alike", sent, tiles); // the same choice
/// let arrived = s.counters("arrived", [chunks.into()]);
/// let landed = s.counters("landed", [world().into(), tiles.into()]);
/// let send = |s: &mut ScheduleBuilder| {
///     s.for_ranks("peer", ranks().before_me(), |s, peer| {
///         s.for_items("c", chunks.of(me()), |s, c| {
///             s.copy(x.on(&peer).at(c), x.at(c));
///             s.signal(arrived.on(&peer).at(c), 1); // after the copy
///         });
///     });
/// };
/// s.comm(tune([4u32, 2]), send); // or one of its own name: `s.comm_named("halo", 2, send)`
/// s.copy_engine(|s| s.for_items("c", panels.of(me()), |s, c| s.copy(z.at(c), x.at(c))));
/// s.spare_warps(|s| s.for_items("q", chunks.all(), |s, q| s.wait_at_least(arrived.at(q), 1)));
/// s.gemm(GemmOptions { k: Some(64.into()), ..GemmOptions::default() }, |s| {
///     s.for_items("t", tiles.of(me()).grouped(8), |s, t| {
///         s.wait(arrived.at(t.rows()));
///         let product = s.dot(x.at(t), r.at(t));
///         s.name(&product, "product"); // in reports
///         let (old, bias) = (s.load(r.at(t)), s.load(b));
///         s.store(y.at(t), (product.clone() + old).bias(bias).gelu());
///         let acc = s.accumulator("acc");
///         s.accumulate(&acc, x.at(t), r.at(t));
///         s.store_add(grad.at(t), acc);
///         let others = s.sum(partial.at(others()).at(t));
///         s.when_else(Cond::compare(Comparison::Lt, me(), 1), |s| s.store(sum.at(t), others), |s| {
///             s.when(Cond::compare(Comparison::Eq, me(), 1), |s| s.wait(landed.at(me()).at(t)));
///         });
///     });
/// });
/// let program = s.finish(); // it checks nothing: `lower` reports all mistakes of this one together
/// assert_eq!(program.roles.len(), 4);
/// ```
#[derive(Debug)]
pub struct ScheduleBuilder {
    program: Program,
    /// The statement lists of the enclosing loops, innermost last.
    open: Vec<Vec<Stmt>>,
}

impl ScheduleBuilder {
    /// An empty schedule called `name`.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        let program = Program {
            name: name.into(),
            tensors: Vec::new(),
            partitions: Vec::new(),
            counters: Vec::new(),
            tunables: Vec::new(),
            roles: Vec::new(),
            vars: Vec::new(),
            accs: Vec::new(),
            at: Location::caller(),
            reference: None,
        };
        ScheduleBuilder {
            program,
            open: Vec::new(),
        }
    }

    /// The recorded schedule.
    pub fn finish(self) -> Program {
        self.program
    }

    #[track_caller]
    fn choice(&mut self, name: String, tune: Tune) -> Choice {
        self.choice_at(name, tune, Location::caller())
    }

    fn choice_at(&mut self, name: String, tune: Tune, at: Loc) -> Choice {
        match tune.0.as_slice() {
            [only] => Choice::Fixed(*only),
            _ => {
                let id = small(self.program.tunables.len());
                self.program.tunables.push(Tunable {
                    name,
                    options: tune.0,
                    at,
                });
                Choice::Open(id)
            }
        }
    }

    #[track_caller]
    fn partition(&mut self, name: &str, tensor: TensorRef, block: Block) -> PartitionRef {
        let id = PartitionId(small(self.program.partitions.len()));
        self.program.partitions.push(Partition {
            name: name.into(),
            tensor: tensor.id,
            block,
            across: false,
            at: Location::caller(),
        });
        PartitionRef(id)
    }

    /// A partition into blocks of `rows` rows and all columns.
    #[track_caller]
    pub fn chunks(&mut self, name: &str, tensor: TensorRef, rows: impl Into<Tune>) -> PartitionRef {
        let rows = self.choice(name.into(), rows.into());
        self.partition(name, tensor, Block::Chunks { rows })
    }
    /// A partition into blocks of `columns` columns and all rows of a shard.
    #[track_caller]
    pub fn panels(
        &mut self,
        name: &str,
        tensor: TensorRef,
        columns: impl Into<Tune>,
    ) -> PartitionRef {
        let columns = self.choice(name.into(), columns.into());
        self.partition(name, tensor, Block::Panels { columns })
    }
    /// A partition into blocks of rows and columns.
    #[track_caller]
    pub fn tiles(&mut self, name: &str, tensor: TensorRef, shape: impl Into<Tune>) -> PartitionRef {
        let shape = self.choice(name.into(), shape.into());
        self.partition(name, tensor, Block::Tiles { shape })
    }

    /// A partition into blocks of rows and columns of all rows at once, wherever ranks divide these: an item may be in several
    /// shards. A few rows of each rank so fill one tile. It has no shards, and an item waits for the chunks of every shard that it
    /// reads. A place in memory that has one shard, such as scratch like `y.shard()`, is the item's rows in that shard.
    ///
    /// ```
    /// use counterflow_codegen::builder::*;
    /// use counterflow_codegen::dtype::Dtype::Bf16;
    ///
    /// let mut s = ScheduleBuilder::new("few_rows");
    /// let y = s.out("y", Bf16);
    /// let tiles = s.tiles_across("tiles", y, (128, 256)); // visited by `tiles.all()`
    /// ```
    #[track_caller]
    pub fn tiles_across(
        &mut self,
        name: &str,
        tensor: TensorRef,
        shape: impl Into<Tune>,
    ) -> PartitionRef {
        let tiles = self.tiles(name, tensor, shape);
        self.program.partitions[tiles.0.index()].across = true;
        tiles
    }

    /// A partition into blocks of as many rows and columns as those of another one: one choice decides both.
    #[track_caller]
    pub fn tiles_like(
        &mut self,
        name: &str,
        tensor: TensorRef,
        like: PartitionRef,
    ) -> PartitionRef {
        let block = self.program.partitions.get(like.0.index());
        // Of another schedule's partition there is none: lowering finds and reports its uses.
        let block = block.map_or(
            Block::Chunks {
                rows: Choice::Fixed(Setting::One(0)),
            },
            |of| of.block,
        );
        self.partition(name, tensor, block)
    }

    /// Counters indexed by `axes`, outermost first. No axes make a single cell.
    #[track_caller]
    pub fn counters(&mut self, name: &str, axes: impl IntoIterator<Item = Axis>) -> CountersRef {
        let id = CounterId(small(self.program.counters.len()));
        let dims = axes.into_iter().map(|axis| axis.0).collect();
        self.program.counters.push(CounterSet {
            name: name.into(),
            dims,
            at: Location::caller(),
        });
        CountersRef(id)
    }

    #[track_caller]
    fn role(&mut self, name: &str, kind: RoleKind, body: impl FnOnce(&mut Self)) {
        let at = Location::caller();
        let body = self.block(body);
        self.program.roles.push(Role {
            name: name.into(),
            kind,
            body,
            at,
        });
    }

    fn block(&mut self, body: impl FnOnce(&mut Self)) -> Vec<Stmt> {
        self.open.push(Vec::new());
        body(self);
        self.open.pop().unwrap_or_default()
    }

    /// A loop of the persistent GEMM CTAs.
    #[track_caller]
    pub fn gemm(&mut self, options: GemmOptions, body: impl FnOnce(&mut Self)) {
        let GemmOptions {
            k,
            cluster,
            split,
            stages,
            subtiles,
            ping_pong,
        } = options;
        // A closure has its own location, so the caller's is taken here.
        let at = Location::caller();
        let mut choice = |name: &str, tune: Option<Tune>| {
            tune.map(|tune| self.choice_at(format!("gemm.{name}"), tune, at))
        };
        let kind = RoleKind::Gemm {
            k: choice("k", k),
            cluster: choice("cluster", cluster),
            split: choice("split", split),
            stages: choice("stages", stages),
            subtiles: choice("subtiles", subtiles),
            ping_pong: choice("ping_pong", ping_pong),
        };
        self.role(kind.word(), kind, body);
    }
    /// A loop that `ctas` CTAs run. They only move data. All such loops are one role, and run one after another.
    #[track_caller]
    pub fn comm(&mut self, ctas: impl Into<Tune>, body: impl FnOnce(&mut Self)) {
        self.comm_named("comm", ctas, body);
    }
    /// As [`ScheduleBuilder::comm`], with CTAs that only loops of this name run: roles of other names run meanwhile.
    #[track_caller]
    pub fn comm_named(&mut self, name: &str, ctas: impl Into<Tune>, body: impl FnOnce(&mut Self)) {
        let ctas = self.choice(format!("{name}.ctas"), ctas.into());
        self.role(name, RoleKind::Comm { ctas }, body);
    }
    /// A loop that the GEMM's idle warps run.
    #[track_caller]
    pub fn spare_warps(&mut self, body: impl FnOnce(&mut Self)) {
        self.role(RoleKind::SpareWarps.word(), RoleKind::SpareWarps, body);
    }
    /// Copies that the host enqueues.
    #[track_caller]
    pub fn copy_engine(&mut self, body: impl FnOnce(&mut Self)) {
        self.role(RoleKind::CopyEngine.word(), RoleKind::CopyEngine, body);
    }

    #[track_caller]
    fn push(&mut self, kind: StmtKind) {
        let stmt = Stmt {
            kind,
            at: Location::caller(),
        };
        match self.open.last_mut() {
            Some(block) => block.push(stmt),
            // Outside every role: kept for lowering to find and report.
            None => self.program.roles.push(Role {
                name: RoleKind::SpareWarps.word().into(),
                kind: RoleKind::SpareWarps,
                at: stmt.at,
                body: vec![stmt],
            }),
        }
    }

    #[track_caller]
    fn var(&mut self, name: &str) -> Var {
        let var = Var(small(self.program.vars.len()));
        self.program.vars.push(VarDecl {
            name: name.into(),
            at: Location::caller(),
        });
        var
    }

    /// Visits ranks in `order`; `body` gets the rank.
    #[track_caller]
    pub fn for_ranks(&mut self, name: &str, order: Ranks, body: impl FnOnce(&mut Self, RankExpr)) {
        let var = self.var(name);
        let inner = self.block(|s| body(s, RankExpr::Var(var)));
        self.push(StmtKind::ForRanks {
            var,
            order: order.0,
            body: inner,
        });
    }

    /// Visits items; `body` gets the item. One item is one unit of work.
    #[track_caller]
    pub fn for_items(
        &mut self,
        name: &str,
        items: impl Into<ItemsRef>,
        body: impl FnOnce(&mut Self, Item),
    ) {
        let var = self.var(name);
        let ItemsRef {
            partition,
            shard,
            order,
            cuts,
        } = items.into();
        let order = match order {
            Order::Tile(order) => ItemOrder::Tile(order),
            Order::Grouped(tune) => {
                ItemOrder::Grouped(self.choice(format!("{name}.grouped"), tune))
            }
        };
        let inner = self.block(|s| body(s, Item(var)));
        self.push(StmtKind::ForItems {
            var,
            items: Items {
                partition,
                shard,
                order,
                selection: Selection::new(cuts),
            },
            body: inner,
        });
    }

    /// Runs `then` where the condition holds.
    #[track_caller]
    pub fn when(&mut self, cond: Cond, then: impl FnOnce(&mut Self)) {
        let then = self.block(then);
        self.push(StmtKind::If {
            cond,
            then,
            otherwise: Vec::new(),
        });
    }

    /// Runs `then` where the condition holds, `otherwise` elsewhere.
    #[track_caller]
    pub fn when_else(
        &mut self,
        cond: Cond,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.push(StmtKind::If {
            cond,
            then,
            otherwise,
        });
    }

    /// Blocks until the cells got every signal that the schedule gives them in this launch.
    #[track_caller]
    pub fn wait(&mut self, cells: impl Into<CellsRef>) {
        self.push(StmtKind::Wait {
            cells: cells.into().0,
            at_least: None,
            by_slab: false,
        });
    }

    /// As [`ScheduleBuilder::wait`], but the product behind it waits for each slab of K when it comes to it, so that it begins with
    /// the first. Where the cells count chunks of all columns, they are waited for before the product begins.
    ///
    /// ```
    /// use counterflow_codegen::builder::*;
    /// use counterflow_codegen::dtype::Dtype::Bf16;
    ///
    /// let mut s = ScheduleBuilder::new("slab_by_slab");
    /// let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    /// let slabs = s.tiles("slabs", x, (128, 512)); // rows by columns of x, and so of K
    /// let tiles = s.tiles("tiles", y, (128, 256));
    /// let arrived = s.counters("arrived", [slabs.into()]);
    /// s.gemm(GemmOptions::default(), |s| {
    ///     s.for_items("t", tiles.of(me()), |s, t| {
    ///         s.wait_by_slab(arrived.at(t.rows()));
    ///         let product = s.dot(x.at(t), w.at(t));
    ///         s.store(y.at(t), product);
    ///     });
    /// });
    /// ```
    #[track_caller]
    pub fn wait_by_slab(&mut self, cells: impl Into<CellsRef>) {
        let cells = cells.into().0;
        let by_slab = self.counts_columns(&cells);
        self.push(StmtKind::Wait {
            cells,
            at_least: None,
            by_slab,
        });
    }

    /// True if cells count the slabs of columns of some rows. Of another schedule's counter nothing is known: lowering reports it.
    fn counts_columns(&self, cells: &Cells) -> bool {
        let set = self.program.counters.get(cells.counter.index());
        let mut axes = cells.index.iter().zip(set.iter().flat_map(|set| &set.dims));
        axes.any(|axis| match axis {
            (CellIndex::Along(..), CounterDim::Items(of)) => {
                let of = self.program.partitions.get(of.index());
                of.is_some_and(|of| !matches!(of.block, Block::Chunks { .. }))
            }
            (
                CellIndex::Along(..) | CellIndex::Item(_) | CellIndex::Rank(_),
                CounterDim::Items(_) | CounterDim::World | CounterDim::Count(_),
            ) => false,
        })
    }

    /// Blocks until each cell grew by `at_least` in this launch.
    #[track_caller]
    pub fn wait_at_least(&mut self, cells: impl Into<CellsRef>, at_least: u32) {
        self.push(StmtKind::Wait {
            cells: cells.into().0,
            at_least: Some(at_least),
            by_slab: false,
        });
    }

    /// Adds `amount` to the cells once everything before it in this item is visible to the waiter.
    #[track_caller]
    pub fn signal(&mut self, cells: impl Into<CellsRef>, amount: u32) {
        self.push(StmtKind::Signal {
            cells: cells.into().0,
            amount,
        });
    }

    /// Copies an item.
    #[track_caller]
    pub fn copy(&mut self, dst: impl Into<PlaceRef>, src: impl Into<PlaceRef>) {
        self.push(StmtKind::Copy {
            dst: dst.into().0,
            src: src.into().0,
        });
    }

    fn acc(&mut self, name: Option<&str>) -> AccId {
        let acc = AccId(small(self.program.accs.len()));
        self.program.accs.push(AccDecl {
            name: name.map(Into::into),
        });
        acc
    }

    /// A named accumulator, zero until something is added to it in an item.
    pub fn accumulator(&mut self, name: &str) -> Value {
        Value::Acc(self.acc(Some(name)))
    }

    /// Names the accumulator `value`. A value that is computed from accumulators takes no name.
    pub fn name(&mut self, value: &Value, name: &str) {
        if let Value::Acc(acc) = value
            && let Some(declared) = self.program.accs.get_mut(usize::from(acc.0))
        {
            declared.name = Some(name.into());
        }
    }

    /// A tile product over all of K.
    #[track_caller]
    pub fn dot(&mut self, a: impl Into<PlaceRef>, b: impl Into<PlaceRef>) -> Value {
        let acc = self.acc(None);
        self.push(StmtKind::Dot {
            acc,
            a: a.into().0,
            b: b.into().0,
        });
        Value::Acc(acc)
    }

    /// Adds a tile product to the accumulator `into`, made by [`ScheduleBuilder::accumulator`]. Any other value counts
    /// as a new accumulator, which lowering reports as never stored.
    #[track_caller]
    pub fn accumulate(&mut self, into: &Value, a: impl Into<PlaceRef>, b: impl Into<PlaceRef>) {
        let acc = match into {
            Value::Acc(acc) => *acc,
            _ => self.acc(None),
        };
        self.push(StmtKind::Dot {
            acc,
            a: a.into().0,
            b: b.into().0,
        });
    }

    /// The sum of stored tiles: of one slot, of [`others`], of [`everyone`], or of every rank's copy (`everywhere()`).
    #[track_caller]
    pub fn sum(&mut self, from: impl Into<PlaceRef>) -> Value {
        let acc = self.acc(None);
        self.push(StmtKind::Sum {
            acc,
            from: from.into().0,
            own: None,
        });
        Value::Acc(acc)
    }

    /// A stored tile, or a vector along the columns, as an operand of the epilogue.
    #[track_caller]
    pub fn load(&mut self, from: impl Into<PlaceRef>) -> Value {
        let acc = self.acc(None);
        self.push(StmtKind::Load {
            acc,
            from: from.into().0,
        });
        Value::Acc(acc)
    }

    /// Writes an item: `dst = value`.
    #[track_caller]
    pub fn store(&mut self, dst: impl Into<PlaceRef>, value: impl Into<Value>) {
        self.push(StmtKind::Store {
            dst: dst.into().0,
            mode: StoreMode::Write,
            value: value.into(),
            amax: None,
        });
    }

    /// Adds to an item by an atomic reduce-add: `dst += value`.
    #[track_caller]
    pub fn store_add(&mut self, dst: impl Into<PlaceRef>, value: impl Into<Value>) {
        self.push(StmtKind::Store {
            dst: dst.into().0,
            mode: StoreMode::Add,
            value: value.into(),
            amax: None,
        });
    }
}

/// An id of 16 bits. Lowering rejects a longer table by its length.
fn small(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

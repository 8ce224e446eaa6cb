//! How a CTA's shared memory is divided between stages of operands, panels of results and sums of other CTAs: the one
//! place that decides.

use crate::kernel::{GemmKind, Kernel, Op, OpKind};
use crate::program::TensorKind;
use crate::tile::{ATOM_ROWS, BLOCK_ROWS, CONSUMERS, Panel, Tile};
use crate::value::Value;

/// What the two warpgroups that multiply need room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// A tile.
    pub tile: Tile,
    /// Rows of each operand in a stage: [`staged_rows`] of the tile's.
    pub staged: (u32, u32),
    /// Bytes of an operand's element.
    pub element: u32,
    /// Bytes of a result's element.
    pub result: u32,
    /// Whether warpgroups take tiles in turn, each with panels of its own.
    pub in_turn: bool,
    /// CTAs that share the K steps of a tile, and send each other their sums of its panels.
    pub split: u32,
    /// What an item has beside its product.
    pub beside: Beside,
    /// Whether CTAs load for themselves alone, and signal nobody.
    pub alone: bool,
}

/// What an item stores, and reads beside the operands of its product.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Beside {
    /// Its stores: so many panels for one of the tile's, at most.
    stores: u32,
    /// Stored tiles that come through the stages behind its last step.
    tiles: u32,
    /// Whether it has more than products that are stored as they are: then what a panel of it becomes is in registers
    /// beside accumulators.
    computed: bool,
}

impl Beside {
    /// Counts one more op.
    pub fn count(&mut self, kernel: &Kernel, op: &Op) {
        match &op.kind {
            OpKind::Store { value, .. } => {
                self.stores += 1;
                let value = &kernel.values[usize::from(value.0)];
                self.computed |= !matches!(value, Value::Acc(_));
            }
            OpKind::Load { from, .. } => {
                let kind = kernel.buffers[from.buffer.index()].kind;
                self.tiles += u32::from(kind != TensorKind::Vector);
                self.computed = true;
            }
            OpKind::Reduce { .. } => {
                self.tiles += 1;
                self.computed = true;
            }
            OpKind::Dot { .. }
            | OpKind::Copy { .. }
            | OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => {}
        }
    }

    /// Whether what is stored is the product itself, and nothing is read beside its operands.
    pub const fn stores_products(&self) -> bool {
        !self.computed
    }
}

/// Rows that a stage has for so many of an operand: where rows are contiguous, they lie in whole blocks of 64.
pub const fn staged_rows(rows: u32, rows_contiguous: bool) -> u32 {
    if rows_contiguous {
        rows.next_multiple_of(BLOCK_ROWS)
    } else {
        rows
    }
}

/// The division of a CTA's shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// Stages of operands.
    pub stages: u32,
    /// Panels of results, for each warpgroup that takes tiles of its own.
    pub panels: u32,
    /// A panel.
    pub panel: Panel,
    /// Whether the warpgroups that share a tile end it one after another: a panel is of one's half, and both have theirs in
    /// the same places.
    pub staggered: bool,
    /// Bytes in all, barriers included.
    pub bytes: u32,
}

/// Barriers come last and take less.
const BARRIERS: u32 = 1024;
/// Bytes of a stage of which seven fit beside sums and panels. Measured, 512x1280x8192 and 256x2560x8192, steps shared by two:
/// 128x80 (26 KB) takes 22 µs with seven, and 24 with eight where sums wait; 128x96 (28 KB) 22 with six, and 20.5 to 23 with eight.
const ENOUGH: u32 = 27 << 10;
/// More stages than this hide nothing that fewer do not.
const MOST_STAGES: u32 = 16;
/// Stages where warpgroups end a tile one after another. The one that is behind holds one, and the other one needs two for its
/// last steps. With more it could be two tiles ahead.
const STAGES_STAGGERED: u32 = 3;
/// Rows of a panel of a swapped tile, if it has panels of so many: fewer cost more barriers than they are worth.
const ENOUGH_ROWS: u32 = 24;
/// Bytes of panels of a swapped tile that are written at a time, at most, one for each warpgroup that has some of its own:
/// of twice that, two leave no room for a third stage.
const LARGEST: u32 = 32 << 10;
/// Registers of a thread for accumulators and for what a panel of them becomes.
const VALUES: u32 = 192;

impl Needs {
    /// Bytes of a stage.
    pub const fn stage(&self) -> u32 {
        (self.staged.0 + self.staged.1) * self.tile.k * self.element
    }

    /// What leaves together: a part of the tile's N side.
    pub fn panel(&self) -> Panel {
        let Tile { rows, columns, .. } = self.tile;
        if self.tile.swapped() {
            let rows = self.panel_rows();
            Panel { rows, columns }
        } else {
            let columns = self.panel_columns();
            Panel { rows, columns }
        }
    }

    /// Columns of a panel: what one TMA box stores. The widest swizzle that divides the tile, since a box beyond the
    /// tile would overwrite its neighbour's columns. In turn, half of the widest: room for one more stage is worth
    /// more than fewer stores. CTAs that share a tile's K steps store as many of its panels each, where a
    /// width allows it, and otherwise narrow ones, which differ least.
    fn panel_columns(&self) -> u32 {
        let widths = if self.in_turn {
            &[64, 32][..]
        } else {
            &[128, 64, 32][..]
        };
        let columns = widths.iter().map(|bytes| bytes / self.result);
        columns
            .into_iter()
            .find(|columns| self.tile.columns.is_multiple_of(columns * self.split))
            .unwrap_or(if self.split > 1 { 16 } else { 32 / self.result })
    }

    /// Rows of a panel of a swapped tile, whole atoms: as many as a thread has registers for what becomes of them, and
    /// a stage has room for one of each stored tile; two panels of a tall tile, so that one is stored while the next is
    /// written. As many each for CTAs that share steps, where that leaves enough rows, and otherwise low
    /// ones, which differ least.
    fn panel_rows(&self) -> u32 {
        let (rows, blocks) = (self.tile.rows, self.tile.blocks(self.in_turn));
        let consumers = if self.in_turn { CONSUMERS } else { 1 };
        // A product stored as it is becomes nothing else: a few accumulators at a time are rounded and written. Sums that
        // are exchanged take registers, too: 168x256 by three spills, and more so in panels of 56 rows than of 8.
        let as_it_is = self.beside.stores_products() && self.split == 1;
        let values = |rows: u32| self.tile.accumulators(self.in_turn) + blocks * rows / 2;
        let fits = |panels: &u32| {
            let each = rows / panels;
            rows.is_multiple_of(panels * ATOM_ROWS)
                && panels.is_multiple_of(self.split)
                && each >= ENOUGH_ROWS
                && each * self.tile.columns * self.result * consumers <= LARGEST
                && (as_it_is || values(each) <= VALUES)
                && self.places(each * self.tile.columns) >= self.beside.tiles
        };
        let dealt = |least: u32| (least..=rows / ATOM_ROWS).find(fits);
        let panels = if rows > BLOCK_ROWS { dealt(2) } else { None };
        match panels.or_else(|| dealt(1)) {
            Some(panels) => rows / panels,
            None if rows.is_multiple_of(16) && rows / 16 >= self.split => 16,
            None => ATOM_ROWS,
        }
    }

    /// Panels of so many elements that a stage has room for, where each operand would be.
    fn places(&self, elements: u32) -> u32 {
        let Tile { rows, columns, k } = self.tile;
        let operands = [rows, columns].map(|rows| rows * k * self.element);
        let each = |bytes: u32| bytes / (elements * self.result);
        operands.map(each).iter().sum()
    }

    /// Whether sums and panels lie where the stages are: those are idle then, since a CTA whose steps are shared waits
    /// for the others at the end of each tile. In turn, stages have steps of the other warpgroup's tile meanwhile; and
    /// a stored tile comes through them. Small stages are enough without: the wait costs more than they bring.
    pub const fn over_stages(&self) -> bool {
        self.split > 1 && !self.in_turn && self.beside.tiles == 0 && self.stage() > ENOUGH
    }

    /// Bytes in which the other CTAs' sums of this one's panels arrive, for both warpgroups.
    pub fn sums(&self) -> u32 {
        if self.split <= 1 {
            return 0;
        }
        let panel = self.panel();
        let panels = self.tile.panels(panel).div_ceil(self.split);
        let consumers = if self.in_turn { CONSUMERS } else { 1 };
        panels * consumers * panel.elements() * 4 * (self.split - 1)
    }

    /// Divides `room` bytes, with as many stages and panels as the author asks for.
    ///
    /// Left open, a tile that both warpgroups share has three quarters of its panels before it has another stage, so
    /// that the next tile starts while the last one is stored; in turn two a warpgroup do, since the other one
    /// multiplies meanwhile. What stages leave goes to more panels, up to the whole tile. (Measured on an H200.)
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn divide(&self, kind: &GemmKind, room: u32) -> Result<Fit, (String, String)> {
        self.a_panel_each()?;
        if self.over_stages() {
            return self.lay_over(kind, room);
        }
        if let Some(fit) = self.stagger(kind, room) {
            return Ok(fit);
        }
        let one = self.panel();
        let (stage, panel) = (self.stage().max(1), (one.elements() * self.result).max(1));
        let sets = if self.in_turn { 2 } else { 1 };
        let whole = self.tile.panels(one);
        let wanted = if self.in_turn {
            whole.min(2)
        } else {
            (whole * 3).div_ceil(4)
        };
        let sums = self.sums();
        let free = room.saturating_sub(BARRIERS + sums);
        let beside = if sums > 0 {
            format!(" and {sums} bytes of sums")
        } else {
            String::new()
        };
        // Two stages hide nothing while one is multiplied: a third comes before more than one panel.
        let fits_three = |panels: u32| 3 * stage + panels * sets * panel <= free;
        let wanted = (1..=wanted)
            .rev()
            .find(|panels| fits_three(*panels))
            .unwrap_or(wanted);
        let least = kind
            .panels
            .unwrap_or(if kind.stages.is_some() { 1 } else { wanted });
        let most = free.saturating_sub(least.saturating_mul(sets * panel)) / stage;
        let beside = format!(" beside {} panels of {panel} bytes{beside}", least * sets);
        let stages = self.stages(kind, most, &beside, room)?;
        let left = (free - stages * stage) / (sets * panel);
        let most = if self.in_turn { wanted } else { whole };
        let panels = kind.panels.unwrap_or(left.min(most));
        if panels > whole {
            return Err((
                format!("{panels} panels of {}", self.part(one)),
                format!("a tile has {whole}"),
            ));
        }
        Ok(Fit {
            stages,
            panels,
            panel: one,
            staggered: false,
            bytes: stages * stage + panels * sets * panel + sums + BARRIERS,
        })
    }

    /// Room for the panels of one warpgroup's half of a tile that both share, where three stages leave none for the whole
    /// tile's. The first one writes all of its half without waiting for a store, and multiplies the next tile while the other
    /// half follows into the same places.
    ///
    /// Measured, 200×256 at 8192³, ten tiles a CTA: with both halves of a panel at a time, in two places, nothing was
    /// multiplied for 3400 cycles a tile, 1.7 % of all; stores leave an SM at some 30 bytes a cycle when all SMs store. In all
    /// it is 1.2 % faster now, and 256×192 at 4096×12288×3072 by 2.5 to 4.4 %. Results in f32, of which a half is more than a stage,
    /// gained nothing and lost up to 2 %. Low panels, each a meeting with the thread that stores, lost 2 to 3 % (of 8 rows).
    /// Values that are computed, CTAs that load for each other, and kernels that signal were not measured.
    ///
    /// All tiles of a launch have as many steps: a turn is waited for in each of them or in none.
    fn stagger(&self, kind: &GemmKind, room: u32) -> Option<Fit> {
        let Tile { rows, columns, .. } = self.tile;
        let half = rows * columns / CONSUMERS * self.result;
        let free = room.saturating_sub(BARRIERS);
        let stages = STAGES_STAGGERED * self.stage();
        let fits = stages + half <= free && stages + CONSUMERS * half > free;
        let open = kind.panels.is_none() && kind.stages.is_none_or(|it| it == STAGES_STAGGERED);
        let shared = !self.in_turn && self.split == 1 && self.alone;
        let one_store = self.beside.stores_products() && self.beside.stores == 1;
        let Panel { rows, columns } = self.panel();
        let low = self.tile.swapped() && rows < ENOUGH_ROWS;
        if !(fits && open && shared && one_store && self.result == 2) || low {
            return None;
        }
        let panel = if self.tile.swapped() {
            let columns = columns / CONSUMERS;
            Panel { rows, columns }
        } else {
            let rows = rows / CONSUMERS;
            Panel { rows, columns }
        };
        Some(Fit {
            stages: STAGES_STAGGERED,
            panels: self.tile.panels(panel) / CONSUMERS,
            panel,
            staggered: true,
            bytes: stages + half + BARRIERS,
        })
    }

    /// So many stages as the author asks for, or as hide something: of `most` that fit `beside` the rest.
    fn stages(
        &self,
        kind: &GemmKind,
        most: u32,
        beside: &str,
        room: u32,
    ) -> Result<u32, (String, String)> {
        let stage = self.stage();
        let stages = kind.stages.unwrap_or(most.min(MOST_STAGES));
        if most < 2 {
            return Err((
                format!("not even 2 stages of {stage} bytes fit{beside}"),
                format!("an SM has {room} bytes: use smaller tiles, or a smaller k"),
            ));
        }
        if stages < 2 || stages > most {
            return Err((
                format!("{stages} stages of {stage} bytes{beside}"),
                format!("an SM has {room} bytes: 2 to {most} stages"),
            ));
        }
        Ok(stages)
    }

    /// As [`Needs::divide`], with all of it for stages: between two tiles, sums and this CTA's panels lie there, each in
    /// a place of its own.
    fn lay_over(&self, kind: &GemmKind, room: u32) -> Result<Fit, (String, String)> {
        let (one, split, sums) = (self.panel(), self.split, self.sums());
        let (stage, panel) = (self.stage().max(1), one.elements() * self.result);
        let whole = self.tile.panels(one);
        let panels = whole.div_ceil(split) * self.beside.stores.max(1);
        let over = sums + panels * panel;
        let most = room.saturating_sub(BARRIERS) / stage;
        let stages = self.stages(kind, most, "", room)?;
        if let Some(asked) = kind.panels.filter(|asked| *asked != panels) {
            return Err((
                format!("{asked} panels, where {split} CTAs that share a tile have {panels} each"),
                "leave `panels` open: sums and panels lie where the stages are".into(),
            ));
        }
        if over > stages * stage {
            return Err((
                format!(
                    "{over} bytes of sums and panels where {stages} stages of {stage} bytes are"
                ),
                format!(
                    "{} stages or more, or a smaller `split`",
                    over.div_ceil(stage)
                ),
            ));
        }
        Ok(Fit {
            stages,
            panels,
            panel: one,
            staggered: false,
            bytes: stages * stage + BARRIERS,
        })
    }

    /// Refuses CTAs without a panel of the tile that they share. Nothing would be sent to such a CTA, so that it would wait for
    /// none of the others before it says that they may send again, or that panels have been read: a phase of theirs could
    /// be over before they look at the one before.
    fn a_panel_each(&self) -> Result<(), (String, String)> {
        let (split, one) = (self.split, self.panel());
        let whole = self.tile.panels(one);
        if whole >= split {
            return Ok(());
        }
        Err((
            format!(
                "{split} CTAs that share a tile of {whole} panels of {}",
                self.part(one)
            ),
            format!("a panel each: `split` is at most {whole}"),
        ))
    }

    /// What part of a tile a panel is, in words.
    fn part(&self, panel: Panel) -> String {
        if self.tile.swapped() {
            format!("{} rows", panel.rows)
        } else {
            format!("{} columns", panel.columns)
        }
    }
}

//! How a CTA's shared memory is divided between stages of operands, epilogue subtiles, and partials of other CTAs: the one
//! place that decides.

use super::subtiles::{ENOUGH_ROWS, Needs};
use super::wgmma::{CONSUMERS, Mode};
use crate::kernel::GemmKind;
use crate::tiling::{Subtile, Tile};

/// Kind of the slots of a ring, and of a region of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotKind {
    /// Operands of a step, or a stored subtile.
    Stage,
    /// A subtile of results.
    Subtile,
    /// Partials of another CTA of a split K.
    SplitPartial,
    /// A box that a CTA of a role that moves data copies.
    Staging,
    /// A box that a spare warp of a GEMM CTA copies.
    SpareStaging,
    /// A tile: no memory of its own, but that of subtiles or partials in the places of stages.
    Tile,
}

impl SlotKind {
    /// Name of a slot in the text.
    pub const fn name(self) -> &'static str {
        match self {
            SlotKind::Stage => "stage",
            SlotKind::Subtile => "subtile",
            SlotKind::SplitPartial => "split_partial",
            SlotKind::Staging => "staging",
            SlotKind::SpareStaging => "spare_staging",
            SlotKind::Tile => "tile",
        }
    }

    /// The constant of the text that says how many slots there are.
    pub const fn count(self) -> &'static str {
        match self {
            SlotKind::Stage => "STAGES",
            SlotKind::Subtile => "SUBTILES",
            SlotKind::SplitPartial => "SPLIT_PARTIALS",
            SlotKind::Staging => "STAGING_SLOTS",
            SlotKind::SpareStaging => "SPARE_STAGING_SLOTS",
            SlotKind::Tile => "TILES",
        }
    }
}

/// A part of a CTA's shared memory: slots of the same size, in places of their own or in others'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Kind of its slots.
    pub of: SlotKind,
    /// Bytes of a slot.
    pub bytes: u32,
    /// Slots of a set.
    pub slots: u32,
    /// Number of sets: one, or one a consumer.
    pub sets: u32,
    /// Offset of the region, in bytes.
    pub at: u32,
    /// Time in which its places are its own.
    pub lifetime: Lifetime,
}

/// Time in which a region's places are its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// All the time.
    Launch,
    /// All the time, for one set after another: a consumer hands each place on to the other one (staggered epilogues).
    Staggered,
    /// From a tile's last step to the first of the next: it lies where the stages are (aliased shared memory).
    Epilogue,
    /// Before the CTA's first tile: it lies where the others will be.
    BeforeTiles,
}

impl Region {
    /// Slots of all sets.
    pub const fn all(&self) -> u32 {
        self.slots * self.sets
    }

    /// Places that these have.
    pub const fn places(&self) -> u32 {
        match self.lifetime {
            Lifetime::Staggered => self.slots,
            Lifetime::Launch | Lifetime::Epilogue | Lifetime::BeforeTiles => self.all(),
        }
    }

    /// End of the region, in bytes.
    pub const fn end(&self) -> u32 {
        self.at + self.places() * self.bytes
    }
}

/// The division of a CTA's shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Division {
    /// Stages of operands.
    pub stages: u32,
    /// Subtiles that are held, for each warpgroup that has some of its own.
    pub subtiles: u32,
    /// A subtile.
    pub subtile: Subtile,
    /// Time in which their places are theirs.
    pub lifetime: Lifetime,
    /// Bytes in all, barriers included.
    pub bytes: u32,
}

/// Barriers come last and take less.
pub(super) const BARRIERS: u32 = 1024;
/// Bytes of a stage of which seven fit beside partials and subtiles. Measured, 512x1280x8192 and 256x2560x8192, steps shared by two:
/// 128x80 (26 KB) takes 22 µs with seven, and 24 with eight where partials wait; 128x96 (28 KB) 22 with six, and 20.5 to 23 with eight.
const ENOUGH: u32 = 27 << 10;
/// More stages than this hide nothing that fewer do not.
const MOST_STAGES: u32 = 16;
/// Stages where epilogues are staggered. The one that is behind holds one, and the other one needs two for its
/// last steps. With more it could be two tiles ahead.
const STAGES_STAGGERED: u32 = 3;

/// Staging buffers of a CTA that moves data, at most.
const MOST_STAGING: u32 = 12;

/// Staging buffers of so many bytes, which have all of `room`.
pub(super) fn staging_alone(bytes: u32, room: u32) -> Region {
    Region {
        of: SlotKind::Staging,
        bytes,
        slots: ((room - BARRIERS) / bytes).min(MOST_STAGING),
        sets: 1,
        at: 0,
        lifetime: Lifetime::Launch,
    }
}

/// Misfit, and what would fit.
pub(super) type Refusal = (String, String);

impl Needs {
    /// True if partials and subtiles lie where the stages are: those are idle then, since a CTA whose steps are shared waits
    /// for the others at the end of each tile. In ping-pong, stages have steps of the other warpgroup's tile meanwhile; and
    /// a stored tile comes through them. Small stages are enough without: the wait costs more than they bring.
    const fn aliased(&self) -> bool {
        self.split > 1 && !self.ping_pong() && self.results.inputs == 0 && self.stage > ENOUGH
    }

    /// Bytes in which the other CTAs' partials of this one's subtiles arrive, for both warpgroups.
    pub fn partials(&self) -> u32 {
        if self.split <= 1 {
            return 0;
        }
        let subtile = self.subtile();
        let each = self.whole(subtile).div_ceil(self.split);
        each * self.sets() * subtile.elements() * 4 * (self.split - 1)
    }

    /// Divides `room` bytes, with as many stages and subtiles as the author asks for.
    ///
    /// Left open, a tile that both warpgroups share has three quarters of its subtiles before it has another stage, so
    /// that the next tile starts while the last one is stored; in ping-pong two a warpgroup do, since the other one
    /// multiplies meanwhile. Two are enough, too, where memory adds products in f32: it takes them so slowly that the next
    /// tile's loads wait behind them, and another stage hides more than another subtile. What stages leave goes to more
    /// subtiles, up to the whole tile. (Measured on an H200.)
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn divide(&self, kind: &GemmKind, room: u32) -> Result<Division, Refusal> {
        self.a_subtile_each()?;
        if self.aliased() {
            return self.alias(kind, room);
        }
        if let Some(division) = self.stagger(kind, room) {
            return Ok(division);
        }
        let one = self.subtile();
        let stage = self.stage.max(1);
        let subtile = (one.elements() * self.results.widest).max(1);
        let (sets, whole) = (self.sets(), self.whole(one));
        let wanted = match self.wgmma.mode {
            Mode::PingPong => whole.min(2),
            Mode::Cooperative if self.results.added => whole.min(2),
            Mode::Cooperative => (whole * 3).div_ceil(4),
        };
        let partials = self.partials();
        let free = room.saturating_sub(BARRIERS + partials);
        let beside = if partials > 0 {
            format!(" and {partials} bytes of partials")
        } else {
            String::new()
        };
        // Two stages hide nothing while one is multiplied: a third comes before more than one subtile.
        let fits_three = |subtiles: u32| 3 * stage + subtiles * sets * subtile <= free;
        let wanted = (1..=wanted)
            .rev()
            .find(|subtiles| fits_three(*subtiles))
            .unwrap_or(wanted);
        let least = kind
            .subtiles
            .unwrap_or(if kind.stages.is_some() { 1 } else { wanted });
        let most = free.saturating_sub(least.saturating_mul(sets * subtile)) / stage;
        let beside = format!(
            " beside {} subtiles of {subtile} bytes{beside}",
            least * sets
        );
        let stages = self.stages(kind, most, &beside, room)?;
        let left = (free - stages * stage) / (sets * subtile);
        let most = match self.wgmma.mode {
            Mode::PingPong => wanted,
            Mode::Cooperative => whole,
        };
        let subtiles = kind.subtiles.unwrap_or(left.min(most));
        if subtiles > whole {
            return Err((
                format!("{subtiles} subtiles of {}", self.part(one)),
                format!("a tile has {whole}"),
            ));
        }
        Ok(Division {
            stages,
            subtiles,
            subtile: one,
            lifetime: Lifetime::Launch,
            bytes: stages * stage + subtiles * sets * subtile + partials + BARRIERS,
        })
    }

    /// Staggered epilogues: room for the subtiles of one warpgroup's half of a tile that both share, where three stages leave
    /// none for the whole tile's. The first one writes all of its half without waiting for a store, and multiplies the next
    /// tile while the other half follows into the same places.
    ///
    /// Measured, 200×256 at 8192³, ten tiles a CTA: with both halves of a subtile at a time, in two places, nothing was
    /// multiplied for 3400 cycles a tile, 1.7 % of all; stores leave an SM at some 30 bytes a cycle when all SMs store. In all
    /// it is 1.2 % faster now, and 256×192 at 4096×12288×3072 by 2.5 to 4.4 %. Results in f32, of which a half is more than a stage,
    /// gained nothing and lost up to 2 %. Low subtiles, each a meeting with the thread that stores, lost 2 to 3 % (of 8 rows).
    /// Values that are computed, CTAs that load for each other, and kernels that signal were not measured.
    ///
    /// The order barrier is waited at in each tile of a launch or in none: a kernel with one store has one loop, all of whose
    /// tiles have as many steps.
    fn stagger(&self, kind: &GemmKind, room: u32) -> Option<Division> {
        let Tile { rows, columns, .. } = self.wgmma.tile;
        let half = rows * columns / CONSUMERS * self.results.widest;
        let free = room.saturating_sub(BARRIERS);
        let stages = STAGES_STAGGERED * self.stage;
        let fits = stages + half <= free && stages + CONSUMERS * half > free;
        let open = kind.subtiles.is_none() && kind.stages.is_none_or(|it| it == STAGES_STAGGERED);
        let shared = !self.ping_pong() && self.split == 1 && self.alone;
        let one_store = !self.results.computed && self.results.stores == 1;
        let Subtile { rows, columns } = self.subtile();
        let low = self.wgmma.swap_ab() && rows < ENOUGH_ROWS;
        // A stage is held to the end of its step: the other warpgroup multiplies meanwhile, whatever it has to store.
        let all = fits && open && shared && one_store && self.results.widest == 2;
        if !all || low || self.promoted {
            return None;
        }
        let subtile = if self.wgmma.swap_ab() {
            let columns = columns / CONSUMERS;
            Subtile { rows, columns }
        } else {
            let rows = rows / CONSUMERS;
            Subtile { rows, columns }
        };
        Some(Division {
            stages: STAGES_STAGGERED,
            subtiles: self.whole(subtile) / CONSUMERS,
            subtile,
            lifetime: Lifetime::Staggered,
            bytes: stages + half + BARRIERS,
        })
    }

    /// So many stages as the author asks for, or as hide something: of `most` that fit `beside` the rest.
    fn stages(&self, kind: &GemmKind, most: u32, beside: &str, room: u32) -> Result<u32, Refusal> {
        let stage = self.stage;
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

    /// As [`Needs::divide`], with all of it for stages: between two tiles, sums and this CTA's subtiles lie there, each in
    /// a place of its own.
    fn alias(&self, kind: &GemmKind, room: u32) -> Result<Division, Refusal> {
        let (one, split, partials) = (self.subtile(), self.split, self.partials());
        let (stage, subtile) = (self.stage.max(1), one.elements() * self.results.widest);
        let subtiles = self.whole(one).div_ceil(split) * self.results.stores.max(1);
        let over = partials + subtiles * subtile;
        let most = room.saturating_sub(BARRIERS) / stage;
        let stages = self.stages(kind, most, "", room)?;
        if let Some(asked) = kind.subtiles.filter(|asked| *asked != subtiles) {
            return Err((
                format!(
                    "{asked} subtiles, where {split} CTAs that share a tile have {subtiles} each"
                ),
                "leave `subtiles` open: partials and subtiles lie where the stages are".into(),
            ));
        }
        if over > stages * stage {
            return Err((
                format!(
                    "{over} bytes of partials and subtiles where {stages} stages of {stage} bytes are"
                ),
                format!(
                    "{} stages or more, or a smaller `split`",
                    over.div_ceil(stage)
                ),
            ));
        }
        Ok(Division {
            stages,
            subtiles,
            subtile: one,
            lifetime: Lifetime::Epilogue,
            bytes: stages * stage + BARRIERS,
        })
    }

    /// Refuses CTAs without a subtile of the tile that they share. Nothing would be sent to such a CTA, so that it would wait
    /// for none of the others before it says that they may send again, or that subtiles have been read: a phase of theirs
    /// could be over before they look at the one before.
    fn a_subtile_each(&self) -> Result<(), Refusal> {
        let (split, one) = (self.split, self.subtile());
        let whole = self.whole(one);
        if whole >= split {
            return Ok(());
        }
        Err((
            format!(
                "{split} CTAs that share a tile of {whole} subtiles of {}",
                self.part(one)
            ),
            format!("a subtile each: `split` is at most {whole}"),
        ))
    }

    /// The regions of a division: one after another, but for those that lie where others are. Staging buffers of CTAs that
    /// move data first, of so many bytes, lie where the rest will be. Those of spare warps, of so many bytes and so many, come
    /// behind it.
    pub fn regions(
        &self,
        division: &Division,
        staging: Option<u32>,
        spare: Option<(u32, u32)>,
    ) -> Vec<Region> {
        let Division {
            stages, subtiles, ..
        } = *division;
        let stages = Region {
            of: SlotKind::Stage,
            bytes: self.stage,
            slots: stages,
            sets: 1,
            at: 0,
            lifetime: Lifetime::Launch,
        };
        // Each warpgroup has subtiles of its own where it has tiles, or ends, of its own.
        let own = self.ping_pong() || division.lifetime == Lifetime::Staggered;
        let subtiles = Region {
            of: SlotKind::Subtile,
            bytes: division.subtile.elements() * self.results.widest,
            slots: subtiles,
            sets: if own { CONSUMERS } else { 1 },
            at: match division.lifetime {
                Lifetime::Epilogue => stages.at,
                Lifetime::Launch | Lifetime::Staggered | Lifetime::BeforeTiles => stages.end(),
            },
            lifetime: division.lifetime,
        };
        let mut regions = vec![stages, subtiles];
        if self.split > 1 {
            regions.push(Region {
                of: SlotKind::SplitPartial,
                bytes: self.partials() / CONSUMERS,
                slots: 1,
                sets: CONSUMERS,
                at: subtiles.end(),
                lifetime: division.lifetime,
            });
        }
        if let Some(bytes) = staging {
            regions.push(Region {
                lifetime: Lifetime::BeforeTiles,
                ..staging_alone(bytes, subtiles.end() + BARRIERS)
            });
        }
        if let Some((bytes, slots)) = spare {
            let ends = regions.iter().map(Region::end);
            regions.push(Region {
                of: SlotKind::SpareStaging,
                bytes,
                slots,
                sets: 1,
                at: ends.max().unwrap_or(0).next_multiple_of(1024),
                lifetime: Lifetime::Launch,
            });
        }
        regions
    }
}

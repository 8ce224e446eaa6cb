//! Resolves and checks what statements name: counter cells and places of data.

use super::mistake::mistake;
use super::placer::{Bound, Placer, Use};
use crate::kernel::{Axis, Buffer, Cells, Region, WhichShard};
use crate::program::{
    self, AtEnd, CellIndex, CounterDim, Home, Loc, PartitionId, Pick, Place, Side,
};

impl<'a> Placer<'a> {
    fn home(&mut self, home: &Home, at: Loc) {
        if let Home::On(expr) = home {
            self.rank_expr(expr, at);
        }
    }

    pub(super) fn cells(&mut self, cells: &program::Cells, at: Loc) -> Option<Cells> {
        self.home(&cells.home, at);
        let Some(set) = self.program.counters.get(cells.counter.index()) else {
            self.found
                .push(mistake(at, "the counter belongs to another schedule"));
            return None;
        };
        if cells.index.len() != set.dims.len() {
            let (has, needs) = (cells.index.len(), set.dims.len());
            self.found.push(mistake(
                at,
                format!("`{}` has {needs} axes, but is indexed by {has}", set.name),
            ));
            return None;
        }
        for (index, dim) in cells.index.iter().zip(&set.dims) {
            self.cell_index(&set.name, index, *dim, at);
        }
        Some(Cells {
            counter: cells.counter,
            home: cells.home.clone(),
            index: cells.index.clone(),
        })
    }

    fn cell_index(&mut self, set: &str, index: &CellIndex, dim: CounterDim, at: Loc) {
        let partition_name = |id: PartitionId| {
            self.matched
                .partitions
                .get(id.index())
                .map(|p| p.name.clone())
        };
        if let CounterDim::Items(id) = dim
            && partition_name(id).is_none()
        {
            self.found.push(mistake(
                at,
                format!("`{set}` counts a partition of another schedule"),
            ));
            return;
        }
        match (index, dim) {
            (CellIndex::Rank(Pick::One(expr)), CounterDim::World | CounterDim::Count(_)) => {
                self.rank_expr(expr, at)
            }
            (CellIndex::Rank(Pick::All), CounterDim::World | CounterDim::Count(_))
            | (CellIndex::Rank(Pick::Others), CounterDim::World) => {}
            (CellIndex::Rank(Pick::Others), CounterDim::Count(_)) => {
                self.found.push(mistake(
                    at,
                    format!("`others()` indexes an axis of `{set}` that does not count ranks"),
                ));
            }
            (CellIndex::Item(var), CounterDim::Items(counted)) => {
                if let Some(partition) = self.item(*var, at)
                    && partition != counted
                {
                    let (item, counted) =
                        (self.name(*var), partition_name(counted).unwrap_or_default());
                    self.found.push(
                        mistake(at, format!("`{set}` counts `{counted}`, but `{item}` is of another partition"))
                            .hint(format!("`{set}[{item}.rows()]` is the `{counted}` that hold the rows of `{item}`")),
                    );
                }
            }
            (CellIndex::Along(var, side), CounterDim::Items(counted)) => {
                if let Some(partition) = self.item(*var, at) {
                    let matched = self.matched;
                    let of = &matched.partitions[partition.index()];
                    let counted = &matched.partitions[counted.index()];
                    let (item, what) = (self.name(*var), side.word());
                    let several = || {
                        let shard = counted.shard_of((of, *side), |dim| matched.is_sharded(dim));
                        shard == WhichShard::Several
                    };
                    if counted.side_of(of.dim(*side)).is_none() {
                        let message =
                            format!("`{}` does not divide the {what} of `{item}`", counted.name);
                        self.found.push(mistake(at, message));
                    } else if several() {
                        let message = format!(
                            "the {what} of `{item}` are in several shards of `{}`",
                            counted.name
                        );
                        self.found.push(mistake(at, message).hint(format!(
                            "ranks divide the rows of one operand of a product: gather the other in a launch before, or count chunks \
                            that the ranks divide as they divide `{item}`"
                        )));
                    }
                }
            }
            (CellIndex::Rank(_), CounterDim::Items(counted)) => {
                let counted = partition_name(counted).unwrap_or_default();
                self.found.push(
                    mistake(
                        at,
                        format!("`{set}` counts `{counted}`, but is indexed by a rank"),
                    )
                    .hint(format!("index it with an item of `{counted}`")),
                );
            }
            (
                CellIndex::Item(var) | CellIndex::Along(var, _),
                CounterDim::World | CounterDim::Count(_),
            ) => {
                let item = self.name(*var);
                self.found.push(mistake(
                    at,
                    format!("`{set}` has one cell per rank, but is indexed by the item `{item}`"),
                ));
            }
        }
    }

    /// A place that an item covers in rows and columns.
    pub(super) fn region(&mut self, place: &Place, at: Loc, access: Use) -> Option<Region> {
        let buffer = self.buffer(place, at)?;
        let (repeated, name) = (buffer.usage.is_repeated(), buffer.name.clone());
        match access {
            Use::Read | Use::CopyFrom => self.readable(buffer, at),
            Use::Copy | Use::Store | Use::Add => self.writable(buffer, at, access),
        }
        let copies = matches!(access, Use::Copy | Use::CopyFrom);
        let item = match place.item {
            Some(item) => item,
            None if repeated => {
                self.scope
                    .iter()
                    .rev()
                    .find(|(_, bound)| matches!(bound, Bound::Item(_)))?
                    .0
            }
            None => {
                self.found.push(
                    mistake(at, format!("`{name}` is used whole"))
                        .hint(format!("name an item of it: `{name}[t]`")),
                );
                return None;
            }
        };
        let partition = self.item(item, at)?;
        if copies {
            self.whole_blocks(partition, buffer, at);
        }
        let along = |own| match copies {
            true => buffer.usage.copied_along(own),
            false => buffer.usage.read_along(own),
        };
        let [rows, columns] =
            Side::ALL.map(|own| along(own).map_or(Axis::All, |side| Axis::of(item, side)));
        Some(Region {
            buffer: place.tensor,
            home: place.home.clone(),
            slot: place.slot.clone(),
            rows,
            columns,
        })
    }

    /// A block of rows that has one number travels as a whole, and scales travel with all columns of their rows: with each slab
    /// of them they would be written again.
    fn whole_blocks(&mut self, partition: PartitionId, buffer: &Buffer, at: Loc) {
        let partition = &self.matched.partitions[partition.index()];
        if buffer.usage.is_scale() && partition.column_block.is_some() {
            let name = &buffer.name;
            let message = format!("slabs of columns, with which `{name}` would have to travel");
            let hint = "the elements in slabs, `.data()[c]`, and the scales in chunks of whole rows, `.scales()[c]`";
            self.found.push(mistake(at, message).hint(hint));
        }
        let (rows, each) = (partition.row_block, buffer.usage.rows_each());
        if let Some(rows) = rows.filter(|rows| !rows.is_multiple_of(each)) {
            let name = &buffer.name;
            let message = format!("chunks of {rows} rows, across the blocks of {each} of `{name}`");
            self.found
                .push(mistake(at, message).hint(format!("a multiple of {each} rows")));
        }
    }

    /// An operand of a dot: the tile's rows (columns for the second operand) over all of K.
    pub(super) fn operand(&mut self, place: &Place, first: bool, at: Loc) -> Option<Region> {
        let buffer = self.buffer(place, at)?;
        self.readable(buffer, at);
        let name = buffer.name.clone();
        let Some(item) = place.item else {
            self.found.push(
                mistake(at, format!("`{name}` is used whole"))
                    .hint(format!("name a tile: `{name}[t]`")),
            );
            return None;
        };
        self.item(item, at)?;
        if place.slot.is_some() {
            let message = format!("`{name}` is an operand of a dot, but has a slot");
            let hint = "operands have no slots: a `Gathered` tensor, or scratch without slots, `symmetric::<bf16>()`; or exchange in one \
                launch (`AllToAll`), and multiply what came in the next";
            self.found.push(mistake(at, message).hint(hint));
        }
        if place.home != Home::Me {
            self.found.push(
                mistake(at, format!("a dot reads `{name}` from another rank"))
                    .hint("remote tiles are not cached on the rank that reads them: copy the chunk first, and wait for it"),
            );
        }
        Some(Region {
            buffer: place.tensor,
            home: Home::Me,
            slot: None,
            rows: if first {
                Axis::RowsOf(item)
            } else {
                Axis::ColumnsOf(item)
            },
            columns: Axis::All,
        })
    }

    fn buffer(&mut self, place: &Place, at: Loc) -> Option<&'a Buffer> {
        let matched = self.matched;
        if let Some(word) = place.planes.word() {
            let message = format!("`.{word}()` stands where no copy is");
            self.found.push(mistake(at, message).hint(
                "a copy moves one plane or all: `x.on(peer).scales()[c] = x.scales()[c]`; a product takes both",
            ));
        }
        let Some(buffer) = matched.buffers.get(place.tensor.index()) else {
            self.found
                .push(mistake(at, "the tensor belongs to another schedule"));
            return None;
        };
        self.home(&place.home, at);
        if let Some(Pick::One(slot)) = &place.slot {
            self.rank_expr(slot, at);
        }
        let name = &buffer.name;
        if place.home != Home::Me && !buffer.usage.placement.symmetric {
            self.found.push(
                mistake(at, format!("`{name}` is {}: peers cannot address it", buffer.usage.name()))
                    .hint("only Gathered, ReduceScattered, AllReduced, AllToAll and symmetric memory can be addressed on another rank"),
            );
        }
        if place.home == Home::Everywhere && buffer.shard_only() {
            self.found.push(
                mistake(at, format!("each rank holds a different shard of `{name}`, so its rows are not on every rank"))
                    .hint("address the owner with `.on(rank)`, or use memory that is whole on each rank"),
            );
        }
        let several = buffer.usage.placement.slots != program::Slots::Count(1);
        match place.slot.is_some() {
            false if several => self.several_slots(name, at),
            true if !buffer.usage.has_slots() => self
                .found
                .push(mistake(at, format!("`{name}` has no slots"))),
            true | false => {}
        }
        Some(buffer)
    }

    fn several_slots(&mut self, name: &str, at: Loc) {
        self.found.push(
            mistake(at, format!("`{name}` has several slots"))
                .hint(format!("name one: `{name}[me()][t]`")),
        );
    }

    /// While a launch adds to a tensor, it holds neither its old contents nor the finished sum.
    fn readable(&mut self, buffer: &Buffer, at: Loc) {
        if buffer.usage.is_added_to() {
            let name = &buffer.name;
            self.found.push(
                mistake(at, format!("`{name}` is Accumulated: the launch that adds to it cannot read it"))
                    .hint(format!("read `{name}` in a later launch, or pass what it held before as a Local tensor of its own")),
            );
        }
    }

    fn writable(&mut self, buffer: &Buffer, at: Loc, access: Use) {
        let name = &buffer.name;
        if buffer.usage.is_added_to() && access != Use::Add {
            self.found.push(
                mistake(
                    at,
                    format!(
                        "`{name}` is Accumulated: this overwrites what it held before the launch"
                    ),
                )
                .hint(format!(
                    "add to it: `{name}[t] += …`; to overwrite it, make it Out"
                )),
            );
        }
        let one_sender = match buffer.usage.at_end {
            AtEnd::Sent => Some(("a slot holds what one rank sends", "ReduceScattered")),
            AtEnd::Computed => Some(("rows hold what one rank computes", "AllReduced")),
            AtEnd::Nothing
            | AtEnd::Gathered
            | AtEnd::Own
            | AtEnd::Accumulated
            | AtEnd::Sum { .. } => None,
        };
        if let Some((why, sum)) = one_sender.filter(|_| access == Use::Add) {
            let kind = buffer.usage.name();
            let message = format!("`{name}` is {kind}: {why}, and nothing is added to it");
            self.found.push(mistake(at, message).hint(format!(
                "add the terms first and store their sum; a sum over ranks is {sum}"
            )));
        }
        let computed = access != Use::Copy && buffer.usage.is_gathered();
        if computed || buffer.usage.is_fixed() {
            self.found.push(
                mistake(at, format!("`{name}` is an input"))
                    .hint("write to Out, Accumulated, ReduceScattered, AllReduced, AllToAll, a gathered output or symmetric memory; copies may also fill a gathered input"),
            );
        }
    }

    /// A copy moves bytes, so they must have one meaning on both sides.
    pub(super) fn same_bytes(&mut self, dst: &Region, src: &Region, at: Loc) {
        let [to, from] = [dst, src].map(|region| &self.matched.buffers[region.buffer.index()]);
        let (name, other) = (&from.name, &to.name);
        if from.usage.vector {
            self.found.push(
                mistake(
                    at,
                    format!("`{name}` is a vector, but is copied to rows of `{other}`"),
                )
                .hint("a copy moves rows and columns unchanged"),
            );
        } else if from.dtype != to.dtype {
            let message = format!(
                "`{name}` is {}, but is copied to `{other}`, which is {}",
                from.dtype, to.dtype
            );
            self.found.push(
                mistake(at, message)
                    .hint("a copy moves bytes unchanged: both sides have one element type"),
            );
        } else if from.mn_major != to.mn_major {
            let message = format!(
                "`{name}` is copied to `{other}`, but one has contiguous columns and the other contiguous rows"
            );
            self.found.push(mistake(at, message).hint(
                "a copy moves bytes unchanged: in layout nt all tensors have one order in memory",
            ));
        }
    }

    pub(super) fn one_slot(&mut self, place: &Place, region: &Region, at: Loc) {
        if matches!(place.slot, Some(Pick::All | Pick::Others)) {
            let name = &self.matched.buffers[region.buffer.index()].name;
            self.found.push(
                mistake(
                    at,
                    format!("several slots of `{name}` are named where one is needed"),
                )
                .hint("only `.sum()` takes several"),
            );
        }
    }
}

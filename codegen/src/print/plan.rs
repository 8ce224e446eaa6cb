//! A plan as text: shards, items, grid, heap and counter targets in numbers.

use super::Page;
use crate::kernel::{DimId, Kernel};
use crate::plan::Plan;
use crate::program::{CounterId, PartitionId};
use std::collections::BTreeSet;

impl Plan {
    /// Text of the plan, under the names of the `kernel` it was planned for.
    pub fn text(&self, kernel: &Kernel) -> String {
        let mut page = Page::default();
        page.line(format!(
            "plan {}  {}  shape {}",
            kernel.name, kernel.variant, self.shape
        ));
        self.dims(kernel, &mut page);
        let grid = self.grid;
        let mut line = format!("grid {} gemm CTAs", grid.gemm);
        if grid.comm > 0 {
            line.push_str(&format!(" and {} comm CTAs", grid.comm));
        }
        if grid.stages > 0 {
            let kib = f64::from(grid.shared_memory) / 1024.0;
            line.push_str(&format!(
                ", {} stages, {kib:.1} KiB of shared memory",
                grid.stages
            ));
        }
        page.line(line);
        page.line("");
        page.line("shards");
        page.nested(|page| self.shards(kernel, page));
        page.line("steps a rank");
        page.nested(|page| self.steps(kernel, page));
        if !kernel.counters.is_empty() {
            page.line("arrivals");
            page.nested(|page| self.cells(kernel, page));
        }
        page.line(format!("heap {} a rank", bytes(self.heap.bytes)));
        let entries = self.heap.entries.iter().map(|(name, offset, size)| {
            vec![name.clone(), format!("at {offset:#x}"), bytes(*size)]
        });
        let entries: Vec<Vec<String>> = entries.collect();
        page.nested(|page| page.table(&entries));
        page.text
    }

    fn dims(&self, kernel: &Kernel, page: &mut Page) {
        let dims = (0..).zip(&kernel.dims).filter(|(_, dim)| !dim.unit);
        let dims: Vec<String> = dims
            .map(|(id, dim)| {
                let (id, name) = (DimId(id), &dim.name);
                let size = self.geometry.size(id);
                if dim.sharded {
                    let shard = self.geometry.shard_rows(id);
                    format!("{name} = {size} in shards of {shard}")
                } else {
                    format!("{name} = {size}")
                }
            })
            .collect();
        page.line(format!("dims {}", dims.join(", ")));
    }

    /// One line for each run of ranks whose shards are alike.
    fn shards(&self, kernel: &Kernel, page: &mut Page) {
        let describe = |rank: u32| {
            let mut cells = Vec::new();
            for (id, dim) in (0..).zip(&kernel.dims) {
                if dim.sharded {
                    let rows = self.geometry.shard(DimId(id), rank).len();
                    cells.push(format!("{} rows of {}", rows, dim.name));
                }
            }
            for (id, partition) in (0..).zip(&kernel.partitions) {
                let id = PartitionId(id);
                let shards = self.geometry.partition_shards(id);
                if rank < shards {
                    let (rows, columns) = self.geometry.grid(id, Some(rank));
                    cells.push(format!("{} {rows}×{columns}", partition.name));
                } else {
                    cells.push(String::new());
                }
            }
            cells
        };
        let rows = runs(self.geometry.world, describe)
            .into_iter()
            .map(|(ranks, mut cells)| {
                cells.insert(0, ranks);
                cells
            });
        page.table(&rows.collect::<Vec<_>>());
    }

    fn steps(&self, kernel: &Kernel, page: &mut Page) {
        let mut rows = Vec::new();
        for (index, role) in kernel.roles.iter().enumerate() {
            let agents = || (0..self.geometry.world).map(|rank| self.agent(rank, index));
            rows.push(vec![
                role.name.clone(),
                format!("{} items", span(agents().map(|agent| agent.items.len()))),
                format!("{} steps", span(agents().map(|agent| agent.steps.len()))),
            ]);
        }
        page.table(&rows);
    }

    fn cells(&self, kernel: &Kernel, page: &mut Page) {
        let mut rows = Vec::new();
        for (id, counter) in (0..).zip(&kernel.counters) {
            let id = CounterId(id);
            let cells = self.geometry.counter_cells(id);
            let amounts: BTreeSet<u32> = (0..self.geometry.world as u16)
                .flat_map(|rank| (0..cells).map(move |cell| (rank, cell)))
                .map(|(rank, cell)| self.arrivals.of(rank, id, cell))
                .collect();
            let each = match amounts.iter().collect::<Vec<_>>().as_slice() {
                [] => "none".into(),
                [only] => format!("{only} each"),
                [a, b] => format!("{a} or {b} each"),
                [first, .., last] => format!("{first} to {last} each"),
            };
            rows.push(vec![
                counter.name.clone(),
                format!("{cells} cells a rank"),
                each,
            ]);
        }
        page.table(&rows);
    }
}

/// Runs of ranks with the same description, as `rank 0` or `ranks 1 to 3`.
fn runs(world: u32, describe: impl Fn(u32) -> Vec<String>) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(u32, u32, Vec<String>)> = Vec::new();
    for rank in 0..world {
        let cells = describe(rank);
        match found.last_mut() {
            Some((_, last, same)) if *same == cells => *last = rank,
            _ => found.push((rank, rank, cells)),
        }
    }
    let label = |first: u32, last: u32| {
        if first == last {
            format!("rank {first}")
        } else {
            format!("ranks {first} to {last}")
        }
    };
    found
        .into_iter()
        .map(|(first, last, cells)| (label(first, last), cells))
        .collect()
}

/// `64`, or `48 to 64` where ranks differ.
fn span(values: impl Iterator<Item = usize>) -> String {
    let (least, most) = values.fold((usize::MAX, 0), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least >= most {
        most.to_string()
    } else {
        format!("{least} to {most}")
    }
}

/// A size with its unit.
fn bytes(count: u64) -> String {
    match count {
        0..=9999 => format!("{count} B"),
        _ if count < 10 << 20 => format!("{:.1} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / f64::from(1u32 << 20)),
    }
}

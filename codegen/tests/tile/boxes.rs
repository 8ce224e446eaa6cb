//! The boxes of what an item touches: exactly its elements and their scales, each in one shard of one rank's memory, for worlds
//! of 1 to 8, ragged sizes and scales of blocks that are padded.

use crate::fixtures::wide::wide;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::{Bytes, Plan};
use counterflow_codegen::program::{StoreMode, TensorId};
use counterflow_codegen::region::{Access, Owner, Rectangle, Span};
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::shape::{Extent, Geometry, Shape};
use counterflow_codegen::unroll::StepKind;
use counterflow_codegen::variant::{Arch, Scales, Variant};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// y = all_gather(x) · wᵀ, where rows of `x` and their scales travel.
fn gather(variant: Variant) -> Kernel {
    let mut s = ScheduleBuilder::new("gather");
    let (x, w, y) = (s.gathered("x", Bf16), s.local("w", Bf16), s.out("y", Bf16));
    let chunks = s.chunks("chunks", x, 128);
    let tiles = s.tiles("tiles", y, (128, 128));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(x.on(&peer).at(c), x.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    lower(&s.finish(), &variant.arch(Arch::Cpu)).unwrap_or_else(|found| panic!("{found}"))
}

/// How often each row and column of each rank's plane is in a box.
type Touched = BTreeMap<(TensorId, u16, u16), Vec<u32>>;

fn touched(kernel: &Kernel, geometry: &Geometry, boxes: impl Iterator<Item = Span>) -> Touched {
    let mut all = Touched::new();
    for one in boxes {
        let buffer = &kernel.buffers[one.buffer.index()];
        let [rows, columns] = sides(geometry, buffer);
        let counts = all.entry((one.buffer, one.home, one.slot));
        let counts = counts.or_insert_with(|| vec![0; rows * columns]);
        for row in one.rows.range() {
            for column in one.columns.range() {
                counts[row * columns + column] += 1;
            }
        }
    }
    all
}

fn sides(geometry: &Geometry, buffer: &Buffer) -> [usize; 2] {
    [buffer.rows, buffer.columns].map(|dim| geometry.size(dim) as usize)
}

fn buffer(kernel: &Kernel, name: &str) -> TensorId {
    let at = kernel.buffers.iter().position(|buffer| buffer.name == name);
    TensorId(at.unwrap_or_else(|| panic!("{name}")) as u16)
}

/// A part of so many, from two numbers.
fn part(of: u32, [a, b]: [u32; 2]) -> Extent {
    let (a, b) = (a % of, b % of);
    Extent {
        start: a.min(b),
        end: a.max(b) + 1,
    }
}

fn is_in(extent: Extent, at: usize) -> bool {
    extent.range().contains(&at)
}

fn scaled(scales: Option<Scales>, world: u32) -> Variant {
    let variant = Variant::new(world);
    match scales {
        Some(scales) => variant.dtype(E4M3).scales(scales),
        None => variant,
    }
}

fn some_scales() -> impl Strategy<Value = Option<Scales>> {
    let all = Scales::ALL.map(|scales| Just(Some(scales)).boxed());
    let all = all.into_iter().chain([Just(None).boxed()]);
    proptest::strategy::Union::new(all)
}

/// The blocks of rows and columns that share a number of a tensor's scale, and whether its rows are the scale's columns.
fn blocks(kernel: &Kernel, scale: TensorId) -> (usize, usize, bool) {
    let name = &kernel.buffers[scale.index()].name;
    let lines = match kernel.variant.operand_scales() {
        Some(Scales::Blocks1d2d) => ["x.scale"].as_slice(),
        Some(Scales::Blocks2d1d) => &["w.scale"],
        Some(Scales::Blocks1d1d) => &["x.scale", "w.scale"],
        Some(Scales::PerTensor | Scales::PerRow) | None => &[],
    };
    match lines.contains(&&name[..]) {
        // Those that stay on their rank are lines of a number for each row; those that travel have the rows of their tensor.
        true => (1, 128, name == "w.scale"),
        false => (128, 128, false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if wide() { 300 } else { 20 }))]

    /// Any rectangle of a gathered tensor, over as many shards as it is.
    #[test]
    fn boxes_are_exactly_the_rectangle(
        world in 1u32..=8, m in 1u32..700, k in 1u32..40, everywhere in any::<bool>(),
        rows in any::<[u32; 2]>(), columns in any::<[u32; 2]>(),
    ) {
        let (kernel, k) = (gather(Variant::new(world)), k * 8);
        let geometry = Geometry::new(&kernel, &Shape::new(m, 64, k)).unwrap_or_else(|e| panic!("{e}"));
        let x = buffer(&kernel, "x");
        let (rows, columns) = (part(m, rows), part(k, columns));
        let owner = match everywhere {
            true => Owner::Everywhere,
            false => Owner::Rank((m % world) as u16),
        };
        let of = Rectangle { tensor: x, owner, slot: 0, rows, columns };
        let boxes: Vec<Span> = of.boxes(&kernel, &geometry).collect();
        let dim = kernel.buffers[x.index()].rows;
        for one in &boxes {
            let shard = geometry.shard_at(dim, one.rows.start);
            prop_assert!(geometry.owned(dim, geometry.owner(shard)).contains(one.rows));
        }
        let homes = owner.ranks(world);
        let counts = touched(&kernel, &geometry, boxes.into_iter());
        prop_assert_eq!(counts.len(), homes.len());
        for home in homes {
            let counts = &counts[&(x, home, 0)];
            for (at, count) in counts.iter().enumerate() {
                let inside = is_in(rows, at / k as usize) && is_in(columns, at % k as usize);
                prop_assert_eq!(*count, u32::from(inside));
            }
        }
    }

    /// A product touches its operands and the numbers of all blocks that these have some of, for all of K and for a part of it.
    #[test]
    fn a_product_touches_its_scales(
        world in 1u32..=8, m in 1u32..1500, n in 1u32..60, k in 1u32..60, scales in some_scales(),
        rows in any::<[u32; 2]>(), columns in any::<[u32; 2]>(), range in proptest::option::of(any::<[u32; 2]>()),
    ) {
        let (n, k) = (n * 16, k * 16);
        let kernel = gather(scaled(scales, world));
        let geometry = Geometry::new(&kernel, &Shape::new(m, n, k)).unwrap_or_else(|e| panic!("{e}"));
        let range = range.map_or(Extent { start: 0, end: k }, |range| part(k, range));
        let [x, w] = ["x", "w"].map(|name| buffer(&kernel, name));
        let operand = |tensor: TensorId, rows: Extent| Rectangle {
            tensor, owner: Owner::Rank(0), slot: 0, rows, columns: range,
        };
        let (a, b) = (operand(x, part(m, rows)), operand(w, part(n, columns)));
        let dot = StepKind::Dot { acc: counterflow_codegen::value::AccId(0), a, b };
        let boxes = dot.boxes(&kernel, &geometry, 0).map(|(access, one)| {
            assert_eq!(access, Access::Read);
            one
        });
        let counts = touched(&kernel, &geometry, boxes);
        let of_blocks = scales.is_some_and(|scales| scales.blocks().is_some());
        prop_assert_eq!(counts.len(), if of_blocks { 4 } else { 2 });
        for of in [a, b] {
            let scale = format!("{}.scale", kernel.buffers[of.tensor.index()].name);
            let all = sides(&geometry, &kernel.buffers[of.tensor.index()]);
            let counted = &counts[&(of.tensor, 0, 0)];
            for (at, count) in counted.iter().enumerate() {
                let inside = is_in(of.rows, at / all[1]) && is_in(of.columns, at % all[1]);
                prop_assert_eq!(*count, u32::from(inside));
            }
            if !of_blocks {
                continue;
            }
            // Element by element, which numbers of the plane are needed.
            let scale = buffer(&kernel, &scale);
            let [lines, width] = sides(&geometry, &kernel.buffers[scale.index()]);
            let (by_rows, by_columns, across) = blocks(&kernel, scale);
            let mut needed = vec![0; lines * width];
            for row in of.rows.range() {
                for column in of.columns.range() {
                    let (row, column) = (row / by_rows, column / by_columns);
                    let at = if across { column * width + row } else { row * width + column };
                    needed[at] = 1;
                }
            }
            prop_assert_eq!(&counts[&(scale, 0, 0)], &needed);
        }
    }

    /// A store of an FP8 result writes the scale of each of its blocks once; padding is behind what anybody needs.
    #[test]
    fn a_store_writes_its_scales(
        world in 1u32..=8, m in 1u32..600, n in 1u32..60, row in any::<u32>(), column in any::<u32>(),
    ) {
        let n = n * 16;
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let kernel = gather(Variant::new(world).output_scales(rule));
        let shape = Shape::new(m, n, 64);
        let plan = Plan::new(&kernel, &shape, &Machine::h200()).unwrap_or_else(|e| panic!("{e}"));
        let geometry = &plan.geometry;
        let (y, plane) = (buffer(&kernel, "y"), buffer(&kernel, "y.scale"));
        let (row, column) = (row % m, column % n / 128 * 128);
        let dst = Rectangle {
            tensor: y,
            owner: Owner::Rank(0),
            slot: 0,
            rows: Extent { start: row, end: (row + 64).min(m) },
            columns: Extent { start: column, end: (column + 128).min(n) },
        };
        let store = StepKind::Store {
            dst, mode: StoreMode::Write, value: counterflow_codegen::kernel::ValueId(0), amax: None,
        };
        let boxes: Vec<(Access, Span)> = store.boxes(&kernel, geometry, 0).collect();
        prop_assert!(boxes.iter().all(|(access, _)| *access == Access::Write));
        let scales = boxes.iter().filter(|(_, one)| one.buffer == plane);
        let mut numbers = 0;
        for (_, one) in scales {
            numbers += one.elements();
            let touched = plan.touched(&kernel, one);
            let behind = touched.columns.end - one.columns.end;
            let last = one.columns.end == geometry.size(kernel.buffers[plane.index()].columns);
            prop_assert_eq!((touched.rows, touched.columns.start), (one.rows, one.columns.start));
            let unit = if last { 4 } else { 1 };
            prop_assert!(behind < unit && touched.columns.end.is_multiple_of(unit));
            let Bytes { offset, pitch, bytes, lines } = plan.lines(&kernel, &touched);
            prop_assert!(offset % pitch + bytes <= pitch, "a line ends before the next");
            prop_assert!(offset + (lines - 1) * pitch + bytes <= plan.bytes(&kernel, plane));
        }
        prop_assert_eq!(numbers, u64::from(dst.rows.len()));
    }
}

/// Rows that a rank sends to everybody are where they are already, and a copy engine moves each byte once.
#[test]
fn a_multicast_leaves_its_own_rows() {
    let kernel = gather(Variant::new(3));
    let geometry =
        Geometry::new(&kernel, &Shape::new(90, 64, 64)).unwrap_or_else(|e| panic!("{e}"));
    let extent = |start, end| Extent { start, end };
    let at = |owner| Rectangle {
        tensor: buffer(&kernel, "x"),
        owner,
        slot: 0,
        rows: extent(30, 60),
        columns: extent(0, 64),
    };
    let written = |src: Owner, me: u16| {
        let copy = StepKind::Copy {
            dst: at(Owner::Everywhere),
            src: at(src),
        };
        let boxes = copy.boxes(&kernel, &geometry, me);
        let written = boxes.filter(|(access, _)| *access == Access::Write);
        written.map(|(_, one)| one.home).collect::<Vec<_>>()
    };
    assert_eq!(written(Owner::Rank(1), 1), [0, 2]);
    assert_eq!(
        written(Owner::Rank(1), 0),
        [0, 1, 2],
        "another rank's memory is written"
    );
}

//! Kernels of several gathers, several GEMM loops of other depths, named roles, and sums over ranks.

use super::Sizes;
use super::draw::{Draw, Part, shuffled};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{self, Bf16, E4M3, F16, F32};
use counterflow_codegen::shape::Shape;

const GATHERS: [[&str; 6]; 3] = [
    ["a", "pa", "a_here", "wa", "ya", "ta"],
    ["b", "pb", "b_here", "wb", "yb", "tb"],
    ["c", "pc", "c_here", "wc", "yc", "tc"],
];

/// Who may move rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mover {
    /// CTAs without a name of their own.
    Comm,
    /// CTAs of a name.
    Halo,
    CopyEngine,
}

/// What is multiplied: elements of one type, or here and there of another one.
#[derive(Clone, Copy)]
struct Operands {
    element: Dtype,
    mixed: bool,
}

impl Operands {
    fn draw(draw: &mut Draw<'_>) -> Operands {
        let drawn = draw.of(8);
        Operands {
            element: match drawn {
                5 => F16,
                6 => E4M3,
                _ => Bf16,
            },
            mixed: drawn == 7,
        }
    }

    /// A step of K is 128 bytes.
    fn options(self) -> GemmOptions {
        GemmOptions {
            k: Some((128 / self.element.bytes()).into()),
            ..GemmOptions::default()
        }
    }
}

/// A tensor that is gathered, and what is made of it.
#[derive(Clone, Copy)]
struct Gather {
    x: TensorRef,
    chunks: PartitionRef,
    here: CountersRef,
    /// Who moves it, and whether each rank fetches it.
    mover: Mover,
    pulled: bool,
    product: Option<Product>,
}

#[derive(Clone, Copy)]
struct Product {
    w: TensorRef,
    y: TensorRef,
    tiles: PartitionRef,
    relu: bool,
    /// Whether its rows are columns of the product.
    across: bool,
}

impl Gather {
    fn draw(
        draw: &mut Draw<'_>,
        s: &mut ScheduleBuilder,
        sizes: Sizes,
        at: usize,
        (rows, operands): (u32, Operands),
    ) -> Gather {
        let [x, chunks, here, w, y, tiles] = GATHERS[at];
        let multiplied = at == 0 || draw.of(4) != 1;
        let element = match (draw.of(4), multiplied) {
            (1, false) => F32,
            (2, _) if operands.mixed => F16,
            (_, _) => operands.element,
        };
        let x = s.gathered(x, element);
        let chunks = s.chunks(chunks, x, rows);
        let product = multiplied.then(|| {
            let (w, y) = (s.local(w, element), s.out(y, Bf16));
            let (height, width) = sizes.tile;
            let width = if draw.of(4) == 1 { 2 * width } else { width };
            Product {
                w,
                y,
                tiles: s.tiles(tiles, y, (height, width)),
                relu: draw.of(3) == 1,
                across: at > 0 && draw.of(8) == 1,
            }
        });
        Gather {
            x,
            chunks,
            here: s.counters(here, [chunks.into()]),
            mover: [
                Mover::Comm,
                Mover::Comm,
                Mover::Comm,
                Mover::Halo,
                Mover::Halo,
                Mover::CopyEngine,
            ][draw.of(6)],
            pulled: draw.of(3) == 1,
            product,
        }
    }

    /// What a rank does for one peer.
    fn moves(self, draw: &mut Draw<'_>, s: &mut ScheduleBuilder, peer: &RankExpr) {
        let Gather {
            x, chunks, here, ..
        } = self;
        let shard = if self.pulled { peer.clone() } else { me() };
        for some in draw.some(chunks.of(shard)) {
            s.for_items("c", some, |s, c| {
                let (to, whom) = (peer.clone(), draw.rank(peer.clone(), peer));
                let pulled = self.pulled;
                let parts: Vec<Part<'_>> = vec![
                    Box::new(move |s| match pulled {
                        true => s.copy(x.at(c), x.on(&to).at(c)),
                        false => s.copy(x.on(&to).at(c), x.at(c)),
                    }),
                    Box::new(move |s| match pulled {
                        true => s.signal(here.at(c), 1),
                        false => s.signal(here.on(&whom).at(c), 1),
                    }),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        }
    }

    /// What a role does that only waits for it.
    fn awaits(self, draw: &mut Draw<'_>, s: &mut ScheduleBuilder) {
        s.for_ranks("shard", draw.order(ranks().after_me()), |s, shard| {
            s.for_items("c", self.chunks.of(&shard), |s, c| {
                s.wait(self.here.at(c));
            });
        });
    }

    /// The loop that multiplies it, in one item with another one if there is one.
    fn multiplies(
        self,
        draw: &mut Draw<'_>,
        s: &mut ScheduleBuilder,
        product: Product,
        beside: Option<(Gather, Product)>,
    ) {
        let order = draw.everyone();
        let Product {
            w,
            y,
            tiles,
            relu,
            across,
        } = product;
        s.for_ranks("shard", order, |s, shard| {
            for some in draw.some(tiles.of(&shard)) {
                s.for_items("t", some, |s, t| {
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(|s| {
                            let rows = if across { t.columns() } else { t.rows() };
                            s.wait(self.here.at(rows));
                            if let Some((other, _)) = beside {
                                s.wait(other.here.at(t.rows()));
                            }
                        }),
                        Box::new(|s| {
                            let mut product = match across {
                                true => s.dot(w.at(t), self.x.at(t)),
                                false => s.dot(self.x.at(t), w.at(t)),
                            };
                            if let Some((other, more)) = beside {
                                product = product + s.dot(other.x.at(t), more.w.at(t));
                            }
                            s.store(y.at(t), if relu { product.relu() } else { product });
                        }),
                    ];
                    shuffled(draw, parts).into_iter().for_each(|part| part(s));
                });
            }
        });
    }
}

/// Two or three gathers by one role or two, each multiplied in a loop of its own or only awaited; perhaps a reduce-scatter of
/// another product beside them.
pub fn several(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes, world: u32) {
    let rows = [sizes.chunk, sizes.chunk, sizes.chunk / 2][draw.of(3)];
    let operands = Operands::draw(draw);
    let count = 2 + draw.of(2);
    let gathers: Vec<Gather> = (0..count)
        .map(|at| Gather::draw(draw, s, sizes, at, (rows, operands)))
        .collect();
    for mover in [Mover::Comm, Mover::Halo, Mover::CopyEngine] {
        let own: Vec<&Gather> = gathers.iter().filter(|one| one.mover == mover).collect();
        if own.is_empty() {
            continue;
        }
        let alone = own.iter().filter(|one| one.product.is_none());
        let joined = draw.of(3) != 1;
        let spare = draw.of(2) == 1 || mover == Mover::CopyEngine;
        let mut moves = |s: &mut ScheduleBuilder| {
            let groups: Vec<&[&Gather]> = match joined {
                true => vec![&own[..]],
                false => own.chunks(1).collect(),
            };
            for group in groups {
                s.for_ranks("peer", draw.order(ranks().before_me()), |s, peer| {
                    group.iter().for_each(|one| one.moves(draw, s, &peer));
                });
            }
            if !spare {
                alone.clone().for_each(|one| one.awaits(draw, s));
            }
        };
        match mover {
            Mover::Comm => s.comm(2u32, &mut moves),
            Mover::Halo => s.comm_named("halo", 1u32, &mut moves),
            Mover::CopyEngine => s.copy_engine(&mut moves),
        }
        if spare && alone.clone().next().is_some() {
            s.spare_warps(|s| alone.for_each(|one| one.awaits(draw, s)));
        }
    }
    let apart = draw.of(2) == 1;
    let mut products: Vec<(Gather, Product)> = gathers
        .iter()
        .filter_map(|one| Some((*one, one.product?)))
        .collect();
    let beside = match products.len() > 1 && draw.of(10) == 1 {
        true => Some(products.remove(1)),
        false => None,
    };
    let products = products.into_iter().enumerate();
    let products: Vec<_> = products
        .map(|(at, (one, product))| (one, product, beside.filter(|_| at == 0)))
        .collect();
    let summed = (draw.of(2) == 1).then(|| Sum::draw(draw, s, sizes, operands.element));
    match apart {
        true => {
            for (one, product, beside) in products {
                s.gemm(operands.options(), |s| {
                    one.multiplies(draw, s, product, beside);
                });
            }
            if let Some(sum) = summed {
                s.gemm(operands.options(), |s| sum.put(draw, s, world));
            }
        }
        false => s.gemm(operands.options(), |s| {
            for (one, product, beside) in products {
                one.multiplies(draw, s, product, beside);
            }
            if let Some(sum) = summed {
                sum.put(draw, s, world);
            }
        }),
    }
}

/// A reduce-scatter.
#[derive(Clone, Copy)]
struct Sum {
    x: TensorRef,
    w: TensorRef,
    y: TensorRef,
    tiles: PartitionRef,
    partial: TensorRef,
    landed: CountersRef,
    /// Whether its terms are added one by one, each behind a wait of its own.
    in_turn: bool,
}

impl Sum {
    fn draw(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes, element: Dtype) -> Sum {
        let (x, w) = (s.local("x", element), s.local("w", element));
        let y = s.reduce_scattered("y", Bf16);
        let tiles = s.tiles("tiles", y, sizes.tile);
        Sum {
            x,
            w,
            y,
            tiles,
            partial: s.symmetric("partial", Bf16, y, world()),
            landed: s.counters("landed", [world().into(), tiles.into()]),
            in_turn: draw.of(2) == 1,
        }
    }

    fn put(self, draw: &mut Draw<'_>, s: &mut ScheduleBuilder, ranks_of_case: u32) {
        let Sum {
            x,
            w,
            y,
            tiles,
            partial,
            landed,
            in_turn,
        } = self;
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let slot = draw.rank(me(), &owner);
                let to = owner.clone();
                let parts: Vec<Part<'_>> = vec![
                    Box::new(move |s| {
                        let product = s.dot(x.at(t), w.at(t));
                        s.store(partial.on(&to).at(slot.clone()).at(t), product);
                    }),
                    Box::new(|s| s.signal(landed.on(&owner).at(me()).at(t), 1)),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mut sum = s.dot(x.at(t), w.at(t));
            if !in_turn {
                s.wait(landed.at(others()).at(t));
                sum = sum + s.sum(partial.at(others()).at(t));
            }
            for further in (1..ranks_of_case).filter(|_| in_turn) {
                let slot = (me() + i64::from(further)) % world();
                if !draw.wrong() {
                    s.wait(landed.at(slot.clone()).at(t));
                }
                sum = sum + s.load(partial.at(slot).at(t));
            }
            s.store(y.at(t), sum);
        });
    }
}

/// Depths and columns of each product's own.
pub fn with_sizes(launches: &mut [Shape], times: u32) {
    for launch in launches {
        for (at, [x, _, _, w, y, _]) in GATHERS.into_iter().enumerate() {
            let [depth, columns] = [[16, 8], [8, 16], [24, 8]][at];
            *launch = launch
                .clone()
                .dim(&format!("{x}.columns"), depth * times)
                .dim(&format!("{w}.rows"), columns * times)
                .dim(&format!("{y}.columns"), columns * times);
        }
    }
}

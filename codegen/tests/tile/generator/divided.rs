//! Products whose columns the ranks divide: shards of the weight arrive while tiles wait for the part that has their columns.

use super::draw::{Draw, Part, shuffled};
use super::gather::{Moved, Moves, source};
use super::reduce::in_order;
use super::{Addend, Product, Sizes};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};
use counterflow_codegen::shape::Shape;

/// What becomes of a tile's product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// It is stored.
    Stored,
    /// It is added to what is there.
    Added,
    /// Its function is multiplied with another product.
    Gated,
    /// A second loop reads it, tile by tile.
    ReadAgain,
    /// A second layer reads it, all columns of its rows.
    Layer,
}

/// The operands of a tile's value.
#[derive(Clone, Copy)]
struct Operands {
    x: TensorRef,
    w: TensorRef,
    gate: Option<TensorRef>,
    bias: Option<TensorRef>,
    residual: Option<TensorRef>,
    minus: bool,
    relu: bool,
}

impl Operands {
    fn value(self, s: &mut ScheduleBuilder, t: Item) -> Value {
        let mut value = s.dot(self.x.at(t), self.w.at(t));
        if let Some(gate) = self.gate {
            value = value.relu() * s.dot(self.x.at(t), gate.at(t));
        }
        let bias = self.bias.map(|bias| s.load(bias));
        let residual = self.residual.map(|residual| s.load(residual.at(t)));
        for addend in bias.into_iter().chain(residual) {
            value = match self.minus {
                true => value - addend,
                false => value + addend,
            };
        }
        if self.relu { value.relu() } else { value }
    }
}

/// What a second loop reads, and makes of it.
#[derive(Clone, Copy)]
struct Second {
    after: After,
    operands: Operands,
    first: TensorRef,
    y: TensorRef,
    tiles: PartitionRef,
    /// The columns of `first` that a wait is for are those of a tile, or all.
    ready: CountersRef,
    /// The second layer's weight, whose shards come as the first one's do.
    down: TensorRef,
    shards: Option<(PartitionRef, CountersRef)>,
}

impl Second {
    fn draw(
        draw: &mut Draw<'_>,
        s: &mut ScheduleBuilder,
        sizes: Sizes,
        after: After,
        operands: Operands,
        (first, tiles): (TensorRef, PartitionRef),
    ) -> Option<Second> {
        let (divided, down) = match after {
            After::Stored | After::Added | After::Gated => return None,
            After::ReadAgain => (false, operands.w),
            After::Layer if draw.of(2) == 1 => (true, s.gathered("down", Bf16)),
            After::Layer => (false, s.local("down", Bf16)),
        };
        let y = s.out("y", Bf16);
        let cells = match after {
            // The shards of what the first layer stores are columns.
            After::Layer => s.chunks("rows", operands.x, sizes.tile.0),
            _ => tiles,
        };
        let shards = divided.then(|| {
            let shards = s.chunks("shards", down, sizes.chunk);
            (shards, s.counters("down_arrived", [shards.into()]))
        });
        Some(Second {
            after,
            operands,
            first,
            y,
            tiles: match after {
                After::Layer => s.tiles_like("y_tiles", y, tiles),
                _ => tiles,
            },
            ready: s.counters("ready", [cells.into()]),
            down,
            shards,
        })
    }

    fn moves(self, s: &mut ScheduleBuilder, draw: &mut Draw<'_>) {
        let Some((shards, arrived)) = self.shards else {
            return;
        };
        s.comm(2u32, |s| {
            s.for_ranks("peer", draw.order(ranks().before_me()), |s, peer| {
                s.for_items("p", shards.of(me()), |s, p| {
                    s.copy(self.down.on(&peer).at(p), self.down.at(p));
                    s.signal(arrived.on(&peer).at(p), 1);
                });
            });
        });
    }

    /// A tile of `first` is there.
    fn hands_over(self, s: &mut ScheduleBuilder, t: Item) {
        match self.after {
            After::Layer => s.signal(self.ready.at(t.rows()), 1),
            _ => s.signal(self.ready.at(t), 1),
        }
    }

    fn items(self, s: &mut ScheduleBuilder, draw: &mut Draw<'_>, items: ItemsRef) {
        let order = draw.of(3);
        for some in draw.some(in_order(items, order)) {
            s.for_items("t", some, |s, t| {
                let wait = move |s: &mut ScheduleBuilder| match self.after {
                    After::Layer => s.wait(self.ready.at(t.rows())),
                    _ => s.wait(self.ready.at(t)),
                };
                let multiplies = draw.of(2) == 1;
                let store = move |s: &mut ScheduleBuilder| {
                    let value = match self.after {
                        After::Layer => s.dot(self.first.at(t), self.down.at(t)),
                        _ if multiplies => {
                            let product = s.dot(self.operands.x.at(t), self.down.at(t));
                            product + s.load(self.first.at(t))
                        }
                        _ => s.load(self.first.at(t)),
                    };
                    s.store(self.y.at(t), value);
                };
                let mut parts: Vec<Part<'_>> = vec![Box::new(wait), Box::new(store)];
                if let Some((_, arrived)) = self.shards {
                    parts.insert(1, Box::new(move |s| s.wait(arrived.at(t.columns()))));
                }
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        }
    }

    fn put(self, s: &mut ScheduleBuilder, draw: &mut Draw<'_>) {
        if self.after == After::Layer && self.shards.is_none() {
            return self.items(s, draw, self.tiles.all());
        }
        s.for_ranks("shard", draw.everyone(), |s, shard| {
            self.items(s, draw, self.tiles.of(&shard));
        });
    }
}

/// Every rank has all columns of its product in the end. What `y` is to be, where it is the product itself.
pub fn columns(
    draw: &mut Draw<'_>,
    s: &mut ScheduleBuilder,
    sizes: Sizes,
    launches: &mut [Shape],
) -> Option<Product> {
    use After::{Added, Gated, Layer, ReadAgain, Stored};
    let after = [
        Stored, Stored, Stored, Added, Gated, ReadAgain, Layer, Layer,
    ][draw.of(8)];
    let columns = [0; 2].map(|_| 8 * (1 + draw.of(5)) as u32 * sizes.times.1);
    for (launch, number) in launches.iter_mut().zip(0..) {
        // Where tiles have cells, columns stay.
        launch.n = columns[if after == ReadAgain { 0 } else { number % 2 }];
    }
    let (x, w) = (s.local("x", Bf16), s.gathered("w", Bf16));
    let first = match after {
        Added => s.accumulated("y", [Bf16, F32][draw.of(2)]),
        Stored | Gated => s.out("y", Bf16),
        // What others could reach has no shards of columns on GPUs.
        ReadAgain | Layer if draw.wrong() => s.scratch("first", Bf16),
        ReadAgain | Layer => s.out("first", Bf16),
    };
    let from = source(draw, s, w);
    let chunks = s.chunks("chunks", w, sizes.chunk);
    let tiles = s.tiles("tiles", first, sizes.tile);
    let arrived = s.counters("arrived", [chunks.into()]);
    let moved = Moved {
        by_rows: false,
        scaled: false,
        x: w,
        from,
        chunks,
        arrived,
    };
    let (moves, moves_last) = Moves::draw(draw, s, moved);
    let addend = [Addend::Nothing, Addend::Bias, Addend::Residual][draw.of(3)];
    // Every launch would add it again.
    let addend = match after {
        Added => draw.mostly(Addend::Nothing, &[addend]),
        Stored | Gated | ReadAgain | Layer => addend,
    };
    let operands = Operands {
        x,
        w,
        gate: (after == Gated).then(|| s.local("gate", Bf16)),
        bias: (addend == Addend::Bias).then(|| s.vector("b", F32)),
        residual: (addend == Addend::Residual).then(|| s.local("r", Bf16)),
        minus: draw.of(3) == 1,
        relu: draw.of(4) == 1,
    };
    let second = Second::draw(draw, s, sizes, after, operands, (first, tiles));
    let all_moves = |s: &mut ScheduleBuilder, draw: &mut Draw<'_>| {
        moves.put(s, draw);
        if let Some(second) = second {
            second.moves(s, draw);
        }
    };
    if !moves_last {
        all_moves(s, draw);
    }
    // Loops of one depth, and what no stored tile is read for.
    let alone = addend != Addend::Residual && matches!(after, Stored | Added | Gated);
    let ping_pong = draw.of(3) == 1 && draw.mostly(alone, &[true]);
    let options = GemmOptions {
        ping_pong: ping_pong.then(|| 1u32.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_ranks("shard", draw.everyone(), |s, shard| {
            let of = draw.rank(shard.clone(), &shard);
            let order = draw.of(3);
            for some in draw.some(in_order(tiles.of(of), order)) {
                s.for_items("t", some, |s, t| {
                    let target = draw.mostly(None, &[Some(1), Some(2)]);
                    let wait = move |s: &mut ScheduleBuilder| match target {
                        None => s.wait(arrived.at(t.columns())),
                        Some(n) => s.wait_at_least(arrived.at(t.columns()), n),
                    };
                    let adds = draw.mostly(after == Added, &[true, false]);
                    let store = move |s: &mut ScheduleBuilder| {
                        let value = operands.value(s, t);
                        match adds {
                            true => s.store_add(first.at(t), value),
                            false => s.store(first.at(t), value),
                        }
                    };
                    let mut parts: Vec<Part<'_>> = vec![Box::new(wait), Box::new(store)];
                    if let Some(second) = second {
                        parts.push(Box::new(move |s| second.hands_over(s, t)));
                    }
                    let parts = shuffled(draw, parts);
                    let all = |s: &mut ScheduleBuilder| parts.iter().for_each(|part| part(s));
                    let even = Cond::compare(Comparison::Eq, me() % 2, 0);
                    let theirs = Cond::compare(Comparison::Ne, &shard, me());
                    match draw.of(6) {
                        1 => s.when_else(even, all, all),
                        2 => s.when_else(theirs, all, all),
                        _ => all(s),
                    }
                });
            }
        });
        if let Some(second) = second {
            second.put(s, draw);
        }
    });
    if moves_last {
        all_moves(s, draw);
    }
    (after == Stored).then_some(Product {
        addend,
        minus: operands.minus,
        relu: operands.relu,
    })
}

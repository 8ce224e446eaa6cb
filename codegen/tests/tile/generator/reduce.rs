//! Sums over ranks, of products or of what each rank holds: partial tiles to their owner, or added where they belong.

use super::draw::{Draw, Part, shuffled};
use super::{Addend, Meant, Sizes, Summed};
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::{Bf16, F32};

/// A loop under a role, to be put in some order.
type Loop = Box<dyn FnOnce(&mut ScheduleBuilder, &mut Draw<'_>)>;

/// What a rank makes of its contribution.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Once,
    /// It is there twice, and once subtracted.
    OnceInAll,
    Twice,
    Minus,
    /// It is subtracted from itself.
    Nothing,
}

/// What is summed, and what is added to the sum, and where.
#[derive(Clone, Copy)]
struct Terms {
    x: TensorRef,
    /// What `x` is multiplied by.
    w: Option<TensorRef>,
    bias: Option<TensorRef>,
    residual: Option<TensorRef>,
    /// Whether that is subtracted.
    minus: bool,
    relu: bool,
    /// Whether it is added to the complete sum, and whether to its parts.
    late: bool,
    early: bool,
    /// Of the parts, and of the owner's own.
    own: [Own; 2],
}

impl Terms {
    fn draw(draw: &mut Draw<'_>, s: &mut ScheduleBuilder) -> (Terms, Meant) {
        let of = [Summed::Products, Summed::Products, Summed::Inputs][draw.of(3)];
        let x = s.local("x", Bf16);
        let w = (of == Summed::Products).then(|| s.local("w", Bf16));
        let addend = [Addend::Nothing, Addend::Bias, Addend::Residual][draw.of(3)];
        let (minus, relu) = (draw.of(4) == 1, draw.of(4) == 1);
        let terms = Terms {
            x,
            w,
            bias: (addend == Addend::Bias).then(|| s.vector("b", F32)),
            residual: (addend == Addend::Residual).then(|| s.local("r", Bf16)),
            minus,
            relu,
            late: true,
            early: draw.wrong(),
            own: [Own::draw(draw), Own::draw(draw)],
        };
        let late = !(terms.early && draw.of(2) == 1);
        let meant = Meant {
            of,
            addend,
            minus,
            relu,
        };
        (Terms { late, ..terms }, meant)
    }

    /// What a rank contributes to an item.
    fn contribution(self, s: &mut ScheduleBuilder, t: Item) -> Value {
        match self.w {
            Some(w) => s.dot(self.x.at(t), w.at(t)),
            None => s.load(self.x.at(t)),
        }
    }

    fn added(self, s: &mut ScheduleBuilder, t: Item, value: Value) -> Value {
        let bias = self.bias.map(|bias| s.load(bias));
        let residual = self.residual.map(|residual| s.load(residual.at(t)));
        let addends = bias.into_iter().chain(residual);
        addends.fold(value, |value, addend| match self.minus {
            true => value - addend,
            false => value + addend,
        })
    }

    /// One rank's part of the sum.
    fn part(self, s: &mut ScheduleBuilder, t: Item, owner: bool) -> Value {
        let own = self.contribution(s, t);
        let value = match self.own[usize::from(owner)] {
            Own::Once => own,
            Own::OnceInAll => own.clone() + own.clone() - own,
            Own::Twice => own.clone() + own,
            Own::Minus => Value::from(0.0) - own,
            Own::Nothing => own.clone() - own,
        };
        if self.early && !owner {
            self.added(s, t, value)
        } else {
            value
        }
    }

    /// The complete sum.
    fn whole(self, s: &mut ScheduleBuilder, t: Item, sum: Value) -> Value {
        let value = if self.late {
            self.added(s, t, sum)
        } else {
            sum
        };
        if self.relu { value.relu() } else { value }
    }
}

impl Own {
    fn draw(draw: &mut Draw<'_>) -> Own {
        let right = [Own::Once, Own::Once, Own::Once, Own::OnceInAll][draw.of(4)];
        draw.mostly(right, &[Own::Twice, Own::Minus, Own::Nothing])
    }
}

pub fn in_order(items: ItemsRef, order: usize) -> ItemsRef {
    match order {
        0 => items.row_major(),
        1 => items.grouped(2u32),
        _ => items.column_major(),
    }
}

pub fn scatter(
    draw: &mut Draw<'_>,
    s: &mut ScheduleBuilder,
    sizes: Sizes,
    everywhere: bool,
) -> Meant {
    let (terms, meant) = Terms::draw(draw, s);
    let y = if everywhere {
        s.all_reduced("y", Bf16)
    } else {
        s.reduce_scattered("y", Bf16)
    };
    let tiles = s.tiles("tiles", y, sizes.tile);
    let partial = s.symmetric("partial", Bf16, y.shard(), world());
    let shared = draw.wrong();
    let axes = if shared {
        vec![tiles.into()]
    } else {
        vec![world().into(), tiles.into()]
    };
    let landed = s.counters("landed", axes);
    let done = s.counters("done", [tiles.into()]);
    let mut loops: Vec<Loop> = vec![
        Box::new(move |s, draw| {
            s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
                let order = draw.of(3);
                s.for_items("t", in_order(tiles.of(&owner), order), |s, t| {
                    let slot = draw.rank(me(), &owner);
                    let cell = draw.rank(me(), &owner);
                    let value = terms.part(s, t, false);
                    let cells = landed.on(&owner);
                    let cells = if shared {
                        cells.at(t)
                    } else {
                        cells.at(cell).at(t)
                    };
                    let to = owner.clone();
                    let parts: Vec<Part<'_>> = vec![
                        Box::new(move |s| {
                            s.store(partial.on(&to).at(slot.clone()).at(t), value.clone());
                        }),
                        Box::new(move |s| s.signal(cells.clone(), 1)),
                    ];
                    let parts = shuffled(draw, parts);
                    draw.perhaps(s, &owner, |s| parts.iter().for_each(|part| part(s)));
                });
            });
        }),
        Box::new(move |s, draw| {
            let order = draw.of(3);
            s.for_items("t", in_order(tiles.of(me()), order), |s, t| {
                let mine = terms.part(s, t, true);
                let who = draw.mostly(others(), &[everyone()]);
                let cells = if shared {
                    landed.at(t)
                } else {
                    landed.at(who.clone()).at(t)
                };
                let late = draw.wrong();
                if !late {
                    s.wait(cells.clone());
                }
                let theirs = s.sum(partial.at(who).at(t));
                if late && !draw.wrong() {
                    s.wait(cells);
                }
                let sum = match draw.mostly(0, &[1, 2, 3]) {
                    0 => mine + theirs,
                    1 => theirs,
                    2 => mine - theirs,
                    _ => theirs - mine,
                };
                let sum = terms.whole(s, t, sum);
                s.store(y.at(t), sum.clone());
                if everywhere {
                    s.for_ranks("peer", draw.order(ranks().after_me()), |s, peer| {
                        let sum = sum.clone();
                        let parts: Vec<Part<'_>> = vec![
                            Box::new(|s| s.store(y.on(&peer).at(t), sum.clone())),
                            Box::new(|s| s.signal(done.on(&peer).at(t), 1)),
                        ];
                        shuffled(draw, parts).into_iter().for_each(|part| part(s));
                    });
                }
            });
        }),
    ];
    if draw.wrong() {
        loops.swap(0, 1);
    }
    s.gemm(GemmOptions::default(), |s| {
        loops.into_iter().for_each(|part| part(s, draw))
    });
    // A second role that takes part: it sees to it that the sums have come before the launch ends.
    s.spare_warps(|s| {
        if everywhere {
            s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
                s.for_items("t", tiles.of(&owner), |s, t| s.wait(done.at(t)));
            });
        } else {
            s.for_items("t", tiles.of(me()), |s, t| {
                let cells = if shared {
                    landed.at(t)
                } else {
                    landed.at(others()).at(t)
                };
                s.wait(cells);
            });
        }
    });
    meant
}

pub fn add(draw: &mut Draw<'_>, s: &mut ScheduleBuilder, sizes: Sizes) -> Meant {
    let (terms, meant) = Terms::draw(draw, s);
    let y = s.reduce_scattered("y", Bf16);
    let tiles = s.tiles("tiles", y, sizes.tile);
    let one_cell = draw.wrong();
    let begun = s.counters("begun", if one_cell { vec![] } else { vec![tiles.into()] });
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    // Nobody has the complete sum in hand.
    let (terms, meant) = (
        Terms {
            relu: false,
            ..terms
        },
        Meant {
            relu: false,
            ..meant
        },
    );
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = terms.part(s, t, true);
            let mine = terms.whole(s, t, mine);
            let order = draw.order(ranks().after_me());
            let parts: Vec<Part<'_>> = vec![
                Box::new(|s| s.store(y.at(t), mine.clone())),
                Box::new(|s| {
                    s.for_ranks("peer", order.clone(), |s, peer| {
                        let cells = begun.on(&peer);
                        s.signal(if one_cell { cells } else { cells.at(t) }, 1);
                    });
                }),
            ];
            shuffled(draw, parts).into_iter().for_each(|part| part(s));
        });
        s.for_ranks("owner", draw.order(ranks().after_me()), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let value = terms.part(s, t, false);
                let replace = draw.wrong();
                let parts: Vec<Part<'_>> = vec![
                    Box::new(|s| {
                        if one_cell {
                            s.wait(begun)
                        } else {
                            s.wait(begun.at(t))
                        }
                    }),
                    Box::new(|s| match replace {
                        false => s.store_add(y.on(&owner).at(t), value.clone()),
                        true => s.store(y.on(&owner).at(t), value.clone()),
                    }),
                    Box::new(|s| s.signal(landed.on(&owner).at(me()).at(t), 1)),
                ];
                shuffled(draw, parts).into_iter().for_each(|part| part(s));
            });
        });
    });
    s.spare_warps(|s| {
        s.for_items("t", tiles.of(me()), |s, t| {
            let who = draw.mostly(others(), &[everyone()]);
            s.wait(landed.at(who).at(t));
        });
    });
    meant
}

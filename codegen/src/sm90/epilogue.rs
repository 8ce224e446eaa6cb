//! The math after the dot: what the elements of an item become before they are stored, and the stored operands it reads.
//!
//! Stored tiles come through the stages behind the item's last step, subtile by subtile:
//! one slot holds a subtile of each, the first where `x` would be, the others where `w` would be. A sum of stored tiles that
//! is not just added to the product comes before them, a slot for each of its terms.

use super::builder::refuse;
use super::computed_scales::plane;
use super::leaves::Leaf;
use super::nodes::side;
use super::passes::Pass;
use super::rings::{STAGES, SUBTILES};
use super::stages::{empty, filled, released, summed};
use super::walk::Walk;
use crate::dtype::Dtype;
use crate::kernel::{OpKind, Region, ValueId};
use crate::program::{TensorId, Var};
use crate::tiling::Product;
use crate::value::{AccId, Value};
use crate::warp::{
    At, Elements, Epilogue, Expr, FragmentOp, MapId, Node, Param, Phase, ReadInto, Slot, Source,
    Test, Whose, identifier,
};

impl Walk<'_, '_> {
    /// Makes the epilogue of each store of an item: an [`Epilogue`], a product, or the sum of it and of what the item
    /// added to it.
    pub(super) fn epilogues(&mut self, passes: &mut [Pass<'_>]) {
        let mut products: Vec<(AccId, usize)> = Vec::new();
        let mut sum: Vec<AccId> = Vec::new();
        for pass in &*passes {
            for leaf in &pass.dots {
                if let OpKind::Dot { acc, a, b } = &leaf.op.kind {
                    products.push((*acc, self.product([a.buffer, b.buffer])));
                }
            }
            for (_, leaf) in &pass.sums {
                if let OpKind::Reduce { acc, .. } = leaf.op.kind {
                    sum.push(acc);
                }
            }
        }
        sum.extend(products.iter().map(|(acc, _)| *acc));
        sum.sort();
        sum.dedup();
        let folds = |leaf: &Leaf<'_>| {
            let OpKind::Store { value, .. } = leaf.op.kind else {
                return true;
            };
            let value = &self.b.kernel.values[usize::from(value.0)];
            value.folded(&sum).is_some()
        };
        // A sum that this rank's own term is added to in its turn begins without the product. Otherwise stored tiles are added to
        // the accumulators of the only product, where every store has all of that sum.
        let has_own = |(_, leaf): &(Vec<Leaf<'_>>, Leaf<'_>)| {
            matches!(leaf.op.kind, OpKind::Reduce { own: Some(_), .. })
        };
        let owns = passes.iter().any(|pass| pass.sums.iter().any(has_own));
        let apart = match &*passes {
            [pass] => owns || products.len() != 1 || !pass.stores.iter().all(folds),
            _ => true,
        };
        if apart {
            sum.clear();
        } else {
            products[0].0 = sum[0];
        }
        for pass in passes {
            pass.apart = apart;
            self.elements(pass, &products, &sum);
        }
    }

    /// Applies the epilogue of every store of `pass` to `products`. `sum` lists the terms added to the product; with several
    /// products it is empty.
    fn elements(&mut self, pass: &mut Pass<'_>, products: &[(AccId, usize)], sum: &[AccId]) {
        let operands = self.operands(pass);
        for (_, leaf) in &pass.sums {
            let OpKind::Reduce {
                from,
                own: Some(own),
                ..
            } = &leaf.op.kind
            else {
                pass.own_terms.push(None);
                continue;
            };
            let name = &self.b.kernel.buffers[from.buffer.index()].name;
            let name = identifier(&format!("own_{}", name.replace('.', "_")));
            let of = (products, operands.as_slice(), sum);
            pass.own_terms.push(self.elements_of(name, *own, of));
        }
        for leaf in &pass.stores {
            let OpKind::Store {
                dst, value, amax, ..
            } = &leaf.op.kind
            else {
                continue;
            };
            let name = &self.b.kernel.buffers[dst.buffer.index()].name;
            let of = (products, operands.as_slice(), sum);
            let elements = self.elements_of(format!("{name}_value"), *value, of);
            if elements.is_none() {
                self.b.found.push(refuse(
                    Some(self.b.kernel.loc(leaf.op.id)),
                    "a value that takes the terms of a sum apart",
                    "the sum of the product and stored tiles, then functions of it",
                ));
            }
            pass.elements.push(elements);
            let measured = amax.map(|amax| (amax.of, format!("{name}_unscaled")));
            let measured = measured.map(|(value, name)| self.elements_of(name, value, of));
            pass.amaxes.push(measured.flatten());
        }
    }

    /// Elements by which an expression of an item's products and operands is made; `None` where it takes a sum apart.
    fn elements_of(
        &mut self,
        name: String,
        value: ValueId,
        (products, operands, sum): (&[(AccId, usize)], &[Param], &[AccId]),
    ) -> Option<Elements> {
        let written = &self.b.kernel.values[usize::from(value.0)];
        let folded = written.folded(sum)?;
        let as_it_is = |(acc, _): &&(AccId, usize)| folded == Value::Acc(*acc);
        if let Some((_, product)) = products.iter().find(as_it_is) {
            return Some(Elements::Product(*product));
        }
        let products: Vec<Param> = products
            .iter()
            .map(|(acc, product)| Param {
                acc: *acc,
                name: self.product_name(*product),
                from: Source::Product(*product),
            })
            .collect();
        let params = folded.accs().into_iter().filter_map(|acc| {
            let mut known = products.iter().chain(operands);
            known.find(|param| param.acc == acc).cloned()
        });
        let epilogue = Epilogue {
            name,
            of: value,
            params: params.collect(),
            value: folded,
        };
        let known = &mut self.b.epilogues;
        let same = |known: &Epilogue| {
            (&known.value, &known.params) == (&epilogue.value, &epilogue.params)
                && self.b.kernel.values[usize::from(known.of.0)] == *written
        };
        let index = known.iter().position(same).unwrap_or_else(|| {
            let mut epilogue = epilogue.clone();
            while known.iter().any(|other| other.name == epilogue.name) {
                epilogue.name.push('_');
            }
            known.push(epilogue);
            known.len() - 1
        });
        Some(Elements::Applied(index))
    }

    /// Index of the product with those operands.
    fn product(&self, tensors: [TensorId; 2]) -> usize {
        let tiling = self.tiling();
        let is = |product: &Product| product.map(|part| tiling.operands()[part].tensor) == tensors;
        tiling.products().iter().position(is).unwrap_or(0)
    }

    /// Name of a product where its value is used: `product`, or that of the operand that is its own.
    fn product_name(&self, product: usize) -> String {
        let tiling = self.tiling();
        let products = tiling.products();
        let [x, w] = products[product].map(|part| {
            let tensor = tiling.operands()[part].tensor;
            identifier(&self.b.kernel.buffers[tensor.index()].name)
        });
        let common = |side: usize| products.iter().all(|it| it[side] == products[0][side]);
        match (products.len(), common(0), common(1)) {
            (1, ..) => "product".into(),
            (_, true, _) => format!("by_{w}"),
            (_, false, true) => format!("of_{x}"),
            (_, false, false) => format!("{x}_by_{w}"),
        }
    }

    /// The stored operands of an item: sums that stand apart, tiles, then vectors.
    fn operands(&mut self, pass: &Pass<'_>) -> Vec<Param> {
        let mut operands: Vec<Param> = Vec::new();
        let sums = pass.sums.iter().filter(|_| pass.apart);
        let sums = sums.map(|(_, sum)| (sum, Source::Sum));
        let tiles = pass.loads.iter().map(|(_, load)| (load, Source::Subtile));
        let vectors = pass.vectors.iter().chain(&pass.again);
        let vectors = vectors.map(|load| (load, self.source(load)));
        for (leaf, from) in sums.chain(tiles).chain(vectors) {
            let (OpKind::Load { acc, from: region }
            | OpKind::Reduce {
                acc, from: region, ..
            }) = &leaf.op.kind
            else {
                continue;
            };
            let buffer = &self.b.kernel.buffers[region.buffer.index()];
            let mut name = identifier(&buffer.name.replace('.', "_"));
            let products = 0..self.tiling().products().len();
            let products: Vec<String> = products.map(|it| self.product_name(it)).collect();
            while products.contains(&name) || operands.iter().any(|known| known.name == name) {
                name.push('_');
            }
            operands.push(Param {
                acc: *acc,
                name,
                from,
            });
        }
        operands
    }

    /// Loads the stored tiles, a subtile of each at a time.
    pub(super) fn load_operands(&mut self, pass: &Pass<'_>) -> Vec<Node> {
        let (mut nodes, mut sums) = (Vec::new(), Vec::new());
        for (waits, sum) in pass.sums.iter().filter(|_| pass.apart) {
            nodes.push(self.note(sum.op));
            nodes.extend(self.waits(waits));
            sums.append(&mut self.load_term(sum));
        }
        let mut loads = Vec::new();
        let mut bytes = Expr::from(0);
        for (index, (waits, leaf)) in pass.loads.iter().enumerate() {
            let OpKind::Load { from, .. } = &leaf.op.kind else {
                continue;
            };
            nodes.push(self.note(leaf.op));
            nodes.extend(self.waits(waits));
            let (part, place) = self.tiling().input_place(index as u32);
            let dtype = self.b.kernel.buffers[from.buffer.index()].dtype;
            bytes = bytes + self.subtile_elements() * dtype.bytes();
            loads.extend(self.stored_subtile(from).map(|(map, at)| {
                self.each_slice(dtype, at.column.clone(), |slice, column| Node::Load {
                    ring: STAGES,
                    part,
                    multicast: false,
                    partial_boxes: None,
                    index: place.into(),
                    slice,
                    map,
                    at: At {
                        column,
                        ..at.clone()
                    },
                })
            }));
        }
        let tiles = match loads.is_empty() {
            true => Vec::new(),
            false => filled(bytes, loads),
        };
        let part = match self.own_terms_read_tiles(pass) {
            true => [tiles, sums].concat(),
            false => [sums, tiles].concat(),
        };
        if !part.is_empty() {
            nodes.push(self.each_own_subtile(part));
        }
        nodes
    }

    /// Loads a subtile of each term of a sum, one after another.
    fn load_term(&mut self, sum: &Leaf<'_>) -> Vec<Node> {
        let Some((map, at, dtype)) = self.term(sum, Expr::var("part")) else {
            return Vec::new();
        };
        let everywhere = at.whose == Whose::Everywhere;
        let bytes = self.subtile_elements() * dtype.bytes();
        let (part, _) = self.tiling().input_place(0);
        let load = self.each_slice(dtype, at.column.clone(), |slice, column| Node::Load {
            ring: STAGES,
            part,
            index: 0.into(),
            slice,
            map,
            at: At {
                column,
                ..at.clone()
            },
            multicast: false,
            partial_boxes: None,
        });
        let load = match everywhere {
            true => [vec![empty()], summed(vec![load])].concat(),
            false => filled(bytes, vec![load]),
        };
        self.each_slot(sum, None, load)
    }

    /// Place of a subtile of a stored tile.
    fn stored_subtile(&mut self, from: &Region) -> Option<(MapId, At)> {
        let (_, var) = side(from)?;
        let (_, _, row, column) = self.item(var)?;
        let map = self.subtile_map(from.buffer, var);
        let slot = match &from.slot {
            Some(crate::program::Pick::One(slot)) => Some(self.rank(slot)),
            Some(crate::program::Pick::All | crate::program::Pick::Others) | None => None,
        };
        let place = self.subtile_at(row, column, Expr::var("part"));
        Some((map, self.place(from, map, var, place, slot)))
    }

    /// Turns accumulators into subtiles: reads the operands, computes, rounds and writes.
    ///
    /// What is read or computed comes as late as it can, behind the waits: nothing but accumulators is in registers
    /// while a warp waits.
    pub(super) fn write_subtiles(&mut self, pass: &Pass<'_>, var: Var) -> Vec<Node> {
        if pass.stores.is_empty() {
            return Vec::new();
        }
        let (mut nodes, mut part) = (Vec::new(), Vec::new());
        let mut vectors = self.read_vectors(pass, var);
        let mut stored = self.read_tiles(pass);
        let mut tiles = self.read_sums(pass, (&mut stored, &mut vectors));
        tiles.append(&mut stored);
        nodes.extend(self.read_scales(pass));
        for (elements, stores, measured) in groups(self, pass) {
            let dtype = stores
                .first()
                .map_or(self.tiling().element(), |leaf| self.stored(leaf));
            nodes.extend(stores.iter().map(|leaf| self.note(leaf.op)).take(1));
            if !self.b.cta.aliased() {
                part.push(self.place_for_subtile());
            }
            let mut takes = Vec::new();
            for (leaf, of) in stores.iter().zip(measured) {
                let Some(of) = of else { continue };
                self.apply(*of, &mut part, (&mut tiles, &mut vectors));
                takes.extend(self.amax(leaf, *of, var));
            }
            self.apply(elements, &mut part, (&mut tiles, &mut vectors));
            let scaled = stores
                .iter()
                .any(|leaf| plane(self.b.kernel, leaf).is_some());
            if scaled {
                self.make_scales(elements, var, &mut part);
            }
            part.extend(self.send_scales(stores, elements, var));
            part.extend([
                Node::Fragment(FragmentOp::WriteSubtile {
                    ring: SUBTILES,
                    part: Expr::var("part"),
                    elements,
                    dtype,
                    scaled,
                }),
                Node::FenceShared,
                Node::SyncWarp,
                Node::Arrive {
                    barrier: SUBTILES.full(),
                    slot: Slot::Current,
                },
                Node::Advance {
                    ring: SUBTILES,
                    keep: false,
                },
            ]);
            // What is measured while a subtile is on its way takes no registers from what is written.
            part.append(&mut takes);
            for leaf in stores {
                part.extend(self.write_scales(leaf, elements, var));
            }
        }
        // A tile that no value uses is in the stages all the same.
        part.append(&mut tiles);
        nodes.push(self.each_subtile_of(Test::Equal, part));
        nodes
    }

    /// Computes what elements are, unless that was done for this subtile, with what is read for it first.
    fn apply(
        &self,
        elements: Elements,
        part: &mut Vec<Node>,
        (tiles, vectors): (&mut Vec<Node>, &mut Vec<(AccId, Node)>),
    ) {
        let Elements::Applied(epilogue) = elements else {
            return;
        };
        let applied = |node: &Node| matches!(node, Node::Fragment(FragmentOp::Apply { epilogue: known, .. }) if *known == epilogue);
        if part.iter().any(applied) {
            return;
        }
        let params = &self.b.epilogues[epilogue].params;
        let from_stages = |from: Source| matches!(from, Source::Subtile | Source::Sum);
        if params.iter().any(|param| from_stages(param.from)) {
            part.append(tiles);
        }
        let needs = |acc: AccId| params.iter().any(|param| param.acc == acc);
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(vectors)
            .into_iter()
            .partition(|(acc, _)| needs(*acc));
        *vectors = later;
        part.extend(now.into_iter().map(|(_, node)| node));
        part.push(Node::Fragment(FragmentOp::Apply {
            epilogue,
            part: Expr::var("part"),
        }));
    }

    /// True if an own term of a sum is made of stored tiles, which are read before it then.
    fn own_terms_read_tiles(&self, pass: &Pass<'_>) -> bool {
        pass.own_terms.iter().flatten().any(|own| match own {
            Elements::Product(_) => false,
            Elements::Applied(epilogue) => {
                let mut params = self.b.epilogues[*epilogue].params.iter();
                params.any(|param| param.from == Source::Subtile)
            }
        })
    }

    /// Adds up a subtile of each sum that stands apart, from a stage for each of the others' terms. Operands of own terms are read
    /// first: stored tiles, as [`Self::load_operands`] brings them, and vectors.
    fn read_sums(
        &self,
        pass: &Pass<'_>,
        (stored, vectors): (&mut Vec<Node>, &mut Vec<(AccId, Node)>),
    ) -> Vec<Node> {
        let mut nodes = Vec::new();
        if self.own_terms_read_tiles(pass) {
            nodes.append(stored);
        }
        let sums = pass.sums.iter().zip(&pass.own_terms);
        for ((_, leaf), own) in sums.filter(|_| pass.apart) {
            let OpKind::Reduce { acc, from, .. } = &leaf.op.kind else {
                continue;
            };
            let (acc, name) = (*acc, self.operand_name(*acc));
            let dtype = self.b.kernel.buffers[from.buffer.index()].dtype;
            if let Some(own) = own {
                self.apply(*own, &mut nodes, (&mut *stored, &mut *vectors));
            }
            let own = own.map(|elements| FragmentOp::AddOwn {
                acc,
                name: name.clone(),
                elements,
                part: Expr::var("part"),
                dtype,
            });
            nodes.push(Node::Fragment(FragmentOp::StartSum {
                acc,
                name: name.clone(),
            }));
            let mut body = vec![
                Node::Await {
                    barrier: STAGES.full(),
                    phase: Phase::ThisPhase,
                },
                Node::Fragment(FragmentOp::ReadSubtile {
                    ring: STAGES,
                    slot_part: self.tiling().input_place(0).0,
                    index: 0.into(),
                    dtype,
                    into: ReadInto::Sum { acc, name },
                }),
            ];
            body.extend(released());
            nodes.extend(self.each_slot(leaf, own, body));
        }
        nodes
    }

    /// Reads a subtile of each stored tile from the current stage.
    fn read_tiles(&self, pass: &Pass<'_>) -> Vec<Node> {
        if pass.loads.is_empty() {
            return Vec::new();
        }
        let mut nodes = vec![Node::Await {
            barrier: STAGES.full(),
            phase: Phase::ThisPhase,
        }];
        for (index, (_, leaf)) in pass.loads.iter().enumerate() {
            if let OpKind::Load { acc, from } = &leaf.op.kind {
                let (slot_part, place) = self.tiling().input_place(index as u32);
                nodes.push(Node::Fragment(FragmentOp::ReadSubtile {
                    ring: STAGES,
                    slot_part,
                    index: place.into(),
                    dtype: self.b.kernel.buffers[from.buffer.index()].dtype,
                    into: ReadInto::Own {
                        acc: *acc,
                        name: self.operand_name(*acc),
                    },
                }));
            }
        }
        nodes.extend(released());
        nodes
    }

    /// The type a store rounds to.
    pub(super) fn stored(&self, leaf: &Leaf<'_>) -> Dtype {
        if let OpKind::Store { dst, .. } = &leaf.op.kind {
            self.b.kernel.buffers[dst.buffer.index()].dtype
        } else {
            self.tiling().element()
        }
    }

    /// The name an operand has where its value is used; one that no value uses needs none.
    pub(super) fn operand_name(&self, acc: AccId) -> String {
        let params = self
            .b
            .epilogues
            .iter()
            .flat_map(|epilogue| &epilogue.params);
        let mut known = params.filter(|param| param.acc == acc);
        known
            .next()
            .map_or_else(|| "unused".into(), |param| param.name.clone())
    }
}

/// Stores that write the same subtile: what its elements are, and what each measures.
type Group<'s, 'a> = (Elements, &'s [Leaf<'a>], &'s [Option<Elements>]);

/// The stores of an item, together where they write the same subtile.
pub(super) fn groups<'s, 'a>(walk: &Walk<'_, '_>, pass: &'s Pass<'a>) -> Vec<Group<'s, 'a>> {
    let mut groups = Vec::new();
    let mut from = 0;
    for at in 1..=pass.stores.len() {
        let refused = Elements::Product(0);
        let of = |at: usize| pass.elements.get(at).copied().flatten().unwrap_or(refused);
        // Scales are made of a subtile once for all of its stores, of which each then makes some.
        let stored = |at: usize| {
            let leaf = &pass.stores[at];
            (walk.stored(leaf), plane(walk.b.kernel, leaf).is_some())
        };
        if at == pass.stores.len() || (of(at), stored(at)) != (of(from), stored(from)) {
            groups.push((of(from), &pass.stores[from..at], &pass.amaxes[from..at]));
            from = at;
        }
    }
    groups
}

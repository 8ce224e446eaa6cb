//! The meaning of a program, in f64: its statements are executed one after another, as written.
//!
//! This is independent of the emulator. It starts from [`Program`] and shares nothing with lowering or
//! [`counterflow_codegen::unroll`]: neither sizes, nor items, nor cells. The loops of a role are one sequence on each rank. The
//! sequences alternate: each runs until it waits for a cell without enough signals. In an accepted schedule the waits
//! order all accesses to the same memory, so every order of the sequences gives the same numbers. There are no credits:
//! they order launches, and this is one launch.
//!
//! Every number has a bound on its rounding error: from stores, from adds to memory, and from every product and sum in
//! f32.

mod ahead;
mod computed_scales;
mod memory;
pub(super) mod walk;

pub(super) use memory::{part, part_mut, parts};

use super::blocks::Blocks;
use super::expected::{Expected, ExpectedTensor, NoReference, Says};
use super::inputs::{Inputs, Tables};
use super::known::{Known, apply};
use super::outcome::Input;
use super::product::{Accumulation, Numbers, Product, add_products, product};
use super::sizes::Sizes;
use counterflow_codegen::encoded::encoded;
use counterflow_codegen::own_terms::with_own_terms;
use counterflow_codegen::program::{Amax, Program, StoreMode, TensorId};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::value::{AccId, Value};
use counterflow_codegen::variant::Variant;
use memory::Plane;
use ndarray::Array2;
use std::collections::{HashMap, VecDeque};
use walk::{Act, Names, Rect, Walk};

/// Every rank's gathered tensors and outputs after launch `launch` of `program`, for the same `inputs` as
/// [`crate::run`] got.
///
/// ```
/// use counterflow_codegen::{shape::Shape, variant::Variant};
/// use counterflow_emulator as interp;
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../codegen/tests/fixtures/example.rs")); }
///
/// let (program, shape) = (example::ag_gemm(), Shape::new(64, 32, 16));
/// let meant = interp::meaning(&program, &Variant::new(2), &shape, 0, interp::uniform(3))?;
/// assert_eq!(meant.tensors.len(), 4, "x and y on two ranks");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A statement without meaning in its place, or a wait that nobody signals. The verifier accepts neither.
pub fn meaning(
    program: &Program,
    variant: &Variant,
    shape: &Shape,
    launch: usize,
    inputs: impl FnMut(Input<'_>, &mut [f32]),
) -> Result<Expected, NoReference> {
    let encoded = encoded(program, variant).map_err(|mistake| NoReference {
        of: program.name.clone(),
        why: mistake.message,
    })?;
    let program = &*with_own_terms(encoded);
    let sizes = Sizes::new(program, variant, shape);
    let inputs = Inputs::new(&mut Tables::default(), program, &sizes, launch, inputs);
    let Written { tensors, .. } = evaluate(program, &sizes, &inputs)?;
    Ok(Expected { launch, tensors })
}

/// The results of the statements, for given sizes and inputs.
pub(super) struct Written {
    pub tensors: Vec<ExpectedTensor>,
    pub products: Products,
}

/// Products of computed operands, by rank and operands: each tile as it was multiplied, NaN if none was, infinite if
/// two different ones were.
pub(super) type Products = HashMap<(u32, (usize, usize)), Array2<f64>>;

/// As [`meaning`], for given sizes and inputs.
pub(super) fn evaluate(
    program: &Program,
    sizes: &Sizes<'_>,
    inputs: &Inputs,
) -> Result<Written, NoReference> {
    let mut ranks = Ranks::new(program, sizes, inputs);
    in_turns(program, sizes, &mut ranks)?;
    let products = std::mem::take(&mut ranks.products);
    Ok(Written {
        tensors: ranks.outputs(),
        products,
    })
}

/// The names of the roles; the loops of one name are one sequence.
fn names(program: &Program) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for role in &program.roles {
        if !names.contains(&role.name.as_str()) {
            names.push(&role.name);
        }
    }
    names
}

/// Number of agents of a world.
pub(super) fn agents(program: &Program, world: u32) -> usize {
    world as usize * names(program).len()
}

/// The state that statements act on.
pub(super) trait Memory {
    /// Executes a statement of that rank's agent.
    fn act(&mut self, agent: usize, rank: u32, act: &Act<'_>) -> Result<(), String>;

    /// These statements of an agent are executed next, one after another, and no others between them. Prepares the first of
    /// them, at least one, and says how many.
    fn ahead(&mut self, agent: usize, rank: u32, acts: &[Act<'_>]) -> Result<usize, String> {
        let _ = (agent, rank);
        Ok(acts.len())
    }
}

/// Executes a program: each agent in turn, until it must wait.
pub(super) fn in_turns(
    program: &Program,
    sizes: &Sizes<'_>,
    memory: &mut impl Memory,
) -> Result<(), NoReference> {
    let none = |why: String| NoReference {
        of: program.name.clone(),
        why,
    };
    let mut cells = Names::default();
    let mut agents = Vec::new();
    for rank in 0..sizes.world {
        for name in names(program) {
            let mut walk = Walk::new(program, sizes, &mut cells, rank);
            for role in program.roles.iter().filter(|role| role.name == name) {
                walk.stmts(&role.body).map_err(none)?;
            }
            agents.push(Agent {
                index: agents.len(),
                rank,
                acts: walk.acts,
                next: 0,
            });
        }
    }
    let mut counts = Counts::new(&agents, cells.len());
    while agents.iter().any(|agent| agent.next < agent.acts.len()) {
        let mut moved = false;
        for agent in &mut agents {
            moved |= agent.run(memory, &mut counts).map_err(none)?;
        }
        if !moved {
            return Err(none("it waits for a signal that nobody makes".into()));
        }
    }
    Ok(())
}

/// Every cell's signals so far, and in total.
struct Counts {
    now: Vec<u64>,
    all: Vec<u64>,
}

impl Counts {
    fn new(agents: &[Agent<'_>], cells: usize) -> Counts {
        let mut all = vec![0; cells];
        for act in agents.iter().flat_map(|agent| &agent.acts) {
            if let Act::Signal { cells, amount } = act {
                cells
                    .iter()
                    .for_each(|cell| all[*cell] += u64::from(*amount));
            }
        }
        Counts {
            now: vec![0; cells],
            all,
        }
    }

    fn enough(&self, cells: &[usize], at_least: Option<u32>) -> bool {
        cells.iter().all(|cell| {
            let wanted = at_least.map_or(self.all[*cell], u64::from);
            self.now[*cell] >= wanted
        })
    }
}

/// A role of a rank: what it does, and how far it is.
struct Agent<'p> {
    index: usize,
    rank: u32,
    acts: Vec<Act<'p>>,
    next: usize,
}

impl Agent<'_> {
    /// Runs until it must wait. Gives whether it did anything.
    fn run(&mut self, memory: &mut impl Memory, counts: &mut Counts) -> Result<bool, String> {
        let start = self.next;
        let mut prepared = start;
        while let Some(act) = self.acts.get(self.next) {
            if self.next == prepared {
                let rest = &self.acts[prepared..];
                let waits = |act: &Act<'_>| match act {
                    Act::Wait { cells, at_least } => !counts.enough(cells, *at_least),
                    Act::Signal { .. }
                    | Act::Item
                    | Act::Copy { .. }
                    | Act::Dot { .. }
                    | Act::Sum { .. }
                    | Act::Load { .. }
                    | Act::Store { .. } => false,
                };
                let free = rest.iter().position(waits).unwrap_or(rest.len());
                if free == 0 {
                    break;
                }
                prepared += memory.ahead(self.index, self.rank, &rest[..free])?;
            }
            match act {
                // It was over when this statement was prepared.
                Act::Wait { .. } => {}
                Act::Signal { cells, amount } => {
                    cells
                        .iter()
                        .for_each(|cell| counts.now[*cell] += u64::from(*amount));
                }
                Act::Item
                | Act::Copy { .. }
                | Act::Dot { .. }
                | Act::Sum { .. }
                | Act::Load { .. }
                | Act::Store { .. } => memory.act(self.index, self.rank, act)?,
            }
            self.next += 1;
        }
        Ok(self.next > start)
    }
}

/// The memory of all ranks, and what their agents' accumulators hold.
struct Ranks<'a> {
    program: &'a Program,
    sizes: &'a Sizes<'a>,
    /// By rank and tensor.
    planes: Vec<Plane>,
    /// The first row of each, and its numbers.
    accs: Vec<HashMap<AccId, (u32, Known)>>,
    products: Products,
    /// Sums of the next products of the agent that runs. `None`: computed in its turn.
    ahead: VecDeque<Option<Known>>,
}

impl Memory for Ranks<'_> {
    fn ahead(&mut self, agent: usize, rank: u32, acts: &[Act<'_>]) -> Result<usize, String> {
        self.multiply_ahead(agent, rank, acts)
    }

    fn act(&mut self, agent: usize, rank: u32, act: &Act<'_>) -> Result<(), String> {
        match act {
            Act::Wait { .. } | Act::Signal { .. } => {}
            Act::Item => self.accs[agent].clear(),
            Act::Copy { dst, src } => {
                let known = self.read(src)?;
                self.copy(dst, known, src.tensor)?;
            }
            Act::Dot { acc, a, b } => self.product(agent, rank, *acc, a, b)?,
            Act::Sum { acc, from, own } => {
                let mut terms = Vec::new();
                for from in from {
                    terms.push((from.slot, self.sum(from)?));
                }
                if let Some((value, of)) = own {
                    let own = self.value(agent, value, of);
                    terms.push((of.slot, own.stored(self.sizes.dtype(of.tensor))));
                }
                terms.sort_by_key(|(slot, _)| *slot);
                let first = from.first().map_or(0, |from| from.rows.start);
                for (_, term) in terms {
                    let sum = match self.accs[agent].get(acc) {
                        Some((_, sum)) => sum.plus(&term),
                        None => term,
                    };
                    self.accs[agent].insert(*acc, (first, sum));
                }
            }
            Act::Load { acc, from } => {
                let usage = self.program.tensors[from.tensor].usage;
                let loaded = self.read(from)?.laid(usage);
                self.accs[agent].insert(*acc, (from.rows.start, loaded));
            }
            Act::Store {
                dst,
                mode,
                value,
                amax,
            } => {
                let mut known = self.value(agent, value, dst);
                if let Some((plane, rule)) =
                    self.program.computed_scale_of(TensorId(dst.tensor as u16))
                {
                    if self.program.tensors[plane.index()].usage.is_scratch() {
                        return self.write(dst, &computed_scales::decoded(&rule, &known));
                    }
                    let (scaled, made) = computed_scales::scaled(&rule, &known);
                    let block = rule.block().columns;
                    let to = Rect {
                        tensor: plane.index(),
                        rows: dst.columns.start / block..dst.columns.end.div_ceil(block),
                        columns: dst.rows.clone(),
                        ..dst.clone()
                    };
                    self.store(&to, StoreMode::Write, &made)?;
                    known = scaled;
                }
                self.store(dst, *mode, &known)?;
                if let Some(Amax { of, to }) = amax {
                    let known = self.value(agent, of, dst);
                    let at = self.index(rank, to.index());
                    self.planes[at].measure(&known);
                }
            }
        }
        Ok(())
    }
}

impl<'a> Ranks<'a> {
    fn new(program: &'a Program, sizes: &'a Sizes<'_>, inputs: &Inputs) -> Ranks<'a> {
        let mut planes = Vec::new();
        for rank in 0..sizes.world {
            for (index, tensor) in program.tensors.iter().enumerate() {
                let dtype = sizes.dtype(index);
                let (held, columns) = (sizes.held(index, rank), sizes.columns(index));
                let filled = tensor.usage.counts_before().then(|| {
                    let gathered = tensor.usage.is_gathered();
                    let rows = if gathered {
                        sizes.shard(index, rank)
                    } else {
                        held.clone()
                    };
                    (rows, inputs.own(rank, index))
                });
                let size = (columns, sizes.slots(index));
                planes.push(Plane::new(dtype, held, size, filled));
            }
        }
        Ranks {
            program,
            sizes,
            planes,
            accs: vec![HashMap::new(); agents(program, sizes.world)],
            products: Products::new(),
            ahead: VecDeque::new(),
        }
    }

    /// A product as a statement of that rank has it.
    fn multiplied(&self, rank: u32, a: &Rect, b: &Rect) -> Result<Product<'_>, String> {
        let fp8 = self.sizes.dtype(a.tensor).is_fp8();
        Ok(Product {
            a: self.plane(a.homes.start, a.tensor).read(a)?,
            b: self.plane(b.homes.start, b.tensor).read(b)?,
            accumulation: match (fp8, self.sizes.promotion_interval()) {
                (true, Some(interval)) => {
                    Accumulation::Promoted(interval, [a, b].map(|of| self.factors(rank, of)))
                }
                (true, None) => Accumulation::Short,
                (false, _) => Accumulation::F32,
            },
        })
    }

    /// An expression over an item's accumulators. Empty ones are zero.
    fn value(&self, agent: usize, value: &Value, dst: &Rect) -> Known {
        let acc = |id: AccId| {
            let known = self.accs[agent].get(&id);
            known.map_or_else(
                || Known::zero(1, 1),
                |(first, known)| known.some(*first, &dst.rows),
            )
        };
        let shape = (dst.rows.len(), dst.columns.len());
        apply(value, &acc, &[]).widened(shape)
    }

    fn index(&self, rank: u32, tensor: usize) -> usize {
        rank as usize * self.program.tensors.len() + tensor
    }

    fn plane(&self, rank: u32, tensor: usize) -> &Plane {
        &self.planes[self.index(rank, tensor)]
    }

    fn read(&self, rect: &Rect) -> Result<Known, String> {
        let (value, off) = self.plane(rect.homes.start, rect.tensor).read(rect)?;
        let mut known = Known::exact(value.to_owned());
        if let Some(off) = off {
            known.off.assign(&off);
        }
        Ok(known)
    }

    /// A tile, or the sum of all ranks' tiles as in the switch: in f32, rounded once to their type.
    fn sum(&self, rect: &Rect) -> Result<Known, String> {
        if rect.homes.len() == 1 {
            return self.read(rect);
        }
        let mut sum = Known::zero(1, 1);
        for home in rect.homes.clone() {
            let homes = home..home + 1;
            sum = sum.plus(&self.read(&Rect {
                homes,
                ..rect.clone()
            })?);
        }
        Ok(sum.stored(self.plane(0, rect.tensor).dtype))
    }

    fn product(
        &mut self,
        agent: usize,
        rank: u32,
        acc: AccId,
        a: &Rect,
        b: &Rect,
    ) -> Result<(), String> {
        let known = match self.ahead.pop_front().flatten() {
            Some(known) => known,
            None => {
                let known = self.accs[agent].get(&acc).map(|(_, known)| known.clone());
                let mut known = known.unwrap_or_else(|| Known::zero(a.rows.len(), b.rows.len()));
                let product = self.multiplied(rank, a, b)?;
                add_products(std::slice::from_mut(&mut known), &[product]);
                known
            }
        };
        let is_input = |tensor: usize| self.program.tensors[tensor].usage.is_input();
        if !is_input(a.tensor) || !is_input(b.tensor) {
            let first = self.plane(a.homes.start, a.tensor).read(a)?;
            let second = self.plane(b.homes.start, b.tensor).read(b)?;
            let [first, second] = [first.0, second.0].map(Numbers::to_owned);
            let tile = product(&first.view(), &second.view());
            let sides = [a, b].map(|operand| self.sizes.rows(operand.tensor) as usize);
            let all = self.products.entry((rank, (a.tensor, b.tensor)));
            let all = all.or_insert_with(|| Array2::from_elem(sides, f64::NAN));
            let [rows, columns] =
                [a, b].map(|operand| operand.rows.start as usize..operand.rows.end as usize);
            let mut there = part_mut(all, &(rows, columns));
            there.zip_mut_with(&tile, |there, now| {
                if there.is_nan() {
                    *there = *now;
                } else if *there != *now {
                    *there = f64::INFINITY;
                }
            });
        }
        self.accs[agent].insert(acc, (a.rows.start, known));
        Ok(())
    }

    /// Factors of the sums of each 128 of K, for each row of an operand.
    fn factors(&self, rank: u32, of: &Rect) -> Option<Array2<f64>> {
        let blocks = Blocks::of(self.program, TensorId(of.tensor as u16))?;
        let rows = Extent {
            start: of.rows.start,
            end: of.rows.end,
        };
        let [lines, steps] = blocks.window(rows, of.columns.len() as u32);
        let window = (lines.range(), steps.range());
        let plane = self.plane(rank, blocks.scale.index()).numbers(&window);
        Some(blocks.factors(rows, &plane.view()))
    }

    /// Data moves unchanged, unless the types differ.
    fn copy(&mut self, dst: &Rect, known: Known, from: usize) -> Result<(), String> {
        for home in dst.homes.clone() {
            let (to, same) = (self.index(home, dst.tensor), self.plane(0, from).dtype);
            let dtype = self.planes[to].dtype;
            if dtype == same {
                self.planes[to].write(dst, &known)?;
            } else {
                self.planes[to].write(dst, &known.stored(dtype))?;
            }
        }
        Ok(())
    }

    /// Puts numbers there that are rounded already.
    fn write(&mut self, dst: &Rect, known: &Known) -> Result<(), String> {
        for home in dst.homes.clone() {
            let at = self.index(home, dst.tensor);
            self.planes[at].write(dst, known)?;
        }
        Ok(())
    }

    fn store(&mut self, dst: &Rect, mode: StoreMode, known: &Known) -> Result<(), String> {
        for home in dst.homes.clone() {
            let at = self.index(home, dst.tensor);
            let plane = &mut self.planes[at];
            match mode {
                StoreMode::Write => plane.write(dst, &known.stored(plane.dtype))?,
                StoreMode::Add => plane.add(dst, known)?,
            }
        }
        Ok(())
    }

    fn outputs(self) -> Vec<ExpectedTensor> {
        let mut tensors = Vec::new();
        let count = self.program.tensors.len();
        for (at, plane) in self.planes.into_iter().enumerate() {
            let (rank, index) = (at / count, at % count);
            if !self.program.tensors[index].usage.is_left_behind() {
                continue;
            }
            let (dtype, held, columns) = (plane.dtype, plane.held.clone(), plane.columns());
            let (values, bounds) = plane.into_numbers();
            tensors.push(ExpectedTensor {
                rank: rank as u32,
                tensor: TensorId(index as u16),
                dtype,
                says: Says::Schedule,
                rows: Extent {
                    start: held.start,
                    end: held.end,
                },
                columns: columns as u32,
                values,
                bounds,
            });
        }
        tensors
    }
}

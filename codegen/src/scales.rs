//! Scales of FP8 operands as tensors of the program, which its values are multiplied by.
//!
//! A schedule says nothing about which scales there are; its variant does. What it becomes here is an ordinary program: each
//! operand has a scale beside it, each item that multiplies loads those of its operands, and its products are multiplied by
//! them before anything else happens to them. Where an operand is gathered and has a scale for each row, a copy of it is two:
//! of its elements, and of their scales. So all that is known about tensors, copies, loads and values holds for scales.

mod planes;

use crate::diag::{Diagnostic, Rule};
use crate::dtype::Dtype;
use crate::elements::{copied_with, elements, sent_between_ranks};
use crate::outputs::load_before;
use crate::program::{
    AccDecl, Along, Loc, Numbers, Program, Stmt, StmtKind, Tensor, TensorId, Usage,
};
use crate::value::{AccId, Value};
use crate::variant::{Scales, Variant};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The program with the scales that the variant asks for.
pub(crate) fn with_scales<'p>(
    program: &'p Program,
    variant: &Variant,
) -> Result<Cow<'p, Program>, Diagnostic> {
    if program.tensors.iter().any(|tensor| tensor.usage.is_scale()) {
        return Ok(Cow::Borrowed(program));
    }
    let Some(scales) = variant.scales else {
        return match planes::are_named(program) {
            true => planes::with_copies(program.clone()).map(Cow::Owned),
            false => Ok(Cow::Borrowed(program)),
        };
    };
    let mut scaled = Scaled {
        written: program,
        scales,
        dtypes: elements(program, variant),
        tensors: Vec::new(),
        accs: program.accs.clone(),
    };
    let mut made = program.clone();
    for item in made.items_mut() {
        scaled.item(item)?;
    }
    if scaled.tensors.is_empty() {
        return Err(Diagnostic::new(
            Rule::Shape,
            program.at,
            format!(
                "scales for {}, which multiplies nothing of FP8",
                program.name
            ),
        )
        .hint("an element type with scales, e4m3, or no scales"));
    }
    made.tensors.append(&mut scaled.tensors);
    made.accs = scaled.accs;
    let mut made = planes::with_copies(made)?;
    // It knows nothing of scales.
    made.reference = None;
    Ok(Cow::Owned(made))
}

/// The scale of what an operand has: its own, or that of what it was copied from.
pub(crate) fn scale_of(program: &Program, operand: TensorId) -> Option<TensorId> {
    let mut scales = program
        .tensors
        .iter()
        .enumerate()
        .filter_map(|(at, tensor)| {
            let of = tensor.usage.given_scale_of()?;
            Some((TensorId(at as u16), of))
        });
    let alike = copied_with(program, operand);
    let found = scales.find(|(_, of)| alike.get(of.index()) == Some(&true));
    found.map(|(scale, _)| scale)
}

/// A program in the making.
struct Scaled<'p> {
    written: &'p Program,
    scales: Scales,
    dtypes: Vec<Dtype>,
    /// The scales, which come behind the schedule's own tensors.
    tensors: Vec<Tensor>,
    accs: Vec<AccDecl>,
}

/// What an item does with scales.
#[derive(Default)]
struct Item {
    /// What each accumulator's products are multiplied by.
    products: BTreeMap<AccId, Vec<AccId>>,
    /// What is loaded for that.
    loads: Vec<(TensorId, AccId, Loc)>,
}

impl Scaled<'_> {
    fn item(&mut self, body: &mut Vec<Stmt>) -> Result<(), Diagnostic> {
        let mut item = Item::default();
        self.dots(body, &mut item)?;
        multiply(body, &item)?;
        load_before(
            body,
            |stmt| matches!(stmt, StmtKind::Dot { .. }),
            item.loads,
        );
        Ok(())
    }

    /// Finds the scales of an item's products.
    fn dots(&mut self, body: &[Stmt], item: &mut Item) -> Result<(), Diagnostic> {
        for stmt in body.iter().flat_map(Stmt::all) {
            let StmtKind::Dot { acc, a, b } = &stmt.kind else {
                continue;
            };
            let mut scales = Vec::new();
            let sides = [(a, Along::Rows), (b, Along::Columns)];
            for (nth, (operand, rows)) in sides.into_iter().enumerate() {
                let along = match (self.scales, self.scales.blocks()) {
                    (_, Some(blocks)) => Along::Blocks(blocks[nth]),
                    (Scales::Whole, None) => Along::All,
                    (_, None) => rows,
                };
                let scale = self.scale(operand.tensor, along, stmt.at)?;
                // A block's scale goes into the sum that is the product, and not into what is made of it.
                let into_sums = matches!(along, Along::Blocks(_));
                if let Some(scale) = scale.filter(|_| !into_sums) {
                    scales.push(self.load(scale, item, stmt.at));
                }
            }
            let known = item.products.entry(*acc).or_insert_with(|| scales.clone());
            if *known != scales {
                let message = "one sum has products of operands with scales of their own";
                return Err(
                    refused(stmt.at, message).hint("a value for each product, and then their sum")
                );
            }
        }
        Ok(())
    }

    /// The scale of an operand; none if it is not FP8.
    fn scale(
        &mut self,
        operand: TensorId,
        along: Along,
        dot: Loc,
    ) -> Result<Option<TensorId>, Diagnostic> {
        let fp8 = (self.dtypes.get(operand.index())).is_some_and(|dtype| dtype.is_fp8());
        if !fp8 {
            return Ok(None);
        }
        let tensors = &self.written.tensors;
        let alike = copied_with(self.written, operand);
        let inputs: Vec<usize> = (0..tensors.len())
            .filter(|at| alike[*at] && tensors[*at].usage.is_input())
            .collect();
        let name = &tensors[operand.index()].name;
        let [input] = inputs[..] else {
            let message = match inputs.len() {
                0 => format!("`{name}` is computed, and has no scale"),
                _ => format!(
                    "`{name}` is copied from several inputs, which have scales of their own"
                ),
            };
            return Err(refused(dot, message).hint("scales belong to inputs: one to each operand"));
        };
        let of = TensorId(input as u16);
        self.is_of_this_rank(operand, of, along, dot)?;
        let gathered = tensors[input].usage.is_gathered() && along != Along::All;
        let place = match gathered {
            true => Usage::GATHERED,
            false => Usage::LOCAL,
        };
        let usage = place.beside(of, Numbers::Given(along));
        if gathered && of != operand {
            let message = format!(
                "`{name}` is a copy of `{}`, whose scales travel with its rows",
                tensors[input].name
            );
            return Err(refused(dot, message)
                .hint("multiply the gathered tensor itself, or take one scale for all of it"));
        }
        let plane = |known: &Tensor| known.usage.given_scale_of() == Some(of);
        let at = match self.tensors.iter().position(plane) {
            Some(at) if self.tensors[at].usage != usage => {
                let message =
                    format!("`{name}` is the first operand of a product and the second of one");
                return Err(refused(dot, message).hint(
                    "one of the two with scales of its rows: give the other as a tensor of its own",
                ));
            }
            Some(at) => at,
            None => {
                self.tensors.push(Tensor {
                    name: format!("{}.scale", tensors[input].name),
                    usage,
                    like: None,
                    dtype: Dtype::F32,
                    at: tensors[input].at,
                });
                self.tensors.len() - 1
            }
        };
        Ok(Some(TensorId((tensors.len() + at) as u16)))
    }

    /// Whether a copy of an input is multiplied by the scale that it was quantised with: this rank's own.
    fn is_of_this_rank(
        &self,
        operand: TensorId,
        of: TensorId,
        along: Along,
        dot: Loc,
    ) -> Result<(), Diagnostic> {
        let tensors = &self.written.tensors;
        let own = tensors[of.index()].usage.is_fixed();
        if operand == of || !own {
            return Ok(());
        }
        let [copy, input] = [operand, of].map(|tensor| &tensors[tensor.index()].name);
        if matches!(along, Along::Blocks(_)) {
            let message = format!("`{copy}` is a copy of `{input}`, which has scales of blocks");
            return Err(refused(dot, message).hint(
                "multiply the input itself, or take scales of rows or of the whole: a copy has no scales of blocks",
            ));
        }
        if !sent_between_ranks(self.written)[operand.index()] {
            return Ok(());
        }
        let message = format!(
            "`{copy}` has what a peer sent of its `{input}`, which has a scale of that peer's own"
        );
        Err(refused(dot, message).hint(format!(
            "multiply `{input}` on its own rank, or make it `Gathered`: then its scales come with it, or all ranks have one"
        )))
    }

    /// What that scale is in an item.
    fn load(&mut self, scale: TensorId, item: &mut Item, at: Loc) -> AccId {
        let known = item.loads.iter().find(|(tensor, ..)| *tensor == scale);
        if let Some((_, acc, _)) = known {
            return *acc;
        }
        let acc = AccId(self.accs.len() as u16);
        let name = self.tensors[scale.index() - self.written.tensors.len()]
            .name
            .clone();
        self.accs.push(AccDecl { name: Some(name) });
        item.loads.push((scale, acc, at));
        acc
    }
}

fn refused(at: Loc, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Language, at, message)
}

/// Multiplies the products in what an item stores.
fn multiply(body: &mut [Stmt], item: &Item) -> Result<(), Diagnostic> {
    let scales = |acc: &AccId| item.products.get(acc).into_iter().flatten();
    for stmt in body.iter_mut().flat_map(Stmt::leaves_mut) {
        if let StmtKind::Store { value, .. } = &mut stmt.kind {
            *value = value.with(&|acc| {
                scales(&acc).fold(Value::Acc(acc), |value, scale| value * Value::Acc(*scale))
            });
        }
        if let StmtKind::Sum { acc, .. } | StmtKind::Load { acc, .. } = &stmt.kind
            && scales(acc).next().is_some()
        {
            let message = "one sum has a product of operands with scales, and stored tiles";
            return Err(
                refused(stmt.at, message).hint("a value for each of them, and then their sum")
            );
        }
    }
    Ok(())
}

//! Scales of FP8 operands: each item that multiplies loads those of its operands, and its products are multiplied by them before
//! anything else happens to them. Where an operand is gathered and has a scale for each row, that scale is gathered, too.

use super::beside::{Loads, Numbered, begins_product, load_before};
use super::elements::{copied_with, products, sent_between_ranks};
use crate::diag::{Diagnostic, Rule};
use crate::encoding::{Along, Encoding, ScaleBlock, Scaling};
use crate::program::{Loc, Numbers, Program, Stmt, StmtKind, TensorId};
use crate::value::{AccId, Binary, Value};
use crate::variant::Variant;
use std::collections::BTreeMap;

/// Asks for the scales of operands.
pub(super) fn ask(
    program: &Program,
    variant: &Variant,
    found: &mut [Encoding],
) -> Result<(), Diagnostic> {
    let asked = variant.encodings.operands();
    if asked == [None; 2] {
        return Ok(());
    }
    are_blocks(program, variant)?;
    for stmt in program.stmts() {
        let StmtKind::Dot { a, b, .. } = &stmt.kind else {
            continue;
        };
        for (nth, operand) in [a, b].into_iter().enumerate() {
            let operand = operand.tensor;
            let element = found.get(operand.index()).map(|of| of.element);
            if !element.is_some_and(|element| element.is_fp8()) {
                continue;
            }
            let Some(along) = asked[nth] else {
                continue;
            };
            if has_its_own(program, variant, (operand, along), stmt.at)? {
                continue;
            }
            let of = scaled(program, (operand, along), stmt.at)?;
            match &mut found[of.index()].scale {
                Some(known) if *known != Scaling::Given(along) => {
                    let name = &program.tensors[operand.index()].name;
                    let message =
                        format!("`{name}` is the first operand of a product and the second of one");
                    return Err(refused(stmt.at, message).hint(
                        "one of the two with scales of its rows: give the other as a tensor of its own",
                    ));
                }
                scale => *scale = Some(Scaling::Given(along)),
            }
        }
    }
    if found.iter().all(|of| of.scale.is_none()) {
        let message = format!(
            "scales for {}, which multiplies nothing of FP8",
            program.name
        );
        return Err(Diagnostic::new(Rule::Shape, program.at, message)
            .hint("an element type with scales, e4m3, or no scales"));
    }
    Ok(())
}

/// Refuses blocks that no operand may have, and two operands whose blocks divide K in two ways.
fn are_blocks(program: &Program, variant: &Variant) -> Result<(), Diagnostic> {
    let blocks: Vec<ScaleBlock> = variant.encodings.operand_blocks().collect();
    if let [a, b] = blocks[..]
        && a.columns != b.columns
    {
        let message = format!("scales of {a} and of {b} for the operands of a product");
        return Err(Diagnostic::new(Rule::Shape, program.at, message).hint(
            "blocks that have as many columns: a sum over K is promoted with both scales at once",
        ));
    }
    let all = ScaleBlock::ALL.map(|block| block.to_string()).join(", ");
    let mut others = blocks
        .iter()
        .filter(|block| !ScaleBlock::ALL.contains(block));
    others.next().map_or(Ok(()), |block| {
        let message = format!("scales of {block} for the operands of {}", program.name);
        Err(Diagnostic::new(Rule::Shape, program.at, message)
            .hint(format!("scales of one of these blocks: {all}")))
    })
}

/// Whether an operand is a hidden layer with a scale of its own.
fn has_its_own(
    program: &Program,
    variant: &Variant,
    (operand, along): (TensorId, Along),
    dot: Loc,
) -> Result<bool, Diagnostic> {
    let name = &program.tensors[operand.index()].name;
    if !variant.encodings.hidden().any(|(hidden, _)| hidden == name) {
        return Ok(false);
    }
    match along {
        Along::All | Along::Rows | Along::Columns => Ok(true),
        Along::Blocks(_) => {
            let message =
                format!("`{name}` has one scale, beside operands that have scales of blocks");
            Err(refused(dot, message)
                .hint("scales of rows or of the whole beside a hidden layer in FP8"))
        }
    }
}

/// The input whose scale an operand has: itself, or what it is copied from.
fn scaled(
    program: &Program,
    (operand, along): (TensorId, Along),
    dot: Loc,
) -> Result<TensorId, Diagnostic> {
    let name = |of: TensorId| &program.tensors[of.index()].name;
    let (inputs, copy) = (inputs(program, operand), name(operand));
    let [of] = inputs[..] else {
        let message = match inputs.len() {
            0 => format!("`{copy}` is computed, and has no scale"),
            _ => {
                format!("`{copy}` is copied from several inputs, which have scales of their own")
            }
        };
        return Err(refused(dot, message).hint(
            "scales belong to inputs, one to each operand; a hidden layer may have one of its own: `Variant::hidden`",
        ));
    };
    let (input, usage) = (name(of), program.tensors[of.index()].usage);
    if of == operand {
        return Ok(of);
    }
    let blocks = matches!(along, Along::Blocks(_));
    if usage.is_fixed() && blocks {
        let message = format!("`{copy}` is a copy of `{input}`, which has scales of blocks");
        return Err(refused(dot, message).hint(
            "multiply the input itself, or take scales of rows or of the whole: a copy has no scales of blocks",
        ));
    }
    if usage.is_fixed() && sent_between_ranks(program)[operand.index()] {
        let message = format!(
            "`{copy}` has what a peer sent of its `{input}`, which has a scale of that peer's own"
        );
        return Err(refused(dot, message).hint(format!(
            "multiply `{input}` on its own rank, or make it `Gathered`: then its scales come with it, or all ranks have one"
        )));
    }
    if usage.is_gathered() && along != Along::All {
        let message = format!("`{copy}` is a copy of `{input}`, whose scales travel with its rows");
        return Err(refused(dot, message)
            .hint("multiply the gathered tensor itself, or take one scale for all of it"));
    }
    Ok(of)
}

/// The inputs that an operand is, or is copied from.
fn inputs(program: &Program, operand: TensorId) -> Vec<TensorId> {
    let alike = copied_with(program, operand);
    let is_input = |at: &usize| alike[*at] && program.tensors[*at].usage.is_input();
    let inputs = (0..program.tensors.len()).filter(is_input);
    inputs.map(|at| TensorId(at as u16)).collect()
}

/// The scale of what an operand has: its own, or that of what it was copied from.
pub fn scale_of(program: &Program, operand: TensorId) -> Option<TensorId> {
    let alike = copied_with(program, operand);
    let scale = program.tensors.iter().position(|tensor| {
        let of = tensor.usage.given_scale_of();
        of.is_some_and(|of| alike[of.index()] && program.tensors[of.index()].usage.is_input())
    });
    scale.map(|scale| TensorId(scale as u16))
}

/// Multiplies products by the scales of their operands.
pub(super) fn attach(program: &mut Program, encodings: &[Encoding]) -> Result<(), Diagnostic> {
    let is_fp8 = |of: &TensorId| (encodings.get(of.index())).is_some_and(|of| of.element.is_fp8());
    let operands: Vec<TensorId> = products(program).flatten().filter(is_fp8).collect();
    let mut scales = BTreeMap::new();
    for operand in operands {
        let hidden = program.tensors[operand.index()].usage.is_scratch()
            && encodings[operand.index()].scale == Some(Scaling::Given(Along::All));
        let of = match inputs(program, operand)[..] {
            _ if hidden => operand,
            [of] => of,
            _ => continue,
        };
        let Some(scaling) = encodings[of.index()].scale else {
            continue;
        };
        let mut tensors = program.tensors.iter();
        let scale = match tensors.position(|known| known.usage.given_scale_of() == Some(of)) {
            Some(known) => TensorId(known as u16),
            None => program.beside(of, Numbers::Scale(scaling)),
        };
        // A block's scale goes into the sum that is the product, and not into what is made of it.
        if scaling.blocks().is_none() {
            let factor = match hidden {
                true => Factor::Divides,
                false => Factor::Multiplies,
            };
            scales.insert(operand, (scale, factor));
        }
    }
    let mut numbered = Numbered::of(program);
    for body in program.items_mut() {
        item(&mut numbered, &scales, body)?;
    }
    program.accs = numbered.accs;
    Ok(())
}

/// Effect of a scale on a product of its operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Factor {
    /// Values are codes × scale.
    Multiplies,
    /// Codes are values × scale: those of a hidden layer.
    Divides,
}

/// Factors of each accumulator's products.
type Factors = BTreeMap<AccId, Vec<(AccId, Factor)>>;

/// Loads the scales of an item's operands, and multiplies its products.
fn item(
    numbered: &mut Numbered,
    scales: &BTreeMap<TensorId, (TensorId, Factor)>,
    body: &mut Vec<Stmt>,
) -> Result<(), Diagnostic> {
    let (mut factors, mut loads) = (Factors::new(), Loads::new());
    for stmt in body.iter().flat_map(Stmt::all) {
        let StmtKind::Dot { acc, a, b } = &stmt.kind else {
            continue;
        };
        let scales = [a, b].into_iter().filter_map(|of| scales.get(&of.tensor));
        let by: Vec<(AccId, Factor)> = scales
            .map(|(scale, factor)| (numbered.load(*scale, &mut loads, stmt.at), *factor))
            .collect();
        if *factors.entry(*acc).or_insert_with(|| by.clone()) != by {
            let message = "one sum has products of operands with scales of their own";
            return Err(
                refused(stmt.at, message).hint("a value for each product, and then their sum")
            );
        }
    }
    multiply(body, &factors)?;
    load_before(body, begins_product, loads);
    Ok(())
}

fn refused(at: Loc, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Language, at, message)
}

/// Multiplies the products in what an item stores.
fn multiply(body: &mut [Stmt], factors: &Factors) -> Result<(), Diagnostic> {
    let scales = |acc: &AccId| factors.get(acc).into_iter().flatten();
    for stmt in body.iter_mut().flat_map(Stmt::leaves_mut) {
        if let StmtKind::Store { value, .. } = &mut stmt.kind {
            *value = value.with(&|acc| {
                scales(&acc).fold(Value::Acc(acc), |value, (scale, factor)| match factor {
                    Factor::Multiplies => value * Value::Acc(*scale),
                    Factor::Divides => {
                        Value::Binary(Binary::Div, Box::new(value), Box::new(Value::Acc(*scale)))
                    }
                })
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

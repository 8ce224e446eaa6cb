//! Evaluates the expression of a store over tiles.

use super::tile::Tile;
use counterflow_codegen::shape::Extent;
use counterflow_codegen::value::{AccId, Value};

/// The values of a store, row by row: the expression in f64, rounded to f32.
pub(crate) fn evaluate<'t>(
    value: &Value,
    tile: &impl Fn(AccId) -> Option<&'t Tile>,
    rows: Extent,
    columns: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    if let Value::Acc(acc) = value
        && let Some(tile) = tile(*acc)
        && (tile.rows, tile.columns) == (rows.len() as usize, columns)
    {
        out.extend_from_slice(&tile.values);
        return;
    }
    let accs: Vec<(AccId, Option<&Tile>)> = value
        .accs()
        .into_iter()
        .map(|acc| (acc, tile(acc)))
        .collect();
    out.reserve(rows.len() as usize * columns);
    for row in 0..rows.len() as usize {
        for column in 0..columns {
            let at = |acc: AccId| {
                let tile = accs.iter().find(|(id, _)| *id == acc).and_then(|(_, t)| *t);
                // Zero until something is added: in a world of one, the others' sum has no terms.
                tile.map_or(0.0, |tile| {
                    // A scale is one number.
                    let row = tile.row(rows, row);
                    let column = if tile.columns == 1 { 0 } else { column };
                    let value = tile.values.get(row * tile.columns + column);
                    value.map_or(f64::NAN, |value| f64::from(*value))
                })
            };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the expression is rounded to f32, then to the stored type"
            )]
            out.push(value.eval(&at, &[]) as f32);
        }
    }
}

//! Registers of an item.

/// A tile of f32 registers.
#[derive(Clone, Debug, Default)]
pub(in crate::interp) struct Tile {
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f32>,
}

impl Tile {
    /// Resizes it; zeros if the size changes.
    pub fn shaped(&mut self, rows: usize, columns: usize) {
        if (self.rows, self.columns) != (rows, columns) {
            *self = Tile {
                rows,
                columns,
                values: vec![0.0; rows * columns],
            };
        }
    }
}

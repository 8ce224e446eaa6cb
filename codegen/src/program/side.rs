//! The two dimensions of a rectangle.

/// Dimension of a rectangle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Rows.
    Rows,
    /// Columns.
    Columns,
}

impl Side {
    /// Both.
    pub const ALL: [Side; 2] = [Side::Rows, Side::Columns];

    /// Word in the language.
    pub const fn word(self) -> &'static str {
        match self {
            Side::Rows => "rows",
            Side::Columns => "columns",
        }
    }

    /// The other one.
    pub(crate) const fn other(self) -> Side {
        match self {
            Side::Rows => Side::Columns,
            Side::Columns => Side::Rows,
        }
    }
}

//! The two dimensions of a rectangle.

/// Which of a rectangle's two dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Its rows.
    Rows,
    /// Its columns.
    Columns,
}

impl Side {
    /// Both.
    pub const ALL: [Side; 2] = [Side::Rows, Side::Columns];

    /// Its word in the language.
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

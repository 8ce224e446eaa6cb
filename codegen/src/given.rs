//! The user's own reference: a function that computes an output in f64. It replaces the reference that follows from the
//! tensor's type or the schedule's statements.
//!
//! The program carries it:
//!
//! ```
//! use counterflow_codegen::given::{Given, Matrix};
//! # use counterflow_codegen::program::Program;
//! /// y = |all_gather(x) · wᵀ|
//! fn reference(given: &Given<'_>) -> Result<Matrix, String> {
//!     let (x, w) = (given.input("x", given.rank())?, given.input("w", given.rank())?);
//!     match given.output() {
//!         "y" => Ok(x.times(&w).map(f64::abs)),
//!         _ => Ok(given.as_written()),
//!     }
//! }
//! # fn your_own() -> Program { counterflow_codegen::builder::ScheduleBuilder::new("your_own").finish() }
//! let program = your_own().reference(reference);
//! # assert!(program.reference.is_some());
//! ```

use ndarray::{Array2, Axis, Slice};
use std::ops::Range;

/// Computes an output's values on a rank, or says why it cannot. An output without values is not compared.
pub type Reference = fn(&Given<'_>) -> Result<Matrix, String>;

/// Rows by columns of numbers.
///
/// ```
/// use counterflow_codegen::given::Matrix;
///
/// let x = Matrix::of(2, 3, |row, column| f64::from(3 * row + column));
/// assert_eq!((x.rows(), x.columns(), x.at(1, 2)), (2, 3, 5.0));
/// let squares = x.times(&x); // by its own transpose
/// assert_eq!(squares.part(1..2), Matrix::of(1, 2, |_, column| [14.0, 50.0][column as usize]));
/// assert_eq!(x.plus(&x), x.map(|value| 2.0 * value));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix(Array2<f64>);

impl Matrix {
    /// A matrix of that many rows and columns. Each element is computed from its row and column.
    pub fn of(rows: u32, columns: u32, element: impl Fn(u32, u32) -> f64) -> Matrix {
        let shape = (rows as usize, columns as usize);
        let at = |(row, column)| element(row as u32, column as u32);
        Matrix(Array2::from_shape_fn(shape, at))
    }

    /// A matrix of these values, row by row: for the emulator, which makes references' arguments.
    ///
    /// # Panics
    /// If they are not as many as rows by columns.
    #[doc(hidden)]
    pub fn of_values(rows: usize, columns: usize, values: Vec<f64>) -> Matrix {
        let values = Array2::from_shape_vec((rows, columns), values);
        Matrix(values.expect("as many values as rows by columns"))
    }

    /// Its values, row by row.
    #[doc(hidden)]
    pub fn into_values(self) -> Vec<f64> {
        self.0.into_iter().collect()
    }

    /// Number of rows.
    pub fn rows(&self) -> u32 {
        self.0.nrows() as u32
    }

    /// Number of columns.
    pub fn columns(&self) -> u32 {
        self.0.ncols() as u32
    }

    /// One element.
    ///
    /// # Panics
    /// If there is no such row or column.
    pub fn at(&self, row: u32, column: u32) -> f64 {
        self.0[(row as usize, column as usize)]
    }

    /// This matrix times the transpose of the other, as in `dot(x[t], w[t])`.
    ///
    /// # Panics
    /// If their numbers of columns differ.
    #[must_use]
    pub fn times(&self, other: &Matrix) -> Matrix {
        Matrix(self.0.dot(&other.0.t()))
    }

    /// Their sum, element by element.
    ///
    /// # Panics
    /// If their sizes differ.
    #[must_use]
    pub fn plus(&self, other: &Matrix) -> Matrix {
        Matrix(&self.0 + &other.0)
    }

    /// Applies a function to each element.
    #[must_use]
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Matrix {
        Matrix(self.0.mapv(change))
    }

    /// Some of its rows.
    ///
    /// # Panics
    /// If it has fewer.
    #[must_use]
    pub fn part(&self, rows: Range<u32>) -> Matrix {
        let rows = Slice::from(rows.start as usize..rows.end as usize);
        Matrix(self.0.slice_axis(Axis(0), rows).to_owned())
    }
}

/// The arguments of a reference: the requested output, and the inputs.
///
/// ```
/// use counterflow_codegen::given::{Given, Matrix, Reference};
///
/// /// y = reduce_scatter(x · wᵀ) by itself, everything else as the schedule says.
/// fn reference(given: &Given) -> Result<Matrix, String> {
///     if given.output() != "y" {
///         return Ok(given.as_written());
///     }
///     println!("rank {} of {}", given.rank(), given.world());
///     let part = |rank| Ok::<_, String>(given.input("x", rank)?.times(&given.input("w", rank)?));
///     let sum = (1..given.world()).try_fold(part(0)?, |sum, rank| Ok::<_, String>(sum.plus(&part(rank)?)))?;
///     Ok(sum.part(given.rows())) // the rows that this rank holds
/// }
/// let kept: Reference = reference; // for `Program::reference`
/// # drop(kept);
/// ```
pub struct Given<'a> {
    output: &'a str,
    rank: u32,
    world: u32,
    rows: Range<u32>,
    inputs: &'a dyn Fn(&str, u32) -> Result<Matrix, String>,
    as_written: Matrix,
}

impl<'a> Given<'a> {
    /// The arguments for an output of that name on a rank, which holds those rows. `inputs` finds an input by its name and
    /// rank: for the emulator.
    #[doc(hidden)]
    pub fn new(
        output: &'a str,
        (rank, world): (u32, u32),
        rows: Range<u32>,
        inputs: &'a dyn Fn(&str, u32) -> Result<Matrix, String>,
        as_written: Matrix,
    ) -> Given<'a> {
        Given {
            output,
            rank,
            world,
            rows,
            inputs,
            as_written,
        }
    }
}

impl Given<'_> {
    /// The name of the requested output.
    pub fn output(&self) -> &str {
        self.output
    }

    /// Rank of the item.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// The rows of the output that the rank holds: its own shard of a `ReduceScattered` or `AllToAll` one, otherwise
    /// all. A reference gives these rows, with all columns; of an `AllToAll` one once for each slot, one below the other.
    pub fn rows(&self) -> Range<u32> {
        self.rows.clone()
    }

    /// An input as that rank sees it: the rows of all ranks of a `Gathered` tensor, the old contents of an `Accumulated`
    /// one.
    ///
    /// # Errors
    /// No such input, or no such rank.
    pub fn input(&self, name: &str, rank: u32) -> Result<Matrix, String> {
        (self.inputs)(name, rank)
    }

    /// This output as the schedule's own statements compute it, one after another.
    pub fn as_written(&self) -> Matrix {
        self.as_written.clone()
    }
}

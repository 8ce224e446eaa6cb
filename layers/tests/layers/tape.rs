//! Numbers of f64 that know how they were made: gradients of whole layers, of which only the formula of the output is written.

use super::reference::Matrix;

/// How each number was made: of which others, and its derivative by each.
#[derive(Default)]
pub struct Tape {
    values: Vec<f64>,
    ends: Vec<usize>,
    edges: Vec<(u32, f64)>,
}

/// A number on a tape.
#[derive(Clone, Copy)]
pub struct Var(u32);

/// Rows of such numbers.
#[derive(Clone)]
pub struct Vars {
    pub columns: usize,
    pub of: Vec<Var>,
}

impl Vars {
    pub fn rows(&self) -> usize {
        self.of.len() / self.columns
    }

    pub fn row(&self, row: usize) -> &[Var] {
        &self.of[row * self.columns..][..self.columns]
    }
}

impl Tape {
    fn put(&mut self, value: f64, edges: impl IntoIterator<Item = (Var, f64)>) -> Var {
        self.edges
            .extend(edges.into_iter().map(|(var, by)| (var.0, by)));
        self.values.push(value);
        self.ends.push(self.edges.len());
        Var(u32::try_from(self.values.len() - 1).expect("few numbers"))
    }

    pub fn value(&self, var: Var) -> f64 {
        self.values[var.0 as usize]
    }

    pub fn values(&self, of: &Vars) -> Vec<f64> {
        of.of.iter().map(|var| self.value(*var)).collect()
    }

    pub fn input(&mut self, of: &Matrix) -> Vars {
        let each = of.values.iter().map(|value| self.put(*value, []));
        Vars {
            of: each.collect(),
            columns: of.columns,
        }
    }

    /// A function of one number, with its value and its derivative there.
    pub fn map(&mut self, x: Var, of: impl Fn(f64) -> (f64, f64)) -> Var {
        let (value, slope) = of(self.value(x));
        self.put(value, [(x, slope)])
    }

    /// Numbers times constants, added up.
    pub fn sum(&mut self, terms: &[(Var, f64)]) -> Var {
        let value = terms.iter().map(|(var, by)| self.value(*var) * by).sum();
        self.put(value, terms.iter().copied())
    }

    pub fn dot(&mut self, a: &[Var], b: &[Var]) -> Var {
        let pairs = a.iter().zip(b);
        let mut edges = Vec::with_capacity(2 * a.len());
        let mut value = 0.0;
        for (a, b) in pairs {
            let (of_a, of_b) = (self.value(*a), self.value(*b));
            value += of_a * of_b;
            edges.extend([(*a, of_b), (*b, of_a)]);
        }
        self.put(value, edges)
    }

    pub fn product(&mut self, a: Var, b: Var) -> Var {
        self.dot(&[a], &[b])
    }

    /// x · wᵀ + bias.
    pub fn linear(&mut self, x: &Vars, w: &Vars, bias: Option<&Vars>) -> Vars {
        let mut of = Vec::new();
        for (row, column) in (0..x.rows()).flat_map(|row| (0..w.rows()).map(move |at| (row, at))) {
            let product = self.dot(x.row(row), w.row(column));
            of.push(match bias {
                Some(bias) => self.sum(&[(product, 1.0), (bias.of[column], 1.0)]),
                None => product,
            });
        }
        let columns = w.rows();
        Vars { of, columns }
    }

    pub fn add(&mut self, a: &Vars, b: &Vars) -> Vars {
        let pairs = a.of.iter().zip(&b.of);
        let of = pairs
            .map(|(a, b)| self.sum(&[(*a, 1.0), (*b, 1.0)]))
            .collect();
        Vars {
            of,
            columns: a.columns,
        }
    }

    pub fn norm(&mut self, x: &Vars, gamma: &Vars, beta: Option<&Vars>, eps: f64) -> Vars {
        let part = 1.0 / x.columns as f64;
        let mut of = Vec::new();
        for row in 0..x.rows() {
            let mut centered = x.row(row).to_vec();
            // Only a layer's norm has a beta here.
            if beta.is_some() {
                let terms: Vec<_> = centered.iter().map(|var| (*var, part)).collect();
                let mean = self.sum(&terms);
                let less = centered
                    .iter()
                    .map(|var| self.sum(&[(*var, 1.0), (mean, -1.0)]));
                centered = less.collect();
            }
            let squares = self.dot(&centered, &centered);
            let by = self.map(squares, |of| {
                let inside = of * part + eps;
                (inside.powf(-0.5), -0.5 * part * inside.powf(-1.5))
            });
            for (column, var) in centered.into_iter().enumerate() {
                let unit = self.product(var, by);
                let scaled = self.product(unit, gamma.of[column]);
                of.push(match beta {
                    Some(beta) => self.sum(&[(scaled, 1.0), (beta.of[column], 1.0)]),
                    None => scaled,
                });
            }
        }
        let columns = x.columns;
        Vars { of, columns }
    }

    /// The derivative of Σ by · of along every number of the tape.
    pub fn back(&self, of: &Vars, by: &[f64]) -> Vec<f64> {
        let mut all = vec![0.0; self.values.len()];
        for (var, by) in of.of.iter().zip(by) {
            all[var.0 as usize] += by;
        }
        for at in (0..self.values.len()).rev() {
            let first = if at == 0 { 0 } else { self.ends[at - 1] };
            for (from, slope) in &self.edges[first..self.ends[at]] {
                all[*from as usize] += all[at] * slope;
            }
        }
        all
    }

    pub fn of(&self, all: &[f64], vars: &Vars) -> Vec<f64> {
        vars.of.iter().map(|var| all[var.0 as usize]).collect()
    }
}

pub fn gelu(x: f64) -> (f64, f64) {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = (root * (x + 0.044715 * x.powi(3))).tanh();
    let slope = (1.0 - tanh * tanh) * root * (1.0 + 3.0 * 0.044715 * x * x);
    (x / 2.0 * (1.0 + tanh), 0.5 * (1.0 + tanh) + x / 2.0 * slope)
}

pub fn silu(x: f64) -> (f64, f64) {
    let part = 1.0 / (1.0 + (-x).exp());
    (x * part, part + x * part * (1.0 - part))
}

pub fn exp(x: f64) -> (f64, f64) {
    (x.exp(), x.exp())
}

pub fn inverse(x: f64) -> (f64, f64) {
    (1.0 / x, -1.0 / (x * x))
}

/// The tape itself against differences.
#[test]
fn gradients_are_those_of_differences() {
    let x = Matrix::random(2, 8, 1.0, 1);
    let gamma = Matrix::random(1, 8, 1.0, 2);
    let of = |x: &Matrix| {
        let mut tape = Tape::default();
        let (vars, gamma) = (tape.input(x), tape.input(&gamma));
        let normed = tape.norm(&vars, &gamma, Some(&gamma), 1e-5);
        let y = tape.linear(&normed, &vars, None);
        let y = Vars {
            of: y.of.iter().map(|var| tape.map(*var, gelu)).collect(),
            ..y
        };
        let dy = [1.0, -2.0, 0.5, 3.0];
        let loss = tape.values(&y).iter().zip(dy).map(|(y, dy)| y * dy).sum();
        let gradient = tape.of(&tape.back(&y, &dy), &vars);
        (loss, gradient)
    };
    let (_, gradient) = of(&x);
    for (at, found) in gradient.into_iter().enumerate() {
        let along = |step: f64| {
            let mut moved = x.clone();
            moved.values[at] += step;
            let (loss, _): (f64, _) = of(&moved);
            loss
        };
        let wanted = (along(1e-5) - along(-1e-5)) / 2e-5;
        assert!((found - wanted).abs() < 1e-6 * (1.0 + wanted.abs()));
    }
}

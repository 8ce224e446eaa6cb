//! The sums that memory holds, counted during a run: which terms, and how often. It shares nothing with the verifier's
//! count. It is more lenient about which rank adds a bias, residual or constant, as long as only one does.

use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::program::{TensorId, Usage};
use counterflow_codegen::value::{AccId, Binary, Value};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A term of a sum.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Tag {
    /// A rank's product.
    Product(u16, TensorId, TensorId),
    /// An input of a rank. For a gathered tensor, the rank that owns the rows.
    Input(u16, TensorId),
    /// Constants that a rank adds, and functions of inputs.
    Addend(u16),
    /// A rank's functions of complete sums.
    Whole(u16),
    /// A rank's functions of parts of sums.
    Part(u16),
    /// Several sums where one is needed.
    Broken,
}

/// Number of times that each term is in a sum. `None`: the sum is empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Tags(Option<Rc<BTreeMap<Tag, i32>>>);

/// Ranks whose contribution a sum lacks, and ranks whose contribution it has too often.
pub(super) type Wrong = (Vec<u16>, Vec<u16>);

impl Tags {
    /// The sum of nothing.
    pub const NOTHING: Tags = Tags(None);

    /// Sum of that term, once.
    pub fn one(tag: Tag) -> Tags {
        Tags(Some(Rc::new(BTreeMap::from([(tag, 1)]))))
    }

    fn iter(&self) -> impl Iterator<Item = (Tag, i32)> + '_ {
        let terms = self.0.iter().flat_map(|terms| terms.iter());
        terms.map(|(tag, times)| (*tag, *times))
    }

    /// With `sign` times another.
    pub fn plus(&self, other: &Tags, sign: i32) -> Tags {
        if other.0.is_none() {
            return self.clone();
        }
        let mut terms: BTreeMap<Tag, i32> = self.iter().collect();
        for (tag, times) in other.iter() {
            *terms.entry(tag).or_default() += sign * times;
        }
        terms.retain(|_, times| *times != 0);
        Tags((!terms.is_empty()).then(|| Rc::new(terms)))
    }

    /// True if it is such a scale as it was loaded.
    fn loads(&self, is: impl Fn(TensorId) -> bool) -> bool {
        let mut terms = self.iter();
        let scale = |tag: Tag| matches!(tag, Tag::Input(_, id) if is(id));
        matches!((terms.next(), terms.next()), (Some((tag, 1)), None) if scale(tag))
    }

    fn is_addend(&self) -> bool {
        self.iter()
            .all(|(tag, _)| matches!(tag, Tag::Input(..) | Tag::Addend(_)))
    }

    /// Rejects what is neither the sum over all ranks nor a function of that.
    pub fn complete(&self, kernel: &Kernel, world: u16) -> Result<(), Wrong> {
        let mut products: BTreeMap<(TensorId, TensorId), Vec<u16>> = BTreeMap::new();
        let mut inputs: BTreeMap<TensorId, Vec<u16>> = BTreeMap::new();
        let (mut addends, mut whole) = (Vec::new(), Vec::new());
        let mut minus: Vec<(u16, TensorId)> = Vec::new();
        for (tag, times) in self.iter() {
            let often = match tag {
                Tag::Product(..) => times != 1,
                Tag::Input(..) => times.abs() != 1,
                Tag::Addend(_) | Tag::Whole(_) => false,
                Tag::Part(_) | Tag::Broken => return Err((Vec::new(), Vec::new())),
            };
            match tag {
                Tag::Product(rank, ..) | Tag::Input(rank, _) if often => {
                    return Err((Vec::new(), vec![rank]));
                }
                Tag::Product(rank, a, b) => products.entry((a, b)).or_default().push(rank),
                Tag::Input(rank, id) => {
                    inputs.entry(id).or_default().push(rank);
                    if times < 0 {
                        minus.push((rank, id));
                    }
                }
                Tag::Addend(rank) => addends.push(rank),
                Tag::Whole(rank) => whole.push(rank),
                Tag::Part(_) | Tag::Broken => {}
            }
        }
        let everyone: Vec<u16> = (0..world).collect();
        let lacking = |ranks: &[u16]| -> Vec<u16> {
            let left = everyone.iter().filter(|rank| !ranks.contains(rank));
            left.copied().collect()
        };
        if let Some(ranks) = products.values().find(|ranks| **ranks != everyone) {
            return Err((lacking(ranks), Vec::new()));
        }
        let alone = products.is_empty() && whole.is_empty();
        let mut summed = !alone;
        for (id, ranks) in &inputs {
            let local = kernel.buffers[id.index()].usage == Usage::LOCAL;
            if alone && local && *ranks == everyone {
                if let Some(rank) = ranks.iter().find(|rank| minus.contains(&(**rank, *id))) {
                    return Err((Vec::new(), vec![*rank]));
                }
                summed = true;
            } else if ranks.len() > 1 {
                return Err((Vec::new(), ranks.clone()));
            }
        }
        for ranks in [addends, whole] {
            if ranks.len() > 1 {
                return Err((Vec::new(), ranks));
            }
        }
        if summed {
            return Ok(());
        }
        Err((everyone, Vec::new()))
    }

    /// Rejects what another rank than that one has made. What is gathered is everybody's.
    pub fn sent_by(&self, kernel: &Kernel, sender: u16) -> Result<(), Wrong> {
        for (tag, _) in self.iter() {
            let rank = match tag {
                Tag::Input(_, id) if kernel.buffers[id.index()].usage.is_gathered() => {
                    continue;
                }
                Tag::Product(rank, ..)
                | Tag::Input(rank, _)
                | Tag::Addend(rank)
                | Tag::Whole(rank)
                | Tag::Part(rank) => rank,
                Tag::Broken => return Err((vec![sender], Vec::new())),
            };
            if rank != sender {
                return Err((vec![sender], vec![rank]));
            }
        }
        Ok(())
    }

    /// Rejects what one launch may not add to a rank's old contents: anything but products, once each.
    pub fn accumulates(&self) -> Result<(), Wrong> {
        let products = self.iter().any(|(tag, _)| matches!(tag, Tag::Product(..)));
        for (tag, times) in self.iter() {
            match tag {
                Tag::Product(rank, ..) if times != 1 => return Err((Vec::new(), vec![rank])),
                Tag::Input(rank, _) | Tag::Addend(rank) if products => {
                    return Err((Vec::new(), vec![rank]));
                }
                Tag::Product(..)
                | Tag::Input(..)
                | Tag::Addend(_)
                | Tag::Whole(_)
                | Tag::Part(_)
                | Tag::Broken => {}
            }
        }
        Ok(())
    }

    /// The terms of a rank's expression.
    pub fn of(
        value: &Value,
        acc: &impl Fn(AccId) -> Tags,
        rank: u16,
        (kernel, world): (&Kernel, u16),
    ) -> Tags {
        let of = |value: &Value| Tags::of(value, acc, rank, (kernel, world));
        let complete = |tags: &Tags| tags.complete(kernel, world).is_ok();
        let function = |args: &[&Value]| {
            let parts = args.iter().map(|value| of(value));
            let parts: Vec<Tags> = parts.filter(|part| part.0.is_some()).collect();
            let sums: Vec<&Tags> = parts.iter().filter(|part| !part.is_addend()).collect();
            let whole = parts.iter().any(complete);
            Tags::one(match (parts.is_empty(), sums.is_empty()) {
                // A function of zero need not be zero.
                (true, _) if args.iter().all(|value| value.accs().is_empty()) => Tag::Addend(rank),
                (true, _) => Tag::Part(rank),
                (false, true) if !whole => Tag::Addend(rank),
                (false, _) if sums.into_iter().all(complete) => Tag::Whole(rank),
                (false, _) => Tag::Part(rank),
            })
        };
        match value {
            Value::Acc(id) => acc(*id),
            Value::Const(constant) if *constant != 0.0 => Tags::one(Tag::Addend(rank)),
            Value::Const(_) | Value::Arg(_) => Tags::NOTHING,
            Value::Cast(_, a) => of(a),
            Value::Binary(Binary::Add, a, b) => of(a).plus(&of(b), 1),
            Value::Binary(Binary::Sub, a, b) => {
                let sums = (of(a), of(b));
                if complete(&sums.0) && complete(&sums.1) {
                    function(&[a, b])
                } else {
                    sums.0.plus(&sums.1, -1)
                }
            }
            Value::Unary(_, a) => function(&[a]),
            // A product stands for what its operands are with their scales.
            Value::Binary(Binary::Mul, a, b) if of(b).loads(|id| kernel.scales_an_operand(id)) => {
                of(a)
            }
            Value::Binary(Binary::Div, a, b)
                if of(b).loads(|id| kernel.scales_a_hidden_layer(id)) =>
            {
                of(a)
            }
            Value::Binary(Binary::Mul | Binary::Div | Binary::Min | Binary::Max, a, b) => {
                function(&[a, b])
            }
            Value::Select(_, parts) => function(&parts.iter().collect::<Vec<_>>()),
            Value::Call(_, values) => function(&values.iter().collect::<Vec<_>>()),
        }
    }
}

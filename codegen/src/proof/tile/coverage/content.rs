//! Content of a block: the expression that was stored, and what it read. A sum tells neither constants nor what was read
//! through scratch;
//! equal contents are the same bits at the same row and column, on every rank.
//!
//! Unequal contents may still be the same bits: two dots are two, and what was added to is like nothing else, since adds
//! have no order.

use crate::dtype::Dtype;
use crate::kernel::ValueId;
use crate::map::Map;
use crate::program::TensorId;
use crate::value::{AccId, Value};

/// An index into [`Contents`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) struct ContentId(u32);

/// Origin of a content.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Content {
    /// Memory of a rank at the start.
    Input {
        rank: u16,
        slot: u16,
        tensor: TensorId,
    },
    /// An accumulator to which a dot or a sum over spans added what it read.
    Filled {
        acc: AccId,
        before: ContentId,
        of: Vec<ContentId>,
    },
    /// An expression that was stored, over what each of its accumulators holds.
    Stored {
        shape: usize,
        of: Vec<ContentId>,
        dtype: Dtype,
    },
}

/// Every content that occurs, each once.
pub(super) struct Contents {
    known: Map<Content, ContentId>,
    last: u32,
    /// For each expression the first that is written alike, and its accumulators in order.
    shapes: Vec<(usize, Vec<AccId>)>,
}

impl Contents {
    /// None but [`ContentId::default`], that of an accumulator that nobody filled.
    pub fn new(values: &[Value]) -> Self {
        let texts: Vec<String> = values.iter().map(shape).collect();
        let first = |text: &String| texts.iter().position(|known| known == text);
        let shapes = texts.iter().zip(values);
        Contents {
            known: Map::default(),
            last: 0,
            shapes: shapes
                .map(|(text, value)| (first(text).unwrap_or_default(), value.accs()))
                .collect(),
        }
    }

    /// One that is like no other.
    pub fn fresh(&mut self) -> ContentId {
        self.last += 1;
        ContentId(self.last)
    }

    pub fn id(&mut self, content: Content) -> ContentId {
        if let Some(id) = self.known.get(&content) {
            return *id;
        }
        let id = self.fresh();
        self.known.insert(content, id);
        id
    }

    /// Content of a span whose blocks hold these. Several are like no other.
    pub fn one_of(&mut self, held: &[ContentId]) -> ContentId {
        match held {
            [first, rest @ ..] if rest.iter().all(|next| next == first) => *first,
            _ => self.fresh(),
        }
    }

    /// Content of an expression that is stored as `dtype`.
    pub fn stored(
        &mut self,
        value: ValueId,
        dtype: Dtype,
        acc: impl Fn(AccId) -> ContentId,
    ) -> ContentId {
        let (shape, accs) = &self.shapes[usize::from(value.0)];
        let of = accs.iter().map(|id| acc(*id)).collect();
        self.id(Content::Stored {
            shape: *shape,
            of,
            dtype,
        })
    }
}

/// An expression with its accumulators by number, in the order in which they occur.
fn shape(value: &Value) -> String {
    let accs = value.accs();
    let mut text = String::new();
    value.visit(&mut |part| {
        // Texts tell 0 from -0, and NaN from NaN.
        text += &match part {
            Value::Acc(id) => format!("acc {:?} ", accs.iter().position(|known| known == id)),
            Value::Arg(index) => format!("arg {index} "),
            Value::Const(constant) => format!("{} ", constant.to_bits()),
            Value::Unary(unary, _) => format!("{unary:?} "),
            Value::Binary(binary, ..) => format!("{binary:?} "),
            Value::Select(compare, _) => format!("{compare:?} "),
            Value::Cast(dtype, _) => format!("{dtype:?} "),
            Value::Call(function, values) => format!("{function:?} of {} ", values.len()),
        };
    });
    text
}
